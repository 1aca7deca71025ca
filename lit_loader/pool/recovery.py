"""`Recovery`: replaces a worker that dies or hangs, or raises the error that says why not.

::

    pool.receive ── WorkerDeath ──────────────▶ is there budget?
    (or resumed)                                 │ yes: pool.replace, a notice; waiting goes on
        ╰── time is up ─▶ who hangs? ─ ended, ──▶│ no: WorkerDiedError or WorkerTimeoutError
                           with its stacks       │ its task has ended two in a row: that task is
                                                 ╰ given up, and the error is its batch's outcome

One object lives as long as an iterator, which is one epoch, and so does its budget
(`pool/restart_budget.py`). It is used by the thread that receives; the notices are taken by the
consumer, who gets them as warnings. Who hangs is found by `pool/hang_detector.py`; without a
timeout, a reader that may wait for others for ever is told of, and left to itself.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from lit_loader.describe import program_stacklevel
from lit_loader.errors import (
    LoaderError,
    WorkerDiedError,
    WorkerRestartWarning,
    WorkerTimeoutError,
)
from lit_loader.pool.diagnosis import alone, died, hung, unborn
from lit_loader.pool.hang_detector import HangDetector
from lit_loader.pool.outcome import Outcome, WorkerDeath
from lit_loader.pool.restart_budget import Fault, RestartBudget
from lit_loader.pool.worker_pool import WorkerPool
from lit_loader.transport.status_board import Stage
from lit_loader.worker.starters import Notice

__all__ = ["Recovery"]

T = TypeVar("T")

_SUSPICIOUS: Final = 60.0
"""Seconds at one sample after which a reader is told of, where another one has been replaced."""


class Recovery:
    """Waits for workers, and replaces those that died or hang, within a budget.

    Args:
        max_restarts: Workers that may be replaced.
        timeout: Seconds without progress after which a worker hangs; None: never.
        iterable: Whether batches are those of readers, which cannot pass over one.

    Attributes:
        assigned: Task number to indices, of the tasks in flight; for messages.
        restarts: Workers replaced so far.
        notices: Texts for the consumer, of what was replaced.
    """

    def __init__(
        self,
        max_restarts: int,
        timeout: float | None,
        iterable: bool,
    ) -> None:
        self._budget = RestartBudget(max_restarts)
        self._hangs = None if timeout is None else HangDetector(timeout)
        self._iterable = iterable
        # Readers may wait for one another where they begin; one that begins anew is alone there.
        self._meetings = HangDetector(_SUSPICIOUS) if iterable and timeout is None else None
        self.assigned: Mapping[int, Any] = {}
        self.restarts = 0
        self.notices: deque[Notice] = deque()

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
            LoaderError: There are remote workers only, and none can be had.
        """
        hangs = self._meetings if self._meetings and self.restarts else self._hangs
        try:
            found = step(None if hangs is None else hangs.patience(pool, began))
        except WorkerDeath as death:
            if hangs is not None:
                hangs.forget()
            if death.unborn:
                # No fault, and no charge: it has had no task, and is not started in the same way
                # for ever.
                message = f"{unborn(death)}\nIt has been started again and nothing is lost."
                self._replace(pool, death, message)
                return None
            if death.loss is not None:  # with a budget of its own, see `remote/`
                if death.loss.final:
                    raise LoaderError(death.loss.message) from None
                self._replace(pool, death, death.loss.message)
                return None
            return self._see_to(pool, death, WorkerDiedError, died(death, self.assigned))
        finally:
            while pool.notices:
                self.notices.append(pool.notices.popleft())
        if found is None and hangs is not None and (hanging := hangs.look(pool, began)):
            worker, seconds = hanging
            if hangs is self._meetings:
                self._meetings = None
                level = program_stacklevel()
                warnings.warn(alone(worker, seconds), WorkerRestartWarning, stacklevel=level)
                return None
            ended = pool.end_hung(worker)
            message = hung(ended, seconds, hangs.timeout, self.assigned)
            return self._see_to(pool, ended, WorkerTimeoutError, message)
        return found

    def _see_to(
        self, pool: WorkerPool, death: WorkerDeath, fault: Fault, message: str
    ) -> Outcome | None:
        """Replace a worker if it may be; returns the outcome of its task if that is given up."""
        number = death.row.number if death.row.stage in Stage.BUSY else None
        # Not one whose result it had sent already; nor one of an epoch that is over.
        if (
            number is not None
            and not pool.resuming
            and pool.is_pending(number)
            and self._budget.is_deadly(number)
        ):
            error = self._budget.given_up(number, fault, message)
            if self._iterable:
                raise error from None
            self.restarts += 1
            pool.page.restarted(message)
            pool.replace(death.worker, skip_task=number)
            return Outcome(number, None, 0, 0, None, error=error)
        self._replace(pool, death, self._budget.charge(death, fault, message))
        return None

    def _replace(self, pool: WorkerPool, death: WorkerDeath, notice: str) -> None:
        self.restarts += 1
        self.notices.append(notice)
        pool.page.restarted(notice)
        pool.replace(death.worker, None, death.others)
