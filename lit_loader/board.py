"""The status board: who does what since when, readable without a message.

One row of shared memory a worker. The worker writes, the parent reads; every field is one aligned
64-bit word, so a reader sees old or new and never half. It says what a dead or hung worker was at,
and its first word (the generation) tells workers at once that what they do is no longer wanted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

__all__ = ["BoardRow", "Cancelled", "Progress", "Stage", "StatusBoard", "board_bytes"]

_WORDS: Final = 8  # a cache line a row: rows of different workers never share one
_STAGE, _NUMBER, _POSITION, _SINCE = range(4)


class Stage:
    """What a worker is doing; the value of a row's stage."""

    STARTING: Final = 0
    INITIALISING: Final = 1
    IDLE: Final = 2
    FETCHING: Final = 3
    COLLATING: Final = 4
    ENCODING: Final = 5

    NAMES: Final = (
        "starting",
        "in worker_init_fn",
        "idle",
        "fetching",
        "collating",
        "writing the batch into shared memory",
    )


class BoardRow(NamedTuple):
    """A copy of one row.

    Attributes:
        stage: One of :class:`Stage`.
        number: Batch number of the task, -1 for none.
        position: Position in the batch of the sample that is being fetched.
        since: ``time.monotonic_ns()`` when the stage began, 0 before the worker ran.
    """

    stage: int
    number: int
    position: int
    since: int


def board_bytes(num_workers: int) -> int:
    """Bytes of a board for ``num_workers`` workers."""
    return (num_workers + 1) * _WORDS * 8


class Cancelled(Exception):
    """The batch that is being made is no longer wanted."""


class Progress:
    """Where a reader notes the sample it is at, and learns whether the batch is still wanted.

    Args:
        words: The board; None for a reader that nobody watches.
        place: The word of the reader's position.

    Attributes:
        generation: The generation whose batch is being made.
    """

    __slots__ = ("_place", "_words", "generation")

    def __init__(self, words: memoryview | None = None, place: int = 1) -> None:
        self._words = memoryview(bytearray(16)).cast("q") if words is None else words
        self._place = place
        self.generation = 0

    def step(self, position: int) -> None:
        """Note that the sample at ``position`` of the batch comes next; called for every sample.

        Raises:
            Cancelled: The board shows another generation.
        """
        words = self._words
        words[self._place] = position
        if words[0] != self.generation:
            raise Cancelled

    def through(self, indices: Iterable[Any]) -> Iterator[Any]:
        """Give a batch's indices one by one, with a :meth:`step` before each.

        Raises:
            Cancelled: The board shows another generation.
        """
        # Spelled out: a call for each sample would take as long as many a sample.
        words, place, generation = self._words, self._place, self.generation
        for position, index in enumerate(indices):
            words[place] = position
            if words[0] != generation:
                raise Cancelled
            yield index


class StatusBoard:
    """The board over its bytes.

    Args:
        memory: At least :func:`board_bytes` writable bytes, shared between the processes.
    """

    def __init__(self, memory: memoryview) -> None:
        self._words = memory.cast("q")

    @property
    def generation(self) -> int:
        """The generation whose tasks are wanted."""
        return self._words[0]

    @generation.setter
    def generation(self, value: int) -> None:
        self._words[0] = value

    def clear(self, worker: int) -> None:
        """Put a worker's row back to its beginning."""
        self.enter(worker, Stage.STARTING, -1)
        self._words[(worker + 1) * _WORDS + _SINCE] = 0

    def enter(self, worker: int, stage: int, number: int) -> None:
        """Write that ``worker`` is in ``stage`` of task ``number`` from now on."""
        words, row = self._words, (worker + 1) * _WORDS
        words[row + _STAGE] = stage
        words[row + _NUMBER] = number
        words[row + _POSITION] = 0
        words[row + _SINCE] = time.monotonic_ns()

    def progress(self, worker: int) -> Progress:
        """Give ``worker`` what it reports its samples by."""
        return Progress(self._words, (worker + 1) * _WORDS + _POSITION)

    def read(self, worker: int) -> BoardRow:
        """Copy a worker's row."""
        row = (worker + 1) * _WORDS
        return BoardRow(*self._words[row : row + 4].tolist())

    def release(self) -> None:
        """Let go of the memory."""
        self._words.release()
