"""The status board: what each worker does, and since when, in shared memory.

One row of shared memory a worker. The worker writes, the parent reads; every field is one aligned
64-bit word, so a reader sees old or new and never half. It says what a dead or hung worker was at.
The first row is the parent's to write: its token tells workers at once that what they do is no
longer wanted, its number of workers that those with higher numbers are to leave. So is one word of
each row: the bits of those tasks sent to the worker that another one has done. There are rows for
more workers than there are: a pool may grow, and rows that were never written cost nothing.

A row also has what only a viewer in another process asks for (`core/transport/viewer_page.py`): the
worker's process, how many tasks it has done, where the indices of its batch lie. Behind these rows
are those of workers on other machines, which their relay writes, and the relay's.
"""

from __future__ import annotations

import struct
import time
from typing import Final, NamedTuple

ROW_WORDS: Final = 16  # two cache lines a row: rows of different workers never share one
TOKEN, _, WORKERS = range(3)
STAGE, NUMBER, POSITION, SINCE, VOID = range(5)
NUM_DONE, _PID, _STARTED, STACKS, INDICES, OFFSET, NBYTES = range(5, 12)

REMOTE, RELAY = -1, -2
"""In the place of a descriptor for stacks: a worker on another machine, and what stands for all."""

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

    SAMPLES: Final = frozenset({FETCHING})
    """Those in which a worker is at one sample."""

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
    """A copy of one row."""

    stage: int  # one of :class:`Stage`
    number: int  # batch number of the task, -1 for none
    position: int  # position in the batch of the sample that is being fetched; -1: not known
    since: int  # ``time.monotonic_ns()`` when the stage, or sample, began; 0 before the worker ran


def board_bytes(num_workers: int) -> int:
    """Bytes of a board for ``num_workers`` workers."""
    return (num_workers + 1) * ROW_WORDS * 8


VOIDABLE: Final = 62
"""Tasks of a worker that can be called off one by one: bits of a word."""


class StatusBoard:
    """Reads and writes the rows of the board.

    Args:
        memory: At least :func:`board_bytes` writable bytes, shared between the processes.

    Attributes:
        words: All of it, as 64-bit words.
    """

    def __init__(self, memory: memoryview) -> None:
        self.words = memory.cast("q")

    @property
    def token(self) -> int:
        """That of the epoch whose tasks are wanted."""
        return self.words[TOKEN]

    @token.setter
    def token(self, value: int) -> None:
        self.words[TOKEN] = value

    def call_off(self, worker: int, sequence: int, off: bool) -> None:
        """Write that a task sent to ``worker`` is not wanted any more; or forget that.

        No other of the worker's last :data:`VOIDABLE` tasks has the bit of this ``sequence``.
        """
        at, bit = (worker + 1) * ROW_WORDS + VOID, 1 << sequence % VOIDABLE
        self.words[at] = self.words[at] | bit if off else self.words[at] & ~bit

    def wants(self, worker: int, token: int, sequence: int) -> bool:
        """Whether a task of this token that was sent to ``worker`` is wanted still."""
        words = self.words
        return (
            words[TOKEN] == token
            and not words[(worker + 1) * ROW_WORDS + VOID] >> sequence % VOIDABLE & 1
        )

    @property
    def workers(self) -> int:
        """How many workers there are to be: those with this number and higher ones leave."""
        return self.words[WORKERS]

    @workers.setter
    def workers(self, value: int) -> None:
        self.words[WORKERS] = value

    def clear(self, worker: int) -> None:
        """Put a worker's row back to its beginning; only its tasks are counted on."""
        row = (worker + 1) * ROW_WORDS
        self.words[row + _PID] = self.words[row + STACKS] = self.words[row + VOID] = 0
        self.enter(worker, Stage.STARTING, -1)

    def launched(self, worker: int, pid: int) -> None:
        """Write, in the parent, that a process has been started for ``worker``."""
        row = (worker + 1) * ROW_WORDS
        self.words[row + _STARTED] = time.monotonic_ns()
        self.words[row + _PID] = pid

    def stacks_of(self, worker: int) -> int:
        """The descriptor that ``worker`` writes its stacks to on request; -1: none."""
        return max(self.words[(worker + 1) * ROW_WORDS + STACKS] - 1, -1)

    def shows_stacks(self, worker: int, fd: int) -> None:
        """Write where ``worker`` writes its stacks on request; -1: nowhere."""
        self.words[(worker + 1) * ROW_WORDS + STACKS] = fd + 1

    def enter(self, worker: int, stage: int, number: int) -> int:
        """Write that ``worker`` is in ``stage`` of task ``number`` from now on; returns "now"."""
        words, row = self.words, (worker + 1) * ROW_WORDS
        words[row + STAGE] = stage
        words[row + NUMBER] = number
        words[row + POSITION] = 0
        now = words[row + SINCE] = time.monotonic_ns()
        return now

    def read(self, worker: int) -> BoardRow:
        """Copy a worker's row."""
        row = (worker + 1) * ROW_WORDS
        return BoardRow(*self.words[row : row + 4].tolist())

    def release(self) -> None:
        """Release the memory."""
        self.words.release()
