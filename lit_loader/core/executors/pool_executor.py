"""`PoolExecutor`: worker processes as an executor, for one epoch of one iterator.

The pool may live on, for the next iterator. What dies is replaced here, within the budget of the
iterator's `Healer`.

`Healer`: replaces a worker that dies or hangs, or raises the error that says why not.

::

    pool.receive ─ WorkerDeath ───────────────▶ is there budget?
        │                                        │ yes: pool.replace, a notice; waiting continues
        ╰── time is up ─▶ who hangs? ─ ended, ──▶│ no: WorkerDiedError or WorkerTimeoutError
                           with its stacks       │ its task has ended two in a row: that task is
                                                 ╰ given up, and the error is its batch's outcome

One object lives as long as an iterator, which is one epoch, and so does its budget. It is used by
the thread that receives; the consumer takes the notices and warns. What has happened, the likely
cause, and what to do is said at a seam (`diagnostics/death_messages.py`).
"""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import Final, Protocol

from lit_loader.core.executors.executor import Executor, FewerWorkers, Outcome, Task, WorkerDeath
from lit_loader.core.executors.worker_pool import WorkerPool
from lit_loader.core.executors.worker_process import Notice
from lit_loader.core.transport.messages import position_of
from lit_loader.core.transport.status_board import BoardRow, Stage
from lit_loader.errors import (
    LoaderError,
    WorkerDiedError,
    WorkerTimeoutError,
)

_SECOND_LOOK: Final = 0.5
"""Seconds between the two looks that must find a worker in the same place, before it is said to
hang."""

_SLICE: Final = 1.0
"""Seconds from one look to the next at most: where one comes late by as much, all processes were
stopped meanwhile (Ctrl-Z, a scheduler), and waiting is counted from then on."""

Fault = type[WorkerDiedError] | type[WorkerTimeoutError]
"""What has befallen a worker, as the error that is raised if it may not be replaced."""

_KILLS_IN_A_ROW: Final = 2

_AT_A_LOCK: Final = (
    "it may wait for a lock that another thread held when it was forked. If so, set "
    "multiprocessing_context='forkserver' or 'spawn' [LL011]"
)

_ADVICE: Final = {
    WorkerDiedError: "num_workers=0 shows errors in place.",
    # Without workers the training process itself would hang, and have no timeout.
    WorkerTimeoutError: "Fix what keeps it from going on, or raise timeout.",
}


class DeathMessages(Protocol):
    """What `Seams` say of a worker that died or hung (`diagnostics/death_messages.py`)."""

    def explain(
        self,
        pool: WorkerPool,
        death: WorkerDeath,
        task: Task | None,
        waited: tuple[float, float] | None = None,
    ) -> str:
        """Say how a worker came to its end, why, and what to do."""

    def fewer_workers(self, pool: WorkerPool, death: WorkerDeath) -> FewerWorkers | None:
        """Return a notice if there are to be fewer workers from now on."""


