"""`Standstill`: how long a process has done nothing at all; one that is stuck, and not only slow.

A process that was forked while another thread held a lock waits for it for ever. One on a crowded
machine gets a processor, or a page of memory, now and then.
"""

from __future__ import annotations

import time

from lit_loader.system import linux

__all__ = ["Standstill"]

_LONGEST_LOOK = 1.0
"""Seconds that count at most between two looks: this process may have been stopped meanwhile."""


class Standstill:
    """Looks at a process that should soon give an answer."""

    def __init__(self, pid: int) -> None:
        self._file = f"{linux.PROC}/{pid}/stat"
        self._done: list[str] = []
        self._looked = time.monotonic()
        self._still = 0.0

    def seconds(self) -> float:
        """For how long it has got neither processor nor memory; to be asked about every second."""
        done: list[str] = []
        try:
            with open(self._file) as file:
                fields = file.read().rpartition(")")[2].split()
            done = [fields[7], fields[9], fields[11], fields[12]]  # page faults, processor time
        except (OSError, IndexError):
            pass  # it is gone, which others notice; or there is no /proc: the time alone counts
        now = time.monotonic()
        passed, self._looked = now - self._looked, now
        self._still = self._still + min(passed, _LONGEST_LOOK) if done == self._done else 0.0
        self._done = done
        return self._still
