"""`Draws`: whether making a sample has drawn random numbers, which what is kept must not do."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from lit_loader.core.seeding.held_generators import find_generators

__all__ = ["Draws"]


Mark = list[tuple[str, Callable[[], object], object]]


class Draws:
    """Tells whether generators, global or held by ``root``, were drawn from, and which.

    Seeding one counts as well: what comes after would find another state where the code has not
    run. So does what other threads of the process draw meanwhile.
    """

    def __init__(self, root: object) -> None:
        self._root = root
        self._held: list[tuple[str, Any]] = []
        self._marks = 0

    def mark(self) -> Mark:
        """Say where the generators are, for `drawn`."""
        # The dataset may make one while samples are made: looked for more and more seldom.
        self._marks += 1
        if self._marks <= 8 or not self._marks & (self._marks - 1):
            self._held = [*find_generators(self._root).generators]
        readers = list(_GLOBAL)
        readers += [(name, partial(_state, generator)) for name, generator in self._held]
        return [(name, read, read()) for name, read in readers]

    def drawn(self, marks: Mark) -> str | None:
        """Name the first generator that is not where it was when marked; None: all are."""
        return next((name for name, read, before in marks if read() != before), None)


def _of_numpy() -> object:
    state: Any = np.random.get_state(legacy=False)
    parts = {**state.pop("state"), **state}
    return [part.tobytes() if isinstance(part, np.ndarray) else part for part in parts.values()]


def _of_torch(generator: torch.Generator | None = None) -> bytes:
    state = torch.get_rng_state() if generator is None else generator.get_state()
    return bytes(state.numpy().tobytes())


_GLOBAL: Final[list[tuple[str, Callable[[], object]]]] = [
    *(("random", random.getstate), ("numpy.random", _of_numpy), ("torch", _of_torch)),
]


def _state(generator: Any) -> object:
    """Return where a generator is; of one that has no state it is always the same."""
    if isinstance(generator, torch.Generator):
        return _of_torch(generator)
    try:
        return pickle.dumps(generator)
    except (NotImplementedError, TypeError):  # a SystemRandom
        return b""
