"""`Draws`: whether making a sample has drawn random numbers, which what is kept must not do."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from lit_loader.core.seeding.held_generators import find_generators

__all__ = ["Draws"]


class Draws:
    """Tells whether generators, global or held by ``root``, were drawn from, and which.

    Seeding one counts as well: what comes after would find another state where the code has not
    run. So does what other threads of the process draw meanwhile.
    """

    def __init__(self, root: object) -> None:
        self._root = root
        self._held: list[tuple[str, Any]] = []
        self._marks = 0

    def mark(self) -> list[tuple[str, Callable[[], bytes], bytes]]:
        """Say where the generators are, for `drawn`."""
        # The dataset may make one while samples are made: looked for more and more seldom.
        self._marks += 1
        if self._marks <= 8 or not self._marks & (self._marks - 1):
            self._held = [*find_generators(self._root).generators]
        readers = [*_GLOBAL, *((name, _reader(each)) for name, each in self._held)]
        return [(name, read, read()) for name, read in readers]

    def drawn(self, marks: list[tuple[str, Callable[[], bytes], bytes]]) -> str | None:
        """Name the first generator that is not where it was when marked; None: all are."""
        return next((name for name, read, before in marks if read() != before), None)


_GLOBAL: list[tuple[str, Callable[[], bytes]]] = [
    ("random", lambda: pickle.dumps(random.getstate())),
    ("numpy.random", lambda: pickle.dumps(np.random.get_state())),
    ("torch", lambda: torch.get_rng_state().numpy().tobytes()),
]


def _reader(generator: Any) -> Callable[[], bytes]:
    """Return what reads where a generator is; of one that has no state it is always the same."""

    def read() -> bytes:
        if isinstance(generator, torch.Generator):
            return bytes(generator.get_state().numpy().tobytes())
        try:
            return pickle.dumps(generator)
        except (NotImplementedError, TypeError):  # a SystemRandom
            return b""

    return read
