"""`GeneratorWatch`: the generators of a dataset, found at the start and once more while it is used.

A generator that is made on first use is not there at the start. So it is looked for again after the
first batch (of an epoch, where the dataset has ``set_epoch``), which is then made again with that
generator seeded. What is made still later is noticed after `LATE` batches, and told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from lit_loader.seeding.find_generators import HeldGenerators, find_generators, has_seed

__all__ = ["LATE", "GeneratorWatch"]

LATE: Final = 16
"""Batches of a process after which generators are looked for the last time."""

_log = logging.getLogger("lit_loader.generator_watch")
_ADVICE = "draw from lit_loader.get_rng(), or pass reseed_fn"


class GeneratorWatch:
    """The generators that a dataset and its functions hold now.

    Args:
        *roots: The dataset, the collate_fn, ...
        warn: Whether to note what cannot be seeded.
        beat: Called now and then while it searches.

    Attributes:
        held: The generators.
        notes: Warnings for the user, each once; to be taken out by what gives them.
    """

    def __init__(
        self, *roots: object, warn: bool = True, beat: Callable[[], object] = lambda: None
    ) -> None:
        self.roots = roots
        self._beat = beat
        self._warn = warn
        self.notes: list[str] = []
        self._noted: set[str] = set()
        self._copied = self._iterated = False
        self.held = HeldGenerators()
        self.search()

    def search(self) -> list[str]:
        """Search; returns the paths of the generators that are new."""
        if self._copied:
            return []
        known = {id(each) for each in self.held.generators}
        held = self.held = find_generators(*self.roots, beat=self._beat)
        if held.paths:
            _log.debug("generators seeded with the global ones: %s", ", ".join(held.paths))
        for where in held.cuts[:1]:
            self._note(
                f"the search for random generators has not looked into {where}: generators there "
                f"are not seeded, and batches may depend on the number of workers; {_ADVICE}"
            )
        for path in held.unseedable:
            self._note(
                f"{path} is a random.SystemRandom, which no seed determines: batches differ from "
                "run to run; use random.Random, which is seeded for each batch"
            )
        pairs = zip(held.paths, held.generators, strict=True)
        return [path for path, generator in pairs if id(generator) not in known]

    def search_late(self) -> None:
        """Search for the last time, and note what came too late for some batches."""
        known = set(self.held.paths)
        for path in [path for path in self.search() if path not in known][:1]:
            self._note(
                f"{path} is a random generator that was made after the first batch: batches that "
                "came before it was found may depend on the number of workers; make it in "
                f"__init__, {_ADVICE}"
            )

    def _note(self, text: str) -> None:
        if self._warn and text not in self._noted:
            self._noted.add(text)
            self.notes.append(text)

    def in_a_copy(self, roots: tuple[object, ...], generators: Sequence[Any]) -> GeneratorWatch:
        """The same for a copy of the roots that is known to hold what they do.

        Args:
            roots: The copy, and what is not copied.
            generators: Those of ``held``, as the copy has them.
        """
        watch: GeneratorWatch = object.__new__(GeneratorWatch)
        watch.__dict__.update(self.__dict__, roots=roots, notes=[], _noted=set(), _copied=True)
        watch.held = self.held.in_a_copy(generators)
        return watch

    def holds(self, generators: Sequence[Any]) -> bool:
        """Whether these are the generators that are held, in this order."""
        return [*map(id, self.held.generators)] == [*map(id, generators)]

    def follow(self) -> None:
        """Take those that a dataset has put in the places of the known ones, from its state."""
        held = self.held
        if held.generators:
            self.held = find_generators(*self.roots, beat=self._beat)
            self.held.keep(held.paths)

    def begun_to_iterate(self) -> None:
        """Note generators that an iterable dataset has made since it was begun; once.

        They are left alone until the next epoch: a state leads to this place by reading again.
        """
        if self._iterated or self._copied or not self._warn:
            return
        self._iterated = True
        now = find_generators(*self.roots, beat=self._beat)
        for path, generator in zip(now.paths, now.generators, strict=True):
            if path not in self.held.paths and not has_seed(generator):
                self._note(
                    f"{path} is a random generator that was made while the dataset was iterated, "
                    "so it is not seeded in this epoch: unless it was given the same seed in all "
                    "workers, shares taken after a shuffle by it overlap and leave samples out; "
                    f"make it in __init__, {_ADVICE}"
                )
                break
