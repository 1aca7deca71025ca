"""`Pipes`: messages to a pool's workers and from them, and the wait for these.

::

    send(worker) ──▶ the worker's own pipe ──▶ worker
    read, wait ◀──── one pipe ◀──────────────── all workers
       └── one poll: messages, watched processes that end, wake, room in a full pipe

It deals in messages alone (`transport/messages.py`), and in sentinels: files that can be read from
when a process has ended. Sending is for whoever holds the pool's lock; everything else is for one
thread at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import termios
from array import array
from collections import deque
from typing import Final

from lit_loader.transport.messages import SIZE, Message, pack, unpack_all
from lit_loader.workers.resources import READ_AT_ONCE, PoolResources

__all__ = ["Ended", "Pipes", "PoolClosed"]

_LONGEST_WAIT: Final = 1.0
"""Seconds that are waited at a time: a signal that comes just before the wait, when Python has
looked for one for the last time, is handled when the wait ends, and would be never."""


class Ended(Exception):
    """A process that is watched has ended.

    Attributes:
        sentinel: Its sentinel.
    """

    def __init__(self, sentinel: int) -> None:
        super().__init__(sentinel)
        self.sentinel = sentinel


class PoolClosed(Exception):
    """The pipes are closed: by a signal handler, or by the end of the program."""


class Pipes:
    """Sends messages to workers, and waits for theirs.

    A pipe holds about 500 messages, and far fewer where a user has very many pipes. What does not
    go in waits here until messages show that workers have taken some, or there is room.

    Args:
        own: Holds the pipes, and closes them.

    Attributes:
        results_end: The workers' end of the pipe that all of them write to.
        task_ends: The end of the pipe of each.
        blocked: What waits for room in a pipe, by that.
        waiting: Whether nothing but a wait is going on: an exception that comes out of a signal
            handler meanwhile has broken into nothing.
    """

    def __init__(self, own: PoolResources) -> None:
        self._results, self.results_end = own.pipe()
        # A worker with nothing to do waits, and one with a result until there is room.
        os.set_blocking(self.results_end, True)
        self._woken, own.wake = own.pipe()
        self._own = own
        self._poll = select.poll()
        self.watch(self._results)
        self.watch(self._woken)
        self.task_ends: dict[int, int] = {}
        self._tasks = own.controls
        self.blocked: dict[int, deque[bytes]] = {}  # by the pipe that they are for
        self.waiting = False
        own.results = self._results

    def open(self, worker: int) -> None:
        """Make the pipe of a worker that is to be started."""
        end, tasks = self._own.pipe()
        os.set_blocking(end, True)
        self.task_ends[worker], self._tasks[worker] = end, tasks

    def close(self, worker: int) -> None:
        """Close the pipe of a worker that is gone, with what it did not read."""
        end, tasks = self.task_ends.pop(worker), self._tasks.pop(worker)
        self.blocked.pop(tasks, None)
        self._own.close_pipe((end, tasks))

    def send(self, worker: int, message: Message) -> None:
        """Send a worker a message, behind those that wait for room."""
        pipe, data = self._tasks[worker], pack(message)
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
        """Let a wait end when the sentinel can be read from."""
        self._poll.register(sentinel, select.POLLIN)

    def unwatch(self, sentinel: int) -> None:
        """Do so no longer."""
        self._poll.unregister(sentinel)

    def wake(self) -> None:
        """Let a :meth:`wait` in another thread end."""
        self._own.write_wake()

    @property
    def unread(self) -> int:
        """Messages that workers have sent and :meth:`read` has not given yet."""
        count = array("i", [0])
        fcntl.ioctl(self._results, termios.FIONREAD, count)
        return count[0] // SIZE

    def read(self) -> list[Message]:
        """Take in what workers have sent by now.

        Raises:
            PoolClosed: All are gone, and the pipes.
        """
        if self._own.closed:
            raise PoolClosed
        try:
            data = os.read(self._results, READ_AT_ONCE)
        except BlockingIOError:
            return []
        return unpack_all(data)

    def there(self) -> bool:
        """Whether something has happened that :meth:`wait` would tell of."""
        return bool(self._poll.poll(0))

    def wait(self, timeout: float | None) -> bool:
        """Wait for something to happen.

        Args:
            timeout: Seconds at most; None: for ever.

        Returns:
            False: the time is up, or :meth:`wake` was called. True: see what there is.

        Raises:
            Ended: A process that is watched is gone; what it has sent is still to be read.
            PoolClosed: So are all, and the pipes.
        """
        own, poll, blocked = self._own, self._poll, list(self.blocked) if self.blocked else ()
        for pipe in blocked:
            poll.register(pipe, select.POLLOUT)
        longest = _LONGEST_WAIT if timeout is None or timeout > _LONGEST_WAIT else timeout
        with own.receiving:
            if own.closed:
                raise PoolClosed
            try:
                self.waiting = True
                ready = poll.poll(1000 * longest)
                self.waiting = False
            finally:
                for pipe in blocked:
                    poll.unregister(pipe)
        if own.closed:
            raise PoolClosed
        if len(ready) == 1 and ready[0][0] == self._results:
            return True
        if not ready:
            return timeout is None or timeout > _LONGEST_WAIT
        fds = {fd for fd, _ in ready}
        # First: others send on and on.
        if gone := fds.difference((self._results, self._woken), blocked):
            raise Ended(min(gone))
        if self._results in fds or not fds.isdisjoint(blocked):
            return True
        if self._woken in fds:
            os.read(self._woken, READ_AT_ONCE)
            return False
        return True
