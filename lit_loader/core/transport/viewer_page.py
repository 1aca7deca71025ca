"""The page after the status board: what the loader is at, for viewers in other processes.

::

    file   ┌──────────────────────────────┬───────────────┬──────┬──────┬───────── … ─┐
           │ parent's row                 │ workers' rows │ even │ odd  │ slots       │
           │ … consumer … page, magic ────┼───────────────┼─▶    │      │             │
           └──────────────────────────────┴───────────────┴──────┴──────┴───────── … ─┘

The loader writes, whoever may open its file reads. A page is JSON, written at most once in
:data:`EVERY` nanoseconds, by turns into two places: the number in the parent's row says which is
whole. Since when the consumer waits, or computes, and at which batch, is live in that row, as the
workers' rows are.

Viewers read it by `top/board.py`.
"""

from __future__ import annotations

import json
import os
import struct
import time
import zlib
from typing import Final

from lit_loader.core.transport.status_board import (
    NUM_DONE,
    ROW_BYTES,
    ROW_WORDS,
    WORKERS,
)

FORMAT: Final = 7
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

HEAD: Final = struct.Struct("@3q")
"""A page's number, its bytes, their checksum."""

HALF: Final = PAGE_BYTES // 2
_ROOM: Final = HALF - HEAD.size


class ViewerPage:
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
        self._began, self._pid = time.monotonic_ns(), os.getpid()

    def begin_epoch(self, epoch: int, given: int) -> None:
        """Write that an iterator has the workers, its consumer waits, and has had ``given``."""
        row = self.row
        row[EPOCH] = max(-(1 << 63), min(epoch, (1 << 63) - 1))
        row[BASE] = row[GIVEN] - given
        row[SINCE] = time.monotonic_ns()

    def rest(self) -> None:
        """Write that no iterator has the workers; not in a forked copy of the process."""
        if os.getpid() == self._pid:
            self.row[SINCE] = 0

    def write(self, figures: dict[str, object], ready: int, now: int) -> None:
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
        place = number % 2 * HALF
        HEAD.pack_into(self._page, place, number, len(data), zlib.crc32(data))
        self._page[place + HEAD.size : place + HEAD.size + len(data)] = data
        row[NUMBER] = number  # now it is whole
        row[BEGIN], row[FORM] = self._begin, MAGIC | FORMAT

    def close(self) -> None:
        """Release the memory; another thread may be writing, and does so in vain."""
        self._page = memoryview(bytearray(PAGE_BYTES))
        self._board = memoryview(bytearray(ROW_BYTES)).cast("q")
        self.row = self._board[:ROW_WORDS]
