"""The page behind the status board: what the loader is at, for viewers in other processes.

::

    file   ┌──────────────────────────────┬───────────────┬──────┬──────┬───────── … ─┐
           │ parent's row                 │ workers' rows │ even │ odd  │ slots       │
           │ … consumer … page, magic ────┼───────────────┼─▶    │      │             │
           └──────────────────────────────┴───────────────┴──────┴──────┴───────── … ─┘

The loader writes, whoever may open its file reads. A page is JSON, written at most once in
:data:`EVERY` nanoseconds, by turns into two places: the number in the parent's row says which is
whole. Since when the consumer waits, or computes, and at which batch, is live in that row, as the
workers' rows are.

A viewer reads the beginning of the file by ordinary reads: nothing is mapped, so that neither a
file that is cut, nor one whose loader has ended, can do any harm. Imports neither torch nor NumPy.
"""

from __future__ import annotations

import json
import os
import struct
import time
import zlib
from array import array
from typing import Any, Final, NamedTuple

from lit_loader.transport.status_board import (
    NUM_DONE,
    ROW,
    ROW_BYTES,
    ROW_WORDS,
    WORKERS,
    Stage,
    credit_of,
    node_of,
)

__all__ = [
    *("FORMAT", "GIVEN", "MAGIC", "PAGE_BYTES", "SINCE", "LoaderPage"),
    *("BoardView", "OtherFormat", "WorkerRow", "read_board", "read_index"),
]

FORMAT: Final = 5
"""Version of the board's layout, rows and page; a viewer of another version cannot read it."""

MAGIC: Final = int.from_bytes(b"litload\0", "big")
"""Together with the format: the last word of the parent's row."""

EVERY = 1_000_000_000  # nanoseconds from one page to the next, at least

PAGE_BYTES: Final = 16 << 10

SINCE, GIVEN, BASE, EPOCH = range(8, 12)
"""Words of the parent's row, in a cache line without the token, which workers read. Since when the
consumer waits, if positive, or computes, if negative, 0: no iterator has the workers; batches given
out; how many of them before the epoch began; the epoch."""

NUMBER, BEGIN, FORM = range(13, 16)
"""And where the page is: the number of the whole one, where both begin, magic and format."""

_HEAD: Final = struct.Struct("@3q")
"""A page's number, its bytes, their checksum."""

_HALF: Final = PAGE_BYTES // 2
_ROOM: Final = _HALF - _HEAD.size

_POSITION: Final = (1 << 40) - 1
"""The bits of a task's number that are the batch's position (`transport/messages.py`)."""

_MOST: Final = 1 << 15  # workers that are believed: more is no board

_TRIES: Final = 8
_INDEX: Final = 8


class LoaderPage:
    """Writes the page, and the consumer's words. What is written after :meth:`close` goes nowhere.

    ``memory`` is the board and :data:`PAGE_BYTES` behind it. ``rows`` of it are in use from the
    first on, whatever the number of workers. The iterator writes :data:`SINCE` and :data:`GIVEN`
    into ``row``, the parent's, and a page where it is ``due``, by ``time.monotonic_ns()``.
    """

    def __init__(self, memory: memoryview, rows: int = 0) -> None:
        self._begin = len(memory) - PAGE_BYTES
        self._page = memory[self._begin :]
        self._board = memory[: self._begin].cast("q")
        self.row = self._board[:ROW_WORDS]
        self.due = self._number = 0
        self._rows = rows
        self._began = time.monotonic_ns()

    def begin_epoch(self, epoch: int, given: int) -> None:
        """Write that an iterator has the workers, its consumer waits, and has had ``given``."""
        row = self.row
        row[EPOCH] = max(-(1 << 63), min(epoch, (1 << 63) - 1))
        row[BASE] = row[GIVEN] - given
        row[SINCE] = time.monotonic_ns()

    def rest(self) -> None:
        """Write that no iterator has the workers."""
        self.row[SINCE] = 0

    def write(self, figures: dict[str, Any], ready: int, now: int) -> None:
        """Write a page, and have the loader seen from now on.

        ``figures`` are by the names of `top/snapshot.py`, taken at ``now``; ``ready`` batches were
        made and not asked for.
        """
        row, self._rows = self.row, max(self._rows, self.row[WORKERS])
        # At once with what is ready, as workers go on counting; who counts sends after that.
        made = sum(self._board[ROW_WORDS + NUM_DONE : ROW_WORDS * (self._rows + 1) : ROW_WORDS])
        known = {
            "pid": os.getpid(),
            "began": self._began,
            "written": now,
            "given": row[GIVEN],
            "ready": ready,
            # By the first rows: a viewer knows from what they show later how many are ready then.
            "rows": self._rows,
            "made": made,
        }
        data = json.dumps({**known, "loader": figures}).encode()
        if len(data) > _ROOM:
            texts = ("events", "statistics", "verdict")
            figures = {name: value for name, value in figures.items() if name not in texts}
            data = json.dumps({**known, "loader": figures}).encode()
        self._number = number = self._number + 1
        place = number % 2 * _HALF
        _HEAD.pack_into(self._page, place, number, len(data), zlib.crc32(data))
        self._page[place + _HEAD.size : place + _HEAD.size + len(data)] = data
        row[NUMBER] = number  # now it is whole
        row[BEGIN], row[FORM] = self._begin, MAGIC | FORMAT

    def close(self) -> None:
        """Let go of the memory; another thread may be writing, and does so in vain."""
        self._page = memoryview(bytearray(PAGE_BYTES))
        self._board = memoryview(bytearray(ROW_BYTES)).cast("q")
        self.row = self._board[:ROW_WORDS]


