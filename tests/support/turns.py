"""`Turns`: tests run side by side, but those that measure time run alone."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Turns"]


class Turns:
    """Locks that the processes of one test run share.

    Args:
        folder: Where the lock files lie; the same in every process.
    """

    def __init__(self, folder: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._gate = os.open(folder / "turns-gate", flags)
        self._running = os.open(folder / "turns-running", flags)

    def close(self) -> None:
        """Close the files."""
        os.close(self._gate)
        os.close(self._running)

    @contextmanager
    def turn(self, alone: bool) -> Iterator[None]:
        """Wait for a turn, and have it.

        Args:
            alone: Whether nothing else may run meanwhile.
        """
        # Through the gate one by one: whoever waits to be alone is not passed by others.
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._running, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # Said, not left to closing: forked workers have the file open, too.
            fcntl.flock(self._running, fcntl.LOCK_UN)
