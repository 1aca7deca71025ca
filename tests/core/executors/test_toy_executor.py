"""A whole executor in a few lines, at its seam, makes batches as others do."""

import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from lit_loader import DataLoader
from lit_loader.core.executors.executor import Executor, Outcome, Task
from lit_loader.core.transport.messages import listed
from lit_loader.loader import _AddOns
from lit_loader.testing import SamplerContract
from tests.support.samples import Call


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


class AtTheSeam(_AddOns):
    def executor(self, core: Any, made: Any) -> Executor:
        return FuturesExecutor(core.loader.dataset, core.loader.collate_fn, core.depth)


def fails_at_7(index: int) -> int:
    if index == 7:
        raise LookupError("no sample 7")
    return index


class TestFutures(SamplerContract):
    """It is resumed exactly; and more."""

    def loader(self, dataset: Any = range(26)) -> DataLoader[Any]:
        loader = DataLoader(dataset, 4, shuffle=True, seed=3, num_workers=1)
        loader._core.seams = AtTheSeam()
        return loader

    def test_it_yields_what_the_process_itself_yields(self) -> None:
        """Also after a pass that was left; and no thread is left in the end."""
        before = threading.active_count()
        dataset: Any = range(26)
        alone: DataLoader[Any] = DataLoader(dataset, 4, shuffle=True, seed=3)
        with self.loader() as loader:
            assert self._read(loader) == self._read(alone)
            for _ in loader:
                break
            for each in (alone, loader):
                each.set_epoch(7)
            assert self._read(loader) == self._read(alone)
        assert threading.active_count() <= before

    def test_an_error_is_raised_in_its_turn_and_the_next_batch_follows(self) -> None:
        found = []
        with self.loader(Call(fails_at_7, 26)) as loader:
            iterator = iter(loader)
            for _ in range(7):
                try:
                    found.append(len(next(iterator)))
                except LookupError:
                    found.append(0)
        assert sorted(found) == [0, 2, 4, 4, 4, 4, 4]

    def test_resizing_and_statistics_ask_for_nothing_that_it_does_not_have(self) -> None:
        with self.loader() as loader:
            next(iter(loader))
            loader.resize(2)
            assert loader.statistics(memory=True).batches == 1
            assert len(self._read(loader)) == 7
