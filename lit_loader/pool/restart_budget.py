"""`RestartBudget`: how many workers may be replaced in an epoch, and which task is not tried again.

Used by `pool/recovery.py`.
"""

from __future__ import annotations

import signal
import time
from typing import Final

from lit_loader.errors import WorkerDiedError, WorkerTimeoutError
from lit_loader.pool.outcome import WorkerDeath
from lit_loader.transport.messages import position_of
from lit_loader.transport.status_board import Stage

__all__ = ["Fault", "RestartBudget"]

Fault = type[WorkerDiedError] | type[WorkerTimeoutError]
"""What has befallen a worker, as the error that is raised if it may not be replaced."""

_ONE_REQUEST: Final = 2.0
"""Seconds within which workers that end by SIGTERM count once: it was sent to all of them."""

_KILLS_IN_A_ROW: Final = 2

_ADVICE: Final = {
    WorkerDiedError: "num_workers=0 shows errors in place.",
    # Without workers the training process itself would hang, and have no timeout.
    WorkerTimeoutError: "Mend what keeps it from getting on, or raise timeout.",
}


class RestartBudget:
    """Counts the workers that were replaced, and those that each task has ended.

    Args:
        max_restarts: Workers that may be replaced.
    """

    def __init__(self, max_restarts: int) -> None:
        self._max_restarts = max_restarts
        self._charged = 0
        self._last_request = -_ONE_REQUEST
        self._kills: dict[int, int] = {}

    def charge(self, death: WorkerDeath, fault: Fault, message: str) -> str:
        """Take a restart off the budget.

        Returns:
            The notice for the consumer.

        Raises:
            WorkerDiedError: There is none left, or it would be of no use.
            WorkerTimeoutError: The same.
        """
        now = time.monotonic()
        by_request = death.exitcode == -signal.SIGTERM
        if not by_request or now - self._last_request >= _ONE_REQUEST:
            self._charged += 1
        if by_request:
            self._last_request = now
        if death.row.stage == Stage.STARTING and (death.exitcode or 0) > 0:
            raise fault(message) from None  # it would be the same again
        if self._charged > self._max_restarts:
            spent = (
                f"max_worker_restarts={self._max_restarts} for this epoch is used up. "
                if self._max_restarts
                else ""
            )
            raise fault(f"{message}\n{spent}{_ADVICE[fault]}") from None
        return (
            f"{message}\nIt has been replaced and nothing is lost (restart {self._charged} of at "
            f"most max_worker_restarts={self._max_restarts} in this epoch)."
        )

    def is_deadly(self, number: int) -> bool:
        """Count a worker that a task has ended; returns whether the task is to be given up."""
        self._kills[number] = self._kills.get(number, 0) + 1
        return self._kills[number] >= _KILLS_IN_A_ROW and self._max_restarts > 0

    @staticmethod
    def given_up(number: int, fault: Fault, message: str) -> WorkerDiedError | WorkerTimeoutError:
        """The error that takes the place of a batch that no worker survives."""
        return fault(
            f"{message}\nBatch {position_of(number)} has ended {_KILLS_IN_A_ROW} workers in a row "
            f"and is not tried again. {_ADVICE[fault]}"
        )
