"""The sending end of the parent's pipes to its workers."""

from __future__ import annotations

import os
from collections import deque

__all__ = ["Outbox"]


class Outbox:
    """Writes messages into pipes that do not block, and keeps what there is no room for.

    A pipe holds about 1,000 messages, and far fewer where a user has very many pipes. What does
    not go in waits here until results show that workers have taken some.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, bytes]] = deque()

    def send(self, fd: int, data: bytes) -> None:
        """Write a message, behind those that wait."""
        if self._waiting:
            self._waiting.append((fd, data))
            self.flush()
            return
        try:
            os.write(fd, data)
        except BlockingIOError:
            self._waiting.append((fd, data))

    def flush(self) -> None:
        """Write what waits, as far as there is room."""
        while self._waiting:
            fd, data = self._waiting.popleft()
            try:
                os.write(fd, data)
            except BlockingIOError:
                self._waiting.appendleft((fd, data))
                return

    def clear(self) -> None:
        """Forget what waits."""
        self._waiting.clear()
