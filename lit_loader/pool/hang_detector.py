"""`HangDetector`: finds the worker that does not get on, by looking at the status board twice.

Used by `pool/recovery.py`. It looks only when waiting has lasted for as long as the timeout; a
worker that is then found in the same place at two looks hangs.
"""

from __future__ import annotations

import time
from typing import Final

from lit_loader.pool.worker_pool import WorkerPool
from lit_loader.transport.status_board import BoardRow

__all__ = ["HangDetector"]

_SECOND_LOOK: Final = 0.5
"""Seconds between the two looks that must find a worker in the same place, before it is said to
hang. After the whole process group has been stopped for a while (Ctrl-Z), it will not be."""


class HangDetector:
    """Remembers, between two looks, which worker is suspected.

    Args:
        timeout: Seconds without progress after which a worker hangs.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._suspect: tuple[int, BoardRow] | None = None

    def patience(self, pool: WorkerPool, began: float) -> float:
        """Seconds until the next look.

        Args:
            pool: The workers.
            began: ``time.monotonic()`` when the consumer began to wait.
        """
        if self._suspect is not None:
            return min(_SECOND_LOOK, self.timeout)
        left = self.timeout - (time.monotonic() - began)
        if left > 0:  # without looking at the board, for none can hang for longer than this
            return left
        idle = max(
            (_idle(row, began) for row in pool.awaited_workers().values()),
            default=0.0,
        )
        return max(0.0, self.timeout - idle)

    def forget(self) -> None:
        """Suspect none any more: a worker has died, which may have kept the others waiting."""
        self._suspect = None

    def look(self, pool: WorkerPool, began: float) -> tuple[int, float] | None:
        """Look for a worker that hangs; returns it, and for how many seconds it has."""
        awaited = pool.awaited_workers()
        if self._suspect is not None:
            worker, row = self._suspect
            self._suspect = None
            if awaited.get(worker) == row:
                return worker, time.monotonic() - (row.since / 1e9 if row.since else began)
        for worker, row in sorted(awaited.items(), key=lambda item: item[1].since):
            # One that waits for tasks is only to blame if those that have one get on.
            if _idle(row, began) >= self.timeout:
                self._suspect = worker, row
                break
        return None


def _idle(row: BoardRow, began: float) -> float:
    """Seconds that a worker has been at one sample while it was waited for."""
    return time.monotonic() - max(began, row.since / 1e9)
