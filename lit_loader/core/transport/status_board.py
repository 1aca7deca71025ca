"""The status board: what each worker does, and since when, in shared memory.

One row of shared memory a worker. The worker writes, the parent reads; every field is one aligned
64-bit word, so a reader sees old or new and never half. It says what a dead or hung worker was at.
The first row is the parent's to write: its token tells workers at once that what they do is no
longer wanted, its number of workers that those with higher numbers are to leave. So is one word of
each row: the bits of those tasks sent to the worker that another one has done. There are rows for
more workers than there are: a pool may grow, and rows that were never written cost nothing.

A row also has what only a viewer in another process asks for (`core/transport/loader_page.py`): the
worker's process, how many tasks it has done, where the indices of its batch lie; instead of these,
for one that stands for a worker on another machine, that machine's name. Behind these rows comes
that of the relay, which hands batches over to them.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable
from functools import partial
from operator import getitem, length_hint
from typing import Any, Final, NamedTuple

__all__ = [
    *("NUMBER", "NUM_DONE", "POSITION", "ROW", "ROW_BYTES", "ROW_WORDS", "SINCE", "STAGE", "TOKEN"),
    *("VOIDABLE", "WORKERS", "BoardRow", "Cancelled", "EarlyProgress", "Progress", "Stage"),
    *("StatusBoard", "board_bytes", "credit_of", "node_of"),
]

ROW_WORDS: Final = 16  # two cache lines a row: rows of different workers never share one
TOKEN, _, WORKERS = range(3)
STAGE, NUMBER, POSITION, SINCE, _VOID = range(5)
NUM_DONE, _PID, _STARTED, _STACKS, _INDICES, _OFFSET, _NBYTES = range(5, 12)
_NODE_BYTES: Final = 8 * (ROW_WORDS - _INDICES)
# In the place of a descriptor for stacks: a name follows, and no indices; or a relay's credit.
_REMOTE, _RELAY = -1, -2

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
    READING: Final = 7

    SAMPLES: Final = frozenset({FETCHING, READING})
    """Those in which a worker is at one sample."""

    BUSY: Final = frozenset({FETCHING, READING, COLLATING, ENCODING})
    """Those in which a worker has a task."""

    NAMES: Final = (
        "starting",
        "in worker_init_fn",
        "idle",
        "fetching",
        "collating",
        "writing the batch into shared memory",
        "leaving",
        "waiting for what is read ahead",
    )


class BoardRow(NamedTuple):
    """A copy of one row."""

    stage: int  # one of :class:`Stage`
    number: int  # batch number of the task, -1 for none
    position: int  # position in the batch of the sample that is being fetched; -1: not known
    since: int  # ``time.monotonic_ns()`` when the stage, or sample, began; 0 before the worker ran


def node_of(row: bytes) -> str | None:
    """Read, out of a copy of a row, which machine it stands for; None: this one."""
    words = ROW.unpack_from(row)
    if words[_STACKS] != _REMOTE:
        return None
    return row[8 * _INDICES :].rstrip(b"\0").decode(errors="replace")


def credit_of(row: bytes) -> int | None:
    """Read, out of a copy of a relay's row, at how many tasks it can be; None: it is no relay's."""
    words = ROW.unpack_from(row)
    return words[_INDICES] if words[_STACKS] == _RELAY else None


def board_bytes(num_workers: int) -> int:
    """Bytes of a board for ``num_workers`` workers."""
    return (num_workers + 1) * ROW_WORDS * 8


VOIDABLE: Final = 62
"""Tasks of a worker that can be called off one by one: bits of a word."""


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
        return self._words[TOKEN]

    @token.setter
    def token(self, value: int) -> None:
        self._words[TOKEN] = value

    def call_off(self, worker: int, sequence: int, off: bool) -> None:
        """Write that a task sent to ``worker`` is not wanted any more; or forget that.

        No other of the worker's last :data:`VOIDABLE` tasks has the bit of this ``sequence``.
        """
        at, bit = (worker + 1) * ROW_WORDS + _VOID, 1 << sequence % VOIDABLE
        self._words[at] = self._words[at] | bit if off else self._words[at] & ~bit

    def wants(self, worker: int, token: int, sequence: int) -> bool:
        """Whether a task of this token that was sent to ``worker`` is wanted still."""
        words = self._words
        return (
            words[TOKEN] == token
            and not words[(worker + 1) * ROW_WORDS + _VOID] >> sequence % VOIDABLE & 1
        )

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

    def stacks_of(self, worker: int) -> int:
        """The descriptor that ``worker`` writes its stacks to when it is asked to; -1: none."""
        return max(self._words[(worker + 1) * ROW_WORDS + _STACKS] - 1, -1)

    def shows_stacks(self, worker: int, fd: int) -> None:
        """Write where ``worker`` writes its stacks when it is asked to; -1: nowhere."""
        self._words[(worker + 1) * ROW_WORDS + _STACKS] = fd + 1

    def is_remote(self, worker: int, node: str) -> None:
        """Write that what ``worker`` stands for is on another machine; "": it is not known yet."""
        row = (worker + 1) * ROW_WORDS
        start = 8 * (row + _INDICES)
        name = node.encode(errors="replace")[:_NODE_BYTES].ljust(_NODE_BYTES, b"\0")
        self._memory[start : start + _NODE_BYTES] = name
        self._words[row + _STACKS] = _REMOTE

    def is_relay(self, worker: int, credit: int) -> None:
        """Write that ``worker`` hands tasks over to others, and at how many it can be together."""
        row = (worker + 1) * ROW_WORDS
        self._words[row + _INDICES] = credit
        self._words[row + _STACKS] = _RELAY

    def count(self, worker: int) -> None:
        """Count a task that ``worker`` has sent the result of."""
        self._words[(worker + 1) * ROW_WORDS + NUM_DONE] += 1

    @property
    def words(self) -> memoryview:
        """Give all of it, as 64-bit words, for `Progress`."""
        return self._words

    def enter(self, worker: int, stage: int, number: int) -> int:
        """Write that ``worker`` is in ``stage`` of task ``number`` from now on; returns "now"."""
        words, row = self._words, (worker + 1) * ROW_WORDS
        words[row + STAGE] = stage
        words[row + NUMBER] = number
        words[row + POSITION] = 0
        now = words[row + SINCE] = time.monotonic_ns()
        return now

    def read(self, worker: int) -> BoardRow:
        """Copy a worker's row."""
        row = (worker + 1) * ROW_WORDS
        return BoardRow(*self._words[row : row + 4].tolist())

    def release(self) -> None:
        """Let go of the memory."""
        self._words.release()
        self._memory = memoryview(b"")


