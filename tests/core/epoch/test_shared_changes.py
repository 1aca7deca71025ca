"""What a program shares with persistent workers, and changes between epochs, counts at once."""

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
import pytest
import torch

from lit_loader import DataLoader
from tests.support.samples import Call, Counting

pytestmark = pytest.mark.usefixtures("by_fork")  # which carries any function

LENGTH, EPOCHS = 40, 4

Level = tuple[Any, Callable[[Any], Any], Callable[[Any, int], object]]
"""What is shared, how it is read, and how it is set."""


@pytest.fixture
def level(request: pytest.FixtureRequest) -> Iterator[Level]:
    kind = request.param
    first: Any = (lambda level: level[0], lambda level, epoch: level.__setitem__(0, epoch))
    value: Any = (lambda level: level.value, lambda level, epoch: setattr(level, "value", epoch))
    if kind == "memory":
        memory = SharedMemory(create=True, size=8)
        array: Any = np.ndarray((1,), np.float64, memory.buf)
        array[0] = 0
        yield array, *first
        del array
        memory.close()
        memory.unlink()
    elif kind == "manager":
        with multiprocessing.Manager() as manager:
            yield manager.list([0]), *first
    elif kind == "among others":
        among = {"level": torch.zeros(1).share_memory_()}
        yield among, lambda each: each["level"], lambda each, epoch: each["level"].fill_(epoch)
    else:
        yield {
            "value": (multiprocessing.Value("d", 0), *value),
            "tensor": (torch.zeros(1).share_memory_(), *first),
        }[kind]


KINDS = ["value", "tensor", "among others", "memory", "manager"]


@pytest.mark.parametrize(
    ("level", "dataset", "options"),
    [*((kind, Call, {}) for kind in KINDS), ("value", Counting, {"num_shards": 4})],
    indirect=["level"],
)
def test_a_change_between_epochs(level: Level, dataset: Any, options: Any) -> None:
    shared, get, put = level
    data = dataset(function=lambda _: float(get(shared)), length=LENGTH)
    with DataLoader(data, 4, num_workers=2, persistent_workers=True, **options) as loader:
        for epoch in range(EPOCHS):
            put(shared, epoch)
            assert torch.cat([*loader]).tolist() == [epoch] * LENGTH
