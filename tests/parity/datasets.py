"""Datasets, samplers and callables of the parity tests.

They live at module level so that spawn and forkserver can import them.
"""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from tests.support import samples

# What ``worker_init_fn`` left in this process, for a dataset to read back.
INIT_LOG: dict[str, Any] = {}


class Squares(samples.OfLength):
    """``index * index`` for ``length`` indices."""

    length = 10

    def __getitem__(self, index: int) -> int:
        return index * index


class Call(samples.Call):
    """``function(index)`` for ``length`` indices; ``function`` may use closures under fork."""

    def __init__(self, function: Any, length: int = 10) -> None:
        super().__init__(function, length)


class NoLength(Dataset):
    """Map-style without ``__len__``: usable with a sampler."""

    def __getitem__(self, index: int) -> int:
        return index + 100


class Many(Squares):
    """Fetches a whole batch at once, and gives the type of what it was asked with."""

    def __getitem__(self, index: int) -> int:
        raise AssertionError("__getitems__ must be used")

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[int, str]]:
        return [(index, type(indices).__name__) for index in indices]


class Stream(IterableDataset):
    """The same numbers in every worker."""

    def __init__(self, length: int = 10) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


class SizedStream(Stream):
    """A stream with a promised length, which may be a lie."""

    def __init__(self, length: int = 10, promised: int | None = None) -> None:
        super().__init__(length)
        self.promised = length if promised is None else promised

    def __len__(self) -> int:
        return self.promised


class Shares(IterableDataset):
    """Worker ``i`` gives the items of ``shares[i]``; the parent gives all of them."""

    def __init__(self, *shares: Sequence[int]) -> None:
        self.shares = shares

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        if info is None:
            return iter([item for share in self.shares for item in share])
        return iter(self.shares[info.id])


class Interval(IterableDataset):
    """``range(start, end)``; ``split_interval`` cuts it among the workers."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))


def split_interval(worker_id: int) -> None:
    """``worker_init_fn`` that configures the worker's own copy of an ``Interval``."""
    info = get_worker_info()
    assert info is not None and info.id == worker_id
    dataset = info.dataset
    share = -(-(dataset.end - dataset.start) // info.num_workers)
    dataset.start += worker_id * share
    dataset.end = min(dataset.start + share, dataset.end)


class Rendezvous(Squares):
    """Samples wait until both of two workers have begun one, so that both take part.

    Not for a sample of the other worker's: a worker that is late may find all of them made, or
    being made a second time. Sample values come from ``describe``.
    """

    def __init__(self, describe: Any, length: int = 8) -> None:
        super().__init__(length)
        self.begun, self.describe = [multiprocessing.Event() for _ in range(2)], describe

    def __getitem__(self, index: int) -> Any:
        worker = get_worker_info().id
        self.begun[worker].set()
        assert self.begun[1 - worker].wait(30), "the other worker has begun nothing"
        return self.describe()

    def part(self) -> None:
        """Have workers that are started anew wait for each other, too."""
        for event in self.begun:
            event.clear()


class Noise(Squares):
    """One number from each global generator, as a row."""

    def __getitem__(self, index: int) -> torch.Tensor:
        row = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        return torch.tensor(row, dtype=torch.float64)


class CountingCalls(Squares):
    """How many samples this copy of the dataset has given so far."""

    calls = 0

    def __getitem__(self, index: int) -> int:
        self.calls += 1
        return self.calls


class CountingSampler:
    """``range(length)`` that remembers how many indices were drawn, and in which process."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.drawn = 0
        self.pids: set[int] = set()

    def __iter__(self) -> Iterator[int]:
        for index in range(self.length):
            self.drawn += 1
            self.pids.add(os.getpid())
            yield index

    def __len__(self) -> int:
        return self.length


class GetItemSampler:
    """Iterable through ``__getitem__`` alone, the old way."""

    def __getitem__(self, position: int) -> int:
        return [3, 2, 1, 0][position]

    def __len__(self) -> int:
        return 4


class Endless:
    """A sampler that begins anew for ever; programs put it in the place of the loader's own."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


class ReversedBatches:
    """A batch sampler that is no list and no torch class: it can be iterated again and again."""

    def __init__(self, length: int, kind: type = list) -> None:
        self.length = length
        self.kind = kind

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, self.length, 2):
            yield self.kind([start + 1, start])

    def __len__(self) -> int:
        return self.length // 2


def log_worker(worker_id: int) -> None:
    """``worker_init_fn`` that notes all there is to know when it runs."""
    info = get_worker_info()
    assert info is not None
    INIT_LOG.update(
        worker_id=worker_id,
        info_id=info.id,
        num_workers=info.num_workers,
        info_seed=info.seed,
        torch_seed=torch.initial_seed(),
        random=random.random(),
        numpy=float(np.random.rand()),
        torch=float(torch.rand(())),
        pid=os.getpid(),
    )


def read_init_log() -> dict[str, Any]:
    """What ``log_worker`` noted in this process."""
    return dict(INIT_LOG)


def describe_worker(_: Any = None) -> dict[str, Any]:
    """The facts about this process that a loader promises."""
    info = get_worker_info()
    return {
        "pid": os.getpid(),
        "threads": torch.get_num_threads(),
        "id": None if info is None else info.id,
        "num_workers": None if info is None else info.num_workers,
    }
