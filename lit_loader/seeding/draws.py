"""`Draws`: tells whether a piece of the user's code has drawn random numbers, and from what.

For what must not depend on random numbers, because it is kept. Setting a generator counts as well:
what comes after would find another state where the code has not run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from lit_loader.seeding.find_generators import find_generators
from lit_loader.seeding.generator_state import numpy_state, state_reader

__all__ = ["Draws"]

_Mark = tuple[str, Callable[[], Any], Any]
_Reader = tuple[str, Callable[[], Any]]

_numpy: Any = np.random

_GLOBAL: Final[tuple[_Reader, ...]] = (
    ("random", random.getstate),
    ("numpy.random", lambda: numpy_state(_numpy.get_bit_generator())),
    ("torch", torch.default_generator.get_state),
)


class Draws:
    """Compares the states of random generators, global or held by ``root``, before and after.

    What other threads of the process draw meanwhile counts as well.
    """

    def __init__(self, root: object) -> None:
        self._root = root
        self._readers: list[_Reader] = []
        self._looks = 0

    def mark(self) -> list[_Mark]:
        """Say where the generators are, for `drawn`."""
        if not self._readers:
            self._readers = self._search()
        return [(name, read, read()) for name, read in self._readers]

    def made_one(self) -> bool:
        """Look for generators that were made since the mark, more and more seldom."""
        self._looks += 1
        if self._looks > 8 and self._looks & (self._looks - 1):
            return False
        known, self._readers = len(self._readers), self._search()
        return len(self._readers) != known

    def _search(self) -> list[_Reader]:
        readers = [*_GLOBAL]
        for path, generator in find_generators(self._root).items():
            for each in (generator, getattr(generator, "seed_seq", None)):
                if (read := state_reader(each)) is not None:
                    readers.append((path, read))
        return readers

    def drawn(self, marks: list[_Mark]) -> str | None:
        """Name the first generator that is not where it was when marked; None: all are."""
        return next((name for name, read, before in marks if not _same(before, read())), None)


def _same(one: Any, other: Any) -> bool:
    """Whether two states of a generator are equal."""
    if one is other:
        return True
    if isinstance(one, torch.Tensor):
        return bool(one.numpy().tobytes() == other.numpy().tobytes())  # quicker than torch.equal
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other)
