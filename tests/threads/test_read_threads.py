"""``read_threads``: the same batches as without, whoever reads them and whatever goes wrong."""

import os
import random
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, IterableDataset, Subset, get_worker_info

import lit_loader
from lit_loader import DataLoader
from tests.support.samples import Call, OfLength, hang, until

WORKERS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "worker_method": "thread"},
}
LENGTH = 37


@pytest.fixture(params=WORKERS)
def workers(request: pytest.FixtureRequest) -> dict[str, Any]:
    return WORKERS[request.param]


class Stored(OfLength):
    """Samples lie elsewhere; they say what they draw, and are ready in another order."""

    length = LENGTH

    def __getitem__(self, index: int) -> list[float]:
        time.sleep(0.001 * (index % 3))
        rng, own = lit_loader.get_rng(), getattr(get_worker_info(), "rng", None)
        drawn = [rng.random(), rng.random(), lit_loader.get_rng("a key").random()]
        drawn += (
            [own.numpy_generator.random(), own.random_generator.random()] if own else [0.0, 0.0]
        )
        lit_loader.note(tokens=index)
        return [index, lit_loader.get_epoch(), torch.initial_seed() % 2**31, *drawn]


class AllAtOnce(Stored):
    """Reads a list of indices at once; what it draws follows from the index."""

    def __getitems__(self, indices: list[int]) -> list[list[float]]:
        return [[index, lit_loader.get_rng(index).random()] for index in indices]


class Failing(Stored):
    def __getitem__(self, index: int) -> list[float]:
        sample = super().__getitem__(index)
        if index % 5 == 3:
            raise OSError(f"{index} is bad")
        return sample


class FailingAtOnce(AllAtOnce):
    def __getitems__(self, indices: list[int]) -> list[list[float]]:
        if any(index % 5 == 3 for index in indices):
            raise OSError(f"one of {indices} is bad")
        return super().__getitems__(indices)


class Flaky(Stored):
    """Every third sample fails at its first attempt, after it has drawn."""

    def __getitem__(self, index: int) -> list[float]:
        sample = super().__getitem__(index)
        failed = vars(self).setdefault("failed", set())
        if index % 3 == 0 and (index, lit_loader.get_epoch()) not in failed:
            failed.add((index, lit_loader.get_epoch()))
            raise OSError("not now")
        return sample


def collate(samples: Any) -> torch.Tensor:
    """Draw after the samples were read."""
    batch = torch.tensor(samples, dtype=torch.float64)
    return batch + lit_loader.get_rng().random() + random.random() + np.random.rand()


RETRY = {"times": 2, "backoff": 0.001}
CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "plain": (Stored, {}),
    "by sample": (Stored, {"seeding": "sample"}),
    "collate_fn": (Stored, {"collate_fn": collate}),
    "batches of one": (lambda: Stored(12), {"batch_size": None}),
    "subset": (lambda: ConcatDataset([Subset(Stored(), range(4, 30)), Stored(5)]), {}),
    "all at once": (AllAtOnce, {}),
    "skip": (Failing, {"on_sample_error": "skip"}),
    "replace": (Failing, {"on_sample_error": "replace"}),
    "skip, all at once": (FailingAtOnce, {"on_sample_error": "skip"}),
    "retries": (Flaky, {"sample_retries": RETRY}),
    "ranks": (Stored, {"num_replicas": 2, "rank": 1, "uneven_ranks": "keep"}),
}


def loader_of(case: str, **options: Any) -> DataLoader[Any]:
    make, given = CASES[case]
    sizes = {} if "batch_size" in given else {"batch_size": 8}
    return DataLoader(make(), shuffle=True, seed=5, **{**sizes, **given, **options})


def plain(batches: Any) -> Any:
    return [[torch.as_tensor(each).tolist() for each in batch] for batch in batches]


def two_epochs(loader: DataLoader[Any]) -> Any:
    found = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        found.append(plain(loader))
    return found


@pytest.mark.parametrize("case", CASES)
def test_batches_are_those_of_one_read_after_another(case: str, workers: dict[str, Any]) -> None:
    if case == "collate_fn" and "worker_method" in workers:
        pytest.skip("collate_fn draws from global generators")
    with loader_of(case, **workers) as one, loader_of(case, read_threads=5, **workers) as many:
        expected = two_epochs(one)
        assert two_epochs(many) == expected
    with loader_of(case, read_threads=5, **workers) as loader:
        batches = iter(loader)
        begun = [next(batches) for _ in range(2)]
        state = loader.state_dict()
    with loader_of(case, read_threads=2, **workers) as resumed:
        resumed.load_state_dict(state)
        assert plain(begun) + plain(resumed) == expected[0]


def test_tokens_are_counted(workers: dict[str, Any]) -> None:
    with loader_of("plain", read_threads=5, **workers) as loader:
        list(loader)
        assert loader.statistics().tokens == sum(range(LENGTH))


def test_reads_of_a_batch_are_made_at_the_same_time(workers: dict[str, Any]) -> None:
    barrier = threading.Barrier(4)  # raises where they are fewer

    def sample(index: int) -> int:
        barrier.wait(30)
        return index

    with DataLoader(Call(sample), 8, read_threads=4, **workers | {"num_workers": 0}) as loader:
        assert torch.cat([*loader]).tolist() == [*range(16)]
    with DataLoader(Stored(), 8, read_threads=4, **workers) as loader:
        [*loader]  # the same threads for all batches
        if not workers["num_workers"]:
            until(lambda: not any("reader" in each.name for each in threading.enumerate()))


