"""Tables of tensors: batches taken at once, equal to those read by the sample."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from parity.tools import wait_gone
from torch.utils.data import Dataset, Subset, TensorDataset

from lit_loader import DataLoader
from lit_loader import loader as loader_module
from lit_loader.iterator import InProcessIterator
from lit_loader.placement import quicker_here
from lit_loader.tables import table_of


class BySample(Dataset):
    """The same samples, from a dataset that nothing is known of."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]


class Doubled(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        return tuple(2 * tensor for tensor in super().__getitem__(index))


def table(length: int = 23) -> TensorDataset:
    base = torch.arange(length * 6).view(length, 6)
    return TensorDataset(
        base.float(),
        base[:, 0],
        base[:, ::2],
        base.to(torch.uint8).view(length, 2, 3).permute(0, 2, 1),
        base[:, 0] % 2 == 0,
        base[:, :0],
        base[:, :2].to(torch.complex64),
        base.double().view(length, 1, 6).expand(length, 4000, 6),  # large: stacked in the slot
    )


DATASETS = {
    "whole": table(),
    "subset": Subset(table(), [3, 1, 4, 1, 5, 9, 2, 6]),
    "subset of a subset": Subset(Subset(table(), list(range(20, 2, -2))), range(1, 8)),
    "array of indices": Subset(table(), np.array([7, 0, 22])),
}


def equal(found: Any, expected: Any) -> bool:
    return (
        type(found) is type(expected)
        and [(t.dtype, t.shape, t.stride()) for t in found]
        == [(t.dtype, t.shape, t.stride()) for t in expected]
        and all(map(torch.equal, found, expected))
    )


@pytest.fixture(params=["here", "in workers", "chosen"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the batches of a loader with workers are made."""
    if request.param != "chosen":
        here = request.param == "here"
        monkeypatch.setattr(loader_module, "quicker_here", lambda *arguments: here)
    return request.param


@pytest.mark.parametrize("kind", DATASETS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_equal_to_those_read_by_the_sample(num_workers: int, kind: str, place: str) -> None:
    dataset = DATASETS[kind]
    assert table_of(dataset) is not None
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3}
    expected = list(DataLoader(BySample(dataset), **options))
    with DataLoader(
        dataset, num_workers=num_workers, persistent_workers=num_workers > 0, **options
    ) as loader:
        for _ in range(2):
            found = list(loader)
            assert len(found) == len(expected)
            assert all(map(equal, found, expected))
            expected = list(_epoch(DataLoader(BySample(dataset), **options), 1))


def _epoch(loader: DataLoader[Any], epoch: int) -> DataLoader[Any]:
    loader.set_epoch(epoch)
    return loader


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    "batch",
    [
        [0, -1],
        [22, 23],
        [True, False],
        [np.int64(3), 2],
        [torch.tensor(4), 5],
        [],
        (1, 2),
        [10**30],
    ],
    ids=str,
)
def test_any_indices(batch: Any, num_workers: int, place: str) -> None:
    """Negative ones, NumPy's, too large ones, bools: what the dataset itself makes of them."""

    def outcome(dataset: Dataset, workers: int) -> Any:
        try:
            [found] = DataLoader(dataset, batch_sampler=[batch], num_workers=workers)
        except Exception as error:
            return type(error), str(error).splitlines()[-1]
        return found

    loader = DataLoader(table(), batch_sampler=[batch], num_workers=num_workers)
    here = isinstance(iter(loader), InProcessIterator)
    found = outcome(table(), num_workers)
    # An error in a worker is told with the worker's traceback.
    expected = outcome(BySample(table()), 0 if here else num_workers)
    assert equal(found, expected) if isinstance(expected, list) else found == expected


@pytest.mark.parametrize(
    "dataset",
    [
        Doubled(torch.arange(4)),
        TensorDataset(torch.ones(4, requires_grad=True)),
        TensorDataset(torch.eye(4).to_sparse()),
        TensorDataset(torch.nn.Parameter(torch.ones(4))),
        Subset(Doubled(torch.arange(4)), [0]),
        Subset(BySample(table()), [0]),
        BySample(table()),
        list(range(4)),
    ],
    ids=lambda dataset: type(dataset).__name__,
)
def test_what_is_no_table(dataset: Any) -> None:
    assert table_of(dataset) is None


def test_a_changed_tensor_is_seen() -> None:
    dataset = TensorDataset(torch.arange(4))
    loader = DataLoader(dataset, batch_size=4)
    assert [batch.tolist() for [batch] in loader] == [[0, 1, 2, 3]]
    dataset.tensors = (torch.arange(4) + 10,)
    assert [batch.tolist() for [batch] in loader] == [[10, 11, 12, 13]]


def test_a_batch_is_the_consumers_own() -> None:
    dataset = TensorDataset(torch.zeros(6, 2))
    for [batch] in DataLoader(dataset, batch_size=3):
        batch += 1
    assert dataset.tensors[0].sum() == 0


def test_global_generators_are_left_alone() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    list(DataLoader(table(), batch_size=4, shuffle=True))
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert before == after


def test_no_worker_is_started_for_what_takes_no_time() -> None:
    """A batch of 8 numbers is made quicker than any message is sent."""
    loader = DataLoader(TensorDataset(torch.arange(80)), batch_size=8, num_workers=2)
    before = set(psutil.Process().children())
    iterator = iter(loader)
    assert next(iterator)[0].tolist() == list(range(8))
    assert set(psutil.Process().children()) == before
    state = loader.state_dict()
    assert state["batches"] == 1
    assert loader.statistics().batches == 1


def test_workers_are_started_for_what_takes_time() -> None:
    """20 MB are copied while the consumer does something else."""
    dataset = TensorDataset(torch.zeros(64, 150_000))
    big = table_of(dataset)
    assert big is not None
    assert not quicker_here(big, 64, 32, 2)


@pytest.mark.parametrize("option", ["worker_init_fn", "reseed_fn", "collate_fn", "on_sample_error"])
def test_workers_are_started_where_they_are_needed(option: str) -> None:
    value = {
        "worker_init_fn": lambda worker: None,
        "reseed_fn": lambda dataset, seed: None,
        "collate_fn": lambda samples: os.getpid(),
        "on_sample_error": "skip",
    }[option]
    loader = DataLoader(TensorDataset(torch.arange(4)), num_workers=1, **{option: value})
    iterator = iter(loader)
    next(iterator)
    pids = list(iterator._engine.pool.pids)
    del iterator
    wait_gone(pids)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_resuming(num_workers: int, place: str) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(table(), batch_size=4, shuffle=True, seed=9, num_workers=num_workers)

    whole = list(loader())
    first = loader()
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    second = loader()
    second.load_state_dict(first.state_dict())
    assert all(map(equal, list(second), whole[3:]))
