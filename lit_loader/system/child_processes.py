"""Closing a child process of multiprocessing that has ended, also where its exit status is lost.

A program may ignore SIGCHLD, or wait for all of its children in a handler or a thread. Then the
exit status of ours is gone before it is asked for, and ``multiprocessing`` takes such a child to be
running, for good. Used wherever a worker or the launcher has ended.
"""

from __future__ import annotations

from multiprocessing.process import BaseProcess
from typing import Final

__all__ = ["UNKNOWN", "reap"]

UNKNOWN: Final = 255
"""The exit code where it is lost, as ``multiprocessing`` has it for its fork server."""


def reap(process: BaseProcess) -> None:
    """Wait for a process that has ended; its exit code, where that is lost, is `UNKNOWN`."""
    process.join()
    if process.exitcode is None:
        # close() would refuse, and terminate(), which multiprocessing calls at the program's end,
        # would send a signal to another process that has its id by now.
        # reach: python: the exit code of a process that others have waited for
        process._popen.returncode = UNKNOWN  # type: ignore[attr-defined]
        process.join()
