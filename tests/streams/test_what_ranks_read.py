"""Ranks of a job that do not divide the data: which are told that they read the same."""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch.distributed as dist
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset, Subset

from lit_loader import (
    BalancedBatchSampler,
    CachedDataset,
    DataLoader,
    SharedSequence,
    TokenBudgetBatchSampler,
)
from tests.support.ranks import of_ranks
from tests.support.samples import Call, Counting

pytestmark = pytest.mark.timeout(120)


def double(index: int) -> int:
    return 2 * index


class Undivided(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(24))


WHOLE = {
    "a list": lambda rank: [*range(24)],
    "a dataset": lambda rank: Call(double, 24),
    "a stream": lambda rank: Undivided(),
    "a cache": lambda rank: CachedDataset(Call(double, 24), "1 MB"),
    "a shared sequence": lambda rank: SharedSequence(range(24)),
    "a shared sequence in a dataset": lambda rank: Files(SharedSequence(map(str, range(24)))),
    "batches by length": lambda rank: DataLoader(
        Call(double, 24), batch_sampler=TokenBudgetBatchSampler([1] * 24, 4)
    ),
    "balanced batches": lambda rank: DataLoader(
        Call(double, 24), batch_sampler=BalancedBatchSampler([*range(1, 25)], 4)
    ),
}
PARTS = {
    "a list": lambda rank: [*range(24)][rank::2],
    "a range": lambda rank: range(rank, 24, 2),
    "files in a dataset": lambda rank: Files([f"{n}.png" for n in range(24)][rank::2]),
    "a cache": lambda rank: CachedDataset(Files([f"{n}" for n in range(24)][rank::2]), "1 MB"),
    "a shared sequence": lambda rank: SharedSequence(range(rank, 24, 2)),
    "batches by length": lambda rank: DataLoader(
        [*range(24)][rank::2], batch_sampler=TokenBudgetBatchSampler([1] * 12, 4)
    ),
    "a subset": lambda rank: Subset(range(24), range(rank, 24, 2)),
    "a stream": lambda rank: Counting(12, lambda index: 2 * index + rank),
}


class Files(Call):
    def __init__(self, files: Sequence[str]) -> None:
        super().__init__(double, len(files))
        self.files = files


def are_told(rank: int, kinds: Any) -> list[bool]:
    found = []
    for make in kinds.values():
        made = make(rank)
        loader: TorchLoader[Any] = made if isinstance(made, DataLoader) else DataLoader(made, 4)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            list(loader)
            dist.barrier()  # by now the other one has said what it reads
            list(loader)
        found.append(any("LL220" in str(each.message) for each in told))
    return found


def test_ranks_that_read_all_of_the_data_are_told() -> None:
    """At least one of two is, that which comes later: nobody waits."""
    assert all(map(any, zip(*of_ranks(2, are_told, WHOLE), strict=True)))


def test_ranks_that_read_parts_are_not() -> None:
    assert of_ranks(2, are_told, PARTS) == [[False] * len(PARTS)] * 2
