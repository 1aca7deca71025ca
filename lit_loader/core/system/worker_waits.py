"""`WorkerWaits`: what workers sleep at while the consumer waits for them, by looks from outside.

A worker that waits shows in its statistics as one that is busy. Whether it waits for storage, for a
lock that it shares with the other workers, or for memory that comes back from a disk, only the
kernel knows: ``/proc/PID/syscall`` says in which call a process sleeps. The consumer's process
looks in the midst of a wait: at a batch's arrival a lock has just changed hands.
"""

from __future__ import annotations

import contextlib
import platform
import time
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
    """Counts what workers were found at.

    Attributes:
        looks: At workers.
        locked: How many of them waited for a lock that processes, or the threads, share.
        paging: How many of them waited for a page of memory: from swap, or of a mapped file.
    """

    def __init__(self) -> None:
        self.looks = self.locked = self.paging = 0
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
        found = [_sleeps_at(pid, threads) for pid in pids]
        self.looks += len(found)
        self.locked += found.count("lock")
        self.paging += found.count("page")


def _sleeps_at(pid: int, thread: bool = False) -> str:
    """What a process's main thread waits for: "lock", "page", or "" for anything else.

    Of a thread any lock counts, but for the interpreter's, which is waited for with a time limit.
    """
    call: list[str] = []
    with contextlib.suppress(OSError):  # it has ended, or may not be looked at
        call = Path(linux.PROC, str(pid), "syscall").read_text().split()
    number = call[0] if call else "running"
    futex, flock, fcntl = _CALLS.get(platform.machine(), ("", "", ""))
    if number == futex:
        locked = not int(call[4], 16) if thread else not int(call[2], 16) & _PRIVATE
    else:
        locked = number == flock or (number == fcntl and int(call[2], 16) in _WAITING_LOCKS)
    return "lock" if locked else "page" if number == "-1" else ""
