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

from lit_loader.seeding.find_generators import HeldGenerators, find_generators
from lit_loader.seeding.generator_state import numpy_state, state_reader

__all__ = ["Draws"]

_EARLY: Final = 8
"""Pieces of code after each of which generators are looked for at first; then more seldom."""

_Mark = tuple[str, Callable[[], Any], Any]

_numpy: Any = np.random


def _numpy_global() -> Any:
    return numpy_state(_numpy.get_bit_generator())


_GLOBAL: Final[tuple[tuple[str, Callable[[], Any]], ...]] = (
    ("random", random.getstate),
    ("numpy.random", _numpy_global),
    ("torch", torch.default_generator.get_state),
)


class Draws:
    """Compares the states of random generators before and after.

    The global ones, and those that an object holds. What other threads of the process draw
    meanwhile counts as well.

    Args:
        root: The object.
    """

    def __init__(self, root: object) -> None:
        self._root = root
        self._held: HeldGenerators | None = None
        self._readers: list[tuple[str, Callable[[], Any]]] = []
        self._looks = 0
        self._due = 1

    def mark(self) -> list[_Mark]:
        """Say where the generators are, for `drawn`."""
        if self._held is None:
            self._search()
        return [(name, read, read()) for name, read in self._readers]

    def made_one(self) -> bool:
        """Look, now and then, for generators that were made since the mark, and watch them too."""
        assert self._held is not None
        self._looks += 1
        if not self._held.moved():
            if self._looks < self._due:
                return False
            self._due = self._looks + 1 if self._looks < _EARLY else 2 * self._looks
            if not self._held.outdated():
                return False
        known = set(map(id, self._held.generators))
        self._search()
        return any(id(generator) not in known for generator in self._held.generators)

    def _search(self) -> None:
        held = find_generators(self._root)
        readers = list(_GLOBAL)
        for path, generator in zip(held.paths, held.generators, strict=True):
            if (read := state_reader(generator)) is not None:
                readers.append((path, read))
            sequence = getattr(generator, "seed_seq", None)
            if sequence is not None and (read := state_reader(sequence)) is not None:
                readers.append((path, read))

        self._held, self._readers = held, readers

    def drawn(self, marks: list[_Mark]) -> str | None:
        """Name the first generator that is not where it was when marked; None: all are."""
        for name, read, before in marks:
            if not _same(before, read()):
                return name
        return None


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
