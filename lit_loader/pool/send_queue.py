"""`SendQueue`: writes messages into pipes, and keeps those for which a pipe has no room.

Used by `pool/pipes.py`.
"""

from __future__ import annotations

import os
import threading
from collections import deque

__all__ = ["SendQueue"]


class SendQueue:
    """Writes into pipes that do not block.

    A pipe holds about 1,000 messages, and far fewer where a user has very many pipes. What does
    not go in waits here until results show that workers have taken some, or :attr:`blocked` can be
    written to. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._lock = threading.RLock()  # the garbage collector may call clear() in the midst

    @property
    def blocked(self) -> int | None:
        """The pipe that has no room for what waits; None: nothing waits."""
        waiting = self._waiting
        return waiting[0][0] if waiting else None

    def send(self, fd: int, data: bytes) -> None:
        """Write a message, behind those that wait."""
        with self._lock:
            self._waiting.append((fd, data))
            self.flush()

    def flush(self) -> None:
        """Write what waits, as far as there is room."""
        if not self._waiting:
            return
        with self._lock:
            try:
                while self._waiting:  # clear() may come in between, from the garbage collector
                    os.write(*self._waiting[0])
                    self._waiting.popleft()
            except (BlockingIOError, IndexError):
                pass  # no room, or nothing waits any more

    def drop(self, fd: int) -> None:
        """Forget what waits for one pipe."""
        with self._lock:
            self._waiting = deque(message for message in self._waiting if message[0] != fd)

    def clear(self) -> None:
        """Forget what waits."""
        with self._lock:
            self._waiting.clear()
