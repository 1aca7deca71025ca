"""`Watchdog`: whether a process that should answer is stuck, or only slow.

Used for the launcher, and for workers that do not come up.

A process that was forked while another thread was drawing, printing or importing has a copy of that
thread's lock, and waits for it for ever: it is asleep, and does nothing at all. One on a busy
machine waits to be run, or for a page of memory, which the kernel calls something else. So what is
looked at is what the process does, and not how long it takes.
"""

from __future__ import annotations

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

_STATE, _FAULTS, _WAITS, _OWN, _SYSTEM = 0, 7, 9, 11, 12  # behind the name in /proc/<pid>/stat


class Watchdog:
    """Looks at a process that should soon give an answer.

    Args:
        pid: The process.
        patience: Looks to take at it, asleep, before it is stuck.
    """

    def __init__(self, pid: int, patience: int = PATIENCE) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._patience = patience
        self._done: tuple[str, ...] = ("never looked at",)
        self._looks = 0

    def stuck(self) -> bool:
        """Take a look; to be called every `LOOK_SECONDS`, or less often."""
        state, done = self._look()
        self._looks = self._looks + 1 if done == self._done else 0
        self._done = done
        return self._looks >= (self._patience if state == "S" else _MOTIONLESS)

    def _look(self) -> tuple[str, tuple[str, ...]]:
        """Give the process's state, and what it has done so far."""
        try:
            fields = self._stat.read_text().rpartition(")")[2].split()
            return fields[_STATE], tuple(fields[at] for at in (_FAULTS, _WAITS, _OWN, _SYSTEM))
        except (OSError, IndexError):  # it is gone, which others notice; or there is no /proc
            return "", ()
