"""Ranks of a job that do not divide the data: which are told that they read the same."""

import multiprocessing
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset, Subset

from lit_loader import DataLoader
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


def rank_main(rank: int, folder: Path, kinds: Any, pipe: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/job", rank=rank, world_size=2)
    found = []
    for make in kinds:
        loader: TorchLoader[Any] = DataLoader(make(rank), 4)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            list(loader)
            dist.barrier()  # by now the other one has said what it reads
            list(loader)
        found.append(any("LL220" in str(each.message) for each in told))
    pipe.send(found)
    dist.barrier()


def told(kinds: Any, folder: Path) -> list[list[bool]]:
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    args = [(rank, folder, [*kinds.values()], pipes[rank][1]) for rank in range(2)]
    ranks = [context.Process(target=rank_main, args=each) for each in args]
    for each in ranks:
        each.start()
    found = [pipe.recv() for pipe, _ in pipes]
    for each in ranks:
        each.join()
    return [[*pair] for pair in zip(*found, strict=True)]


def test_ranks_that_read_all_of_the_data_are_told(tmp_path: Path) -> None:
    """At least one of two is, that which comes later: nobody waits."""
    assert all(map(any, told(WHOLE, tmp_path)))


def test_ranks_that_read_parts_are_not(tmp_path: Path) -> None:
    assert told(PARTS, tmp_path) == [[False, False]] * len(PARTS)