# --- reading ---


class OtherFormat(Exception):
    """The file is a loader's of another ``format``; None: it shows nothing, perhaps not yet."""

    def __init__(self, found: int | None) -> None:
        super().__init__(found)
        self.format = found


class WorkerRow(NamedTuple):
    """A worker's row as a viewer sees it: the words of `transport/status_board.py`, and more."""

    stage: int
    number: int  # of its task, -1 for none
    position: int  # in the batch, of the sample that is being fetched; -1: not known
    since: int  # monotonic_ns() when the stage, or sample, began; 0 before the worker ran
    void: int
    made: int
    pid: int  # as the loader knows it; 0: none
    started: int  # monotonic_ns()
    stacks: int  # its descriptor of the file for its stacks, plus 1; 0: there is none
    indices_of: int  # the task whose indices lie in the file: where, and how many bytes
    offset: int
    nbytes: int
    node: str | None = None  # a remote worker's machine, "": it is not up; None: it is of this one
    credit: int | None = None  # of a relay: batches that remote workers can be at together

    @property
    def batch(self) -> int | None:
        """The batch's number in its epoch; None: it has none at hand."""
        return self.number & _POSITION if self.stage in Stage.BUSY else None

    def at_same_task(self, later: WorkerRow) -> bool:
        """Whether a later copy of the row tells of the same task, in the same stage."""
        return later._replace(position=self.position, since=self.since) == self


class BoardView(NamedTuple):
    """A copy of a board; all but the page is as it is at this moment."""

    workers: int  # that there are to be
    since: int  # monotonic_ns() since when the consumer waits; computes, if negative; 0: none does
    epoch: int
    batches: int  # of that epoch that were given out
    ready: int  # that are made and were not asked for, about
    page: dict[str, Any]  # as `LoaderPage.write` has it
    rows: list[WorkerRow]  # up to the last that there has been


def read_board(fd: int) -> BoardView:
    """Read a board. OtherFormat: the file is laid out otherwise; OSError: it cannot be read."""
    for _ in range(_TRIES):  # one is written once a second
        head = os.pread(fd, ROW_BYTES, 0)
        if len(head) < ROW_BYTES:
            raise OtherFormat(None)
        row = array("q", head)
        begin, magic = row[BEGIN], row[FORM]
        if magic != MAGIC | FORMAT:
            raise OtherFormat(magic & 0xFF if magic & ~0xFF == MAGIC else None)
        if begin % ROW_BYTES or not 0 < begin <= _MOST * ROW_BYTES:
            raise OtherFormat(None)
        page = _page(fd, row[NUMBER], begin)
        if page is not None:
            break
    else:
        raise OtherFormat(None)
    data = os.pread(fd, begin, 0)  # after the page: so what has changed since is known
    words = array("q", data[:ROW_BYTES])
    written = max(len(data.rstrip(b"\0")), ROW_BYTES * (1 + min(words[WORKERS], _MOST)))
    rows = [
        _row(data[start : start + ROW_BYTES])
        for start in range(ROW_BYTES, min(written, len(data) - ROW_BYTES + 1), ROW_BYTES)
    ]
    since, given = words[SINCE], words[GIVEN]
    made = sum(each.made for each in rows[: page["rows"]]) - page["made"]
    ready = page["ready"] + made - (given - page["given"]) if since else 0
    # A second copy of a task, say, counts until the next page; what is being made is not ready.
    most = page["loader"]["ahead"] - len({row.batch for row in rows} - {None})
    batches = given - words[BASE]
    ready = max(0, min(ready, most))
    return BoardView(words[WORKERS], since, words[EPOCH], batches, ready, page, rows)


def _page(fd: int, number: int, begin: int) -> dict[str, Any] | None:
    """Read the page that the parent's row names; None if there is another one by now, or none."""
    data = os.pread(fd, _HALF, begin + number % 2 * _HALF)
    if len(data) < _HALF:
        return None
    found, size, checksum = _HEAD.unpack_from(data)
    text = data[_HEAD.size : _HEAD.size + max(0, size)]
    if found != number or zlib.crc32(text) != checksum:
        return None
    page: dict[str, Any] = json.loads(text)
    return page


def _row(data: bytes) -> WorkerRow:
    row, node, credit = WorkerRow(*ROW.unpack_from(data)), node_of(data), credit_of(data)
    if node is None and credit is None:
        return row
    blank = row._replace(stacks=0, indices_of=-1, offset=0, nbytes=0)
    return blank._replace(node=node, credit=credit)


def read_index(fd: int, row: WorkerRow) -> int | None:
    """Read which index the sample has that a worker is at, out of its loader's file.

    The row must be read again afterwards: if it is of another task then, this may be anything.
    None if the batch has no indices, or such as are not plain integers.
    """
    place = row.position * _INDEX
    if row.stage not in Stage.SAMPLES or row.indices_of != row.number:
        return None
    if not 0 <= place < row.nbytes - 1:
        return None
    if os.pread(fd, 1, row.offset + row.nbytes - 1) != b"q":  # others are pickled
        return None
    data = os.pread(fd, _INDEX, row.offset + place)
    return array("q", data)[0] if len(data) == _INDEX else None
