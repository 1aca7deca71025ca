"""The status board read from outside, by another process of the same user.

Of a loader's file only the beginning is read, by ordinary reads through a descriptor that the
reader has opened: nothing is mapped, so that neither a file that is cut, nor one whose loader has
ended, can do any harm. Imports neither torch nor NumPy.
"""

from __future__ import annotations

import os
import struct
from array import array
from typing import Final, NamedTuple

from lit_loader.transport.loader_page import (
    EVENT,
    EVENTS,
    EVENTS_AT,
    FORMAT,
    HEAD,
    MAGIC,
    NUMBERS,
    PAGE_BYTES,
    TEXTS,
)
from lit_loader.transport.status_board import ROW, ROW_BYTES, WORKERS_AT, Stage, credit_of, node_of

__all__ = ["BoardView", "Event", "OtherFormat", "WorkerRow", "read_board", "read_index"]

_POSITION: Final = (1 << 40) - 1
"""The bits of a task's number that are the batch's position (`transport/messages.py`)."""

_WORKERS: Final = struct.Struct("@q")
_MOST: Final = 1 << 15
_LARGEST: Final = _MOST * ROW_BYTES
"""Workers, and bytes of a board, that are believed: more is no board."""

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
        position: Position in the batch of the sample that is being fetched.
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
    def batch(self) -> int | None:
        """The batch's number in its epoch; None: it has none at hand."""
        return self.number & _POSITION if self.stage in Stage.BUSY else None


class Event(NamedTuple):
    """What has happened: a worker was replaced, or a sample could not be read.

    Attributes:
        number: Counts a loader's, from 1.
        time: Seconds since 1970.
        kind: ``RESTART`` or ``BAD_SAMPLE``.
        text: The loader's own words.
    """

    number: int
    time: int
    kind: int
    text: str


class BoardView(NamedTuple):
    """A copy of a board: numbers as :class:`lit_loader.transport.loader_page.LoaderPage` has them.

    Attributes:
        workers: How many there are to be.
        pid: The training process, as it knows itself.
        depth: Batches that may be asked for ahead.
        batch_size: Samples a batch; 0: not known.
        rank: The rank.
        replicas: How many ranks there are.
        epoch: The epoch that was begun last.
        length: Its batches; -1: not known.
        base: Batches that were given out before the epoch began.
        restarts: Workers that were replaced.
        bad: Samples that could not be read.
        surplus: How many more batches have been given out or are ready than ``made`` counts.
        began: ``time.monotonic_ns()`` when the workers were taken into use.
        given: Batches given out.
        waited: Nanoseconds that the consumer has waited for them.
        consumer: Waits since then, if positive; computes since then, if negative; 0: no iterator
            has the workers.
        role: What the loader is for, "": not known.
        dataset: What its dataset is called.
        rows: Of the workers, by number, up to the last that there has been.
        events: The last ones, the oldest first.
    """

    workers: int
    pid: int
    depth: int
    batch_size: int
    rank: int
    replicas: int
    epoch: int
    length: int
    base: int
    restarts: int
    bad: int
    surplus: int
    began: int
    given: int
    waited: int
    consumer: int
    role: str
    dataset: str
    rows: list[WorkerRow]
    events: list[Event]

    @property
    def ready(self) -> int:
        """Batches that are made and were not asked for."""
        made = sum(row.made for row in self.rows)
        # No more than may be: a second copy of a task, say, counts until its reply has been read.
        return max(0, min(made + self.surplus - self.given, self.depth))


def read_board(fd: int) -> BoardView:
    """Read a board.

    Args:
        fd: Descriptor of a loader's file.

    Raises:
        OtherFormat: It is laid out otherwise.
        OSError: It cannot be read.
    """
    head = os.pread(fd, ROW_BYTES, 0)
    if len(head) < ROW_BYTES:
        raise OtherFormat(None)
    begin, magic = HEAD.unpack_from(head, ROW_BYTES - HEAD.size)
    if magic & ~0xFF != MAGIC:
        raise OtherFormat(None)
    if magic != MAGIC | FORMAT:
        raise OtherFormat(magic & 0xFF)
    if begin % ROW_BYTES or not 0 < begin <= _LARGEST:
        raise OtherFormat(None)
    # The page first: what is counted as given was made, and is so in the rows.
    page = _read_calmly(fd, begin)
    data = os.pread(fd, begin, 0)
    (workers,) = _WORKERS.unpack_from(data, WORKERS_AT)
    written = max(len(data.rstrip(b"\0")), ROW_BYTES * (1 + min(workers, _MOST)))
    rows = [
        _row(data[start : start + ROW_BYTES])
        for start in range(ROW_BYTES, min(written, len(data) - ROW_BYTES + 1), ROW_BYTES)
    ]
    numbers = NUMBERS.unpack_from(page)
    texts = {
        name: page[start : start + size].rstrip(b"\0").decode(errors="replace")
        for name, (start, size) in TEXTS.items()
    }
    fields = (*numbers[:12], *numbers[16:19], texts["role"], texts["dataset"], rows, _events(page))
    return BoardView._make((workers, *fields))


def _row(data: bytes) -> WorkerRow:
    row, node, credit = WorkerRow(*ROW.unpack_from(data)), node_of(data), credit_of(data)
    if node is None and credit is None:
        return row
    blank = row._replace(stacks=0, indices_of=-1, offset=0, nbytes=0)
    return blank._replace(node=node, credit=credit)


def _read_calmly(fd: int, begin: int) -> bytes:
    """Read the page, without an event in it that was just being written."""
    page = os.pread(fd, PAGE_BYTES, begin)
    for _ in range(8):
        again, page = page, os.pread(fd, PAGE_BYTES, begin)
        if again[EVENTS_AT:] == page[EVENTS_AT:]:
            break
    if len(page) < PAGE_BYTES:
        raise OtherFormat(None)
    return page


def _events(page: bytes) -> list[Event]:
    found = []
    for place in range(EVENTS):
        number, when, kind, size, text = EVENT.unpack_from(page, EVENTS_AT + place * EVENT.size)
        if number > 0:
            found.append(Event(number, when, kind, text[:size].decode(errors="replace")))
    return sorted(found)


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
    if row.stage != Stage.FETCHING or row.indices_of != row.number:
        return None
    if not 0 <= place < row.nbytes - 1:
        return None
    if os.pread(fd, 1, row.offset + row.nbytes - 1) != b"q":  # others are pickled
        return None
    index = array("q")
    data = os.pread(fd, _INDEX, row.offset + place)
    if len(data) < _INDEX:
        return None
    index.frombytes(data)
    return index[0]
