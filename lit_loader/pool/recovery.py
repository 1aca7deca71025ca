"""What becomes of an epoch when a worker dies or hangs: it is replaced, or an error says why not.

::

    pool.receive ── WorkerDeath ──────────────▶ is there budget?
    (or resumed)                                 │ yes: pool.replace, a notice; waiting goes on
        ╰── time is up ─▶ who hangs? ─ ended, ──▶│ no: WorkerDiedError or WorkerTimeoutError
                           with its stacks       │ its task has ended two in a row: that task is
                                                 ╰ given up, and the error is its batch's outcome

One object lives as long as an iterator, which is one epoch, and so does its budget. It is used by
whichever thread receives; the notices are taken by the consumer, who gets them as warnings.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from lit_loader.errors import WorkerDiedError, WorkerTimeoutError
from lit_loader.pool.diagnosis import died, hung, unborn
from lit_loader.pool.outcome import Outcome, WorkerDeath
from lit_loader.pool.worker_pool import WorkerPool
from lit_loader.transport.messages import position_of
from lit_loader.transport.status_board import BoardRow, Stage

__all__ = ["Recovery"]

T = TypeVar("T")

_SECOND_LOOK: Final = 0.5
"""Seconds between the two looks that must find a worker in the same place, before it is said to
hang. After the whole process group has been stopped for a while (Ctrl-Z), it will not be."""

_ONE_REQUEST: Final = 2.0
"""Seconds within which workers that end by SIGTERM count once: it was sent to all of them."""

_KILLS_IN_A_ROW: Final = 2

_ADVICE: Final = {
    WorkerDiedError: "num_workers=0 shows errors in place.",
    # Without workers the training process itself would hang, and have no timeout.
    WorkerTimeoutError: "Mend what keeps it from getting on, or raise timeout.",
}


class Recovery:
    """Replaces workers that died or hang, within a budget.

    Args:
        max_restarts: Workers that may be replaced.
        timeout: Seconds without progress after which a worker hangs; None: never.
        point: Gives where a reader of an iterable dataset is to begin again; None: map-style.

    Attributes:
        restarts: Workers replaced so far.
        notices: What is to be told to the consumer.
    """

    def __init__(
        self,
        max_restarts: int,
        timeout: float | None,
        point: Callable[[int], Any] | None,
    ) -> None:
        self._max_restarts = max_restarts
        self._timeout = timeout
        self.assigned: Mapping[int, Any] = {}
        self._point = point
        self._charged = 0
        self._last_request = -_ONE_REQUEST
        self._kills: dict[int, int] = {}
        self._suspect: tuple[int, BoardRow] | None = None
        self.restarts = 0
        self.notices: deque[str] = deque()

    def wait(
        self, pool: WorkerPool, step: Callable[[float | None], T | None], began: float
    ) -> T | Outcome | None:
        """Take one step of waiting for workers, and see to them if it does not succeed.

        Args:
            pool: The workers.
            step: ``pool.receive`` or ``pool.resumed``.
            began: ``time.monotonic()`` when the wait began, of which this is a step.

        Returns:
            What the step gave; the outcome of a task that was given up; or None: wait again.

        Raises:
            WorkerDiedError: A worker has died, and may not be replaced.
            WorkerTimeoutError: A worker hangs, and may not be replaced.
        """
        try:
            found = step(None if self._timeout is None else self._patience(pool, began))
        except WorkerDeath as death:
            self._suspect = None
            if death.unborn:
                self._start_again(pool, death)
                return None
            told = died(death, self.assigned)
            return self._replace(pool, death, WorkerDiedError, told)
        finally:
            if pool.notices:
                self._take_notices(pool)
        if found is None and self._timeout is not None:
            return self._end_the_hung(pool, began)
        return found

    def _take_notices(self, pool: WorkerPool) -> None:
        while pool.notices:
            self.notices.append(pool.notices.popleft())

    def _start_again(self, pool: WorkerPool, death: WorkerDeath) -> None:
        """Start a worker again that was forked and did not come up: no fault, and no charge.

        It has had no task, and is not started in the same way for ever.
        """
        self.restarts += 1
        self.notices.append(f"{unborn(death)}\nIt has been started again and nothing is lost.")
        pool.replace(death.worker, self._point and self._point(death.worker))

    def _patience(self, pool: WorkerPool, began: float) -> float:
        """Seconds until somebody may turn out to hang."""
        assert self._timeout is not None
        if self._suspect is not None:
            return min(_SECOND_LOOK, self._timeout)
        left = self._timeout - (time.monotonic() - began)
        if left > 0:  # without looking at the board, for nobody can hang for longer than this
            return left
        idle = max(
            (self._idle(row, began) for row in pool.awaited_workers().values()),
            default=0.0,
        )
        return max(0.0, self._timeout - idle)

    @staticmethod
    def _idle(row: BoardRow, began: float) -> float:
        """Seconds that a worker has been at one sample while it was waited for."""
        return time.monotonic() - max(began, row.since / 1e9)

    def _end_the_hung(self, pool: WorkerPool, began: float) -> Outcome | None:
        """Look for a worker that hangs; if it still does at the second look, replace it."""
        assert self._timeout is not None
        pending = pool.awaited_workers()
        if self._suspect is not None:
            worker, row = self._suspect
            self._suspect = None
            if pending.get(worker) == row:
                seconds = time.monotonic() - (row.since / 1e9 if row.since else began)
                death = pool.end_hung(worker)
                told = hung(death, seconds, self._timeout, self.assigned)
                return self._replace(pool, death, WorkerTimeoutError, told)
        for worker, row in sorted(pending.items(), key=lambda item: item[1].since):
            # Who waits for tasks is only to blame if those that have one get on.
            if self._idle(row, began) >= self._timeout:
                self._suspect = worker, row
                break
        return None

    def _replace(
        self,
        pool: WorkerPool,
        death: WorkerDeath,
        kind: type[WorkerDiedError] | type[WorkerTimeoutError],
        told: str,
    ) -> Outcome | None:
        number = death.row.number if death.row.stage in Stage.BUSY else None
        # Not one whose result it had sent already; nor one of an epoch that is over.
        if number is not None and not pool.resuming and pool.is_pending(number):
            self._kills[number] = self._kills.get(number, 0) + 1
            if self._kills[number] >= _KILLS_IN_A_ROW and self._max_restarts:
                return self._give_up(pool, death, number, kind, told)
        self._charge(death, kind, told)
        pool.replace(death.worker, self._point and self._point(death.worker))
        return None

    def _charge(
        self,
        death: WorkerDeath,
        kind: type[WorkerDiedError] | type[WorkerTimeoutError],
        told: str,
    ) -> None:
        """Take a restart off the budget.

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
            raise kind(told) from None  # it would be the same again
        if self._charged > self._max_restarts:
            spent = (
                f"max_worker_restarts={self._max_restarts} for this epoch is used up. "
                if self._max_restarts
                else ""
            )
            raise kind(f"{told}\n{spent}{_ADVICE[kind]}") from None
        self.restarts += 1
        self.notices.append(
            f"{told}\nIt has been replaced and nothing is lost (restart {self._charged} of at most "
            f"max_worker_restarts={self._max_restarts} in this epoch)."
        )

    def _give_up(
        self,
        pool: WorkerPool,
        death: WorkerDeath,
        number: int,
        kind: type[WorkerDiedError] | type[WorkerTimeoutError],
        told: str,
    ) -> Outcome | None:
        """Do without a batch that no worker survives."""
        error = kind(
            f"{told}\nBatch {position_of(number)} has ended {_KILLS_IN_A_ROW} workers in a row and "
            f"is not tried again. {_ADVICE[kind]}"
        )
        if self._point is not None:  # a reader cannot pass over it
            raise error from None
        self.restarts += 1
        pool.replace(death.worker, skip_task=number)
        return Outcome(number, None, 0, 0, None, error=error)
