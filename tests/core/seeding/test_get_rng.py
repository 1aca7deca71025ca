"""`lit_loader.get_rng`: what is drawn follows from (seed, epoch, index), whoever reads."""

import functools
import random
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Subset, get_worker_info, random_split
from torch.utils.data._utils import worker as torch_worker

from lit_loader import CachedDataset, DataLoader, OptionError, get_rng
from tests.support.remote_threads import ThreadWorkers
from tests.support.samples import OfLength

LENGTH, SIZE = 20, 3
OPTIONS: dict[str, Any] = {"batch_size": SIZE, "shuffle": True, "seed": 7}


class Noisy(OfLength):
    """Sample ``i`` is ``i`` and what two transforms draw for it."""

    length = LENGTH

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([float(index), get_rng().random(), get_rng().random()])


class Flaky(Noisy):
    """Some samples fail at first, after they have drawn; one always."""

    def __init__(self, times: int, bad: int = -1) -> None:
        self.times, self.bad = times, bad
        self.tries: dict[int, int] = {}

    def __getitem__(self, index: int) -> Tensor:
        sample = super().__getitem__(index)
        self.tries[index] = self.tries.get(index, 0) + 1
        if index == self.bad or (index % 4 == 1 and self.tries[index] <= self.times):
            raise OSError
        return sample


def epochs(dataset: Any, workers: int = 0, count: int = 2, **options: Any) -> list[bytes]:
    with DataLoader(dataset, num_workers=workers, **{**OPTIONS, **options}) as loader:
        return [content(batch) for _ in range(count) for batch in loader]


def content(batch: Any) -> bytes:
    return batch.numpy().tobytes()  # type: ignore[no-any-return]


def by_index(batches: list[bytes]) -> dict[float, bytes]:
    """The samples of one epoch."""
    rows = np.concatenate([np.frombuffer(each, np.float32) for each in batches]).reshape(-1, 3)
    return {row[0]: row.tobytes() for row in rows}


@functools.cache
def reference() -> list[bytes]:
    return epochs(Noisy())


def test_draws_differ_between_samples_epochs_seeds_and_calls() -> None:
    rows = np.concatenate([np.frombuffer(each, np.float32) for each in reference()])
    drawn = rows.reshape(-1, 3)[:, 1:]
    assert len(set(drawn.ravel().tolist())) == 2 * 2 * LENGTH
    assert epochs(Noisy(), seed=8) != reference()


