"""`OwnPage`: what viewers in other processes see of batches that the training process makes itself.

A pool has its board in the file of its batches; a loader without workers has no such file. After a
second of iterating it gets a small one, with a board of one row, in which the process notes the
sample that it reads: it notes that anyhow, only in memory of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import weakref
from collections.abc import Callable
from typing import Final

from lit_loader.system.interrupts import HeldBack
from lit_loader.system.shared_file import SharedFile, map_over, map_part, round_up
from lit_loader.system.weak_sets import members
from lit_loader.transport.loader_page import PAGE_BYTES, LoaderPage
from lit_loader.transport.progress import Progress
from lit_loader.transport.status_board import ROW_WORDS, StatusBoard, board_bytes

__all__ = ["Beginner", "OwnPage", "ShownHere"]

AFTER: Final = 1_000_000_000
"""Nanoseconds after a loader's first batch; those that live for a moment are not worth a file."""

MOST: Final = 8
"""Loaders of one process that have such a file: each takes a descriptor."""

_BOARD: Final = board_bytes(1)
_NBYTES: Final = round_up(_BOARD + PAGE_BYTES)

_open: weakref.WeakSet[OwnPage] = weakref.WeakSet()


class OwnPage:
    """A loader's page in a file of its own.

    Attributes:
        page: The page.
        progress: Where the process notes the sample that it reads.

    Raises:
        OSError: There is no such file to be had; or there are enough of them.
    """

    def __init__(self) -> None:
        if len(_open) >= MOST:
            raise OSError(f"{MOST} loaders are shown already")
        with HeldBack():  # an exception out of a signal handler would leave the file behind
            self._make()

    def _make(self) -> None:
        file = SharedFile()
        try:
            if not file.sparse:
                raise OSError("a file on a disk is seen by no viewer")
            file.extend(_NBYTES)
            self._mapping = map_part(file.fd, 0, _NBYTES)
        except BaseException:
            file.close()
            raise
        self._finalizer = weakref.finalize(self, _close, file)
        memory = memoryview(self._mapping)[: _BOARD + PAGE_BYTES]
        board = StatusBoard(memory)
        board.launched(0, os.getpid())
        self.page, self.progress = LoaderPage(memory), Progress(board.words, ROW_WORDS)
        _open.add(self)

    def close(self) -> None:
        """Have it seen no more; what is written afterwards goes nowhere."""
        with HeldBack():
            self._finalizer()
            _open.discard(self)

    def leave_to_parent(self) -> None:
        """In a forked child: write into memory of this process alone."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        map_over(address, _NBYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.close()


def _close(file: SharedFile) -> None:
    with HeldBack(unnoticed=True):  # most often it is the garbage collector's call
        file.close()


def _in_child() -> None:
    for page in members(_open):
        with contextlib.suppress(OSError):
            page.leave_to_parent()


os.register_at_fork(after_in_child=_in_child)

Beginner = Callable[[int], OwnPage | None]
"""Begins to show an epoch, now; None: not yet, or not at all."""


class ShownHere:
    """Shows an epoch whose batches this process makes.

    Args:
        begin: Begins to; see :data:`Beginner`.
    """

    def __init__(self, begin: Beginner) -> None:
        self._begin = begin
        self._page: LoaderPage | None = None
        self._since = 0
        self.progress = Progress()

    def asked(self, now: int) -> Progress:
        """Note that a batch is asked for ``now``, in nanoseconds.

        Returns:
            Where the samples are to be noted that are read for it.
        """
        page = self._page
        if page is not None:
            page.asked(now)
        elif now - self._since > AFTER:
            self._since = now
            own = self._begin(now)
            if own is not None:
                self._page, self.progress = own.page, own.progress
                weakref.finalize(self, own.page.rest, kept=False).atexit = False
        return self.progress

    def gave(self, now: int, wait: int) -> None:
        """Note that it is given out ``now``, after ``wait`` nanoseconds."""
        if self._page is not None:
            self._page.gave(now, wait)

    def rest(self) -> None:
        """Note that the epoch is over."""
        if self._page is not None:
            self._page.rest(kept=False)
