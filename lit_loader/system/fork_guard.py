"""`ForkGuard`: batches that the consumer holds stay whole in processes that it forks.

A forked child shares the arena with its parent: when the parent lets go of a batch and the slot is
written anew, the child's copy of that batch would change. So in the child, first thing after the
fork, the memory of all batches held is replaced by private copies at the same addresses; and the
parent uses no slot again until the child has done so, which it says by closing a pipe. Where no
descriptor is left for one, the parent waits for a byte of shared memory.

Workers of our own are forked without: they never look at what the consumer holds.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import select
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Final

from lit_loader.system.shared_file import map_over
from lit_loader.system.weak_sets import members

__all__ = ["ForkGuard", "unguarded_fork"]

Ranges = list[tuple[int, int]]
"""(address, bytes) of stretches of memory that begin at a page."""

_LONGEST: Final = 10.0
"""Seconds that a parent waits for a child by a byte, which does not tell whether that lives."""

_guards: weakref.WeakSet[ForkGuard] = weakref.WeakSet()
_unguarded: set[int] = set()
"""The threads that fork a worker of our own just now; the others' forks are guarded meanwhile."""


class ForkGuard:
    """Watches the forks of this process on behalf of one arena.

    Args:
        held: A bound method that gives the memory to keep; it is referred to weakly.
    """

    def __init__(self, held: Callable[[], Ranges]) -> None:
        self._held: Callable[[], Callable[[], Ranges] | None] = weakref.WeakMethod(held)
        self._waiting: list[int] = []  # read ends of pipes that children hold the write ends of
        self._writing: dict[int, int] = {}  # by the thread that forks: several may, at once
        self._bytes: dict[int, mmap.mmap] = {}  # in the place of these
        _guards.add(self)

    def pending(self) -> bool:
        """Whether a child has not copied yet what was held when it was forked."""
        for fd in self._waiting[:]:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            if poll.poll(0):  # its end: nothing is ever written
                with contextlib.suppress(ValueError):  # another thread was faster: it closes
                    self._waiting.remove(fd)
                    os.close(fd)
        return bool(self._waiting or self._bytes)

    def __del__(self, close: Callable[[int], object] = os.close) -> None:
        # A default: at the interpreter's end there is no module `os` any more.
        while self._waiting:
            close(self._waiting.pop())
        while self._writing:  # another thread is about to fork, or has just done so
            close(self._writing.popitem()[1])

    def before(self) -> None:
        """Open the pipe that the child will close, if there is anything to keep."""
        held = self._held()
        if held is not None and held():
            thread = threading.get_ident()
            try:
                read_end, write_end = os.pipe()
            except OSError:
                self._bytes[thread] = mmap.mmap(-1, mmap.PAGESIZE)
                return
            self._waiting.append(read_end)
            self._writing[thread] = write_end

    def in_parent(self) -> None:
        """Leave the write end to the child."""
        thread = threading.get_ident()
        write_end = self._writing.pop(thread, None)
        if write_end is not None:
            os.close(write_end)
        byte = self._bytes.get(thread)
        if byte is not None:
            until = time.monotonic() + _LONGEST
            while byte[0] == 0 and time.monotonic() < until:
                time.sleep(0.0005)
            answered = byte[0] != 0
            del self._bytes[thread]  # not sooner: other threads use no slot again meanwhile
            if not answered:
                warnings.warn(
                    f"a forked process has not said within {_LONGEST:g} s that it has copied the "
                    "batches held, for which no file descriptor was left: unless it has ended, "
                    "they may change there; raise the limit (ulimit -n)",
                    stacklevel=2,
                )

    def in_child(self) -> None:
        """Copy what is held, and say so."""
        held = self._held()
        thread = threading.get_ident()
        byte = self._bytes.get(thread)
        if (thread in self._writing or byte is not None) and held is not None:
            for address, nbytes in held():
                _make_private(address, nbytes)
        if byte is not None:
            byte[0] = 1
        self._bytes.clear()
        while self._waiting:
            os.close(self._waiting.pop())
        while self._writing:  # those of other threads, too, or their forks would not seem to end
            os.close(self._writing.popitem()[1])


def _make_private(address: int, nbytes: int) -> None:
    """Put private memory with the same content in the place of shared memory."""
    content = ctypes.string_at(address, nbytes)
    try:
        map_over(address, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        advice = "a forked process cannot keep a batch, so let go of it before forking"
        raise OSError(error.errno, f"{advice}: {error.strerror}") from None
    ctypes.memmove(address, content, nbytes)


@contextlib.contextmanager
def unguarded_fork() -> Iterator[None]:
    """Fork a worker of our own, which needs no batches of the consumer's."""
    thread = threading.get_ident()
    _unguarded.add(thread)
    try:
        yield
    finally:
        _unguarded.discard(thread)


def _before() -> None:
    if threading.get_ident() not in _unguarded:
        for guard in members(_guards):
            guard.before()


def _in_parent() -> None:
    for guard in members(_guards):
        guard.in_parent()


def _in_child() -> None:
    for guard in members(_guards):
        guard.in_child()
    _unguarded.clear()
    _guards.clear()  # the arenas are the parent's


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