def test_batch_size_and_ranks_do_not_matter() -> None:
    """What a sample draws follows from its position in the order of all ranks."""
    expected = by_index(reference()[: -(-LENGTH // SIZE)])
    assert by_index(epochs(Noisy(), count=1, batch_size=5)) == expected
    assert by_index(epochs(Noisy(), 2, count=1, batch_size=None)) == expected
    found = {}
    for rank in range(2):
        found |= by_index(epochs(Noisy(), count=1, num_replicas=2, rank=rank, uneven_ranks="keep"))
    assert found == expected


def test_a_sample_that_comes_twice_is_augmented_twice() -> None:
    loader = DataLoader(Noisy(), batch_sampler=[[3, 3], [4, 3]], seed=7)
    (first, second), (_, third) = [batch.tolist() for batch in loader]
    assert first != second != third != first


@pytest.mark.parametrize("workers", [0, 2])
def test_a_replacement_draws_what_its_position_draws(workers: int) -> None:
    options = {"on_sample_error": "replace", "count": 1}
    found, expected = (
        np.frombuffer(b"".join(batches), np.float32).reshape(-1, 3)
        for batches in (epochs(Flaky(0, bad=5), workers, **options), epochs(Noisy(), count=1))
    )
    assert (found[:, 1:] == expected[:, 1:]).all()
    assert expected[found[:, 0] != expected[:, 0], 0].tolist() == [5]


@pytest.mark.usefixtures("forked_relays")
def test_on_another_machine(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = epochs(Noisy(), 1, remote=ThreadWorkers(tmp_path))
    assert found == reference()


def noisy_collate(samples: list[Tensor]) -> Tensor:
    return torch.stack(samples) + get_rng().random() + get_rng().random()


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("seeding", ["batch", "sample"])
def test_collate_functions_draw_by_the_number_of_the_batch(seeding: str, workers: int) -> None:
    options = {"collate_fn": noisy_collate, "seeding": seeding}
    expected = epochs(Noisy(), **options)
    assert epochs(Noisy(), workers, **options) == expected
    shifts = [
        np.frombuffer(noisy, np.float32)[0] - np.frombuffer(plain, np.float32)[0]
        for noisy, plain in zip(expected, reference(), strict=True)
    ]
    assert len({round(float(shift), 4) for shift in shifts}) == len(shifts)


class Together(Noisy):
    """Reads a batch at once, in threads of its own."""

    def __getitems__(self, indices: list[int]) -> list[Tensor]:

        def read(index: int) -> Tensor:
            return torch.tensor([float(index), *(get_rng(index).random() for _ in range(2))])

        with ThreadPoolExecutor(len(indices)) as pool:
            return [*pool.map(read, indices)]


class Nested(Noisy):
    """Iterates a loader for each sample, in the midst of its own draws."""

    def __getitem__(self, index: int) -> Tensor:
        first = get_rng().random()
        list(DataLoader(Noisy(), batch_size=10))
        return torch.tensor([float(index), first, get_rng().random()])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("options", [{}, {"seeding": "sample"}], ids=str)
@pytest.mark.parametrize("kind", [Noisy, functools.partial(Flaky, 2), Together, Nested])
def test_draws_are_the_same(kind: Any, options: dict[str, Any], workers: int) -> None:
    """Whatever the seeding; at another attempt; by a given index; around another loader."""
    expected = epochs(Together()) if kind is Together else reference()
    for retries in (3,) if isinstance(kind, functools.partial) else (0, 1):
        options = {**options, "sample_retries": {"times": retries, "backoff": 0}}
        assert epochs(kind(), workers, **options) == expected


def test_outside_of_a_loader() -> None:
    def outside() -> list[float]:
        torch.manual_seed(3)
        return [get_rng().random(), get_rng(5).random()]

    first = outside()
    assert outside() == first
    assert first[0] != first[1]
    next(iter(DataLoader(Noisy())))
    assert outside() == first


def test_a_cache_keeps_nothing_that_was_drawn() -> None:
    with pytest.raises(OptionError, match=r"asks for lit_loader\.get_rng\(\)"):
        list(DataLoader(CachedDataset(Noisy(), "1 MB")))


class AsksTorch(Noisy):
    def __getitem__(self, index: int) -> Tensor:
        info = get_worker_info()
        rng = info.rng  # type: ignore[union-attr]
        draws = torch.rand((), generator=rng.torch_generator), rng.random_generator.random()
        same = rng.numpy_generator is get_rng()
        return torch.tensor([float(index), *map(float, draws), float(same)])


@pytest.mark.skipif(not hasattr(torch_worker, "_RNG"), reason="this torch has no WorkerInfo.rng")
def test_the_generators_of_torchs_worker_info() -> None:
    found = epochs(AsksTorch(), 1)
    assert epochs(AsksTorch(), 3) == found
    rows = np.concatenate([np.frombuffer(each, np.float32) for each in found]).reshape(-1, 4)
    assert len(set(rows[:, 1:3].ravel().tolist())) == 2 * 2 * LENGTH
    assert (rows[:, 3] == 1).all()


def test_global_generators_are_left_alone() -> None:
    """Who asks for a generator changes nothing for who draws from the global ones."""

    class Both(Noisy):
        def __init__(self, asks: bool) -> None:
            self.asks = asks

        def __getitem__(self, index: int) -> Tensor:
            if self.asks:
                get_rng().random()
            return torch.tensor([random.random(), float(np.random.rand()), float(torch.rand(()))])

    assert epochs(Both(True)) == epochs(Both(False))


@pytest.mark.parametrize("wrap", ["subset", "nested", "split"])
def test_a_subset_s_samples_are_told_apart(wrap: str) -> None:
    """Torch's Subset has __getitems__, by which it reads one sample after the other."""

    def wrapped() -> Any:
        if wrap == "split":
            return random_split(Noisy(), [12, 8], torch.Generator().manual_seed(0))[0]
        subset: Any = Subset(Noisy(), range(3, 15))
        return Subset(subset, [*range(0, 12, 2)]) if wrap == "nested" else subset

    def drawn(**options: Any) -> dict[int, list[float]]:
        loader = DataLoader(wrapped(), **{**OPTIONS, **options})
        return {int(row[0]): row.tolist() for batch in loader for row in batch}

    expected = drawn()
    assert len({row[1] for row in map(tuple, expected.values())}) == len(expected)
    for options in ({"batch_size": 5}, {"batch_size": 1}, {"num_workers": 2, "batch_size": 4}):
        assert drawn(**options) == expected
