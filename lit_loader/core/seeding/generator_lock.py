"""One thread at a time makes a batch in this process: the lock of the global random generators.

Two threads that seeded, drew and put back at once would draw each other's numbers, and put back
each other's. So a thread that borrows the generators, or asks them for what a borrower changes,
holds this lock. It is re-entrant: a dataset may itself iterate a loader. One that waits for another
thread which does so waits forever, which from outside looks like a batch that takes long: a
warning is logged after `WARN_AFTER`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any, Final

WARN_AFTER: Final = 10.0
"""Seconds that a thread waits for one batch of another thread before it says so, once."""

_log = logging.getLogger("lit_loader.generator_lock")

_WAITS: Final = (
    f"lit_loader: this thread has waited {WARN_AFTER:.0f} s for another one to build a batch. "
    "Loaders with num_workers=0 build one batch at a time, because a process has only one set of "
    "global random generators. A dataset must not wait for a thread that iterates such a loader: "
    "give that loader workers, or iterate it in the thread that waits"
)

lock: Any = threading.RLock()
"""The lock itself, for ``with``; in a forked process perhaps another one than before."""


class GeneratorLock:
    """One time that a thread has the generators; one within another of the same thread is no more.

    For where an exception out of a signal handler may come at any instruction, between the taking
    of the lock and the note that it is taken, too. The lock knows itself who has it; so `end`, in a
    ``finally``, may be called again if it was interrupted.
    """

    __slots__ = ("_mine",)

    def __init__(self) -> None:
        self._mine = False

    def take(self) -> None:
        """Wait until no other thread has the lock, and take it; say so if that takes long."""
        if not lock._is_owned():  # reach: python: as threading.Condition asks an RLock
            self._mine, patience = True, WARN_AFTER
            while not lock.acquire(timeout=patience):
                _log.warning(_WAITS)
                patience = -1  # forever

    def end(self) -> None:
        """Release the lock, if this object holds it."""
        if self._mine and lock._is_owned():  # reach: python: as threading.Condition asks an RLock
            lock.release()


@contextlib.contextmanager
def lent_to_others() -> Iterator[None]:
    """Release the lock while this thread waits for others; they restore what it set."""
    held, times = lock, 0
    try:
        while held._is_owned():  # reach: python: as threading.Condition asks an RLock
            held.release()
            times += 1
        yield
    finally:
        for _ in range(times):
            held.acquire()


def _forget_other_threads() -> None:
    """Make a new lock in a forked process, if a thread holds it that was not copied."""
    global lock
    if not lock._is_owned():  # reach: python: as threading.Condition asks an RLock
        lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_other_threads)
