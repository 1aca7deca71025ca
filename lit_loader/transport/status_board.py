"""The status board: what each worker does, and since when, in shared memory.

One row of shared memory a worker. The worker writes, the parent reads; every field is one aligned
64-bit word, so a reader sees old or new and never half. It says what a dead or hung worker was at.
The first row is the parent's to write: its token tells workers at once that what they do is no
longer wanted, its number of workers that those with higher numbers are to leave. So is one word of
each row: the bits of those tasks sent to the worker that another one has done. There are rows for
more workers than there are: a pool may grow, and rows that were never written cost nothing.

A row also has what only a viewer in another process asks for (`transport/board_view.py`): the
worker's process, how many tasks it has done, where the indices of its batch lie; instead of these,
for one that stands for a worker on another machine, that machine's name. Behind these rows comes
that of the relay, which hands batches over to them.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

__all__ = [
    "MADE",
    "ROW",
    "ROW_BYTES",
    "ROW_WORDS",
    "VOIDABLE",
    "WORKERS",
    "BoardRow",
    "Cancelled",
    "EarlyProgress",
    "Progress",
    "Stage",
    "StatusBoard",
    "board_bytes",
    "credit_of",
    "node_of",
]

ROW_WORDS: Final = 16
"""Words of a row: two cache lines, so that rows of different workers never share one."""

_TOKEN, _, WORKERS = range(3)
"""Of the parent's row; others are in `transport/loader_page.py`."""

_STAGE, _NUMBER, _POSITION, _SINCE, _VOID = range(5)
MADE, _PID, _STARTED, _STACKS, _INDICES = range(5, 10)  # and two words after the last
_NODE_BYTES: Final = 8 * (ROW_WORDS - _INDICES)
# In the place of a descriptor for stacks: a name follows, and no indices; or a relay's credit.
_ELSEWHERE, _RELAY = -1, -2
_PACK_INDICES: Final = struct.Struct("@3q").pack_into  # native: a word at a time

ROW_BYTES: Final = ROW_WORDS * 8
ROW: Final = struct.Struct("@12q")
"""How a viewer reads a row: the words above."""


class Stage:
    """What a worker is doing; the value of a row's stage."""

    STARTING: Final = 0
    INITIALISING: Final = 1
    IDLE: Final = 2
    FETCHING: Final = 3
    COLLATING: Final = 4
    ENCODING: Final = 5
    LEFT: Final = 6

    BUSY: Final = frozenset({FETCHING, COLLATING, ENCODING})
    """Those in which a worker has a task."""

    NAMES: Final = (
        "starting",
        "in worker_init_fn",
        "idle",
        "fetching",
        "collating",
        "writing the batch into shared memory",
        "leaving",
    )


class BoardRow(NamedTuple):
    """A copy of one row.

    Attributes:
        stage: One of :class:`Stage`.
        number: Batch number of the task, -1 for none.
        position: Position in the batch of the sample that is being fetched.
        since: ``time.monotonic_ns()`` when the stage, or sample, began; 0 before the worker ran.
    """

    stage: int
    number: int
    position: int
    since: int


def node_of(row: bytes) -> str | None:
    """Read, out of a copy of a row, which machine it stands for; None: this one."""
    words = ROW.unpack_from(row)
    if words[_STACKS] != _ELSEWHERE:
        return None
    return row[8 * _INDICES :].rstrip(b"\0").decode(errors="replace")


def credit_of(row: bytes) -> int | None:
    """Read, out of a copy of a relay's row, at how many tasks it can be; None: it is no relay's."""
    words = ROW.unpack_from(row)
    return words[_INDICES] if words[_STACKS] == _RELAY else None


def board_bytes(num_workers: int) -> int:
    """Bytes of a board for ``num_workers`` workers."""
    return (num_workers + 1) * ROW_WORDS * 8


class Cancelled(Exception):
    """The batch that is being made is no longer wanted."""


VOIDABLE: Final = 62
"""Tasks of a worker that can be called off one by one: bits of a word."""

_QUICK: Final = 4_000
"""Nanoseconds a sample below which it is not written when each began."""

_HANDFUL: Final = 16