class Parts(OfLength):
    def __getitems__(self, indices: list[int]) -> Any:
        return [[index, len(indices), lit_loader.get_rng().random()] for index in indices]


class Whole(OfLength):
    """Makes a batch by itself: no list that could be joined."""

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return torch.tensor(indices)


def test_getitems_gets_parts_that_draw_differently() -> None:
    first, second = DataLoader(Parts(), 8, read_threads=3, seed=1)
    numbers, sizes, drawn = first
    assert numbers.tolist() == [*range(8)]
    assert sizes.tolist() == [2, 2, 3, 3, 3, 3, 3, 3]
    assert len({*drawn.tolist(), *second[2].tolist()}) == 16
    whole = DataLoader(Whole(), 8, read_threads=3, collate_fn=lambda batch: batch)
    assert [batch.tolist() for batch in whole] == [[*range(8)], [*range(8, 16)]]


# --- faults ---


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


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt])
def test_a_sample_may_raise_anything(raised: Any) -> None:
    def sample(index: int) -> int:
        if index == 5:
            raise raised(3)
        return index

    with DataLoader(Call(sample), 4, read_threads=4, num_workers=1) as loader:
        with pytest.raises(lit_loader.WorkerError, match=raised.__name__):
            list(loader)
    with pytest.raises(raised):
        list(DataLoader(Call(sample), 4, read_threads=4))


def test_more_bad_samples_than_are_allowed(workers: dict[str, Any]) -> None:
    options: dict[str, Any] = {"on_sample_error": "skip", "max_sample_errors": 1, **workers}
    with DataLoader(Failing(), 8, read_threads=4, **options) as loader:
        batches = iter(loader)
        assert len(next(batches)[0]) == 7
        with pytest.raises(lit_loader.SampleErrorsError, match="8 is bad") as caught:
            list(batches)
    assert [error.index for error in caught.value.errors][:2] == [3, 8]


def test_timeout_sees_progress_and_a_hang() -> None:
    def sample(index: int) -> int:
        if index == 21 and not reported:
            hang()
        time.sleep(0.1)
        return index

    reported: list[str] = []
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
    batches = iter(loader)
    next(batches)
    loader.close()
    assert len(read) < 600


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
    if not workers["num_workers"]:
        assert len(opened) <= 8


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_torch_s_modes_are_those_of_the_program(mode: Any, workers: dict[str, Any]) -> None:
    def sample(_: int) -> tuple[bool, bool]:
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    with mode(), DataLoader(Call(sample), 8, read_threads=2, **workers) as loader:
        [grad, inference] = next(iter(loader))
    assert not grad.any()
    assert inference.all() == (mode is torch.inference_mode)


def test_a_sample_may_iterate_a_loader(workers: dict[str, Any]) -> None:
    def sample(index: int) -> float:
        drawn = [batch[3].sum().item() for batch in DataLoader(Stored(6), 3, seed=index)]
        return sum(drawn) + lit_loader.get_rng().random()

    with DataLoader(Call(sample), 8, seed=1, read_threads=4, **workers) as loader:
        found = torch.cat([*loader]).tolist()
    assert found == torch.cat([*DataLoader(Call(sample), 8, seed=1)]).tolist()


def test_a_forked_copy_reads_on() -> None:
    batches = iter(DataLoader(Stored(), 4, read_threads=4))
    next(batches)
    pid = os.fork()
    if pid == 0:
        os._exit(len([*batches]))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert len([*batches]) == 9


# --- generators that threads share ---


class Holding(OfLength):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(1)

    def __getitem__(self, index: int) -> float:
        return float(self.rng.random())


@pytest.mark.parametrize("name", ["numpy.random", "Holding.rng"])
def test_a_draw_from_a_shared_generator_is_reported_once(
    name: str, workers: dict[str, Any]
) -> None:
    dataset = Holding() if name == "Holding.rng" else Call(lambda _: np.random.rand())
    with DataLoader(dataset, 4, read_threads=4, **workers) as loader:
        with pytest.warns(lit_loader.ExactnessWarning, match=f"{name}.*LL418") as found:
            for _ in range(2):
                list(loader)
    assert len([each for each in found if each.category is lit_loader.ExactnessWarning]) == 1


def test_what_the_program_and_collate_fn_draw_is_not_reported(workers: dict[str, Any]) -> None:
    drawing = "worker_method" not in workers
    with (
        warnings.catch_warnings(),
        DataLoader(
            Stored(), 4, read_threads=4, collate_fn=collate if drawing else None, **workers
        ) as loader,
    ):
        warnings.simplefilter("error")
        for _ in loader:
            torch.rand(3), random.random(), np.random.rand()


# --- options ---


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def test_what_does_not_go_with_it_is_refused() -> None:
    with pytest.raises(lit_loader.OptionError, match="read_threads reads samples by their indices"):
        DataLoader(Stream(), read_threads=4)
    with pytest.raises(lit_loader.OptionError, match="reseed_fn"):
        DataLoader(Stored(), read_threads=4, reseed_fn=lambda dataset, seed: None)
