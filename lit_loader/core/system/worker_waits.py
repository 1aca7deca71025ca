"""`WorkerWaits`: what workers sleep at while the consumer waits for them, by looks from outside.

A worker that waits shows in its statistics as one that is busy. Whether it waits for storage, for a
lock that it shares with the other workers, or for memory that comes back from a disk, only the
kernel knows: ``/proc/PID/syscall`` says in which call a process sleeps. The consumer's process
looks while it has nothing else to do, a few times a second: in the midst of a wait. At a batch's
arrival, which ends one, a lock has just changed hands, and nobody waits for it.
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

_GOLDEN: Final = 0.618
"""Of such steps no two come to nearly the same part of one: no loop's batches keep in time."""

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
        self._due, self._part = 0, 0.0

    def left(self) -> float:
        """Seconds until the next look, if the consumer waits for so long."""
        now = time.monotonic_ns()
        if now >= self._due:
            self._part = (self._part + _GOLDEN) % 1
            self._due = now + int(PAUSE * (0.5 + self._part))
        return (self._due - now) / 1e9

    def look(self, pids: Collection[int], *, threads: bool = False) -> None:
        """Look at the workers: at processes, or at ``threads`` by native ids."""
        for pid in pids:
            found = _sleeps_at(pid, threads)
            self.looks += 1
            self.locked += found == "lock"
            self.paging += found == "page"


def _sleeps_at(pid: int, thread: bool = False) -> str:
    """What a process's main thread waits for: "lock", "page", or "" for anything else.

    Of a thread any lock counts, but for the interpreter's, which is waited for with a time limit.
    """
    call: list[str] = []
    with contextlib.suppress(OSError):  # it has ended, or may not be looked at
        call = Path(linux.PROC, str(pid), "syscall").read_text().split()
    if not call or call[0] == "running":
        return ""
    if call[0] == "-1":
        return "page"
    futex, flock, fcntl = _CALLS.get(platform.machine(), ("", "", ""))
    if call[0] == futex:
        counts = not int(call[4], 16) if thread else not int(call[2], 16) & _PRIVATE
        return "lock" if counts else ""
    if call[0] == flock or (call[0] == fcntl and int(call[2], 16) in _WAITING_LOCKS):
        return "lock"
    return ""