class Progress:
    """Where a reader notes the sample it is at, and learns whether the batch is still wanted.

    Args:
        words: The board; None for a reader that is not watched.
        row: First word of the reader's row.

    Attributes:
        each: Whether each sample is announced, however quick they are: somebody looks at the time.
        token: That of the epoch whose batch is being made.
        slowest: Nanoseconds of the sample that has taken longest since :meth:`begin`.
        slowest_at: Its position in the batch.
    """

    __slots__ = (
        "_at",
        "_last",
        "_one_by_one",
        "_position",
        "_quick",
        "_since",
        "_words",
        "each",
        "slowest",
        "slowest_at",
        "token",
    )

    def __init__(self, words: memoryview | None = None, row: int = ROW_WORDS) -> None:
        self._words = memoryview(bytearray(2 * ROW_WORDS * 8)).cast("q") if words is None else words
        self._position, self._since = row + _POSITION, row + _SINCE
        self.each = True
        self._quick = False
        self.token = 0
        self.begin()

    def begin(self) -> None:
        """Begin a batch: forget the slowest sample."""
        self.slowest = self.slowest_at = 0
        self._last = self._at = -1
        self._one_by_one = False

    def step(self, position: int) -> None:
        """Note that the sample at ``position`` of the batch comes next; called for every sample.

        Raises:
            Cancelled: The board shows another token.
        """
        words, now = self._words, time.monotonic_ns()
        words[self._position] = position
        words[self._since] = now
        if words[_TOKEN] != self.token:
            raise Cancelled
        self.finish(now)
        self._at, self._last = position, now

    def beat(self) -> None:
        """Note that work of the loader's own gets on, before a sample or after it."""
        self._words[self._since] = time.monotonic_ns()

    def finish(self, now: int) -> None:
        """Note that the last sample has been read by ``now``."""
        if self._at >= 0 and now - self._last > self.slowest:
            self.slowest, self.slowest_at = now - self._last, self._at
        self._at = -1

    def read(self, get: Callable[[Any], Any], indices: Iterable[Any]) -> list[Any]:
        """Read a batch's samples, announcing where it is.

        Where the samples of the batch before were quick, it is not written when each began, and
        the token is looked at by the handful: both would take as long as many a sample.

        Args:
            get: Gives the sample of an index.
            indices: The batch's.

        Raises:
            Cancelled: The board shows another token.
        """
        # Spelled out: a call for each sample would take as long as many a sample.
        words, place, since = self._words, self._position, self._since
        token, clock, slowest = self.token, time.monotonic_ns, self.slowest
        samples: list[Any] = []
        append, began = samples.append, clock()
        self._one_by_one = True
        if self._quick and type(indices) is list:
            words[since] = last = began
            for start in range(0, len(indices), _HANDFUL):
                if words[_TOKEN] != token:
                    raise Cancelled
                for position, index in enumerate(indices[start : start + _HANDFUL], start):
                    words[place] = position
                    append(get(index))
                    now = clock()
                    if now - last > slowest:
                        self.slowest = slowest = now - last
                        self.slowest_at = position
                    last = now
        else:
            last = began
            for position, index in enumerate(indices):
                words[place] = position
                words[since] = last
                if words[_TOKEN] != token:
                    raise Cancelled
                append(get(index))
                now = clock()
                if now - last > slowest:
                    self.slowest = slowest = now - last
                    self.slowest_at = position
                last = now
        self._one_by_one = False
        self._quick = not self.each and last - began < _QUICK * len(samples)
        return samples

    def reading(self, indexed: bool) -> int | None:
        """Give the position of the sample that is being read; asked after an exception.

        Args:
            indexed: Whether the batch has indices; else the samples are an iterator's next ones.

        Returns:
            None if no sample is being read, or several at once (``__getitems__``).
        """
        if indexed:
            return self._words[self._position] if self._one_by_one else None
        return self._at if self._at >= 0 else None


class EarlyProgress(Progress):
    """Progress of a batch that is made before its epoch begins, and so its token.

    It is not wanted any more when the worker is to leave, or all are to end.
    """

    __slots__ = ()

    def step(self, position: int) -> None:
        """Note a sample, as :meth:`Progress.step` does.

        Raises:
            Cancelled: The worker is to leave.
        """
        words = self._words
        if (self._position - _POSITION) // ROW_WORDS > words[WORKERS]:
            raise Cancelled
        self.token = words[_TOKEN]
        super().step(position)


