"""`Draws`: whether reading a sample has drawn random numbers, which what is kept must not do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lit_loader.core.seeding.find_generators import find_generators, states_of
from lit_loader.core.seeding.generator_state import global_readers, same_state, tape

__all__ = ["Draws"]

_Reader = tuple[str, Callable[[], Any]]


class Draws:
    """Tells whether generators, global or held by ``root``, were drawn from, and which.

    Setting one counts as well: what comes after would find another state where the code has not
    run. So does what other threads of the process draw meanwhile.
    """

    def __init__(self, root: object) -> None:
        self._root = root
        self._readers: list[_Reader] = []
        self._looks = 0

    def mark(self) -> list[tuple[_Reader, Any]]:
        """Say where the generators are, for `drawn`."""
        if not self._readers:
            self._readers = self._search()
        return [(reader, reader[1]()) for reader in self._readers]

    def drawn(self, marks: list[tuple[_Reader, Any]]) -> str | None:
        """Name the first generator that is not where it was when marked; None: all are."""
        return next(
            (name for (name, read), before in marks if not same_state(before, read())), None
        )

    def made_one(self) -> bool:
        """Look for generators that were made since the mark, more and more seldom."""
        self._looks += 1
        if self._looks > 8 and self._looks & (self._looks - 1):
            return False
        known, self._readers = len(self._readers), self._search()
        return len(self._readers) != known

    def _search(self) -> list[_Reader]:
        readers = [*global_readers()]
        for path, generator in find_generators(self._root).pairs:
            tapes = filter(None, map(tape, states_of([generator])))
            readers += [(path, read) for read, _ in tapes]
        return readers
