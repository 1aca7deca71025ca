"""A whole executor in a few lines passes the contract of executors."""

import queue
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from lit_loader import DataLoader
from lit_loader.core.executors.executor import Executor, Outcome, Task
from lit_loader.core.transport.messages import listed
from lit_loader.testing import ExecutorContract


class FuturesExecutor(Executor):
    """Reads each batch in a thread of a pool. It knows map-style datasets that draw nothing."""

    def __init__(self, dataset: Any, collate: Any, depth: int) -> None:
        self._dataset, self._collate, self._depth = dataset, collate, depth
        self._pool = ThreadPoolExecutor(2)
        self._done: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()

    def _make(self, task: Task) -> Any:
        return self._collate([self._dataset[index] for index in listed(task.indices)])

    def submit(self, task: Task) -> None:
        def done(future: "Future[Any]") -> None:
            outcome = Outcome(task.number)
            outcome.error = future.exception()
            outcome.batch = None if outcome.error else future.result()
            self._done.put(outcome)

        self._pool.submit(self._make, task).add_done_callback(done)

    def receive(self, timeout: float | None = None) -> Outcome | None:
        try:
            return self._done.get(timeout=timeout)
        except queue.Empty:
            return None

    def room(self, outstanding: int) -> int:
        return self._depth - outstanding

    def wake(self) -> None:
        self._done.put(None)

    def close(self, keep_workers: bool = False) -> None:
        self._pool.shutdown()


class TestFutures(ExecutorContract):
    def make(self, loader: DataLoader[Any], depth: int) -> Executor:
        return FuturesExecutor(loader.dataset, loader.collate_fn, depth)
