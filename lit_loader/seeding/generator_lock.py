"""One thread at a time makes a batch in this process: the lock of the global random generators.

``random``, ``numpy.random`` and torch have one generator each for the whole process, and who makes
a batch seeds them, lets the dataset draw, and puts them back. Two threads that did so at once would
draw from each other's numbers, and put back each other's. So a thread that borrows the generators,
or asks them for what a borrower changes, holds this lock. It is re-entrant: a dataset may itself
iterate a loader.

A dataset that waits for *another thread* which iterates a loader waits for ever: that thread cannot
have the generators before the batch at hand is made. From outside this looks like a batch that
takes long, so a warning is logged (`WARN_AFTER`), and it is an error only if the thread that holds
the lock has not run at all meanwhile (`GIVE_UP_AFTER`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lit_loader.errors import LoaderError
from lit_loader.system import linux

__all__ = ["GIVE_UP_AFTER", "WARN_AFTER", "Turn", "turn"]

WARN_AFTER: Final = 10.0
"""Seconds that a thread waits for one batch of another thread before it says so, once."""

GIVE_UP_AFTER: Final = 120.0
"""Seconds of such a wait, during which the other thread has not run, that are taken for ever."""

_LOOK_EVERY: Final = 1.0

_log = logging.getLogger("lit_loader.generator_lock")


class Turn:
    """One time that a thread has the generators; one within another of the same thread is no more.

    An exception out of a signal handler can come at any instruction, between the taking of a lock
    and the note that it is taken, too. So who has it is written in one step, by which it is taken
    (`dict.setdefault`), and `end` may be called again, if the first call was interrupted::

        mine = Turn()
        try:
            try:
                mine.take()
                ...
            finally:
                mine.end()
        finally:
            mine.end()
    """

    __slots__ = ("thread",)

    def __init__(self) -> None:
        self.thread = threading.get_ident()

    def take(self) -> None:
        """Wait until no other thread has the lock, and take it.

        Raises:
            LoaderError: The thread that has it waits for something that does not come.
        """
        held = _taken.setdefault(0, self)
        if held is not self and held.thread != self.thread:
            self._wait()

    def end(self) -> None:
        """Give it back, if it is this one that has it."""
        if _taken.get(0) is self:
            _taken.pop(0)
            if _bells:
                _ring()

    def _wait(self) -> None:
        """Take the lock; say so if it takes long."""
        seen, ran, warned = self, None, False
        began = still = 0.0
        bell, rung = threading.Lock(), True
        bell.acquire()
        try:
            while True:
                if rung:
                    _bells.append(bell)  # first, so that no end of the other one's is missed
                held = _taken.setdefault(0, self)
                if held is self:
                    return
                now = time.monotonic()
                if held is not seen:  # another batch than when we looked last
                    seen, began, warned = held, now, False
                if ran != (ran := (id(held), _times_run(held.thread))):
                    still = now
                if now - still >= GIVE_UP_AFTER and ran[1] is not None:
                    raise LoaderError(
                        f"{_waits_for(held.thread, now - began)} and has not run for the last "
                        f"{now - still:.0f} s, so it waits itself, for this thread it seems: "
                        f"{_ADVICE}"
                    )
                if now - began >= WARN_AFTER and not warned:
                    warned = True
                    _log.warning("%s: %s", _waits_for(held.thread, now - began), _ADVICE)
                rung = bell.acquire(timeout=_LOOK_EVERY)
        finally:
            try:
                _bells.remove(bell)
            except ValueError:  # rung
                if not _taken:
                    _ring()  # for another thread that wants it still


_taken: Final[dict[int, Turn]] = {}
"""Who has the lock, under the key 0."""

_bells: Final[deque[threading.Lock]] = deque()
"""Each of a thread that waits, and is rung by its release. A ring that is lost costs one look."""


@contextmanager
def turn() -> Iterator[None]:
    """Give a context in which no other thread borrows the global generators.

    Raises:
        LoaderError: The thread that has them waits for something that does not come.
    """
    mine = Turn()
    try:
        try:
            mine.take()
            yield
        finally:
            mine.end()
    finally:
        mine.end()


def _ring() -> None:
    try:
        bell = _bells.popleft()
    except IndexError:
        return
    bell.release()


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
    """How many times a thread has been given a processor; None where the system does not say."""
    thread = _find(ident)
    if thread is None or thread.native_id is None:
        return None
    try:
        with open(f"{linux.PROC}/self/task/{thread.native_id}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[2])
    except (OSError, ValueError, IndexError):
        return None


def _forget_other_threads() -> None:
    """Free the lock in a forked process, if a thread has it that was not copied."""
    _bells.clear()
    held = _taken.get(0)
    if held is not None and held.thread != threading.get_ident():
        _taken.clear()


os.register_at_fork(after_in_child=_forget_other_threads)