# --- progress: the batch that is being made: what it is at, whether it is wanted ---

#     begin ─▶ fetching ─▶ collating ─▶ encoding ─▶ idle      each is written into the worker's row
#                  ╰── each sample, unless they are too quick for that ──╯   of the status board
#
# What makes batches is given one, in a worker, in the parent and on a remote machine; only a
# worker's lies on the board, where the parent and viewers see it.


_QUICK: Final = 4_000
"""Nanoseconds a sample below which samples are neither announced nor timed one by one: that would
take as long as many a sample."""

_MANY: Final = 16
"""Samples of a batch in which that would be felt."""

_FETCHING, _READING, _COLLATING, _ENCODING, _IDLE = (  # read for each batch
    *(Stage.FETCHING, Stage.READING, Stage.COLLATING, Stage.ENCODING, Stage.IDLE),
)
_clock = time.monotonic_ns


class Cancelled(Exception):
    """The batch that is being made is no longer wanted."""


class Progress:
    """What makes a batch notes here where it is, and learns whether the batch is still wanted.

    ``words`` is the board, None for a process that has none, and ``row`` the first word of the
    worker's. What is read of it is in ``time.monotonic_ns()``: when the batch ``began``, was
    ``fetched`` and ``collated`` (0: it is not yet), its ``slowest`` sample (0: not timed), which is
    that at ``slowest_at``, how long samples have ``waited`` for what `reads_ahead` marks, and how
    long taking the ``state`` of a stream took.
    """

    __slots__ = (
        *("_at", "_last", "_one_by_one", "_quick", "_row", "_under_way", "_words"),
        *("began", "collated", "each", "empty", "fetched", "slowest"),
        *("slowest_at", "state", "token", "waited"),
    )

    def __init__(self, words: memoryview | None = None, row: int = ROW_WORDS) -> None:
        self._words = memoryview(bytearray(16 * ROW_WORDS)).cast("q") if words is None else words
        self._row = row
        self.each = True  # announce samples however quick they are: somebody looks at the time
        # Gives slot memory for what the default collate stacks; None: there is none.
        self.empty: Callable[..., Any] | None = None
        self._quick = False
        self.token = 0  # that of the epoch whose batch is being made
        self.begin(-1)

    def begin(
        self, number: int, token: int = 0, sequence: int = 0, offset: int = 0, nbytes: int = 0
    ) -> bool:
        """Begin a task's batch, if it is wanted still; returns whether it is.

        Without a ``token`` it is. Its indices are ``nbytes`` bytes at ``offset`` of the arena,
        until the batch takes their place.
        """
        words, row = self._words, self._row
        if token and (words[TOKEN] != token or words[row + _VOID] >> sequence % VOIDABLE & 1):
            return False
        words[row + STAGE] = _FETCHING
        words[row + NUMBER] = number
        words[row + POSITION] = 0
        words[row + SINCE] = self.began = _clock()
        if nbytes:
            words[row + _OFFSET], words[row + _NBYTES] = offset, nbytes
            words[row + _INDICES] = number
        self.fetched = self.collated = self.slowest = self.slowest_at = self.waited = 0
        self.state = 0
        self._last = self._at = -1
        self._one_by_one = False
        self._under_way: tuple[Any, int] | None = None
        return True

    def collating(self) -> None:
        """Note that all samples have been read."""
        words, row = self._words, self._row
        words[row + STAGE] = _COLLATING
        words[row + SINCE] = now = self.fetched = _clock()
        if self._at >= 0:
            self._finish(now)

    def encoding(self) -> None:
        """Note that the batch is collated."""
        words, row = self._words, self._row
        words[row + STAGE] = _ENCODING
        words[row + SINCE] = self.collated = _clock()

    def idle(self, made: bool = False) -> int:
        """Note that nothing is to be done, and count a task that is done; returns "now"."""
        words, row = self._words, self._row
        words[row + STAGE] = _IDLE
        words[row + NUMBER] = -1
        words[row + SINCE] = now = _clock()
        words[row + NUM_DONE] += made
        return now

    def stages(self, now: int, processor: int = 0, queued: int = 0) -> tuple[int, ...]:
        """Give what making the batch has taken, in the order of the last fields of a `Reply`.

        One that failed, or was omitted, has not been through all stages.
        """
        collated = self.collated or now
        fetched = self.fetched or collated
        return (
            *(self.began, fetched - self.began, collated - fetched, now - collated),
            *(self.slowest, self.slowest_at, processor, queued, self.waited, self.state),
        )

    def step(self, position: int) -> None:
        """Note that the sample at ``position`` of the batch comes next; called for every sample.

        Raises:
            Cancelled: The board shows another token.
        """
        words, row, now = self._words, self._row, _clock()
        words[row + POSITION] = position
        words[row + SINCE] = now
        if words[TOKEN] != self.token:
            raise Cancelled
        if self._at >= 0:
            self._finish(now)
        self._at, self._last = position, now

    def read_begins(self) -> None:
        """Note that the sample waits for what `lit_loader.reads_ahead` marks."""
        self._words[self._row + STAGE] = _READING

    def read_ends(self) -> None:
        """Note that it goes on."""
        self._words[self._row + STAGE] = _FETCHING

    def beat(self) -> None:
        """Note that work of the loader's own gets on, before a sample or after it."""
        self._words[self._row + SINCE] = _clock()

    def _finish(self, now: int) -> None:
        if now - self._last > self.slowest:
            self.slowest, self.slowest_at = now - self._last, self._at
        self._at = -1

    def read_all(self, dataset: Any, indices: Any) -> list[Any]:
        """Read a batch's samples: ``[dataset[index] for index in indices]``.

        Where they are many, and those of the batch before were quick, they are not announced: a
        message about a dead worker names the batch then, and who makes it anew announces each.

        Raises:
            Cancelled: The board shows another token.
        """
        if not self._quick or type(indices) is not list or len(indices) < _MANY:
            return self.read(partial(getitem, dataset), indices)
        if self._words[TOKEN] != self.token:
            raise Cancelled
        self._words[self._row + POSITION] = -1
        began, left = _clock(), iter(indices)
        self._under_way = left, len(indices)  # tells where it is, should an exception come
        samples = [dataset[index] for index in left]
        self._under_way = None
        self._quick = _clock() - began < _QUICK * len(samples)
        return samples

    def read(self, get: Callable[[Any], Any], indices: Iterable[Any]) -> list[Any]:
        """Read a batch's samples by ``get``, announcing and timing each; see :meth:`read_all`."""
        # Spelled out: a call for each sample would take as long as many a sample.
        words, position_at, since = self._words, self._row + POSITION, self._row + SINCE
        token, slowest = self.token, self.slowest
        samples: list[Any] = []
        append = samples.append
        last = began = _clock()
        self._one_by_one = True
        for position, index in enumerate(indices):
            words[position_at] = position
            words[since] = last
            if words[TOKEN] != token:
                raise Cancelled
            append(get(index))
            now = _clock()
            if now - last > slowest:
                self.slowest = slowest = now - last
                self.slowest_at = position
            last = now
        self._one_by_one = False
        self._quick = not self.each and last - began < _QUICK * len(samples)
        return samples

    def reading(self, indexed: bool) -> int | None:
        """Give the position of the sample that is being read; asked after an exception.

        ``indexed``: the batch has indices; else the samples are an iterator's next ones. None if no
        sample is being read, or several at once (``__getitems__``).
        """
        if not indexed:
            return self._at if self._at >= 0 else None
        return self.position if self._one_by_one or self._under_way is not None else None

    @property
    def position(self) -> int:
        """That of the sample that is being read."""
        if self._under_way is not None:
            left, count = self._under_way
            return count - length_hint(left) - 1
        return self._words[self._row + POSITION]


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
        if self._row // ROW_WORDS > words[WORKERS]:
            raise Cancelled
        self.token = words[TOKEN]
        super().step(position)
