"""`StreamPosition`: how far the readers of a stream are, and whose turn it is.

A reader's point has a state that is at least `_REPLAYED` batches old, so that what is replayed
shows whether the state leads to where it was. A newer one waits until it is that old.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from lit_loader.core.state.position import PassPosition, Position
from lit_loader.streams.read_point import NOT_TAKEN, ReadPoint

_new = tuple.__new__
_REPLAYED: Final = 4
"""Batches at least that are replayed: two small ones may be equal by chance."""


class _Given(NamedTuple):
    """A batch that was given out: whose, and where its reader was before it and is after it."""

    reader: int
    before: ReadPoint
    after: ReadPoint
    newer: ReadPoint | None  # the same by a newer state
    batches: int  # of all readers, before it


class StreamPosition(PassPosition):
    """The position of an iterator over a stream, with its readers."""

    latest: _Given | None

    def __init__(self, start: Position, num_readers: int) -> None:
        super().__init__(start)
        self.num_readers = num_readers
        self.padding = False  # whether all readers have come to their end, and begin again
        self._readers: list[ReadPoint] = list(start.readers) or [ReadPoint()] * num_readers
        self._newer: list[ReadPoint | None] = [None] * num_readers
        self._previous: _Given | None = None  # the batch that was counted last

    def read(self, reader: int, state: Any, digest: int) -> None:
        """Note that a batch, or an exception, is given out: whose, with the state before it.

        What was given out before it is settled.
        """
        before, newer = self._readers[reader], self._newer[reader]
        after = before.after(digest)
        if newer is not None:
            newer = newer.after(digest)
            if newer.behind >= _REPLAYED:
                after, newer = newer, None
        if state is None:
            if after.state is not None:  # no state leads there any more
                after, newer = after._replace(state=None, behind=0), None
        elif state is not NOT_TAKEN:
            point = ReadPoint(before.batches, state, before=before.before).after(digest)
            if after.state is None:
                after = point
            elif newer is None:
                newer = point
        # Without the call of a constructor that is written in Python, as all that is done for each
        # batch.
        self.latest = _new(_Given, (reader, before, after, newer, self._batches))

    def exhausted(self, reader: int) -> None:
        """Note that a reader's share has come to its end."""
        self.settle()
        self._readers[reader] = self._readers[reader]._replace(ended=True)

    def settle(self) -> None:
        """Count what was given out last: the consumer has it. May be done again."""
        latest = self.latest
        if latest is not None:
            self._previous = latest
            self._readers[latest.reader] = latest.after
            self._newer[latest.reader] = latest.newer
            self._batches = latest.batches + 1
            self.latest = None

    def reader(self, reader: int) -> ReadPoint:
        """Return how far a reader is."""
        latest = self.latest
        if latest is not None and latest.reader == reader:
            return latest.after
        return self._readers[reader]

    def repeat(self) -> bool:
        """Restart the readers, once all have ended; return whether any has batches."""
        self.settle()
        if all(point.ended for point in self._readers):  # else some that did so are not through
            for reader, point in enumerate(self._readers):
                if point.batches:
                    self._readers[reader] = ReadPoint(before=point.delivered)
                    self._newer[reader] = None
        self.padding = True
        return not all(point.ended for point in self._readers)

    def before_last(self) -> Position:
        """Return the position before the batch given out last; at the end, that of this moment."""
        now, last = self.now(), self._previous
        if self.ended or last is None:  # at the end the consumer has asked, and was given nothing
            return now
        readers = [*self._readers]
        readers[last.reader] = last.before
        since = last.batches - self.start.batches
        return now._replace(batches=last.batches, readers=tuple(readers), since=since)

    def now(self) -> Position:
        """Return the position of this moment."""
        return super().now()._replace(readers=tuple(self._readers), since=self.since)

    # --- turns ---

    # The readers of an iterable dataset take turns in rounds, one batch each. Turn ``t`` is that of
    # reader ``t % readers`` in round ``t // readers``, and the number of the batch that it yields.

    def passes_over(self, point: ReadPoint) -> bool:
        """Whether a reader has ended; or has begun again, which waits until all have ended."""
        return point.ended or bool(point.before and not self.padding)

    def first_turn(self) -> int:
        """Return the turn before which there is none to be taken."""
        points = map(self.reader, range(self.num_readers))
        going = (point.batches for point in points if not self.passes_over(point))
        return min(going, default=0) * self.num_readers

    def next_turn(self, turn: int) -> int | None:
        """Return the first turn, from one on, that a reader is to take; None: all have ended."""
        readers, passed = self.num_readers, 0
        while passed < readers:
            point = self._readers[turn % readers]
            if point.ended or (point.before and not self.padding):  # see `passes_over`
                passed += 1
            elif turn // readers >= point.batches:
                return turn
            else:  # it is ahead of the others, where a resume begins
                passed = 0
            turn += 1
        return None
