"""`GeneratorWatch`: a dataset's random generators, looked for again while it is used.

A generator that is made on first use, or put in another's place (by ``set_epoch``, say), is not
there when the dataset is searched at first. So the search is repeated: after each of the first
`EARLY` batches and then after the 16th, 32nd, 64th, ... The attributes in which generators were
found are compared at every batch. Most often nothing has changed, which costs 50 ns for each place.
An iterable dataset is searched before each epoch: what it makes on the way is not set in its midst.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from lit_loader.seeding.find_generators import HeldGenerators, find_generators, has_seed

__all__ = ["EARLY", "GeneratorWatch"]

EARLY = 8
"""First batches after each of which generators are looked for."""

_ALERT = 32  # and so many after one that has made a generator: there may be more of the kind

_log = logging.getLogger("lit_loader.generator_watch")
_ADVICE = "pass reseed_fn, which is called wherever generators are seeded"


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
        self.notes: list[str] = []
        self._warn = warn
        self._noted: set[str] = set()
        self._batches = 0
        self._paused = 0
        self._due = 1
        self._looked = 0
        self._alert = EARLY
        self._fleeting: set[str] = set()
        self._iterated = False
        self.held: HeldGenerators
        self._search()

    def _search(self) -> None:
        self.held = find_generators(*self.roots, beat=self._beat)
        self.held.without_places(self._fleeting)
        if self.held.paths:
            _log.debug("generators reseeded with the global ones: %s", ", ".join(self.held.paths))
        for where in self.held.cuts[:1]:
            self._note(
                f"the search for random generators has not looked into {where}: generators there "
                f"are not seeded, and batches may depend on the number of workers; {_ADVICE}"
            )
        for path in self.held.unseedable:
            self._note(
                f"{path} is a random.SystemRandom, which no seed determines: batches differ from "
                "run to run; use random.Random, which is seeded for each batch"
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
        watch.__dict__.update(self.__dict__, roots=roots, notes=[], _noted=set())
        watch.held = self.held.in_a_copy(generators)
        return watch

    def holds(self, generators: Sequence[Any]) -> bool:
        """Whether these are the generators that are held, in this order."""
        held = self.held.generators
        return len(held) == len(generators) and all(
            one is other for one, other in zip(held, generators, strict=True)
        )

    def refresh(self) -> set[str]:
        """Search again, if that may find others.

        Returns:
            The paths of the generators that are new.
        """
        before = self.held
        if not (before.moved() or before.outdated()):
            return set()
        known = set(map(id, before.generators))
        self._search()
        return {
            path
            for path, generator in zip(self.held.paths, self.held.generators, strict=True)
            if id(generator) not in known
        } - self._fleeting

    def follow(self) -> None:
        """Take those that a dataset has put in the places of the known ones, from its state."""
        held = self.held
        if held.moved() if held.has_places else held.generators:
            self.held = find_generators(*self.roots, beat=self._beat)
            self.held.keep(held.paths)

    def begin_batch(self) -> None:
        """Take notice of generators that were put in others' places since the last batch."""
        if self.held.moved():
            self.refresh()

    def end_batch(self) -> bool:
        """Look for generators that the batch has made.

        Returns:
            Whether there are any: it must be made again, now that they can be seeded.
        """
        self._batches += 1 + self._paused
        self._paused = 0
        due = self._batches >= self._due
        if due:
            self._due = self._batches + 1 if self._batches < self._alert else 2 * self._batches
        elif not self.held.moved():
            return False
        return self._look(missed=self._batches - self._looked - 1 if due else 0)

    def begun_to_iterate(self) -> None:
        """Note generators that an iterable dataset has made since it was begun; once, at first.

        They are left alone until the next epoch: a state leads to this place by reading again.
        """
        if self._iterated or not self._warn or not (self.held.moved() or self.held.outdated()):
            self._iterated = True
            return
        self._iterated = True
        now = find_generators(*self.roots, beat=self._beat)
        for path, generator in zip(now.paths, now.generators, strict=True):
            if path not in self.held.paths and not has_seed(generator):
                self._note(
                    f"{path} is a random generator that was made while the dataset was iterated, "
                    "so it is not seeded in this epoch: unless it was given the same seed in all "
                    "workers, shares taken after a shuffle by it overlap and leave samples out; "
                    f"make it in __init__, or {_ADVICE}"
                )
                break

    def end_epoch(self) -> None:
        """Look for generators, for what comes next may be made by other means."""
        if self._paused:
            self._look(missed=self._paused)

    def _look(self, missed: int) -> bool:
        known = set(self.held.paths)
        new = self.refresh()
        self._looked = self._batches
        if new:
            self._alert = self._batches + _ALERT
            self._due = self._batches + 1
            if missed > 0 and (late := sorted(new - known)):
                self._note(
                    f"{late[0]} is a random generator that was made after the first batches: some "
                    "that came before it was found may depend on the number of workers; make it "
                    f"in __init__, or {_ADVICE}"
                )
        return bool(new)

    @property
    def pause(self) -> int:
        """Batches that need not begin and end here: there is nothing to compare in them."""
        self._paused = 0 if self.held.has_places else max(0, self._due - self._batches - 1)
        return self._paused

    def end_again(self) -> None:
        """Take notice of generators that are made anew in each batch: they need no seed of ours."""
        if self.held.moved():
            self._fleeting |= self.refresh()
            self.held.without_places(self._fleeting)
