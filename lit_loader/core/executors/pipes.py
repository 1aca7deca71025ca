"""`Pipes`: messages to a pool's workers and from them, and the wait for these.

::

    send(worker) ──▶ the worker's own pipe ──▶ worker
    read, wait ◀──── one pipe ◀──────────────── all workers
       └── one poll: messages, watched processes that end, wake, room in a full pipe

It deals in messages alone (`core/transport/messages.py`), and in sentinels: files that can be read
from when a process has ended. Sending is for whoever holds the pool's lock; everything else is for
one thread at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import termios
import threading
from array import array
from collections import deque
from functools import partial
from typing import Final

from lit_loader.core.executors.executor import PoolClosed
from lit_loader.core.system.interrupts import take_all
from lit_loader.core.transport.messages import SIZE, Message, Stop, pack, unpack_all

_READ_AT_ONCE: Final = 64 * SIZE
"""Bytes that are read from a pipe at once."""

_RECEIVER_TIME: Final = 1.0
"""Seconds that a thread has to leave the wait for messages of a pool that is being closed."""

_LONGEST_WAIT: Final = 1.0
"""Seconds that are waited at a time: a signal that comes just before the wait, when Python has
looked for one for the last time, is handled when the wait ends, and would be never."""


class Ended(Exception):
    """A process that is watched has ended."""

    def __init__(self, sentinel: int) -> None:
        super().__init__(sentinel)
        self.sentinel = sentinel


class Pipes:
    """Sends messages to workers, and waits for theirs.

    A pipe holds about 500 messages, and far fewer where a user has very many pipes. What does not
    go in waits here until messages show that workers have taken some, or there is room.
    """

    def __init__(self) -> None:
        self._pipes: list[tuple[int, int]] = []
        self._poll = select.poll()
        self.task_ends: dict[int, int] = {}  # the end of the pipe of each
        self._tasks: dict[int, int] = {}
        self.blocked: dict[int, deque[bytes]] = {}  # what waits for room, by the pipe it is for
        self._closed = False
        # Held by the thread that waits for messages, which must not find other files under the
        # descriptors of its pipes; and by who is about to wake it.
        self._receiving, self._waking = threading.RLock(), threading.RLock()
        self._wake: int | None = None
        self.results = -1  # the end that workers' messages are read from

    def begin(self) -> None:
        """Make the pipes that are there from first to last."""
        self.results, self.results_end = self._pipe()  # to the latter all workers write
        # A worker with nothing to do waits, and one with a result until there is room.
        os.set_blocking(self.results_end, True)
        self._woken, self._wake = self._pipe()
        self.watch(self.results)
        self.watch(self._woken)

    def _pipe(self) -> tuple[int, int]:
        """Open a pipe that blocks at neither end; returns (read end, write end)."""
        ends = os.pipe()
        self._pipes.append(ends)
        for end in ends:
            os.set_blocking(end, False)
        return ends

    def open(self, worker: int) -> None:
        """Make the pipe of a worker that is to be started."""
        end, tasks = self._pipe()
        os.set_blocking(end, True)
        self.task_ends[worker], self._tasks[worker] = end, tasks

    def close(self, worker: int) -> None:
        """Close the pipe of a worker that is gone, with what it did not read."""
        end, tasks = self.task_ends.pop(worker), self._tasks.pop(worker)
        self.blocked.pop(tasks, None)
        self._pipes.remove((end, tasks))
        os.close(end)
        os.close(tasks)

    def stop_all(self) -> None:
        """Tell all workers to end. From now on nothing else is sent or read."""
        self._closed = True
        # Empty the pipes: full ones have no room for a Stop. A worker that finds its pipe empty
        # ends, too.
        for end, _ in self._pipes:
            os.set_blocking(end, False)
            with contextlib.suppress(BlockingIOError):
                while os.read(end, _READ_AT_ONCE):
                    pass
        for tasks in self._tasks.values():
            with contextlib.suppress(OSError):
                os.write(tasks, pack(Stop()))

    def close_all(self) -> None:
        """Close all pipes, when the thread has left that waits (the program may be exiting)."""
        self.wake()
        with self._waking:
            self._wake = None  # the file is about to be another one's
        if self._receiving.acquire(timeout=_RECEIVER_TIME):
            self._receiving.release()
        take_all([partial(os.close, end) for ends in self._pipes for end in ends])

    def send(self, worker: int, data: bytes) -> None:
        """Send a worker a packed message, after those that wait for room."""
        pipe = self._tasks[worker]
        if pipe in self.blocked:
            self.blocked[pipe].append(data)
            return
        try:
            os.write(pipe, data)
        except BlockingIOError:
            self.blocked[pipe] = deque([data])

    def flush(self) -> None:
        """Write what waits for room, as far as there is some; like :meth:`send`."""
        for pipe, waiting in list(self.blocked.items()):
            with contextlib.suppress(BlockingIOError):
                while waiting:
                    os.write(pipe, waiting[0])
                    waiting.popleft()
                del self.blocked[pipe]

    def watch(self, sentinel: int) -> None:
        """End a wait when the sentinel can be read from."""
        self._poll.register(sentinel, select.POLLIN)

    def unwatch(self, sentinel: int) -> None:
        """Stop watching the sentinel."""
        self._poll.unregister(sentinel)

    def wake(self) -> None:
        """End a :meth:`wait` in another thread; from any thread, also when closed."""
        with (
            self._waking,
            contextlib.suppress(BlockingIOError),  # it has been asked to by very many
        ):
            if self._wake is not None:
                os.write(self._wake, b"w")

    @property
    def unread(self) -> int:
        """Messages that workers have sent and :meth:`read` has not given yet."""
        count = array("i", [0])
        fcntl.ioctl(self.results, termios.FIONREAD, count)
        return count[0] // SIZE

    def read(self) -> list[Message]:
        """Take in what workers have sent by now.

        Raises:
            PoolClosed: All are gone, and the pipes.
        """
        if self._closed:
            raise PoolClosed
        try:
            data = os.read(self.results, _READ_AT_ONCE)
        except BlockingIOError:
            return []
        return unpack_all(data)

    def wait(self, timeout: float) -> bool | None:
        """Wait for something to happen.

        Args:
            timeout: Seconds at most.

        Returns:
            True: see what there is. None: nothing has come, for ``timeout`` seconds or for one.
            False: :meth:`wake` was called.

        Raises:
            Ended: A process that is watched is gone; what it has sent is still to be read.
            PoolClosed: So are all, and the pipes.
        """
        poll, blocked = self._poll, list(self.blocked) if self.blocked else ()
        for pipe in blocked:
            poll.register(pipe, select.POLLOUT)
        longest = min(timeout, _LONGEST_WAIT)
        with self._receiving:
            if self._closed:
                raise PoolClosed
            try:
                ready = poll.poll(1000 * longest)
            finally:
                for pipe in blocked:
                    poll.unregister(pipe)
        if self._closed:
            raise PoolClosed
        if len(ready) == 1 and ready[0][0] == self.results:
            return True
        if not ready:
            return None
        fds = {fd for fd, _ in ready}
        # First: others send on and on.
        if gone := fds.difference((self.results, self._woken), blocked):
            raise Ended(min(gone))
        if self.results in fds or not fds.isdisjoint(blocked):
            return True
        os.read(self._woken, _READ_AT_ONCE)
        return False