class Healer:
    """Replaces workers that died or hang, within a budget of ``max_restarts``.

    One hangs after ``timeout`` seconds without progress; None: never. Where batches are those of
    readers (``iterable``), none can be passed over. ``seams`` say what has happened.
    """

    def __init__(
        self, max_restarts: int, timeout: float | None, iterable: bool, seams: DeathMessages
    ) -> None:
        self._seams = seams
        self._max_restarts, self._charged = max_restarts, 0
        self._kills: Counter[int] = Counter()  # workers that each task has ended
        self._hung_at_first = False  # whether a worker hung that was forked when the epoch began
        self.timeout = timeout  # seconds at one sample, as above
        self._suspect: tuple[int, BoardRow] | None = None  # where the last look found a worker
        self._due, self._resumed = float("inf"), 0.0  # the next look; the end of the last pause
        self._iterable = iterable
        self.restarts = 0  # workers replaced so far
        self.notices: deque[Notice] = deque()  # texts for the consumer, of what was replaced

    def heal(self, pool: WorkerPool, death: WorkerDeath) -> Outcome | None:
        """Replace a worker that is gone; returns the outcome of its task if that is given up.

        A WorkerDiedError if it may not be, a LoaderError if it was the last of remote ones alone.
        """
        self._suspect = None  # it may have kept the others waiting
        if death.relay_exit is None:
            if death.stuck:
                message = f"Worker {death.worker} (pid {death.pid}) did not start: {_AT_A_LOCK}."
                message += f" Its stacks:\n{death.stack}" if death.stack else ""
            else:
                message = self._seams.explain(pool, death, pool.task(death.row.number))
            outcome = self._see_to(pool, death, WorkerDiedError, message)
            if (fewer := self._seams.fewer_workers(pool, death)) is not None:
                self.notices.append(fewer)
                pool.resize(fewer.workers)
            return outcome
        if death.relay_exit.final:  # with a budget of its own, see `remote/`
            raise LoaderError(death.relay_exit.message) from None
        self._replace(pool, death.worker, death.relay_exit.message)
        return None

    def look(self, pool: WorkerPool, began: float) -> Outcome | None:
        """Replace a worker that hangs, if there is one; a WorkerTimeoutError if it may not be.

        As :meth:`heal`; ``began`` is ``time.monotonic()`` when the wait began.
        """
        if not (hanging := self._hanging(pool, began)):
            now, began = self._now(began)
            if self.timeout and now - began >= self.timeout:
                pool.workers.end_stopped_relay()
            return None
        worker, seconds = hanging
        assert self.timeout is not None
        first = pool.workers.forks and pool.is_at_its_first(worker)
        # Those that were forked at the same time may all wait for the same lock: they count as one
        # restart, and no batch is to blame.
        together = first and not pool.is_successor(worker)
        ended = pool.workers.end(worker)
        pool.waits.hangs.append(time.monotonic_ns())
        task = pool.task(ended.row.number)
        message = self._seams.explain(pool, ended, task, (seconds, self.timeout))
        if first:
            message += f"\nIt had made no batch: {_AT_A_LOCK}."
        self._charged -= together and self._hung_at_first
        self._hung_at_first |= together
        return self._see_to(pool, ended, WorkerTimeoutError, message, blame=not together)

    # --- the budget ---

    def _see_to(
        self, pool: WorkerPool, death: WorkerDeath, fault: Fault, message: str, blame: bool = True
    ) -> Outcome | None:
        """Replace a worker if it may be; return the outcome of its task if that is given up.

        ``blame``: whether the task may be what has ended it.
        """
        number, stage = death.row.number, death.row.stage
        # Not one whose result it had sent already; nor one of an epoch that is over.
        if blame and stage in Stage.BUSY and pool.is_pending(number):
            self._kills[number] += 1
            if self._kills[number] >= _KILLS_IN_A_ROW and self._max_restarts:
                error = fault(
                    f"{message}\nBatch {position_of(number)} has ended {_KILLS_IN_A_ROW} workers "
                    f"in a row and is not tried again. {_ADVICE[fault]} [LL013]"
                )
                if self._iterable:
                    raise error from None
                self.restarts += 1
                pool.replace(death.worker, skip_task=number)
                outcome = Outcome(number)
                outcome.error = error
                return outcome
        self._charged += 1
        if stage == Stage.STARTING and (death.exitcode or 0) > 0:
            raise fault(message) from None  # it would be the same again
        budget = f"max_worker_restarts={self._max_restarts}"
        if self._charged > self._max_restarts:
            spent = f"{budget} for this epoch is used up. " if self._max_restarts else ""
            raise fault(f"{message}\n{spent}{_ADVICE[fault]} [LL013]") from None
        notice = (
            f"{message}\nIt has been replaced and nothing is lost (restart {self._charged} of at "
            f"most {budget} in this epoch)."
        )
        if pool.workers.forks and (replaced := pool.workers.attributes.replaced()):
            notice += (
                f" The new worker is a fork of this program as it is now, and has another "
                f"{', '.join(replaced)} than the workers before: its batches may differ."
            )
        self._replace(pool, death.worker, notice)
        return None

    def _replace(self, pool: WorkerPool, worker: int, notice: str) -> None:
        self.restarts += 1
        self.notices.append(notice)
        pool.replace(worker)

    # --- who hangs ---

    def patience(self, pool: WorkerPool, began: float) -> float:
        """Seconds until the next look, where there is a ``timeout``."""
        limit = self.timeout
        assert limit is not None
        now, began = self._now(began)
        if self._suspect is not None:
            seconds = min(_SECOND_LOOK, limit)
        elif now - began < limit:  # without looking at the board: none can hang for longer
            seconds = limit - (now - began)
        else:
            idle = [_idle(row, began) for row in pool.awaited_workers().values()]
            seconds = max(0.0, limit - max(idle, default=0.0))
        seconds = min(seconds, _SLICE)
        self._due = now + seconds
        return seconds

    def _hanging(self, pool: WorkerPool, began: float) -> tuple[int, float] | None:
        """Look for a worker that hangs; returns it, and for how many seconds it has."""
        limit = self.timeout
        assert limit is not None
        now, began = self._now(began)
        awaited, suspect = pool.awaited_workers(), self._suspect
        if suspect is not None:
            worker, row = suspect
            self._suspect = None
            if awaited.get(worker) == row:
                return worker, now - (row.since / 1e9 if row.since else began)
        # One that waits for tasks is only to blame if those that have one make progress.
        for worker, row in sorted(awaited.items(), key=lambda item: item[1].since):
            if _idle(row, began) >= limit:
                self._suspect = worker, row
                break
        return None

    def _now(self, began: float) -> tuple[float, float]:
        """The time, and that from which on waiting is counted."""
        now = time.monotonic()
        if now > self._due + _SLICE:
            self._resumed, self._suspect = now, None
        return now, max(began, self._resumed)


