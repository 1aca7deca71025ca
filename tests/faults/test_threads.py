"""Loaders iterated in several threads of one process: exact, and its own generators left alone.

The global generators are one resource of the process, which one batch at a time may borrow.
"""

import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from lit_loader import DataLoader
from tests.support.exact import Augmented, EveryOther, digests, noisy_collate
from tests.support.samples import Call, Counting, own_generators

TABLE = TensorDataset(torch.arange(52.0).reshape(26, 2))


def noisy(index: int) -> list[float]:
    return [index, random.gauss(0, 1), np.random.randn(), float(torch.randn(()))]


CASES: dict[str, Callable[[int], DataLoader[Any]]] = {
    "shuffled": lambda seed: DataLoader(
        Augmented(), 3, shuffle=True, seed=seed, collate_fn=noisy_collate
    ),
    "by sample": lambda seed: DataLoader(Augmented(), 3, shuffle=True, seed=seed, seeding="sample"),
    "stream": lambda seed: DataLoader(Counting(26, noisy), 3, num_shards=2, seed=seed),
    "table": lambda seed: DataLoader(TABLE, 3, sampler=EveryOther(26), seed=seed),
    "in workers": lambda seed: DataLoader(Augmented(), 3, num_workers=1, seed=seed),
}


@pytest.fixture(autouse=True)
def _threads_take_turns_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(2e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture(autouse=True)
def _in_reserve(generators_kept: None) -> None:
    """Begin in the midst of the streams, with deviates in reserve."""
    random.gauss(0, 1)
    np.random.randn()
    torch.randn(1)


def epochs(case: str, seed: int, count: int) -> list[str]:
    """The bytes of some epochs of a new loader."""
    with CASES[case](seed) as loader:
        return [name for _ in range(count) for name in digests(loader)]


def test_four_threads_with_loaders_of_all_kinds() -> None:
    plans = [random.Random(number).sample(list(CASES), len(CASES)) for number in range(4)]
    start = threading.Barrier(4)

    def run(number: int) -> list[list[str]]:
        return [epochs(case, number, 1) for case in plans[number]]

    def together(number: int) -> list[list[str]]:
        start.wait()
        return run(number)

    before = own_generators()
    expected = [run(number) for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(together, range(4))) == expected
    assert own_generators() == before


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_within_the_dataset_of_another_one(workers: int) -> None:
    """One that has a seed draws nothing of what the outer one draws."""

    def around(inner: DataLoader[Any]) -> Call:
        def sample(index: int) -> Tensor:
            first = random.gauss(0, 1), np.random.randn(), float(torch.rand(()))
            read = next(iter(inner)).sum()
            then = random.gauss(0, 1), np.random.randn(), float(torch.rand(()))
            return torch.tensor([index, *first, float(read), *then], dtype=torch.float64)

        return Call(sample, 6)

    drawing = DataLoader(Augmented(), 3, seed=1)
    with DataLoader(around(drawing), 2, seed=2) as loader:
        expected = [torch.cat(list(loader)) for _ in range(2)]
    constant = DataLoader(Call(lambda i: torch.ones(1), 6), 3, seed=3)
    with DataLoader(around(constant), 2, seed=2, num_workers=workers) as loader:
        found = [torch.cat(list(loader)) for _ in range(2)]
    columns = [0, 1, 2, 3, 5, 6, 7]
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one[:, columns], other[:, columns])


def test_a_dataset_that_forks_while_its_batch_is_made() -> None:
    before = own_generators()

    def read(index: int) -> int:
        if not (child := os.fork()):
            os._exit(0 if len(epochs("shuffled", 1, 1)) == 9 else 1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert [int(batch) for batch in DataLoader(Call(read, 3), seed=1)] == [0, 0, 0]
    assert own_generators() == before


def test_a_signal_handler_that_iterates_a_loader() -> None:
    found: list[list[str]] = []

    class Signals(Augmented):
        def __getitem__(self, index: int) -> Tensor:
            if index == 7:
                signal.raise_signal(signal.SIGALRM)
            return super().__getitem__(index)

    def batches(handler: Any) -> list[str]:
        before = signal.signal(signal.SIGALRM, handler)
        try:
            return digests(DataLoader(Signals(), 3, collate_fn=noisy_collate, seed=1))
        finally:
            signal.signal(signal.SIGALRM, before)

    expected = batches(signal.SIG_IGN)
    assert batches(lambda *_: found.append(epochs("shuffled", 2, 1))) == expected
    assert found == [epochs("shuffled", 2, 1)]
