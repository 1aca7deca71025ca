"""`Watchdog`: whether a process that should answer is stuck, or only slow.

Used for the launcher, and for workers that do not come up.

A process that was forked while another thread was drawing, printing or importing has a copy of that
thread's lock, and waits for it for ever: it is asleep, and does nothing at all. One on a busy
machine waits to be run, or for a page of memory, which the kernel calls something else. So what is
looked at is what the process does, and not how long it takes: each of its threads, for one may be
asleep only until another has been run, and whoever it waits for.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

__all__ = ["LOOK_SECONDS", "PATIENCE", "Watchdog"]

LOOK_SECONDS: Final = 0.04
"""Seconds between two looks at a process."""

PATIENCE: Final = 5
"""Looks that must find a process asleep, and at nothing since the one before, until it is stuck."""

_MOTIONLESS: Final = 500
"""Looks that must find it at nothing, where it is not asleep: stopped, say, or waiting for a disk
that does not answer; also where the system does not say."""

_PROCESSES: Final = Path("/proc")

_STATE, _FAULTS, _WAITS, _OWN, _SYSTEM = 0, 7, 9, 11, 12  # behind the name in a thread's stat


class Watchdog:
    """Looks at a process that should soon give an answer.

    Args:
        pids: The process; and those that it may have to wait for, which are stuck together with it.
        patience: Looks to take at it, asleep, before it is stuck.
    """

    def __init__(self, *pids: int, patience: int = PATIENCE) -> None:
        self._threads = [_PROCESSES / str(pid) / "task" for pid in pids]
        self._patience = patience
        self._done: tuple[tuple[str, ...], ...] = (("never looked at",),)
        self._looks = 0

    def stuck(self) -> bool:
        """Take a look; to be called every `LOOK_SECONDS`, or less often."""
        asleep, done = self._look()
        self._looks = self._looks + 1 if done == self._done else 0
        self._done = done
        return self._looks >= (self._patience if asleep else _MOTIONLESS)

    def _look(self) -> tuple[bool, tuple[tuple[str, ...], ...]]:
        """Say whether all threads are asleep, and what each has done so far."""
        states, done = [], []
        for threads in self._threads:
            # OSError: it is gone, which others notice; or there is no /proc.
            with contextlib.suppress(OSError, IndexError):
                for thread in sorted(os.listdir(threads)):
                    text = (threads / thread / "stat").read_text()
                    fields = text.rpartition(")")[2].split()
                    states.append(fields[_STATE])
                    counts = (fields[at] for at in (_FAULTS, _WAITS, _OWN, _SYSTEM))
                    done.append((thread, *counts, _turns(threads / thread)))
        return set(states) == {"S"}, tuple(done)


def _turns(thread: Path) -> str:
    """How long and how often a thread has been run, to the nanosecond; "": not known here."""
    with contextlib.suppress(OSError):
        return (thread / "schedstat").read_text()
    return ""
