"""`PoolExecutor`: worker processes as an executor, for one epoch of one iterator.

The pool may live on, for the next iterator. What dies is replaced here, within the budget of the
iterator's `Healer`.
"""

from __future__ import annotations

import time

from lit_loader.core.executors.executor import Executor, Task
from lit_loader.core.executors.healer import Healer
from lit_loader.core.executors.outcome import Outcome, Overrun, WorkerDeath
from lit_loader.core.executors.worker_pool import WorkerPool


class PoolExecutor(Executor):
    """Worker processes, as long as an iterator has them; ``depth`` batches may be outstanding."""

    eager = True

    def __init__(self, pool: WorkerPool, healer: Healer, depth: int, budgeted: bool) -> None:
        self.pool: WorkerPool = pool
        self.measured = pool
        self.token = pool.token  # that of the tasks
        self.depth = depth
        self.page = pool.page
        self.notices = healer.notices
        self._healer, self.budgeted = healer, budgeted
        self._stopping = False
        # What was submitted and is not received: for messages.
        self._tasks: dict[int, Task] = {}
        healer.assigned = self._tasks

    def submit(self, task: Task) -> None:
        """Send a task to a worker, or keep it until one has room."""
        self._tasks[task.number] = task
        self.pool.submit(*task[:5])

    def adopt(self, tasks: dict[int, Task]) -> None:
        """Know tasks that the workers are at already."""
        self._tasks.update(tasks)

    def receive(self, timeout: float | None = None) -> Outcome | None:
        """Wait for an outcome, and replace whoever dies or hangs meanwhile.

        With a timeout of 0 that is left to the next call.
        """
        pool, healer, began = self.pool, self._healer, 0.0
        while not self._stopping:
            began = began or time.monotonic()
            try:
                if timeout is not None:
                    outcome = pool.receive(timeout)
                elif healer.timeout is None:
                    outcome = pool.receive(None)
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
            if outcome is not None:
                self._tasks.pop(outcome.number, None)
                return outcome
            if timeout is not None:
                return None
        return None

    def room(self, outstanding: int) -> int:
        """What the memory budget leaves."""
        overrun = self.pool.arena.overrun()
        if overrun is not None:
            self._healer.notices.append(Overrun(overrun))
        return self.pool.arena.room(outstanding)

    def resize(self, num_workers: int, depth: int) -> None:
        """Have another number of workers; from any thread."""
        self.depth = depth
        self.pool.resize(num_workers, depth)

    def call_off(self) -> None:
        """Let the workers drop all tasks; the next iterator's come behind them."""
        self.pool.cancel(self.token)

    def stop(self) -> None:
        """Let a `receive` in another thread end."""
        self._stopping = True
        if not self.pool.closed:  # else it has ended already, or is about to
            self.pool.pipes.wake()

    def close(self) -> None:
        """End the workers."""
        self.pool.close()

    @property
    def waiting(self) -> bool:
        """Whether nothing but a wait is going on."""
        return self.pool.pipes.waiting

    @waiting.setter
    def waiting(self, value: bool) -> None:
        self.pool.pipes.waiting = value

    @property
    def closed(self) -> bool:  # type: ignore[override]
        """Whether the workers are gone, or belong to another process."""
        return self.pool.closed

    @property
    def elsewhere(self) -> bool:  # type: ignore[override]
        """Whether this is a forked copy: everything belongs to another process."""
        return self.pool.elsewhere

    @property
    def unread(self) -> int:  # type: ignore[override]
        """Outcomes that were not received yet, about."""
        return 0 if self.pool.closed else self.pool.unread
