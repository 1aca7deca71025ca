"""Readers of a stream that have ended begin the next epoch; no byte is another for it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

import lit_loader
from lit_loader import DataLoader, WorkerRestartWarning
from tests.support.shard_data import KINDS

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

SHARDS, LENGTH = 4, 24


class Noted(IterableDataset[torch.Tensor]):
    """Writes down the epoch and number of each sample that is read."""

    def __init__(self, folder: Path, fails: bool = False) -> None:
        self.file, self.fails = folder / "read", fails

    def __iter__(self) -> Iterator[torch.Tensor]:
        shard, shards = lit_loader.get_shard()
        for number in range(shard, LENGTH, shards):
            with open(self.file, "a") as file:
                file.write(f"{lit_loader.get_epoch()}:{number}\n")
            if self.fails and lit_loader.get_epoch() == 1:
                raise LookupError(f"sample {number} is broken")
            yield torch.tensor([number])

    def read(self) -> Counter[tuple[int, int]]:
        lines = self.file.read_text().split()
        return Counter((int(line.split(":")[0]), int(line.split(":")[1])) for line in lines)


def many(dataset: Any, **options: Any) -> DataLoader[Any]:
    options = {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 1, **options}
    return DataLoader(dataset, 2, num_shards=SHARDS, seed=3, **options)


def numbers(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch.flatten().tolist()]


def until(condition: Callable[[], Any]) -> None:
    while not condition():  # the test's timeout ends it
        os.sched_yield()


ORDER = [number + SHARDS * step for first in (0, 2, 4) for number in range(SHARDS)
         for step in (first, first + 1)]  # fmt: skip


def test_they_begin_before_anybody_asks_and_read_nothing_twice(tmp_path: Path) -> None:
    data = Noted(tmp_path)
    with many(data) as loader:
        for epoch in range(3):
            assert numbers(loader) == ORDER
            # Each worker begins as many readers as its batches in flight.
            until(lambda epoch=epoch: sum(key[0] == epoch + 1 for key in data.read()) >= 4)  # type: ignore[misc]
        times = data.read()
        assert {key: times[key] for key in times if key[0] < 3} == {
            (epoch, number): 1 for epoch in range(3) for number in range(LENGTH)
        }
        assert {number for epoch, number in times if epoch == 3} < {*range(2 * SHARDS)}


def test_while_the_last_batches_are_trained_on(tmp_path: Path) -> None:
    data = Noted(tmp_path)
    with many(data) as loader:
        batches = iter(loader)
        for _ in range(LENGTH // 2):
            last = next(batches)
        until(lambda: any(epoch == 1 for epoch, _ in data.read()))  # the end was not asked for
        assert last.flatten().tolist() == ORDER[-2:]


@pytest.mark.parametrize("option", ["prefetch_next_epoch", "persistent_workers"])
def test_they_do_not_where_it_is_not_wanted(option: str, tmp_path: Path) -> None:
    data = Noted(tmp_path)
    with many(data, **{option: False}) as loader:
        for _ in range(2):
            assert numbers(loader) == ORDER
        first = data.read()
        assert numbers(loader) == ORDER
    assert not any(epoch == 2 for epoch, _ in first)
    assert set(data.read().values()) == {1}


def test_another_epoch_is_asked_for(tmp_path: Path) -> None:
    data = KINDS["both"](45, "torch", True)
    alone = DataLoader(data, 2, num_shards=SHARDS, seed=3)
    noted = Noted(tmp_path)
    with many(data) as loader, many(noted) as other:
        for epoch in (0, 1, 5, 5, 2):
            for each in (loader, alone, other):
                each.set_epoch(epoch)
            assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in alone]
            assert numbers(other) == ORDER
            until(lambda epoch=epoch: any(key[0] == epoch + 1 for key in noted.read()))  # type: ignore[misc]


def test_what_fails_then_fails_in_its_turn(tmp_path: Path) -> None:
    data = Noted(tmp_path, fails=True)
    with many(data) as loader:
        assert numbers(loader) == ORDER
        until(lambda: any(epoch == 1 for epoch, _ in data.read()))
        with pytest.raises(LookupError, match="sample 0 is broken"):
            next(iter(loader))


class Deadly(Noted):
    """Ends the first process that reads a sample of epoch 1."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for sample in super().__iter__():
            if lit_loader.get_epoch() == 1:
                with contextlib.suppress(FileExistsError):
                    (self.file.parent / "struck").touch(exist_ok=False)
                    os.kill(os.getpid(), signal.SIGKILL)
            yield sample


def test_who_dies_then_is_replaced(tmp_path: Path) -> None:
    with many(Deadly(tmp_path)) as loader, pytest.warns(WorkerRestartWarning) as told:
        assert numbers(loader) == ORDER
        until((tmp_path / "struck").exists)
        assert numbers(loader) == ORDER
    assert len(told) == 1


def test_another_worker_gets_the_reader(tmp_path: Path) -> None:
    data = Noted(tmp_path)
    with many(data) as loader:
        for workers in (1, 3, 2, 4):
            assert numbers(loader) == ORDER
            loader.resize(workers)
        assert numbers(loader) == ORDER
