"""`Draws`: whether making a sample has drawn random numbers, which what is kept must not do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lit_loader.core.seeding.held_generators import GLOBAL_GENERATORS, find_generators, tape
from lit_loader.core.seeding.seeds import canonical_pickle

__all__ = ["Draws"]

_NAMES: Final = ("random", "numpy.random", "torch")


class Draws:
    """Tells whether generators, global or held by ``root``, were drawn from, and which.

    Seeding one counts as well: what comes after would find another state where the code has not
    run. So does what other threads of the process draw meanwhile.
    """

    def __init__(self, root: object) -> None:
        self._root, self._looks = root, 0
        self._read: dict[str, Callable[[], object]] = {}

    def look(self) -> dict[str, bytes]:
        """Return where the generators are, for `drawn`."""
        # The dataset may make one while samples are made: looked for more and more seldom.
        self._looks += 1
        if self._looks <= 8 or not self._looks & (self._looks - 1):
            found = find_generators(self._root).generators
            pairs = [*zip(_NAMES, GLOBAL_GENERATORS, strict=True), *found]
            # Not a SystemRandom, which has no state: it repeats nowhere.
            tapes = {name: tape(generator) for name, generator in pairs}
            self._read = {name: made.read for name, made in tapes.items() if made is not None}
        return self._states()

    def drawn(self, before: dict[str, bytes]) -> str | None:
        """Name the first generator that has moved since it was looked at. None: none has."""
        after = self._states()
        return next((name for name, state in before.items() if after[name] != state), None)

    def _states(self) -> dict[str, bytes]:
        return {name: canonical_pickle(read()) for name, read in self._read.items()}
