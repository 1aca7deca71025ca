"""The status board and its page read from outside, by another process of the same user.

Of a loader's file only the beginning is read, by ordinary reads through a descriptor that the
reader has opened: nothing is mapped, so that neither a file that is cut, nor one whose loader has
ended, can do any harm. Imports neither torch nor NumPy.
"""

from __future__ import annotations

import os
from array import array
from typing import Any, Final, NamedTuple

from lit_loader.transport import loader_page
from lit_loader.transport.loader_page import FORMAT, MAGIC, read_page
from lit_loader.transport.status_board import (
    ROW,
    ROW_BYTES,
    WORKERS,
    Stage,
    credit_of,
    node_of,
)

__all__ = ["BoardView", "OtherFormat", "WorkerRow", "read_board", "read_index"]

_POSITION: Final = (1 << 40) - 1
"""The bits of a task's number that are the batch's position (`transport/messages.py`)."""

_MOST: Final = 1 << 15
_LARGEST: Final = _MOST * ROW_BYTES
"""Workers, and bytes of a board, that are believed: more is no board."""

_TRIES: Final = 8
_INDEX: Final = 8


class OtherFormat(Exception):
    """The file is a loader's, but not of this version of the package.

    Attributes:
        format: The version of its layout; None: from before there was one, or no loader of a use.
    """

    def __init__(self, found: int | None) -> None:
        super().__init__(found)
        self.format = found


class WorkerRow(NamedTuple):
    """A worker's row as a viewer sees it.

    Attributes:
        stage: One of :class:`lit_loader.transport.status_board.Stage`.
        number: Of its task, -1 for none.
        position: Position in the batch of the sample that is being fetched; -1: not known.
        since: ``time.monotonic_ns()`` when the stage, or sample, began; 0 before the worker ran.
        void: Bits of the tasks that are not wanted.
        made: Tasks done under this worker's number.
        pid: Its process, as the loader knows it; 0: none.
        started: ``time.monotonic_ns()`` when that was started.
        stacks: Its descriptor of the file for its stacks, plus 1; 0: there is none.
        indices_of: The task whose indices lie at ``offset``.
        offset: Where in the file.
        nbytes: How many bytes of them.
        node: The machine of a remote worker, "": it is not up; None: it is of this machine.
        credit: Of a relay: batches that remote workers can be at together; None: it is none.
    """

    stage: int
    number: int
    position: int
    since: int
    void: int
    made: int
    pid: int
    started: int
    stacks: int
    indices_of: int
    offset: int
    nbytes: int
    node: str | None = None
    credit: int | None = None

    @property
    def task(self) -> tuple[int, ...]:
        """What changes when it takes up another one, or another sample's stage."""
        return self.stage, self.number, self.void, self.made, *self[9:12]

    @property
    def batch(self) -> int | None:
        """The batch's number in its epoch; None: it has none at hand."""
        return self.number & _POSITION if self.stage in Stage.BUSY else None


class BoardView(NamedTuple):
    """A copy of a board; all but the page is as it is at this moment.

    Attributes:
        workers: How many there are to be.
        since: ``time.monotonic_ns()`` since when the consumer waits; computes, if negative; 0: no
            iterator has the workers.
        epoch: The epoch that was begun last.
        batches: Batches of it that were given out.
        ready: Batches that are made and were not asked for, about.
        page: What the loader has written last, as :meth:`LoaderPage.write` has it.
        rows: Of the workers, by number, up to the last that there has been.
    """

    workers: int
    since: int
    epoch: int
    batches: int
    ready: int
    page: dict[str, Any]
    rows: list[WorkerRow]


def read_board(fd: int) -> BoardView:
    """Read a board.

    Args:
        fd: Descriptor of a loader's file.

    Raises:
        OtherFormat: It is laid out otherwise.
        OSError: It cannot be read.
    """
    for _ in range(_TRIES):  # one is written once a second
        head = os.pread(fd, ROW_BYTES, 0)
        if len(head) < ROW_BYTES:
            raise OtherFormat(None)
        row = array("q", head)
        begin, magic = row[loader_page.BEGIN], row[loader_page.FORM]
        if magic & ~0xFF != MAGIC:
            raise OtherFormat(None)
        if magic != MAGIC | FORMAT:
            raise OtherFormat(magic & 0xFF)
        if begin % ROW_BYTES or not 0 < begin <= _LARGEST:
            raise OtherFormat(None)
        page = read_page(fd, row[loader_page.NUMBER], begin)
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
    given = words[loader_page.GIVEN]
    made = sum(each.made for each in rows[: page["rows"]]) - page["made"]
    ready = page["ready"] + made - (given - page["given"])
    if not words[loader_page.SINCE]:
        ready = 0
    return BoardView(
        words[WORKERS],
        words[loader_page.SINCE],
        words[loader_page.EPOCH],
        given - words[loader_page.BASE],
        # A second copy of a task, say, counts until the next page; what is being made is not ready.
        max(0, min(ready, page["loader"]["ahead"] - len({row.batch for row in rows} - {None}))),
        page,
        rows,
    )


def _row(data: bytes) -> WorkerRow:
    row, node, credit = WorkerRow(*ROW.unpack_from(data)), node_of(data), credit_of(data)
    if node is None and credit is None:
        return row
    blank = row._replace(stacks=0, indices_of=-1, offset=0, nbytes=0)
    return blank._replace(node=node, credit=credit)


def read_index(fd: int, row: WorkerRow) -> int | None:
    """Read which index the sample has that a worker is at.

    Args:
        fd: Descriptor of the loader's file.
        row: The worker's row. It must be read again afterwards: if it is another one then, what
            was read here may be anything.

    Returns:
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
