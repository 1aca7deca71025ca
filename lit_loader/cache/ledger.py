"""`Ledger`: how much of a file is taken, counted in one step by processes that are strangers.

A process that has opened a file by itself has a position of its own in it. But all agree on where a
file ends: so for each unit that is taken, a byte is appended to another file. The kernel appends in
one step, and afterwards the position of who has appended is the end of what is his.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref

__all__ = ["Ledger"]


class Ledger:
    """The file to which is appended.

    Args:
        fd: Its descriptor, which is taken over.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        weakref.finalize(self, os.close, fd).atexit = False
        self._appending: weakref.finalize[[int], Ledger] | None = None
        self._lock = threading.Lock()
        self._end = -1

    def take(self, units: int) -> int:
        """Take so many units; returns the number of the first one.

        Raises:
            OSError: There is no memory.
        """
        with self._lock:
            if self._appending is None:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
                self._end = os.open(f"/proc/self/fd/{self.fd}", flags)
                self._appending = weakref.finalize(self, os.close, self._end)
                self._appending.atexit = False
            written = os.write(self._end, bytes(units))
            end = os.lseek(self._end, 0, os.SEEK_CUR)
        if written < units:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return end - units

    @property
    def taken(self) -> int:
        """Units that are taken."""
        return os.fstat(self.fd).st_size

    def forked(self) -> None:
        """Have a position of one's own from now on."""
        if self._appending is not None:
            self._appending()
            self._appending = None
        self._lock = threading.Lock()
