"""`GeneratorWatch`: the generators of a dataset, found at the start and once more while it is used.

A generator that is made on first use is not there at the start. So it is looked for again after the
first batch (of each epoch, where the dataset has ``set_epoch``), which is then made again with that
generator seeded. What is made still later is noticed after `LATE` batches, and told.
"""

from __future__ import annotations

import logging
import random
from typing import Final

from lit_loader.seeding.find_generators import HeldGenerators, find_generators, has_seed

__all__ = ["LATE", "GeneratorWatch"]

LATE: Final = 16
"""Batches of a process after which generators are looked for the last time."""

_log = logging.getLogger("lit_loader.generator_watch")
_ADVICE: Final = "draw from lit_loader.get_rng(), or pass reseed_fn"


class GeneratorWatch:
    """The generators that a dataset and its functions hold now.

    Where it is to ``warn``, ``notes`` are warnings for the user about what cannot be seeded, to be
    taken out by what gives them.
    """

    def __init__(self, *roots: object, warn: bool = True) -> None:
        self.roots = roots
        self._warn = warn
        self.notes: list[str] = []
        self._iterated = False
        self.held = HeldGenerators([])
        self.search()

    def search(self, late: bool = False) -> bool:
        """Search; returns whether there are generators that were not known.

        Those of a ``late`` search were not seeded for some batches, which is noted.
        """
        known, paths = set(map(id, self.held.generators)), self.held.paths
        held = self.held = find_generators(*self.roots)
        if held.paths:
            _log.debug("generators seeded with the global ones: %s", ", ".join(held.paths))
        for where in held.cuts[:1]:
            self._note(
                f"the search for random generators has not looked into {where}: generators there "
                f"are not seeded, and batches may depend on the number of workers; {_ADVICE}"
            )
        for path, generator in held.items():
            if isinstance(generator, random.SystemRandom):
                self._note(
                    f"{path} is a random.SystemRandom, which no seed determines: batches differ "
                    "from run to run; use random.Random, which is seeded for each batch"
                )
            elif late and path not in paths:
                self._note(
                    f"{path} is a random generator that was made after the first batch: some "
                    "batches before it was found may depend on the number of workers; make it in "
                    f"__init__, {_ADVICE}"
                )
        return not known.issuperset(map(id, held.generators))

    def _note(self, text: str) -> None:
        if self._warn and text not in self.notes:
            self.notes.append(text)

    def follow(self) -> None:
        """Take those that a dataset has put in the places of the known ones, from its state."""
        if known := self.held.paths:
            pairs = find_generators(*self.roots).items()
            self.held = HeldGenerators(pair for pair in pairs if pair[0] in known)

    def begun_to_iterate(self) -> None:
        """Note generators that an iterable dataset has made since it was begun; once.

        They are left alone until the next epoch: a state leads to this place by reading again.
        """
        if self._iterated or not self._warn:
            return
        self._iterated = True
        for path, generator in find_generators(*self.roots).items():
            if path not in self.held.paths and not has_seed(generator):
                self._note(
                    f"{path} is a random generator that was made while the dataset was iterated, "
                    "so it is not seeded in this epoch: unless it was given the same seed in all "
                    "workers, shares taken after a shuffle by it overlap and leave samples out; "
                    f"make it in __init__, {_ADVICE}"
                )
                break
