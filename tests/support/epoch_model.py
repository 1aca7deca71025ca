"""What a loader gives, said without one: its passes, their places, which iterator is current.

A `Place` is a value: what the batches of a pass follow from, and how many were given. A state holds
one. `Model` says which place each iterator begins at, and which one a state has. The numbers
themselves are the oracle's (`support/epoch_oracle.py`): a root names a seed, and what a fresh
loader with that seed gives, read from the beginning, is what is expected.

The current iterator is one that begins while no other is in mid-epoch, from its first batch on; or
one that begins beside another, from its second. An epoch that was asked for stays so until a pass
of it has come to its second batch, or to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from lit_loader.core.seeding.seeds import derive

GENERATORS = ("torch", "numpy", "python")

Root = tuple[Any, ...]
"""What numbers follow from: ("seed", number); ("places", generator, its place, ...), from where it
was drawn; ("anew", generators, a root) and ("beside", a look, a root), of which is known only that
nothing else has it."""


def source(root: Root) -> Root:
    """Give the root whose own these numbers are: others that follow from it may have the same."""
    return ("anew", source(root[-1])) if root[0] == "anew" else root[:3]


class Place(NamedTuple):
    """A moment in a pass, as a state has it."""

    order: Root  # what the order follows from, with the epoch
    drawn: tuple[Root, ...]  # what is drawn from each generator, with the epoch and `repeats`
    first: int  # the epoch that draws are counted from
    epoch: int
    repeats: int = 0  # passes so far that began at no later epoch than the one before
    passed: int = -1  # the epoch of the last pass that was more than a look
    given: int = 0
    ended: bool = False
    asked: int | None = None  # the epoch that was set last
    sampler: Any = None  # where the generator of the program's sampler was at the pass's start
    looked: bool = False  # whether a pass has begun beside it
    look: int = 0  # names a pass that began beside another one, by where that one was
    later: tuple[int, int] | None = None  # `repeats`, `passed` of what began beside it, no look

    @property
    def anchor(self) -> int:
        """The epoch by which it is kept."""
        return self.epoch if self.asked is None or not self.given else self.asked

    def next_at(self, epoch: int) -> Place:
        """Give the start of a pass that follows."""
        repeats, passed = self.later or (self.repeats, self.epoch)
        if self.later is None and not (self.ended or self.given > 1):  # a look, which is no pass
            repeats, passed = repeats - (self.epoch <= self.passed), self.passed
        repeats += epoch <= passed
        return self._replace(
            epoch=epoch,
            repeats=repeats,
            passed=passed,
            given=0,
            ended=False,
            looked=False,
            look=0,
            later=None,
        )


@dataclass(eq=False)
class Pass:
    """An iterator that has begun."""

    place: Place
    request: object  # of the epoch, which it follows; None: it was counted to
    number: int  # in the order in which passes have begun
    looked: int = 0
    alive: bool = True

    @property
    def is_midway(self) -> bool:
        """Whether it lives, and has not come to its end."""
        return self.alive and not self.place.ended

    @property
    def counts(self) -> bool:
        """Whether it is more than a first batch."""
        return self.place.ended or self.looked > 1


@dataclass
class Model:
    """One loader.

    ``run`` gives, for a place of the program's own sampler's generator, where it is behind each
    batch of the epoch that begins there; the last is behind the whole epoch.
    """

    seed: int | None = None
    sampler: Any = None
    run: Callable[[Any], Sequence[Any]] | None = None
    bases: tuple[Root, tuple[Root, ...], int] | None = None
    next_epoch: int = 0
    request: list[int] | None = None  # an epoch; an object, by which its passes know it
    loaded: Place | None = None
    current: Pass | None = None
    beside: list[Pass] = field(default_factory=list)  # others in mid-epoch
    passes: int = 0  # that have begun
    newest: tuple[int, int, int] = (-1, 0, -1)  # that was no look: number, `repeats`, epoch
    looks: tuple[Any, int] = (), 0  # where the current one was at the last look, and which it was
    looked: Mapping[str, Any] = field(default_factory=dict)  # the generators, when last looked at
    origin: Any = None  # where torch's was when the bases were drawn from it

    # --- seeds ---

    def draw(self, now: Mapping[str, Any], fresh: set[str], first: int = 0) -> set[str]:
        """Draw the bases; returns the generators that are drawn from."""
        if self.seed is not None:
            root: Root = ("seed", self.seed)
            self.bases = root, (root,) * 3, first
            return set()
        root, self.origin = ("places", "torch", now["torch"]), now["torch"]
        drew = [name for name in GENERATORS if name == "torch" or name in fresh]
        follow = ("places", *(part for name in drew for part in (name, now[name])))
        own = (("places", name, now[name]) if name in drew else follow for name in GENERATORS)
        self.bases = root, tuple(own), first
        return set(drew)

    def renew(self, now: Mapping[str, Any], fresh: set[str]) -> tuple[bool, bool, set[str]]:
        """As a pass begins: what the program has seeded for it counts from now on.

        Returns whether the order is new, whether what is drawn is, and what is drawn from.
        """
        if self.bases is None:
            return False, False, self.draw(now, fresh)
        if self.seed is not None:
            return False, False, set()
        new = {name for name in fresh if now[name] != self.looked[name]}
        if "torch" in new or now["torch"] == self.origin:
            return True, True, self.draw(now, fresh)
        if new:
            order, drawn, first = self.bases
            own = (
                ("places", name, now[name]) if name in new else ("anew", *sorted(new), root)
                for name, root in zip(GENERATORS, drawn, strict=True)
            )
            self.bases = order, tuple(own), first
        return False, bool(new), new

    # --- passes ---

    def start(self, epoch: int) -> Place:
        """Give the start of the pass that is next, at an epoch."""
        assert self.bases is not None
        order, drawn, first = self.bases
        fresh = Place(order, drawn, first, epoch, sampler=self.sampler)
        if self.current is None:
            return fresh
        before = self.current.place.next_at(epoch)
        return fresh._replace(repeats=before.repeats, passed=before.passed, asked=before.asked)

    def count(self) -> None:
        """Take a request as fulfilled."""
        one = self.current
        if one is not None and one.counts and one.request and one.request is self.request:
            self.request, self.next_epoch = None, one.place.epoch + 1

    def become(self, one: Pass) -> None:
        """Let this be the current one."""
        self.current = one
        if one.request is None:
            self.next_epoch = max(one.place.epoch, *(one.place.later or ())[1:], -1) + 1

    def begin(self, now: Mapping[str, Any], fresh: set[str]) -> tuple[Pass, set[str]]:
        """Begin at an iterator's first ``next()``; also say which generators are drawn from."""
        self.count()
        requested = None if self.request is None else self.request[0]
        beside = self.loaded is None and self.current is not None and self.current.is_midway
        drew = set[str]()
        if self.loaded is not None:
            place = self.loaded
            if requested not in (None, place.anchor, place.epoch):
                assert requested is not None
                place = place.next_at(requested)._replace(sampler=self.sampler)
        else:
            is_all, is_drawn, drew = self.renew(now, fresh)
            if is_all:
                self.next_epoch = 0
            epoch = self.next_epoch if requested is None else requested
            if is_drawn:
                assert self.bases is not None
                self.bases = (*self.bases[:2], epoch)
            place = self.start(epoch)
            if beside and requested is None and not is_all:
                assert self.current is not None
                if self.current.place.looked:
                    place = place._replace(look=self.look())
                self.current.place = self.current.place._replace(looked=True)
            if is_drawn:
                place = place._replace(repeats=0, passed=-1)
        if requested is not None:
            place = place._replace(asked=requested)
        begun = Pass(place, self.request, self.passes)
        self.passes += 1
        if beside:
            self.beside.append(begun)
        else:
            self.beside = [] if self.loaded else [each for each in self.beside if each.is_midway]
            self.become(begun)
        self.loaded = None
        return begun, drew

    def look(self) -> int:
        """Name a pass that begins beside the current one."""
        assert self.current is not None
        at = self.current.place
        where = at.look, at.epoch, at.given
        self.looks = where, self.looks[1] + 1 if self.looks[0] == where else 0
        return derive(*where, self.looks[1])

    def ask(self, one: Pass) -> None:
        """Let an iterator that has begun be asked for a batch."""
        if one in self.beside and one.looked:
            self.beside.remove(one)
            for each in filter(None, (self.current, one)):
                if each.counts or each.is_midway or not each.place.look:
                    self.newest = max(
                        self.newest, (each.number, each.place.repeats, each.place.epoch)
                    )
            if self.newest[0] > one.number:
                one.place = one.place._replace(later=self.newest[1:])
            if self.current is not None and self.current.is_midway:
                self.beside.append(self.current)
            self.become(one)

    def give(self, one: Pass) -> None:
        """Let an iterator give a batch."""
        one.place = one.place._replace(given=one.place.given + 1)
        one.looked += 1
        if self.run is not None:
            self.sampler = self.run(one.place.sampler)[one.place.given]

    def end(self, one: Pass) -> None:
        """Let an iterator come to its end."""
        one.place = one.place._replace(ended=True)

    def drop(self, one: Pass) -> None:
        """Let go of an iterator."""
        one.alive = False

    # --- states ---

    def state(self, now: Mapping[str, Any], fresh: set[str]) -> tuple[Place, set[str]]:
        """Give what a state has; also, before the first pass, which generators are drawn from."""
        drew = self.draw(now, fresh) if self.bases is None else set[str]()
        self.count()
        requested = None if self.request is None else self.request[0]
        if self.loaded is not None:
            if requested in (None, self.loaded.anchor, self.loaded.epoch):
                return self.loaded, drew
            assert requested is not None
            place = self.loaded.next_at(requested)
            return place._replace(asked=requested, sampler=self.sampler), drew
        if self.current is not None and not self.current.place.ended:
            return self.current.place, drew
        place = self.start(self.next_epoch if requested is None else requested)
        return (place if requested is None else place._replace(asked=requested)), drew

    def load(self, place: Place) -> None:
        """Go on at a state's place."""
        self.bases = place.order, place.drawn, place.first
        self.loaded, self.next_epoch = place, place.epoch
        self.request = None
        self.origin = None
        if self.run is not None:
            self.sampler = self.run(place.sampler)[place.given]

    def columns(self, place: Place) -> list[tuple[str, Root, int, int]]:
        """Give what the columns of a pass's batches follow from: order, then each generator."""
        order, roots = place.order, place.drawn
        if place.look:  # what the program has seeded for this pass alone is not changed by it
            order = ("beside", place.look, order)
            if place.first != place.epoch:
                roots = tuple(("beside", place.look, root) for root in roots)
        drawn = zip(GENERATORS, roots, strict=True)
        return [
            ("order", order, place.epoch, 0),
            *((name, root, place.epoch - place.first, place.repeats) for name, root in drawn),
        ]


__all__ = ["GENERATORS", "Model", "Pass", "Place", "Root", "replace"]
