"""`ReaderLane`: a lane that readers of an iterable dataset may have as their home.

::

    closed ─ its remote worker is up ─▶ open: takes the tasks that it is sent, in their order
      ▲                                   │ the worker is gone, or silent: with it the places
      ╰──── Part(ALL) ── given up ◀───────╯ of the readers: Return, of all that it has

Tasks are its own, and come through its control pipe. Closed, it shows on the board that it is not
able, and the pool gives readers to others; open, it says that it is up, and is given its share of
them. Given up, it drops what it is sent, which was on its way, until the pool has answered.
"""

from __future__ import annotations

from collections import deque

from lit_loader.remote.engine import Order
from lit_loader.remote.lane import Lane
from lit_loader.transport.messages import ALL, Message, Part, Resume, Return, Task
from lit_loader.transport.status_board import Stage

__all__ = ["ReaderLane"]


class ReaderLane(Lane):
    """One lane; see `Lane`."""

    def _begin(self) -> None:
        self._waiting: deque[Task] = deque()
        self._open = self._given_up = False
        self._rest = Stage.STARTING
        self._desk.board.enter(self.worker, self._rest, -1)

    @property
    def free(self) -> bool:
        """Whether it may take a task."""
        return self._open and super().free

    def _hear(self, message: Message) -> bool:
        if isinstance(message, Task):
            if not self._given_up:
                self._waiting.append(message)
            return True
        if isinstance(message, Part):
            self._given_up &= message.reader != ALL
            return True
        if isinstance(message, Resume):
            self._waiting.clear()
        return super()._hear(message)

    def follow(self, up: bool) -> None:
        """Be open while the remote worker is up, as soon as may be."""
        if not up:
            self.give_back()
        elif not (self._open or self._given_up):
            self._open, self._rest = True, Stage.IDLE
            super()._begin()

    def give_back(self) -> None:
        """Let others have all tasks, and readers."""
        if self._open:
            self._open, self._given_up, self._rest = False, True, Stage.STARTING
            self._waiting.clear()
            self._drop()
            self._desk.send(Return(self.worker, self._generation, -1, 0))

    def next_order(self) -> Order | None:
        """Take the next task up that it was sent; None: there is none, or it is at one."""
        while self._waiting and self.free:
            order = self.take(self._waiting.popleft())
            if order is not None:
                return order
        return None