class StatusBoard:
    """Reads and writes the rows of the board.

    Args:
        memory: At least :func:`board_bytes` writable bytes, shared between the processes.
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._words = memory.cast("q")

    @property
    def token(self) -> int:
        """That of the epoch whose tasks are wanted."""
        return self._words[_TOKEN]

    @token.setter
    def token(self, value: int) -> None:
        self._words[_TOKEN] = value

    def call_off(self, worker: int, place: int, off: bool) -> None:
        """Write that a task sent to ``worker`` is not wanted any more; or forget that.

        Args:
            worker: Its number.
            place: The task's; no other of the worker's last :data:`VOIDABLE` ones has its bit.
            off: Whether it is called off.
        """
        at, bit = (worker + 1) * ROW_WORDS + _VOID, 1 << place % VOIDABLE
        self._words[at] = self._words[at] | bit if off else self._words[at] & ~bit

    def is_called_off(self, worker: int, place: int) -> bool:
        """Whether a task sent to ``worker`` is not wanted any more."""
        return bool(self._words[(worker + 1) * ROW_WORDS + _VOID] >> place % VOIDABLE & 1)

    @property
    def workers(self) -> int:
        """How many workers there are to be: those with this number and higher ones leave."""
        return self._words[WORKERS]

    @workers.setter
    def workers(self, value: int) -> None:
        self._words[WORKERS] = value

    def rest(self, worker: int) -> None:
        """Write that ``worker`` has nothing in hand."""
        self.enter(worker, Stage.IDLE, -1)

    def leave(self, worker: int) -> None:
        """Write that ``worker`` has been told to stop, and has nothing in hand any more."""
        self.enter(worker, Stage.LEFT, -1)

    def clear(self, worker: int) -> None:
        """Put a worker's row back to its beginning; only its tasks are counted on."""
        row = (worker + 1) * ROW_WORDS
        self._words[row + _PID] = self._words[row + _STACKS] = self._words[row + _VOID] = 0
        self.enter(worker, Stage.STARTING, -1)

    def launched(self, worker: int, pid: int) -> None:
        """Write, in the parent, that a process has been started for ``worker``."""
        row = (worker + 1) * ROW_WORDS
        self._words[row + _STARTED] = time.monotonic_ns()
        self._words[row + _PID] = pid

    def shows_stacks(self, worker: int, fd: int) -> None:
        """Write where ``worker`` writes its stacks when it is asked to; -1: nowhere."""
        self._words[(worker + 1) * ROW_WORDS + _STACKS] = fd + 1

    def reads(self, worker: int, number: int, offset: int, nbytes: int) -> None:
        """Write where the indices of task ``number`` lie, until its batch takes their place."""
        place = 8 * ((worker + 1) * ROW_WORDS + _INDICES)
        _PACK_INDICES(self._memory, place, number, offset, nbytes)

    def is_elsewhere(self, worker: int, node: str) -> None:
        """Write that what ``worker`` stands for is on another machine; "": it is not known yet."""
        row = (worker + 1) * ROW_WORDS
        start = 8 * (row + _INDICES)
        name = node.encode(errors="replace")[:_NODE_BYTES].ljust(_NODE_BYTES, b"\0")
        self._memory[start : start + _NODE_BYTES] = name
        self._words[row + _STACKS] = _ELSEWHERE

    def is_relay(self, worker: int, credit: int) -> None:
        """Write that ``worker`` hands tasks over to others, and at how many it can be together."""
        row = (worker + 1) * ROW_WORDS
        self._words[row + _INDICES] = credit
        self._words[row + _STACKS] = _RELAY

    def count(self, worker: int) -> None:
        """Count a task that ``worker`` has sent the result of."""
        self._words[(worker + 1) * ROW_WORDS + MADE] += 1

    def enter(self, worker: int, stage: int, number: int) -> int:
        """Write that ``worker`` is in ``stage`` of task ``number`` from now on; returns "now"."""
        words, row = self._words, (worker + 1) * ROW_WORDS
        words[row + _STAGE] = stage
        words[row + _NUMBER] = number
        words[row + _POSITION] = 0
        now = words[row + _SINCE] = time.monotonic_ns()
        return now

    def progress(self, worker: int) -> Progress:
        """Give ``worker`` what it reports its samples by."""
        return Progress(self._words, (worker + 1) * ROW_WORDS)

    def early_progress(self, worker: int) -> EarlyProgress:
        """Give ``worker`` what it reports those by that are read before their epoch begins."""
        return EarlyProgress(self._words, (worker + 1) * ROW_WORDS)

    def read(self, worker: int) -> BoardRow:
        """Copy a worker's row."""
        row = (worker + 1) * ROW_WORDS
        return BoardRow(*self._words[row : row + 4].tolist())

    def release(self) -> None:
        """Let go of the memory."""
        self._words.release()
        self._memory = memoryview(b"")
