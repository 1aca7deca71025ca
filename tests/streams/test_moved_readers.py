"""Readers of a stream move between workers at any moment: `resize`, ``num_workers="auto"``.

That no byte differs is in tests/exactness/test_streams.py.
"""

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from lit_loader import DataLoader
from tests.support.samples import Counting, Cursor, share
from tests.support.tools import Gate

pytestmark = pytest.mark.timeout(120)

SHARDS, LENGTH = 4, 96


# What a move costs -------------------------------------------------------------------------------


class Noted(IterableDataset[torch.Tensor]):
    """Writes down what is read, and by which process; its place can be saved."""

    def __init__(self, folder: Path, length: int) -> None:
        self.file, self.length = folder / "read", length

    def __iter__(self) -> Iterator[torch.Tensor]:
        return Cursor(self.sample, share(range(self.length)))

    def sample(self, number: int) -> torch.Tensor:
        with open(self.file, "a") as file:
            file.write(f"{number}:{os.getpid()}\n")
        return torch.tensor([number])

    def read(self) -> list[tuple[int, int]]:
        """The numbers of all samples that were read, each with the process."""
        pairs = (line.split(":") for line in self.file.read_text().split())
        return [(int(number), int(process)) for number, process in pairs]


def come_up(loader: Any, batches: Iterator[Any], workers: int) -> list[Any]:
    """Take batches until there are so many workers, all up."""
    found = []
    while True:
        pool = batches.workers  # type: ignore[attr-defined]
        if pool.num_workers == workers and pool.settled:
            return found
        found.append(next(batches))


@pytest.mark.parametrize("early", [True, False], ids=["early", "late"])
def test_a_reader_with_a_state_moves_for_a_few_batches(early: bool, tmp_path: Path) -> None:
    """However far it is: the last few batches that were yielded, and those on their way."""
    data = Noted(tmp_path, 40_000)
    with DataLoader(data, 1, num_workers=1, num_shards=SHARDS, prefetch_factor=8) as loader:
        batches = iter(loader)
        found = [next(batches) for _ in range(20 if early else 500)]
        loader.resize(2, prefetch_factor=4)
        found += come_up(loader, batches, 2)
        found += [next(batches) for _ in range(40)]
        loader.resize(1, prefetch_factor=8)
        found += [next(batches) for _ in range(40)]
    assert [int(batch) for batch in found] == [*range(len(found))]
    times = Counter(number for number, _ in data.read())
    moves, outstanding = 4, 8 // SHARDS  # two readers there and back
    again = sum(times.values()) - len(times)
    assert len({process for _, process in data.read()}) == 2
    assert 0 < again <= moves * (8 + outstanding + 1)  # a state is four to eight batches old


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resume_reads_no_more_late_than_early(workers: int, tmp_path: Path) -> None:
    """Of each shard the last batches that were yielded, and those that are asked for."""
    for done in (40, 3_960):
        folder = tmp_path / str(done)
        folder.mkdir()
        data = Noted(folder, 4_000)
        options: dict[str, Any] = {"batch_size": 10, "num_shards": SHARDS}
        with DataLoader(Noted(tmp_path, 4_000), **options) as loader:
            for _ in itertools.islice(loader, done // 10):
                pass
            state = loader.state_dict()
        with DataLoader(data, num_workers=workers, **options) as loader:
            loader.load_state_dict(state)
            first = next(iter(loader))
        assert first.flatten().tolist() == [*range(done, done + 10 * SHARDS, SHARDS)]
        # With workers all readers are at work, and the first one is asked for its next batch.
        assert len(data.read()) <= (10 if workers == 0 else 10 * SHARDS + 1) * 10


# Without order -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("by_fork")  # for the gate
def test_a_slow_reader_delays_none_that_has_another_worker(gate: Gate) -> None:
    def sample(number: int) -> int:
        assert number or gate.wait()
        return number

    with DataLoader(
        Counting(400, sample), 1, num_workers=2, num_shards=4, in_order=False, prefetch_factor=3
    ) as loader:
        batches, odd = iter(loader), 0
        while odd < 200:  # all that the second worker's readers have
            number = int(next(batches))
            assert number % 4, "the reader waits"
            odd += number % 2
        gate.open()
        rest = [int(batch) for batch in batches]
        assert [number for number in rest if number % 4 == 0] == [*range(0, 400, 4)]


# By a controller ---------------------------------------------------------------------------------
