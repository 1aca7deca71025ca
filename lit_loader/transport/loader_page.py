"""The page behind the status board: what the loader is at, for viewers in other processes.

::

    file   ┌────────────────┬───────────────┬───────┬───────────── … ─┐
           │ parent's row   │ workers' rows │ page  │ slots           │
           │ … page, magic ─┼───────────────┼─▶     │                 │
           └────────────────┴───────────────┴───────┴───────────── … ─┘
    page    numbers ▪ what changes with every batch ▪ texts ▪ the last events

The loader writes, whoever may open its file reads (`transport/board_view.py`), and neither knows of
the other. A batch costs the loader two short stores; whatever can be, is computed by the viewer,
from the differences of counters. The last two words of the parent's row say where the page is and
how all of this is laid out: :data:`FORMAT` changes with any change of it.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Sized
from typing import Final

from lit_loader.transport.status_board import MADE_AT, ROW_BYTES

__all__ = [
    "BAD_SAMPLE",
    "EVENT",
    "EVENTS",
    "EVENTS_AT",
    "FORMAT",
    "HEAD",
    "MAGIC",
    "NUMBERS",
    "PAGE_BYTES",
    "RESTART",
    "TEXTS",
    "LoaderPage",
]

FORMAT: Final = 3
"""Version of the board's layout, rows and page; a viewer of another version cannot read it."""

MAGIC: Final = int.from_bytes(b"litload\0", "big")
"""Together with the format: the last word of the parent's row."""

HEAD: Final = struct.Struct("@2q")
"""The last two words of the parent's row: where the page begins, magic and format."""

NUMBERS: Final = struct.Struct("@19q")
"""The page's first words, in the order of the names below."""

_PID, _DEPTH, _BATCH_SIZE, _RANK, _REPLICAS, _EPOCH, _LENGTH, _BASE = range(8)
_RESTARTS, _BAD, _SURPLUS, _BEGAN = range(8, 12)
_GIVEN, _WAITED, _CONSUMER = range(16, 19)  # in a cache line of their own
_OF_BATCH: Final = struct.Struct("@3q").pack_into  # native: a word at a time

_NONE: Final = -(1 << 40)

TEXTS: Final = {"role": (256, 64), "dataset": (320, 192)}
"""Where each text begins, in bytes, and how long it may be."""

EVENT: Final = struct.Struct("@4q480s")
"""Its number from 1, seconds since 1970, what it is, the bytes of its text; the text."""

EVENTS_AT: Final = 512
EVENTS: Final = 7
"""How many are kept; where the first of them lies."""

RESTART, BAD_SAMPLE = range(2)
"""What an event is."""

PAGE_BYTES: Final = 4096


