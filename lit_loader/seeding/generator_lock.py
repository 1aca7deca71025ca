"""One thread at a time makes a batch in this process: the lock of the global random generators.

Two threads that seeded, drew and put back at once would draw each other's numbers, and put back
each other's. So a thread that borrows the generators, or asks them for what a borrower changes,
holds this lock. It is re-entrant: a dataset may itself iterate a loader. One that waits for another
thread which does so waits for ever, which from outside looks like a batch that takes long: a
warning is logged after `WARN_AFTER`.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Final

__all__ = ["WARN_AFTER", "Turn"]

WARN_AFTER: Final = 10.0
"""Seconds that a thread waits for one batch of another thread before it says so, once."""

_log = logging.getLogger("lit_loader.generator_lock")


class Turn:
    """One time that a thread has the generators; one within another of the same thread is no more.

    An exception out of a signal handler can come at any instruction, between the taking of a lock
    and the note that it is taken, too. So who has it is written in one step, by which it is taken
    (`dict.setdefault`); and `end`, in a ``finally``, may be called again if it was interrupted.
    """

    __slots__ = ("_going_on", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self._going_on = threading.Lock()
        self._going_on.acquire()

    def take(self) -> None:
        """Wait until no other thread has the lock, and take it."""
        held = _taken.setdefault(0, self)
        if held is not self and held.thread != self.thread:
            self._wait()

    def end(self) -> None:
        """Give it back, if it is this one that has it."""
        if _taken.get(0) is self:
            _taken.pop(0)
            self._going_on.release()

    def _wait(self) -> None:
        """Take the lock; say so if a batch of another thread takes long."""
        told = self
        while (held := _taken.setdefault(0, self)) is not self:
            if held._going_on.acquire(timeout=WARN_AFTER):
                held._going_on.release()  # for others who wait
            elif held is not told:
                told = held
                _warn(held.thread)


_taken: Final[dict[int, Turn]] = {}
"""Who has the lock, under the key 0."""


def _warn(ident: int) -> None:
    names = [repr(each.name) for each in threading.enumerate() if each.ident == ident]
    _log.warning(
        "thread %r waits for thread %s, which has been making a batch for %.0f s: batches of "
        "loaders with num_workers=0 are made one at a time, because a process has the global "
        "random generators once; a dataset must not wait for a thread that iterates such a loader, "
        "so give that loader workers, or iterate it in the thread that waits",
        *(threading.current_thread().name, "".join(names) or "of another kind", WARN_AFTER),
    )


def _forget_other_threads() -> None:
    """Free the lock in a forked process, if a thread has it that was not copied."""
    held = _taken.get(0)
    if held is not None and held.thread != threading.get_ident():
        _taken.clear()


os.register_at_fork(after_in_child=_forget_other_threads)
