"""How far an epoch has been delivered: what a checkpoint has to remember of a running epoch.

What is given out is noted by storing one attribute, and counted when the consumer asks for more. So
it can be taken back as a whole, when a signal handler raises before the consumer has got it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, NamedTuple

from lit_loader.core.seeding.bases import UNTOLD, Bases, PassSeeds
from lit_loader.core.state.untrusted_state import brief
from lit_loader.errors import StateError

COUNT: Final = "num_shards"
"""The number of readers among what a fingerprint has, where it is given."""

NOT_TAKEN: Final = ...
"""In the place of a stream's state before a batch, where none was taken (`StateMeter`)."""


class Mark(NamedTuple):
    """What batches of a reader, one after the other, are known by: `marks_joined` of `mark_of`."""

    first: int  # number of the first of them
    last: int
    digest: str  # empty: of a release before 0.4, whose marks are not compared


def marks_joined(marks: Iterable[str]) -> str:
    """Make one digest of those of several batches; that of a single one is its own."""
    return functools.reduce(_joined, marks)


def _joined(one: str, other: str) -> str:
    return hashlib.blake2b((one + other).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class ReadPoint:
    """How far one reader (a worker, or the parent without workers) is in an iterable dataset."""

    batches: int = 0  # of it that have been delivered
    # What the ``state_dict`` of dataset and iterator gave, by part, as `pickled` writes it down;
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

    def after(self, state: Any, mark: str | None) -> ReadPoint:
        """Give the point behind one more batch: with the reader's state before it, and its mark.

        ``state`` is NOT_TAKEN where that was not asked for. Without a mark there is nothing to be
        compared, and the newest state is the one that is kept.
        """
        point, newer = self._followed(mark), self.newer and self.newer._followed(mark)
        if newer is not None and newer.marks and newer.marks[0].last > newer.marks[0].first:
            point, newer = newer, None
        if state is not NOT_TAKEN:
            newer = ReadPoint(self.batches, state, before=self.before)._followed(mark)
            if mark is None or state is None or not self.batches:
                point, newer = newer, None
        return point if newer is None else replace(point, newer=newer)

    def after_error(self) -> ReadPoint:
        """Give the point behind an exception: no state came with it."""
        return replace(self._followed(None), newer=self.newer and self.newer._followed(None))

    def _followed(self, mark: str | None) -> ReadPoint:
        """Give the same behind one more batch."""
        at, marks, has_state = self.batches, self.marks, self.state is not None
        if mark is not None:
            if not (marks and has_state):
                marks = (Mark(at, at, mark),)
            elif marks[-1].last + 1 == at and marks[-1].digest:
                last = marks[-1]
                marks = (*marks[:-1], Mark(last.first, at, _joined(last.digest, mark)))
        return ReadPoint(
            at + 1, self.state, False, self.behind + has_state, self.before, marks, None
        )

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

    def own(self, points: Mapping[int, ReadPoint]) -> tuple[ReadPoint, ...]:
        """Choose this rank's readers of those in a state; a StateError if some are missing."""
        if any(number not in points for number in self.mine):
            raise StateError(
                f"state has the readers of one rank, {brief(list(points))} of {self.count}, but "
                f"rank {self.rank} of {self.replicas} reads {brief(list(self.mine))}: load what "
                "lit_loader.merge_states makes of the states of all ranks [LL303]"
            )
        return tuple(points[number] for number in self.mine)


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

    @property
    def anchor(self) -> int:
        """The epoch by which ``set_epoch`` means this position."""
        return self.epoch if self.requested is None else self.requested

    @property
    def delivered(self) -> int:
        """Batches that have been delivered."""
        return self.batches + len(self.ahead)

    @property
    def seeds(self) -> PassSeeds:
        """What is drawn in its pass follows from these."""
        bases, told = self.bases, UNTOLD if self.told is None else self.told
        return PassSeeds(*bases.drawn, bases.first, self.repeats, told, bases.older)

    def passes(self, epoch: int, used: bool = False) -> dict[str, Any]:
        """Give ``repeats`` and ``passed`` of a pass that begins after this position, by its epoch.

        One that has given a single batch was a look, and is no pass, unless that was ``used``.
        """
        repeats, passed = self.repeats, self.epoch
        if not (self.ended or self.delivered > (not used)):
            repeats, passed = repeats - (self.epoch <= self.passed), self.passed
        return {"repeats": repeats + (epoch <= passed), "passed": passed}


class _Read(NamedTuple):
    """A batch of an iterable dataset that has been given out."""

    reader: int
    point: ReadPoint  # where that reader is then
    batches: int  # before it
    readers: tuple[ReadPoint, ...]
    unreadable: int


class EpochPosition:
    """The position of an iterator, kept up to date by it; with the readers of a stream, or 0."""

    def __init__(self, start: Position, num_readers: int = 0) -> None:
        self.start, self.num_readers = start, num_readers
        self.padding = False  # whether all readers have come to their end, and begin again
        self._batches, self._ahead = start.batches, set(start.ahead)
        self._samplers: dict[int, tuple[Any, Any]] = {start.batches: (start.sampler, None)}
        self._readers = list(start.readers) or [ReadPoint()] * num_readers
        self.ended = False
        self._previous: _Read | None = None  # a stream's batch that was counted last
        # Given out, not counted yet; a map-style dataset's batch is noted by storing its number.
        self.latest: int | _Read | None = None
        self._last: int | None = None  # a map-style one's, counted last
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

    def read(self, reader: int, state: Any, mark: str | None = None) -> None:
        """Note that a stream's batch is given out: whose, the state before it, and its mark."""
        self.settle()
        self.latest = self._read(reader, self._readers[reader].after(state, mark))

    def leave_out(self, number: int) -> None:
        """Begin behind a map-style dataset's batch, the next one, before anything is given out."""
        ahead = tuple(n for n in self.start.ahead if n > number)
        sampler = self.sampler_at(number + 1)
        start = replace(self.start, batches=number + 1, ahead=ahead, sampler=sampler)
        self.__init__(start)  # type: ignore[misc]

    def failed(self, number: int, reader: int = 0) -> None:
        """Note that the consumer has been given an exception instead of a batch."""
        self.settle()
        if self._readers:
            self.latest = self._read(reader, self._readers[reader].after_error())
        else:
            self.latest = number

    def _read(self, reader: int, point: ReadPoint) -> _Read:
        return _Read(reader, point, self._batches, tuple(self._readers), self.unreadable)

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
        if latest == self._batches and not self._ahead:  # as nearly always: the shortest way
            self._last = latest
            if self._samplers:
                self._samplers.pop(latest - 1, None)  # not its own: `before_last` may ask for it
            self._batches += 1  # at once with what follows: nothing is called in between
        elif isinstance(latest, _Read):
            self._previous = latest
            self._readers[latest.reader] = latest.point
            self._batches = latest.batches + 1
        else:
            self._last = latest
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

    def exhausted(self, reader: int) -> None:
        """Note that a reader's share has come to its end."""
        self.settle()
        point = self._readers[reader]
        self._readers[reader] = replace(point, ended=True)

    def reader(self, reader: int) -> ReadPoint:
        """How far a reader is."""
        latest = self.latest
        if isinstance(latest, _Read) and latest.reader == reader:
            return latest.point
        return self._readers[reader]

    @property
    def since(self) -> int:
        """Batches that have been given out since the epoch was begun, or resumed."""
        self.settle()
        return self._batches - self.start.batches

    def repeat(self) -> bool:
        """Let the readers begin again, once all have ended; returns whether any gives batches."""
        self.settle()
        if all(point.ended for point in self._readers):  # else some that did so are not through
            for reader, point in enumerate(self._readers):
                if point.batches:
                    self._readers[reader] = ReadPoint(before=point.delivered)
        self.padding = True
        return not all(point.ended for point in self._readers)

    def end(self) -> None:
        """Note that the consumer has come to the epoch's end."""
        self.ended = True

    def before_last(self) -> Position:
        """Give the position before the batch given out last; at the end, that of this moment."""
        now = self.now()
        if self.ended:
            return now  # the consumer has asked since, and was given nothing
        if self._readers:
            previous = self._previous
            if previous is None:
                return self.start
            return replace(
                now,
                batches=previous.batches,
                sampler=self.sampler_at(previous.batches),
                readers=previous.readers,
                since=previous.batches - self.start.batches,
                unreadable=previous.unreadable,
            )
        last = self._last
        if last is None:
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
            readers=tuple(self._readers),
            ended=self.ended,
            since=self._batches - self.start.batches,
            unreadable=self.unreadable,
        )

    # --- turns ---

    # The readers of an iterable dataset take turns in rounds, one batch each. Turn ``t`` is that of
    # reader ``t % readers`` in round ``t // readers``, and the number of the batch that it gives.

    def passes_over(self, point: ReadPoint) -> bool:
        """Whether a reader has ended; or has begun again, which waits until all have ended."""
        return point.ended or bool(point.before and not self.padding)

    def first_turn(self) -> int:
        """Give the turn before which there is none to be taken."""
        points = map(self.reader, range(self.num_readers))
        going = (point.batches for point in points if not self.passes_over(point))
        return min(going, default=0) * self.num_readers

    def next_turn(self, turn: int) -> int | None:
        """Give the first turn, from one on, that a reader is to take; None: all have ended."""
        readers, passed = self.num_readers, 0
        while passed < readers:
            point = self.reader(turn % readers)
            if self.passes_over(point):
                passed += 1
            elif turn // readers >= point.batches:
                return turn
            else:  # it is ahead of the others, where a resume begins
                passed = 0
            turn += 1
        return None