class LoaderPage:
    """Writes the page. What is written after :meth:`close` goes nowhere.

    Args:
        memory: The board, :func:`lit_loader.transport.status_board.board_bytes`, and behind it
            :data:`PAGE_BYTES`; writable, and shared with whoever opens the file.

    Attributes:
        pid: The process whose page it is.
        in_flight: The tasks that have no result yet.
        received: Results of workers that have been read, also those that do not count.
    """

    def __init__(self, memory: memoryview) -> None:
        self._begin = len(memory) - PAGE_BYTES
        self._board = memory
        self._page = memory[self._begin :]
        self._words = self._page.cast("q")
        self._given = self._waited = self._restarts = self._bad = 0
        self._events: list[tuple[int, int, str]] = []
        self._happened = 0
        self.in_flight: Sized = ()
        self.received = 0
        self.pid = os.getpid()

    def describe(
        self,
        role: str,
        dataset: str,
        batch_size: int,
        replica: tuple[int, int],
        depth: int,
    ) -> None:
        """Write what does not change, and have the page seen from now on.

        Args:
            role: What the loader is for, "train", say; "": not known.
            dataset: What its dataset is called.
            batch_size: Samples a batch; 0: not known.
            replica: The rank, and how many there are.
            depth: Batches that may be asked for ahead.
        """
        texts = {"role": role, "dataset": dataset}
        for name, (start, size) in TEXTS.items():
            text = texts[name].encode(errors="replace")[: size - 1]
            self._page[start : start + size] = text.ljust(size, b"\0")
        words = self._words
        words[_PID] = self.pid
        words[_BATCH_SIZE] = batch_size
        self.depth(depth)
        words[_RANK], words[_REPLICAS] = replica
        words[_BEGAN] = time.monotonic_ns()
        HEAD.pack_into(self._board, ROW_BYTES - HEAD.size, self._begin, MAGIC | FORMAT)

    def so_far(self) -> tuple[int, int, int, int, list[tuple[int, int, str]]]:
        """Give the counts and events, for the page of the same loader's next workers."""
        return self._given, self._waited, self._restarts, self._bad, self._events

    def follow(self, earlier: LoaderPage) -> None:
        """Go on with the counts and events of another page."""
        self._given, self._waited, self._restarts, self._bad, events = earlier.so_far()
        self._words[_RESTARTS], self._words[_BAD] = self._restarts, self._bad
        for event in events:
            self._write(*event)

    def depth(self, batches: int) -> None:
        """Write how many batches may be asked for ahead."""
        self._words[_DEPTH] = batches

    def begin_epoch(self, epoch: int, given: int, length: int) -> None:
        """Write that an iterator has the workers, and its consumer waits.

        Args:
            epoch: Its epoch.
            given: Batches of the epoch that were given out before.
            length: Batches of the epoch; -1: not known.
        """
        words = self._words
        words[_EPOCH] = max(-(1 << 63), min(epoch, (1 << 63) - 1))
        words[_LENGTH], words[_BASE] = length, self._given - given
        words[_GIVEN], words[_WAITED] = self._given, self._waited
        words[_CONSUMER] = time.monotonic_ns()

    def balance(self, outstanding: int) -> None:
        """Set how many batches are ready; kept up by the counters from then on.

        Args:
            outstanding: Batches that were asked for and not given out.
        """
        ready = outstanding - len(self.in_flight)
        self._words[_SURPLUS] = ready - self.received + self._given

    def asked(self, now: int) -> None:
        """Write that the consumer waits for a batch since ``now``, in nanoseconds."""
        self._words[_CONSUMER] = now

    def settle(self) -> None:
        """Note that all results have been read that workers have sent."""
        rows = self._board[ROW_BYTES : self._begin].cast("q")
        self.received = sum(rows[MADE_AT // 8 :: ROW_BYTES // 8])

    def drop(self, results: int) -> None:
        """Count results that were read and give no batch; -1: a batch of which there is none."""
        self.received += max(0, results)
        self._words[_SURPLUS] -= results

    def gave(self, now: int, wait: int) -> None:
        """Write that a batch is given out, ``now``, after a wait of ``wait`` nanoseconds."""
        self._given = given = self._given + 1
        self._waited = waited = self._waited + wait
        _OF_BATCH(self._page, 8 * _GIVEN, given, waited, -now)

    def rest(self, kept: bool) -> None:
        """Write that no iterator has the workers; and whether what they have made is kept."""
        self._words[_CONSUMER] = 0
        if not kept:
            self._words[_SURPLUS] = _NONE

    def restarted(self, text: str) -> None:
        """Write that a worker was replaced, and why."""
        self._restarts += 1
        self._words[_RESTARTS] = self._restarts
        self._write(RESTART, int(time.time()), text)

    def bad_samples(self, texts: list[str]) -> None:
        """Write that samples could not be read, and what is known of the last of them."""
        self._bad += len(texts)
        self._words[_BAD] = self._bad
        for text in texts[-EVENTS:]:
            self._write(BAD_SAMPLE, int(time.time()), text)

    def _write(self, kind: int, when: int, text: str) -> None:
        self._events = [*self._events[1 - EVENTS :], (kind, when, text)]
        start = EVENTS_AT + self._happened % EVENTS * EVENT.size
        self._happened += 1
        data = text.encode(errors="replace")[: EVENT.size - 32]
        EVENT.pack_into(self._page, start, 0, when, kind, len(data), data)
        self._words[start // 8] = self._happened  # now the text is whole

    def close(self) -> None:
        """Let go of the memory; another thread may be writing, and does so in vain."""
        self._board = memoryview(bytearray(ROW_BYTES))
        self.in_flight = ()
        self._page = memoryview(bytearray(PAGE_BYTES))
        self._words = self._page.cast("q")
