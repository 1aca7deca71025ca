"""A loader's status board and page, read by a viewer in another process.

The viewer reads the beginning of the file by ordinary reads. Nothing is mapped, so neither a file
that is cut, nor one whose loader has ended, can do any harm. Imports neither torch nor NumPy.
"""

from __future__ import annotations

import json
import os
import zlib
from array import array
from typing import Any, Final, NamedTuple

from lit_loader.core.transport import viewer_page as page_of
from lit_loader.core.transport.status_board import RELAY, REMOTE, ROW, ROW_BYTES, WORKERS, Stage

__all__ = ["BoardView", "WorkerRow", "read_board", "read_index"]

_POSITION: Final = (1 << 40) - 1
"""The bits of a task's number that are the batch's position (`core/transport/messages.py`)."""

_TRIES: Final = 8
_INDEX: Final = 8


class WorkerRow(NamedTuple):
    """A worker's row as a viewer sees it: words of `core/transport/status_board.py`, and more."""

    stage: int
    number: int  # of its task, -1 for none
    position: int  # in the batch, of the sample that is being fetched; -1: not known
    since: int  # monotonic_ns() when the stage, or sample, began; 0 before the worker ran
    void: int
    made: int
    pid: int  # as the loader knows it; 0: none
    started: int  # monotonic_ns()
    stacks: int  # its descriptor of the file for its stacks, plus 1; 0: none; or `REMOTE`, `RELAY`
    indices_of: int  # the task whose indices lie in the file: where, and how many bytes
    offset: int
    nbytes: int

    @property
    def is_remote(self) -> bool:
        """Whether it stands for a worker on another machine."""
        return self.stacks == REMOTE

    @property
    def is_relay(self) -> bool:
        """Whether it is the process that stands for all of them."""
        return self.stacks == RELAY

    @property
    def batch(self) -> int | None:
        """The batch's number in its epoch; None: the worker has none."""
        return self.number & _POSITION if self.stage in Stage.BUSY else None

    def at_same_task(self, later: WorkerRow) -> bool:
        """Whether a later copy of the row is of the same task, in the same stage."""
        return later._replace(position=self.position, since=self.since) == self


class BoardView(NamedTuple):
    """A copy of a board; all but the page is as it is at this moment."""

    workers: int  # that there are to be
    since: int  # monotonic_ns() since when the loop waits; computes, if negative; 0: neither
    epoch: int
    batches: int  # of that epoch that were yielded
    ready: int  # that are made and were not asked for, about
    page: dict[str, Any]  # as `ViewerPage.write` has it
    rows: list[WorkerRow]  # up to the last that there has been


def read_board(fd: int) -> BoardView | None:
    """Read a board; None: it is empty, or of another version. OSError: it cannot be read."""
    for _ in range(_TRIES):  # a page is written once per second
        row = array("q", os.pread(fd, ROW_BYTES, 0).ljust(ROW_BYTES, b"\0"))
        begin = row[page_of.BEGIN]
        if row[page_of.FORM] != page_of.MAGIC | page_of.FORMAT or begin % ROW_BYTES:
            return None
        if (page := _page(fd, row[page_of.NUMBER], begin)) is not None:
            return _view(os.pread(fd, begin, 0), page)  # after the page: what changed is known
    return None


def _page(fd: int, number: int, begin: int) -> dict[str, Any] | None:
    """Read the page that the parent's row names; None if there is another one by now, or none."""
    data = os.pread(fd, page_of.HALF, begin + number % 2 * page_of.HALF)
    if len(data) < page_of.HALF:
        return None
    found, size, checksum = page_of.HEAD.unpack_from(data)
    text = data[page_of.HEAD.size : page_of.HEAD.size + max(0, size)]
    if found != number or zlib.crc32(text) != checksum:
        return None
    page: dict[str, Any] = json.loads(text)
    return page


def _view(data: bytes, page: dict[str, Any]) -> BoardView:
    words = array("q", data[:ROW_BYTES])
    written = max(len(data.rstrip(b"\0")), ROW_BYTES * (1 + words[WORKERS]))
    starts = range(ROW_BYTES, min(written, len(data) - ROW_BYTES + 1), ROW_BYTES)
    rows = [WorkerRow(*ROW.unpack_from(data, start)) for start in starts]
    since, given = words[page_of.SINCE], words[page_of.GIVEN]
    made = sum(each.made for each in rows[: page["rows"]]) - page["made"]
    ready = page["ready"] + made - (given - page["given"]) if since else 0
    # A second copy of a task counts until the next page; what is being made is not ready.
    most = page["loader"]["ahead"] - len({row.batch for row in rows} - {None})
    batches = given - words[page_of.BASE]
    ready = max(0, min(ready, most))
    return BoardView(words[WORKERS], since, words[page_of.EPOCH], batches, ready, page, rows)


def read_index(fd: int, row: WorkerRow) -> int | None:
    """Read which index the sample has that a worker is at, out of its loader's file.

    Reread the row afterwards: if it is of another task then, this may be anything.
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
