"""Ranks of a job that do not divide the data: which are told that they read the same."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset, Subset

from lit_loader import DataLoader
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
}
PARTS = {
    "a list": lambda rank: [*range(24)][rank::2],
    "a range": lambda rank: range(rank, 24, 2),
    "files in a dataset": lambda rank: Files([f"{n}.png" for n in range(24)][rank::2]),
    "a subset": lambda rank: Subset(range(24), range(rank, 24, 2)),
    "a stream": lambda rank: Counting(12, lambda index: 2 * index + rank),
}


class Files(Call):
    def __init__(self, files: list[str]) -> None:
        super().__init__(double, len(files))
        self.files = files


def are_told(rank: int, kinds: Any) -> list[bool]:
    found = []
    for make in kinds.values():
        loader: TorchLoader[Any] = DataLoader(make(rank), 4)
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
