"""How far the readers of a stream are: `StreamPosition`, the position of an iterator over one.

A reader's place (`ReadPoint`) leads to a state two batches back, or more; the batches behind it are
known by one mark of them all (head of `streams/reader.py`). The newest state is kept beside it, as
long as its mark is of less than two batches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, NamedTuple

from lit_loader.core.state.position import EpochPosition, Mark, Position, ReadPoint
from lit_loader.streams.marks import joined

__all__ = ["NOT_TAKEN", "StreamPosition"]

NOT_TAKEN: Final = ...
"""In the place of a stream's state before a batch, where none was taken (`StateMeter`)."""


class _Read(NamedTuple):
    """A batch of an iterable dataset that has been given out."""

    reader: int
    point: ReadPoint  # where that reader is then
    batches: int  # before it
    readers: tuple[ReadPoint, ...]
    unreadable: int


class StreamPosition(EpochPosition):
    """The position of an iterator over a stream, with its readers."""

    latest: _Read | None

    def __init__(self, start: Position, num_readers: int) -> None:
        super().__init__(start)
        self.num_readers = num_readers
        self.padding = False  # whether all readers have come to their end, and begin again
        self._readers = list(start.readers) or [ReadPoint()] * num_readers
        self._previous: _Read | None = None  # the batch that was counted last

    def read(self, reader: int, state: Any, mark: str | None = None) -> None:
        """Note that a batch is given out: whose, the state before it, and its mark."""
        self._note(reader, _after(self._settled(reader), state, mark))

    def failed(self, reader: int) -> None:
        """Note that the consumer has been given an exception instead of a batch."""
        point = self._settled(reader)  # no state came with it
        newer = point.newer and _followed(point.newer, None)
        self._note(reader, replace(_followed(point, None), newer=newer))

    def exhausted(self, reader: int) -> None:
        """Note that a reader's share has come to its end."""
        self._readers[reader] = replace(self._settled(reader), ended=True)

    def _settled(self, reader: int) -> ReadPoint:
        self.settle()
        return self._readers[reader]

    def _note(self, reader: int, point: ReadPoint) -> None:
        self.latest = _Read(reader, point, self._batches, tuple(self._readers), self.unreadable)

    def skipped(self, samples: int) -> None:
        """Note that so many samples of the batch given out last could not be read."""
        self.unreadable += samples

    def settle(self) -> None:
        """Count what was given out last: the consumer has got it."""
        latest = self.latest
        if latest is not None:
            self._previous = latest
            self._readers[latest.reader] = latest.point
            self._batches = latest.batches + 1
            self.latest = None

    def reader(self, reader: int) -> ReadPoint:
        """How far a reader is."""
        latest = self.latest
        if latest is not None and latest.reader == reader:
            return latest.point
        return self._readers[reader]

    def repeat(self) -> bool:
        """Let the readers begin again, once all have ended; returns whether any gives batches."""
        self.settle()
        if all(point.ended for point in self._readers):  # else some that did so are not through
            for reader, point in enumerate(self._readers):
                if point.batches:
                    self._readers[reader] = ReadPoint(before=point.delivered)
        self.padding = True
        return not all(point.ended for point in self._readers)

    def before_last(self) -> Position:
        """Give the position before the batch given out last; at the end, that of this moment."""
        now, previous = self.now(), self._previous
        if self.ended:
            return now  # the consumer has asked since, and was given nothing
        if previous is None:
            return self.start
        return replace(
            now,
            batches=previous.batches,
            readers=previous.readers,
            since=previous.batches - self.start.batches,
            unreadable=previous.unreadable,
        )

    def now(self) -> Position:
        """Give the position of this moment."""
        return replace(super().now(), readers=tuple(self._readers))

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


def _after(point: ReadPoint, state: Any, mark: str | None) -> ReadPoint:
    """Give the point behind one more batch: with the reader's state before it, and its mark.

    ``state`` is NOT_TAKEN where that was not asked for. Without a mark there is nothing to be
    compared, and the newest state is the one that is kept.
    """
    followed, newer = _followed(point, mark), point.newer and _followed(point.newer, mark)
    if newer is not None and newer.marks and newer.marks[0].last > newer.marks[0].first:
        followed, newer = newer, None
    if state is not NOT_TAKEN:
        newer = _followed(ReadPoint(point.batches, state, before=point.before), mark)
        if mark is None or state is None or not point.batches:
            followed, newer = newer, None
    return followed if newer is None else replace(followed, newer=newer)


def _followed(point: ReadPoint, mark: str | None) -> ReadPoint:
    """Give the same behind one more batch."""
    at, marks, has_state = point.batches, point.marks, point.state is not None
    if mark is not None:
        if not (marks and has_state):
            marks = (Mark(at, at, mark),)
        elif marks[-1].last + 1 == at and marks[-1].digest:
            last = marks[-1]
            marks = (*marks[:-1], Mark(last.first, at, joined((last.digest, mark))))
    return ReadPoint(
        at + 1, point.state, False, point.behind + has_state, point.before, marks, None
    )
