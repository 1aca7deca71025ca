"""Letting go of a child process that has ended, also where somebody else has reaped it.

A program may ignore SIGCHLD, or wait for all of its children in a handler or a thread. Then the
exit status of ours is gone before we ask for it; ``multiprocessing`` takes such a child to be
running, for good.
"""

from __future__ import annotations

from multiprocessing.process import BaseProcess
from typing import Final

__all__ = ["UNKNOWN", "let_go", "settle"]

UNKNOWN: Final = 255
"""The exit code for one that nobody can tell, as ``multiprocessing`` has it for its fork server."""


def let_go(process: BaseProcess) -> None:
    """Reap a process that has ended, if nobody has, and close what it held."""
    settle(process)
    process.close()


def settle(process: BaseProcess) -> None:
    """Learn the exit code of a process that has ended; one that nobody can tell is `UNKNOWN`."""
    process.join()
    if process.exitcode is None:
        # Private reach: close() would refuse, and terminate(), which multiprocessing calls at the
        # program's end, would send a signal to whoever has got the process id since.
        process._popen.returncode = UNKNOWN  # type: ignore[attr-defined]
        process.join()
