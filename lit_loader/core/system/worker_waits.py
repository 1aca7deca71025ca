"""`WorkerWaits`: whether workers sleep at a lock they share, seen while the loop waits for them.

A worker that waits is busy by its statistics. Whether it waits for storage or for a lock that it
shares with the other workers, only the kernel knows: ``/proc/PID/syscall`` says in which call a
process sleeps. The training process looks in the middle of a wait: when a batch arrives, a lock has
just changed hands.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections import deque
from collections.abc import Collection
from pathlib import Path
from typing import Final

from lit_loader.core.system import linux

PAUSE: Final = 30_000_000
"""Nanoseconds between two looks, on the mean, each of which costs some 20 microseconds a worker."""

_CALLS: Final = {"x86_64": ("202", "73", "72"), "aarch64": ("98", "32", "25")}
"""By machine: the numbers of futex, flock and fcntl."""

_PRIVATE: Final = 128  # FUTEX_PRIVATE_FLAG: a lock within the process
_WAITING_LOCKS: Final = (7, 38)  # F_SETLKW, F_OFD_SETLKW


class WorkerWaits:
    """Keeps the last looks at workers.

    Attributes:
        looks: Whether the worker waited for a lock that processes, or the threads, share.
        hangs: The moments at which workers were ended because they hung.
    """

    def __init__(self) -> None:
        self.looks: deque[bool] = deque(maxlen=256)
        self.hangs: deque[int] = deque(maxlen=64)
        self._due = self._pauses = 0

    def left(self) -> float:
        """Seconds until the next look, if the consumer waits for so long."""
        now = time.monotonic_ns()
        if now >= self._due:
            self._pauses += 1
            # Unevenly, so that no loop's batches keep in time with it.
            self._due = now + int(PAUSE * (0.5 + self._pauses * 0.618 % 1))
        return (self._due - now) / 1e9

    def look(self, pids: Collection[int], *, threads: bool = False) -> None:
        """Look at processes, or at ``threads`` by native ids."""
        self.looks.extend(_is_locked(pid, threads) for pid in pids)


def _is_locked(pid: int, thread: bool = False) -> bool:
    """Return whether a process's main thread waits for a lock that is not its process's own.

    Of a thread any lock counts, but for the GIL, which is waited for with a time limit.
    """
    call: list[str] = []
    with contextlib.suppress(OSError):  # it has ended, or may not be looked at
        call = Path(linux.PROC, str(pid), "syscall").read_text().split()
    number = call[0] if call else "running"
    futex, flock, fcntl = _CALLS.get(platform.machine(), ("", "", ""))
    if number == futex:
        return not int(call[4], 16) if thread else not int(call[2], 16) & _PRIVATE
    return number == flock or (number == fcntl and int(call[2], 16) in _WAITING_LOCKS)