def _idle(row: BoardRow, began: float) -> float:
    """Seconds that a worker has been at one sample while it was waited for."""
    return time.monotonic() - max(began, row.since / 1e9)


class PoolExecutor(Executor):
    """Worker processes, as long as an iterator has them.

    ``depth`` tasks may be outstanding. What the consumer is to be told goes to the healer's
    notices.
    """

    workers: WorkerPool

    def __init__(self, pool: WorkerPool, healer: Healer, depth: int) -> None:
        self.workers = pool
        self.token = pool.token  # that of the tasks
        self.page = pool.page
        self._healer, self._depth = healer, depth
        self._stopping = False

    def submit(self, task: Task) -> None:
        """Send a task to a worker, or keep it until one has room."""
        self.workers.submit(task)

    def receive(self, timeout: float | None = None) -> Outcome | None:
        """Wait for an outcome, and replace whoever dies or hangs meanwhile.

        With a timeout of 0 that is left to the next call.
        """
        pool, healer = self.workers, self._healer
        began = 0.0 if healer.timeout is None else time.monotonic()
        while not self._stopping:
            try:
                if timeout is not None or healer.timeout is None:
                    outcome = pool.receive(timeout)
                else:
                    outcome = pool.receive(healer.patience(pool, began)) or healer.look(pool, began)
            except WorkerDeath as death:
                if timeout is not None:
                    return None
                outcome = healer.heal(pool, death)
            finally:
                if pool.notices:
                    healer.notices.extend(pool.notices)
                    pool.notices.clear()
            if outcome is not None or timeout is not None:
                return outcome
        return None

    def room(self, outstanding: int) -> int:
        """Return how many more tasks may be outstanding."""
        return self._depth - outstanding

    def resize(self, num_workers: int, depth: int) -> None:
        """Change the number of workers; from any thread."""
        self._depth = depth
        self.workers.resize(num_workers, depth)

    def wake(self) -> None:
        """End a `receive` in another thread."""
        self._stopping = True
        if not self.workers.closed:  # else it has ended already, or is about to
            self.workers.pipes.wake()

    def close(self, keep_workers: bool = False) -> None:
        """End the workers; or let them drop all tasks: the next iterator's come after them."""
        if keep_workers:
            self.workers.cancel(self.token)
        else:
            self.workers.close()
