"""Streams read by worker threads: the bytes of processes, or a reason why not."""

import contextlib
import random
import sqlite3
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

import lit_loader
from lit_loader import DataLoader

THREADS: dict[str, Any] = {"num_workers": 2, "worker_method": "thread"}
PROCESSES: dict[str, Any] = {"num_workers": 2}


class Lines(IterableDataset[Any]):
    """Reads its share of some numbers from a cursor, which belongs to the thread that opened it."""

    def numbers(self) -> list[int]:
        return lit_loader.get_rng("order").permutation(40).tolist()  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Any]:
        shard, count = lit_loader.get_shard()
        mine = self.numbers()[shard::count]
        with contextlib.closing(sqlite3.connect(":memory:")) as base:
            rows = base.execute(f"values {', '.join(f'({n})' for n in mine)}")
            for (number,) in rows:
                yield [number, lit_loader.get_rng().random(), torch.initial_seed() % 2**31]


class Placed(Lines):
    """Knows its place, and shuffles by a generator of its own."""

    def __init__(self) -> None:
        self.rng, self.place = np.random.default_rng(3), 0

    def __iter__(self) -> Iterator[Any]:
        shard, count = lit_loader.get_shard()
        for number in self.rng.permutation(40)[shard::count].tolist()[self.place :]:
            self.place += 1
            yield [number, lit_loader.get_rng().random()]
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place, self.rng.bit_generator.state = state["place"], state["rng"]


class Shuffled(Lines):
    """Shuffles by a generator that all threads share, and draws from it for each sample."""

    def numbers(self) -> list[int]:
        return random.sample(range(40), 40)

    def __iter__(self) -> Iterator[Any]:
        return ([sample, random.random()] for sample in super().__iter__())


def plain(batches: Any) -> Any:
    return [[torch.as_tensor(each).tolist() for each in batch] for batch in batches]


@pytest.mark.filterwarnings("ignore:lit_loader. Lines has no state_dict")
@pytest.mark.parametrize("options", [{}, {"num_shards": 4}, {"num_shards": 4, "batch_size": None}])
@pytest.mark.parametrize("kind", [Lines, Placed])
def test_a_stream_s_batches_are_those_of_processes(kind: Any, options: dict[str, Any]) -> None:
    def loader(**more: Any) -> DataLoader[Any]:
        return DataLoader(kind(), **{"batch_size": 3, "seed": 5, **options, **more})

    if kind is Placed and not options:
        with pytest.raises(lit_loader.OptionError, match=r"Placed keeps its place.*num_shards"):
            next(iter(loader(**THREADS)))
        return
    with loader(**PROCESSES) as processes:
        whole = [plain(processes) for _ in range(2)]
    with loader(**THREADS) as threads:
        assert [plain(threads) for _ in range(2)] == whole
    if options:
        assert plain(loader(**THREADS | {"num_workers": 3})) == whole[0]
    for first, second in ((THREADS, PROCESSES), (PROCESSES, THREADS)):
        with loader(**first) as begun, loader(**second) as resumed:
            batches = iter(begun)
            given = [next(batches) for _ in range(5)]
            resumed.load_state_dict(begun.state_dict())
            assert plain(given) + plain(resumed) == whole[0]


def test_readers_move_when_the_number_of_threads_changes() -> None:
    loader = DataLoader(Placed(), 3, seed=5, num_shards=4, **THREADS)
    found = []
    for number, batch in enumerate(loader):
        found += plain([batch])
        loader.resize((3, 1, 4, 2)[number % 4])
    assert found == plain(DataLoader(Placed(), 3, seed=5, num_shards=4))


@pytest.mark.parametrize("options", [{}, {"num_shards": 4}])
def test_a_stream_that_shuffles_by_a_shared_generator_is_reported(options: Any) -> None:
    with pytest.warns(lit_loader.ExactnessWarning, match=r"random.*lose samples.*LL418"):
        list(DataLoader(Shuffled(), 3, **options, **THREADS))
