"""How far an epoch has been delivered: what a checkpoint has to remember of a running epoch.

What is given out is noted by storing one attribute, and counted when the consumer asks for more. So
it can be taken back as a whole, when a signal handler raises before the consumer has got it. How
the readers of a stream get on: `streams/stream_position.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, NamedTuple

from lit_loader.core.seeding.bases import UNTOLD, Bases, PassSeeds

COUNT: Final = "num_shards"
"""The number of readers among what a fingerprint has, where it is given."""


class Mark(NamedTuple):
    """What batches of a reader, one after the other, are known by (`streams/marks.py`)."""

    first: int  # number of the first of them
    last: int
    digest: str  # empty: of a release before 0.4, whose marks are not compared


@dataclass(frozen=True)
class ReadPoint:
    """How far one reader (a worker, or the parent without workers) is in an iterable dataset."""

    batches: int = 0  # of it that have been delivered
    # What the ``state_dict`` of dataset and iterator gave, by part, pickled where it was taken;
    # empty: it is the epoch's start; None: they have none.
    state: Any = None
    ended: bool = False  # whether its share has been delivered to the end
    # How many of the batches came after ``state``: two at least, or all. They are read again, and
    # compared.
    behind: int = 0
    # Batches that it had given before it began again, for the sake of other ranks
    # (``uneven_ranks="pad"``); all above counts from there. Else 0.
    before: int = 0
    # What the batches behind ``state`` are known by, or the last one if there is none: one mark,
    # and up to three in states of older versions. Behind an exception it does not grow.
    marks: tuple[Mark, ...] = ()
    # The same by a newer state, until its mark is of two batches; not saved.
    newer: ReadPoint | None = field(default=None, compare=False)

    def __reduce__(self) -> Any:
        """Leave out what is kept for the next batch: a worker needs the rest."""
        return type(self), tuple(getattr(self, each.name) for each in fields(self)[:-1])

    @property
    def skipped(self) -> int:
        """Batches before ``state``, which are not read again."""
        return 0 if self.state is None else self.batches - self.behind

    @property
    def delivered(self) -> int:
        """Batches that have been delivered, before it began again too."""
        return self.batches + self.before


@dataclass(frozen=True)
class Shards:
    """The readers that a rank serves, of ``count`` that all ranks have (``num_shards``)."""

    rank: int
    replicas: int
    count: int

    @property
    def mine(self) -> range:
        """The numbers of this rank's readers, in the order in which they take turns."""
        return range(self.rank, self.count, self.replicas)


@dataclass(frozen=True)
class Position:
    """A moment in an epoch; never changes."""

    epoch: int
    bases: Bases  # what its order and its random numbers follow from
    batches: int = 0  # the first batches, so many of them, have all been delivered
    ahead: tuple[int, ...] = ()  # batches after those, delivered too (``in_order=False``)
    sampler: Any = None  # what a stateful sampler has to remember at ``batches``
    readers: tuple[ReadPoint, ...] = ()  # of an iterable dataset; empty for a map-style one
    ended: bool = False  # whether the consumer has asked for more than there was
    # The epoch that was asked for by ``set_epoch`` last, if any. A training loop that goes through
    # a short loader several times an epoch asks once: then it is not ``epoch``.
    requested: int | None = None
    since: int = 0  # batches delivered since the epoch was begun, or resumed last
    # Passes before this one that began at no later epoch than the one before them; and the epoch of
    # the last pass, which was no look.
    repeats: int = 0
    passed: int = -1
    told: int | None = None  # the epoch that the dataset is told; None: it is told none
    unreadable: int = 0  # samples of the epoch so far that were skipped or replaced
    looked: bool = False  # whether another one has begun beside it, while it was in mid-epoch
    # Names a pass that has begun beside another one, but for the first such, by where that one was.
    look: int = 0
    # ``repeats`` and ``passed`` of what has begun beside it, and was more than a look, for passes
    # that follow; None: nothing was.
    later: tuple[int, int] | None = None

    @property
    def anchor(self) -> int:
        """The epoch by which ``set_epoch`` means this position."""
        return self.epoch if self.requested is None else self.requested

    @property
    def delivered(self) -> int:
        """Batches that have been delivered."""
        return self.batches + len(self.ahead)

    @property
    def own_bases(self) -> Bases:
        """What its pass follows from, other than those that follow."""
        if not self.look:
            return self.bases
        own = self.bases.beside(self.look)
        # What the program has seeded for this pass alone decides what is drawn.
        return replace(self.bases, order=own.order) if self.bases.first == self.epoch else own

    @property
    def seeds(self) -> PassSeeds:
        """What is drawn in its pass follows from these."""
        bases, told = self.own_bases, UNTOLD if self.told is None else self.told
        return PassSeeds(*bases.drawn, bases.first, self.repeats, told, bases.older)

    def passes(self, epoch: int, used: bool = False) -> dict[str, Any]:
        """Give ``repeats`` and ``passed`` of a pass that begins after this position, by its epoch.

        One that has given a single batch was a look, and is no pass, unless that was ``used``.
        """
        repeats, passed = self.later or (self.repeats, self.epoch)
        if self.later is None and not (self.ended or self.delivered > (not used)):
            repeats, passed = repeats - (self.epoch <= self.passed), self.passed
        return {"repeats": repeats + (epoch <= passed), "passed": passed}


