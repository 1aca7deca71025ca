"""``read_threads``: the reads of a batch at a time, and what goes wrong in one of them."""

import os
import sqlite3
import threading
import time
from typing import Any

import pytest
import torch

import lit_loader
from lit_loader import DataLoader
from tests.support.datasets import Lines
from tests.support.samples import Call, OfLength, hang, until

WORKERS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "worker_method": "thread"},
}


@pytest.fixture(params=WORKERS)
def workers(request: pytest.FixtureRequest) -> dict[str, Any]:
    return WORKERS[request.param]


class Drawing(OfLength):
    length = 37

    def __getitem__(self, index: int) -> list[float]:
        lit_loader.note(tokens=index)
        if index % 5 == 3:
            raise OSError(f"{index} is bad")
        return [index, lit_loader.get_rng().random()]


def test_reads_of_a_batch_are_made_at_the_same_time() -> None:
    barrier = threading.Barrier(4)  # raises where they are fewer
    data = Call(lambda index: barrier.wait(30) * 0 + index)
    with DataLoader(data, 8, read_threads=4) as loader:
        assert torch.cat([*loader]).tolist() == [*range(16)]
    until(lambda: not any("reader" in each.name for each in threading.enumerate()))


def test_tokens_are_counted(workers: dict[str, Any]) -> None:
    with DataLoader(Drawing(), 8, on_sample_error="skip", read_threads=4, **workers) as loader:
        list(loader)
        assert loader.statistics().tokens == sum(n for n in range(37) if n % 5 != 3)


# Python 3.13: only its own thread could close it, and has ended.
@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")
@pytest.mark.usefixtures("by_fork")
def test_a_thread_has_resources_of_its_own_as_long_as_its_worker(workers: dict[str, Any]) -> None:
    local, opened = threading.local(), []

    def sample(index: int) -> int:
        if not hasattr(local, "base"):
            local.base = sqlite3.connect(":memory:")
            opened.append(index)
        return local.base.execute("select ?", (index,)).fetchone()[0]  # type: ignore[no-any-return]

    options = {"persistent_workers": bool(workers["num_workers"]), **workers}
    with DataLoader(Call(sample, 64), 8, read_threads=4, **options) as loader:
        for _ in range(2):
            assert torch.cat([*loader]).tolist() == [*range(64)]
    assert len(opened) <= 4 * 2 * max(1, workers["num_workers"])


def test_torch_s_modes_are_those_of_the_program(workers: dict[str, Any]) -> None:
    data = Call(lambda _: (torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
    with torch.inference_mode(), DataLoader(data, 8, read_threads=2, **workers) as loader:
        [grad, inference] = next(iter(loader))
    assert not grad.any() and inference.all()


def test_a_sample_may_iterate_a_loader(workers: dict[str, Any]) -> None:
    def sample(index: int) -> float:
        numbers = [float(batch.sum()) for batch in DataLoader(range(6), 3, True, seed=index)]
        return numbers[0] + lit_loader.get_rng().random()

    with DataLoader(Call(sample), 8, seed=1, read_threads=4, **workers) as loader:
        found = torch.cat([*loader]).tolist()
    assert found == torch.cat([*DataLoader(Call(sample), 8, seed=1)]).tolist()


def test_a_forked_copy_reads_on() -> None:
    batches = iter(DataLoader(range(37), 4, read_threads=4))
    next(batches)
    pid = os.fork()
    if pid == 0:
        os._exit(len([*batches]))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == len([*batches]) == 9


# --- faults ---


@pytest.mark.usefixtures("by_fork")
def test_the_first_error_of_the_batch_is_raised_with_its_index(workers: dict[str, Any]) -> None:
    second = threading.Event()

    def sample(index: int) -> int:
        if index == 5:
            assert second.wait(30)
            raise KeyError("the first one")
        if index == 6:
            second.set()
            raise ValueError("the second one")
        return index

    batches = iter(DataLoader(Call(sample), 4, read_threads=4, **workers))
    assert next(batches).tolist() == [0, 1, 2, 3]
    with pytest.raises(KeyError, match="the first one") as caught:
        next(batches)
    text = f"{caught.value}{getattr(caught.value, '__notes__', '')}"
    assert "batch 1, at index 5 (sample 1 of 4)" in text
    assert next(batches).tolist() == [8, 9, 10, 11]


def test_more_bad_samples_than_are_allowed(workers: dict[str, Any]) -> None:
    options: dict[str, Any] = {"on_sample_error": "skip", "max_sample_errors": 1, **workers}
    with DataLoader(Drawing(), 8, read_threads=4, **options) as loader:
        batches = iter(loader)
        assert len(next(batches)[0]) == 7
        with pytest.raises(lit_loader.SampleErrorsError, match="8 is bad") as caught:
            list(batches)
    assert [error.index for error in caught.value.errors][:2] == [3, 8]


def test_timeout_sees_progress_and_a_hang() -> None:
    def sample(index: int) -> int:
        if index == 21:
            hang()
        time.sleep(0.1)
        return index

    options: dict[str, Any] = {"num_workers": 1, "timeout": 1.0, "max_worker_restarts": 0}
    with DataLoader(Call(sample, 32), 16, read_threads=2, **options) as loader:
        batches = iter(loader)
        assert next(batches).tolist() == [*range(16)]  # 0.8 s, in which samples come
        with pytest.raises(lit_loader.WorkerTimeoutError, match="fetching index 21"):
            next(batches)


def test_a_batch_that_is_not_wanted_is_left_soon() -> None:
    read: list[int] = []

    def sample(index: int) -> int:
        time.sleep(0.01)
        read.append(index)
        return index

    options: dict[str, Any] = {"num_workers": 1, "worker_method": "thread", "prefetch_factor": 1}
    loader = DataLoader(Call(sample, 1000), 500, read_threads=2, **options)
    next(iter(loader))
    loader.close()
    assert len(read) < 600


def test_what_does_not_go_with_it_is_refused() -> None:
    with pytest.raises(lit_loader.OptionError, match="does not apply to an IterableDataset"):
        DataLoader(Lines(), read_threads=4)
    with pytest.raises(lit_loader.OptionError, match="reseed_fn"):
        DataLoader(Drawing(), read_threads=4, reseed_fn=lambda dataset, seed: None)
