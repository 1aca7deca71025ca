"""What a program shares with persistent workers, and changes between epochs, counts at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.sharedctypes import RawValue
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from lit_loader import DataLoader, get_shard

LENGTH = 40
EPOCHS = 4

Level = tuple[Any, Callable[[Any], float], Callable[[Any, int], object]]


class Levelled(Dataset[float]):
    """Samples are what is shared, at the moment; as in a curriculum."""

    def __init__(self, level: Any, get: Callable[[Any], float]) -> None:
        self.level, self.get = level, get

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> float:
        return self.get(self.level)


class Stream(IterableDataset[float]):
    def __init__(self, level: Any, get: Callable[[Any], float]) -> None:
        self.level, self.get = level, get

    def __iter__(self) -> Iterator[float]:
        index, count = get_shard()
        for _ in range(index, LENGTH, count):
            yield self.get(self.level)


def first(level: Any) -> float:
    return float(level[0])


def set_first(level: Any, epoch: int) -> None:
    level[0] = epoch


def value(level: Any) -> float:
    return float(level.value)


def set_value(level: Any, epoch: int) -> None:
    level.value = epoch


@pytest.fixture
def level(request: pytest.FixtureRequest) -> Iterator[Level]:
    kind = request.param
    if kind == "memory":
        memory = SharedMemory(create=True, size=8)
        array: Any = np.ndarray((1,), np.float64, memory.buf)
        array[0] = 0
        yield array, first, set_first
        del array
        memory.close()
        memory.unlink()
    elif kind == "manager":
        with multiprocessing.Manager() as manager:
            yield manager.list([0]), first, set_first
    else:
        kinds: dict[str, Level] = {
            "value": (multiprocessing.Value("d", 0), value, set_value),
            "array": (multiprocessing.Array("d", 1), first, set_first),
            "raw": (RawValue("d", 0), value, set_value),
            "tensor": (torch.zeros(1).share_memory_(), first, set_first),
            "among others": ({"level": torch.zeros(1).share_memory_()}, among, set_among),
        }
        yield kinds[kind]


def among(level: Any) -> float:
    return float(level["level"][0])


def set_among(level: Any, epoch: int) -> None:
    level["level"][0] = epoch


KINDS = ["value", "array", "raw", "tensor", "among others", "memory", "manager"]


@pytest.mark.parametrize("level", KINDS, indirect=True)
def test_a_change_between_epochs(level: Level) -> None:
    shared, get, put = level
    with DataLoader(Levelled(shared, get), 4, num_workers=2, persistent_workers=True) as loader:
        for epoch in range(EPOCHS):
            put(shared, epoch)
            assert torch.cat([*loader]).tolist() == [epoch] * LENGTH


@pytest.mark.parametrize("level", ["value"], indirect=True)
def test_of_a_stream(level: Level) -> None:
    shared, get, put = level
    dataset = Stream(shared, get)
    with DataLoader(dataset, 4, num_workers=2, num_shards=4, persistent_workers=True) as loader:
        for epoch in range(EPOCHS):
            put(shared, epoch)
            assert torch.cat([*loader]).tolist() == [epoch] * LENGTH
