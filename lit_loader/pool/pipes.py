"""`Pipes`: messages to a pool's workers and from them, and the wait for these.

::

    send ─────────────▶ task pipe ──▶ a worker that is idle
    send(worker=w) ───▶ control pipe ──▶ worker w
    next ◀── arrived ◀─ result pipe ◀── all workers
      └── one poll: results, watched processes that end, wake, room in a full pipe

Used by the parts of a pool. It deals in messages alone (`transport/messages.py`), and in sentinels:
files that can be read from when a process has ended. One thread may send while another waits;
everything else is for one thread at a time.
"""

from __future__ import annotations

import fcntl
import math
import os
import select
import termios
import time
from array import array
from collections import deque
from typing import Final

from lit_loader.pool.resources import READ_AT_ONCE, PoolResources
from lit_loader.pool.send_queue import SendQueue
from lit_loader.transport.messages import SIZE, Attend, Message, pack, unpack

__all__ = ["Ended", "Pipes", "PoolClosed"]

_LONGEST_WAIT: Final = 1.0
"""Seconds that are waited at a time: a signal that comes just before the wait, when Python has
looked for one for the last time, is handled when the wait ends, and would be never."""


class Ended(Exception):
    """A process that is watched has ended; all that it had sent came out before.

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

    Args:
        own: Holds the pipes, and closes them.
        assigned: There is no task pipe: all that a worker is sent goes through its own.

    Attributes:
        arrived: Messages that have been read and not been given out.
        tasks_end: The workers' end of the task pipe, or None.
        results_end: Their end of the result pipe.
        control_ends: The end of the control pipe of each.
    """

    def __init__(self, own: PoolResources, assigned: bool) -> None:
        self.arrived: deque[Message] = deque()
        self._send_queue = SendQueue()
        self.tasks_end: int | None = None
        self._tasks: int | None = None
        if not assigned:  # it would never be read empty
            self.tasks_end, self._tasks = own.pipe()
        self._results, self.results_end = own.pipe()
        # A worker with nothing to do waits, and one with a result until there is room.
        os.set_blocking(self.results_end, True)
        if self.tasks_end is not None:
            os.set_blocking(self.tasks_end, True)
        self._woken, own.wake = own.pipe()
        self._own = own
        self._poll = select.poll()
        self.watch(self._results)
        self.watch(self._woken)
        self.control_ends: dict[int, int] = {}
        self._control = own.controls
        own.tasks, own.results = self._tasks, self._results

    def open(self, worker: int) -> None:
        """Make the control pipe of a worker that is to be started, unless it has one."""
        if worker not in self._control:
            end, control = self._own.pipe()
            os.set_blocking(end, True)
            self.control_ends[worker], self._control[worker] = end, control

    def close(self, worker: int) -> None:
        """Close the control pipe of a worker that is gone, with what it did not read."""
        end, control = self.control_ends.pop(worker), self._control.pop(worker)
        self._send_queue.drop(control)
        self._own.close_pipe((end, control))

    @property
    def shared_queue(self) -> bool:
        """Whether tasks come through one pipe, for any worker that is idle."""
        return self._tasks is not None

    def send(self, message: Message, worker: int | None = None) -> None:
        """Send a message, behind those that wait for room.

        Args:
            message: The message.
            worker: The worker it is for; None: the first to take it out of the task pipe.
        """
        pipe = self._tasks if worker is None else self._control[worker]
        assert pipe is not None, "a task is assigned to a worker, or pulled from the task pipe"
        self._send_queue.send(pipe, pack(message))

    def announce(self, messages: int) -> None:
        """Have idle workers look into their control pipes, in which so many messages are now."""
        if self.shared_queue:
            for _ in range(messages):
                self.send(Attend())

    def take_back(self) -> None:
        """Forget what waits for room."""
        self._send_queue.clear()

    def watch(self, sentinel: int) -> None:
        """Let a wait end when the sentinel can be read from."""
        self._poll.register(sentinel, select.POLLIN)

    def unwatch(self, sentinel: int) -> None:
        """Do so no longer."""
        self._poll.unregister(sentinel)

    def wake(self) -> None:
        """Let a :meth:`next` that waits in another thread return None."""
        self._own.write_wake()

    @property
    def unread(self) -> int:
        """Messages that workers have sent and :meth:`next` has not given yet."""
        count = array("i", [0])
        fcntl.ioctl(self._results, termios.FIONREAD, count)
        return count[0] // SIZE + len(self.arrived)

    def next(self, deadline: float | None) -> Message | None:
        """Wait for the next message.

        Args:
            deadline: By ``time.monotonic()``; None waits for ever.

        Returns:
            The message; None: the time is up, or :meth:`wake` was called.

        Raises:
            Ended: A process that is watched is gone.
            PoolClosed: So are all, and the pipes.
        """
        while not self.arrived:
            if self._own.closed:
                raise PoolClosed
            if not self.read():
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not self._wait(left):
                    return None
        return self.arrived.popleft()

    def read(self) -> bool:
        """Take in what workers have sent; returns whether there was anything."""
        try:
            data = os.read(self._results, READ_AT_ONCE)
        except BlockingIOError:
            return False
        self._send_queue.flush()
        for start in range(0, len(data), SIZE):
            self.arrived.append(unpack(data, start))
        return True

    def _wait(self, timeout: float | None) -> bool:
        """Wait for something to happen; returns False on timeout or wake-up."""
        blocked = self._send_queue.blocked
        if blocked is not None:
            self._poll.register(blocked, select.POLLOUT)
        with self._own.receiving:
            ready = self._poll.poll(
                1000 * min(math.inf if timeout is None else timeout, _LONGEST_WAIT)
            )
        if self._own.closed:
            raise PoolClosed
        if blocked is not None:
            self._poll.unregister(blocked)
        if not ready:
            return timeout is None or timeout > _LONGEST_WAIT  # to be waited on
        fds = {fd for fd, _ in ready}
        if self._results in fds:
            return True
        if blocked in fds:
            self._send_queue.flush()  # workers that drop what was cancelled send no results
            return True
        if self._woken in fds:
            os.read(self._woken, READ_AT_ONCE)
            return False
        # A result may have come in between the poll and now: it goes first.
        if self.read():
            return True
        raise Ended(min(fds))
