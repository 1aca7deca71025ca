"""`StreamPosition`: how far the readers of a stream are; of each reader, a `ReadPoint`."""

from __future__ import annotations

import copy
import pickle
from typing import Any, Final, NamedTuple

from lit_loader.core.state.position import PassPosition, Position, ReaderPlace, Shards
from lit_loader.core.transport.worker_exception import ReaderShare

NOT_TAKEN: Final = ...
"""In the place of a stream's state before a batch, where none was taken (`StateMeter`)."""

_new = tuple.__new__
_COMPARED: Final = 8
"""Batches at most that are compared when they are replayed."""

_REPLAYED: Final = 4
"""Batches at least that are replayed: two small ones may be equal by chance."""


class _Fields(NamedTuple):
    batches: int = 0  # that were delivered
    state: object = None  # the stream's own, `pickled`; empty at its start; None: it has none
    ended: bool = False
    behind: int = 0  # batches that were delivered since that state
    before: int = 0  # batches before the reader began again (``uneven_ranks="pad"``)
    digests: tuple[int, ...] = ()  # of the last batches; 0: nothing is known of that one
    newer: tuple[int, object] | None = None  # a state that is too new: the batch after it, and it


class ReadPoint(_Fields, ReaderPlace):
    """The stream is opened by its ``state``, and ``behind`` batches are replayed from there.

    Without a state all ``batches`` are replayed, from the start of the epoch.

    The state is at least `_REPLAYED` batches old, so that what is replayed shows whether the state
    leads to where the stream was. A newer one waits until it is that old; then it is saved.
    """

    __slots__ = ()

    @property
    def delivered(self) -> int:
        """All batches of the epoch."""
        return self.before + self.batches

    @property
    def first(self) -> int:
        """The first batch that is replayed."""
        return 0 if self.state is None else self.batches - self.behind

    def after(self, digest: int, taken: object) -> ReadPoint:
        """Return the point after one more batch; ``taken`` is the stream's state before it."""
        batches, state, _, behind, before, digests, newer = self
        if newer is not None and batches + 1 - newer[0] >= _REPLAYED:
            (first, state), newer = newer, None
            behind = batches - first
        if taken is None:  # no state leads there
            state, newer, behind = None, None, 0
        elif taken is not NOT_TAKEN and state is None:
            state, behind = taken, 0
        elif taken is not NOT_TAKEN and newer is None:
            newer = batches, taken
        behind += state is not None
        last = (*digests, digest)[-_COMPARED:]
        # Without the call of a constructor that is written in Python, as all that is done for each
        # batch.
        return _new(ReadPoint, (batches + 1, state, False, behind, before, last, newer))


def pickled(state: dict[str, object] | None) -> object:
    """Write a state down, for it may change; what cannot be pickled is copied."""
    if not state:
        return state
    try:
        return pickle.dumps(state, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return copy.deepcopy(state)


def unpickled(state: object) -> Any:
    """Read what `pickled` returned; what came from a saved state is returned as it is."""
    return pickle.loads(state) if type(state) is bytes else state


def shares_of(
    shards: Shards | None, rank: int, num_replicas: int, num_workers: int
) -> list[ReaderShare]:
    """Return the shards that a rank's readers read, in the order in which they take turns.

    Without ``num_shards`` each worker of each rank reads one.
    """
    if shards is not None:
        return [ReaderShare(number, shards.count) for number in shards.mine]
    first, count = rank * num_workers, num_replicas * num_workers
    return [ReaderShare(first + worker, count) for worker in range(num_workers)]


class _Given(NamedTuple):
    """A batch that was given out: whose, and where its reader was before it and is after it."""

    reader: int
    before: ReadPoint
    after: ReadPoint
    batches: int  # of all readers, before it


class StreamPosition(PassPosition):
    """The position of an iterator over a stream, with its readers."""

    latest: _Given | None

    def __init__(self, start: Position, num_readers: int) -> None:
        super().__init__(start)
        self.num_readers = num_readers
        self.padding = False  # whether all readers have come to their end, and begin again
        self._readers: list[ReadPoint] = list(start.readers) or [ReadPoint()] * num_readers
        self._previous: _Given | None = None  # the batch that was counted last

    def read(self, reader: int, state: object, digest: int) -> None:
        """Note that a batch, or an exception, is given out: whose, with the state before it.

        What was given out before it is settled.
        """
        before = self._readers[reader]
        self.latest = _new(_Given, (reader, before, before.after(digest, state), self._batches))

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

    def passes_over(self, reader: int) -> bool:
        """Whether a reader has ended; or has begun again, which waits until all have ended."""
        point = self._readers[reader]
        return point.ended or bool(point.before and not self.padding)
