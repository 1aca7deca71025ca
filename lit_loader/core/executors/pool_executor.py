"""`PoolExecutor`: worker processes as an executor, for one epoch of one iterator.

The pool may live on, for the next iterator. What dies is replaced here, within the budget of the
iterator's `Healer`.
"""

from __future__ import annotations

import time

from lit_loader.core.executors.executor import Executor, Task
from lit_loader.core.executors.healer import Healer
from lit_loader.core.executors.outcome import Outcome, WorkerDeath
from lit_loader.core.executors.worker_pool import WorkerPool


class PoolExecutor(Executor):
    """Worker processes, as long as an iterator has them.

    ``depth`` tasks may be outstanding. ``begun`` are tasks that the workers are at already. What
    the consumer is to be told goes to the healer's notices.
    """

    workers: WorkerPool

    def __init__(
        self, pool: WorkerPool, healer: Healer, depth: int, begun: dict[int, Task]
    ) -> None:
        self.workers = pool
        self.token = pool.token  # that of the tasks
        self.page = pool.page
        self._healer, self._depth = healer, depth
        self._stopping = False
        # What was submitted and is not received: for messages.
        self._tasks = {**begun}
        healer.assigned = self._tasks

    def submit(self, task: Task) -> None:
        """Send a task to a worker, or keep it until one has room."""
        self._tasks[task.number] = task
        self.workers.submit(*task[:5])

    def receive(self, timeout: float | None = None) -> Outcome | None:
        """Wait for an outcome, and replace whoever dies or hangs meanwhile.

        With a timeout of 0 that is left to the next call.
        """
        pool, healer, began = self.workers, self._healer, 0.0
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