class EpochPosition:
    """The position of an iterator, kept up to date by it. For a stream see `StreamPosition`."""

    def __init__(self, start: Position) -> None:
        self.begin_at(start)

    def begin_at(self, start: Position) -> None:
        """Begin here, with nothing yielded yet."""
        self.start = start
        self._batches, self._ahead = start.batches, set(start.ahead)
        self._samplers: dict[int, tuple[Any, Any]] = {start.batches: (start.sampler, None)}
        self.ended = False
        self.latest: Any = None  # the number of the batch given out last, if it is not counted yet
        self._last: int | None = None  # of that counted last
        self.unreadable = start.unreadable
        self._spoiled: Any = None, 0  # batch with such samples that was last; how many before it

    def drawn(self, number: int, sampler: Any, marks: Any = None) -> None:
        """Note the sampler's state after it has given batch ``number``, and its generators'."""
        if sampler is not None:
            self._samplers[number + 1] = sampler, marks

    def sampler_at(self, number: int) -> Any:
        """The sampler's state before it gives batch ``number``, which is not delivered yet."""
        return self._samplers.get(number, (None,))[0]

    def marks_at(self, number: int) -> Any:
        """Where the sampler's generators were before it gave batch ``number``, if that is known."""
        return self._samplers.get(number, (None, None))[1]

    def skipped(self, samples: int) -> None:
        """Note that so many samples of the batch given out last could not be read."""
        self._spoiled = self.latest, self.unreadable
        self.unreadable += samples

    def settle(self) -> None:
        """Count what was given out last: the consumer has got it.

        May be interrupted anywhere, and done again.
        """
        latest = self.latest
        if latest is None:
            return
        self._last = latest
        if latest == self._batches and not self._ahead:  # as nearly always: the shortest way
            if self._samplers:
                self._samplers.pop(latest - 1, None)  # not its own: `before_last` may ask for it
            self._batches += 1  # at once with what follows: nothing is called in between
        else:
            if latest >= self._batches:
                self._ahead.add(latest)
            while (done := self._batches) in self._ahead:
                self._batches = done + 1
                self._ahead.discard(done)
            for number in [n for n in self._samplers if n < min(latest, self._batches)]:
                del self._samplers[number]
        self.latest = None

    def take_back(self) -> None:
        """Forget what was given out last: it has not come to the consumer."""
        self.latest = None

    @property
    def since(self) -> int:
        """Batches that have been given out since the epoch was begun, or resumed."""
        self.settle()
        return self._batches - self.start.batches

    def end(self) -> None:
        """Note that the consumer has come to the epoch's end."""
        self.ended = True

    def before_last(self) -> Position:
        """Give the position before the batch given out last; at the end, that of this moment."""
        now, last = self.now(), self._last
        if self.ended or last is None:  # at the end the consumer has asked, and was given nothing
            return now
        rest = {*now.ahead, *range(last, now.batches)} - {last}
        batches = min(last, now.batches)
        return replace(
            now,
            batches=batches,
            ahead=tuple(sorted(rest)),
            sampler=self.sampler_at(batches),
            since=batches - self.start.batches,
            unreadable=self._spoiled[1] if self._spoiled[0] == last else now.unreadable,
        )

    def now(self) -> Position:
        """Give the position of this moment."""
        self.settle()
        return replace(
            self.start,
            batches=self._batches,
            ahead=tuple(sorted(self._ahead)),
            sampler=self.sampler_at(self._batches),
            ended=self.ended,
            since=self._batches - self.start.batches,
            unreadable=self.unreadable,
        )
