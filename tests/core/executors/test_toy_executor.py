"""A whole executor in a few lines, hung on a loader at its seam."""

import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from lit_loader import DataLoader
from lit_loader.core.executors.executor import Executor, Task
from lit_loader.core.executors.outcome import Outcome
from lit_loader.core.transport.messages import listed
from lit_loader.loader import _AddOns
from tests.support.samples import Call, ints


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


class WithFutures(_AddOns):
    def executor(self, core: Any, start: Any) -> Any:
        loader = core.loader
        return FuturesExecutor(loader.dataset, loader.collate_fn, core.depth)


def loader_of(dataset: Any, **options: Any) -> DataLoader[Any]:
    loader: DataLoader[Any] = DataLoader(dataset, 4, shuffle=True, seed=3, num_workers=1, **options)
    loader._core.seams = WithFutures()
    return loader


def failing(index: int) -> int:
    if index == 7:
        raise LookupError("no sample 7")
    return index


def test_it_gives_what_workers_give(pinned: None) -> None:
    dataset = torch.arange(26)
    expected = [ints(DataLoader(dataset, 4, shuffle=True, seed=3)) for _ in range(1)]
    for options in ({}, {"pin_memory": True}, {"persistent_workers": True}):
        with loader_of(dataset, **options) as loader:
            assert ints(loader) == expected[0]
            for _ in loader:
                break  # what is outstanding then goes nowhere
            assert len(ints(loader)) == 26
    assert not [each for each in threading.enumerate() if "ThreadPoolExecutor" in each.name]


def test_it_goes_on_from_a_state_and_after_an_error() -> None:
    iterator = iter(first := loader_of(Call(failing, 26)))
    found: list[Any] = []
    while len(found) < 4:
        try:
            found.append(next(iterator).tolist())
        except LookupError:
            found.append("no sample 7")
    state = first.state_dict()
    rest = [batch.tolist() for batch in iterator] if "no sample 7" in found else None
    second = loader_of(Call(int, 26))
    second.load_state_dict(state)
    again = [batch.tolist() for batch in second]
    assert len(again) == 3
    assert rest in (None, again)
    first.close()


def test_it_is_asked_nothing_that_it_does_not_have() -> None:
    with loader_of(range(26)) as loader:
        next(iter(loader))
        loader.resize(2)
        assert loader.statistics(memory=True).batches == 1
        assert len(ints(loader)) == 26
