"""One thread at a time makes a batch in this process: the lock of the global random generators.

``random``, ``numpy.random`` and torch have one generator each for the whole process, and who makes
a batch seeds them, lets the dataset draw, and puts them back. Two threads that did so at once would
draw from each other's numbers, and put back each other's. So whoever borrows the generators, or
asks them for what a borrower changes, holds this lock. It is re-entrant: a dataset may itself
iterate a loader.

A dataset that waits for *another thread* which iterates a loader waits for ever: that thread cannot
have the generators before the batch at hand is made. From outside this looks like a batch that
takes long, so it is told (`TELL_AFTER`), and is an error only if the thread that holds the lock has
not run at all meanwhile (`GIVE_UP_AFTER`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Final

from lit_loader.errors import LoaderError

__all__ = ["GIVE_UP_AFTER", "TELL_AFTER", "generator_lock"]

TELL_AFTER: Final = 10.0
"""Seconds that a thread waits for one batch of another thread before it says so, once."""

GIVE_UP_AFTER: Final = 120.0
"""Seconds of such a wait, during which the other thread has not run, that are taken for ever."""

_LOOK_EVERY: Final = 1.0

_log = logging.getLogger(__name__)


class _Holder:
    """The thread that took the lock last, and how many times it has been taken."""

    thread = 0
    times = 0


_lock = threading.RLock()
_holder = _Holder()


def generator_lock() -> threading.RLock:
    """Wait until the lock can be had, and return it, for a ``with`` statement.

    The statement takes the lock itself, without a step of Python code in between, so that an
    exception out of a signal handler cannot leave it taken.

    Raises:
        LoaderError: The thread that has it waits for something that does not come.
    """
    lock = _lock
    if not lock.acquire(blocking=False):
        _wait_for(lock)
    _holder.thread = threading.get_ident()
    _holder.times += 1
    lock.release()
    return lock


def _wait_for(lock: threading.RLock) -> None:
    """Take the lock; say so if it takes long."""
    times, ran, told = -1, None, False
    began = still = 0.0
    while True:
        now, holder = time.monotonic(), _holder.thread
        if times != _holder.times:  # another batch than when we looked last
            times, began, told = _holder.times, now, False
        if ran != (ran := (times, _times_run(holder))):
            still = now
        if now - still >= GIVE_UP_AFTER and ran[1] is not None:
            raise LoaderError(
                f"{_waits_for(holder, now - began)} and has not run for the last "
                f"{now - still:.0f} s, so it waits itself, for this thread it seems: {_ADVICE}"
            )
        if now - began >= TELL_AFTER and not told:
            told = True
            _log.warning("%s: %s", _waits_for(holder, now - began), _ADVICE)
        if lock.acquire(timeout=_LOOK_EVERY):
            return


_ADVICE: Final = (
    "batches of loaders with num_workers=0 are made one at a time, because a process has the "
    "global random generators once; a dataset must not wait for a thread that iterates such a "
    "loader, so give that loader workers, or iterate it in the thread that waits"
)


def _waits_for(ident: int, seconds: float) -> str:
    thread = _find(ident)
    other = "another thread" if thread is None else f"thread {thread.name!r}"
    return (
        f"thread {threading.current_thread().name!r} waits for {other}, which has been making a "
        f"batch for {seconds:.0f} s"
    )


def _find(ident: int) -> threading.Thread | None:
    return next((each for each in threading.enumerate() if each.ident == ident), None)


def _times_run(ident: int) -> int | None:
    """How many times a thread has been given a processor; None where the system does not tell."""
    thread = _find(ident)
    if thread is None or thread.native_id is None:
        return None
    try:
        with open(f"/proc/self/task/{thread.native_id}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[2])
    except (OSError, ValueError, IndexError):
        return None


def _renew() -> None:
    """Make a new lock in a forked process, if a thread has the old one that was not copied."""
    global _lock
    if _lock.acquire(blocking=False):
        _lock.release()
    else:
        _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew)
