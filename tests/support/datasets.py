"""Datasets, samplers and callables of the tests.

They live at module level so that spawn and forkserver can import them.
"""

import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from tests.support import samples

# --- of the tests that run with torch's loader, too, and of the core's ---


class Squares(samples.OfLength):
    """``index * index`` for ``length`` indices."""

    length = 10

    def __getitem__(self, index: int) -> int:
        return index * index


class Call(samples.Call):
    """``function(index)`` for ``length`` indices; ``function`` may use closures under fork."""

    def __init__(self, function: Any, length: int = 10) -> None:
        super().__init__(function, length)


class NoLength(Dataset[int]):
    """Map-style without ``__len__``: usable with a sampler."""

    def __getitem__(self, index: int) -> int:
        return index + 100


class Many(Squares):
    """Fetches a whole batch at once, and gives the type of what it was asked with."""

    def __getitem__(self, index: int) -> int:
        raise AssertionError("__getitems__ must be used")

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[int, str]]:
        return [(index, type(indices).__name__) for index in indices]


class Noise(Squares):
    """One number from each global generator, as a row."""

    def __getitem__(self, index: int) -> torch.Tensor:  # type: ignore[override]
        row = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        return torch.tensor(row, dtype=torch.float64)


class Stream(IterableDataset[int]):
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


class Shares(IterableDataset[int]):
    """Worker ``i`` gives the items of ``shares[i]``; the parent gives all of them."""

    def __init__(self, *shares: Sequence[int]) -> None:
        self.shares = shares

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        if info is None:
            return iter([item for share in self.shares for item in share])
        return iter(self.shares[info.id])


class Interval(IterableDataset[int]):
    """``range(start, end)``; `split_interval` cuts it among the workers."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))


def split_interval(worker_id: int) -> None:
    """``worker_init_fn`` that configures the worker's own copy of an `Interval`."""
    info = get_worker_info()
    assert info is not None and info.id == worker_id
    dataset = info.dataset
    share = -(-(dataset.end - dataset.start) // info.num_workers)
    dataset.start += worker_id * share
    dataset.end = min(dataset.start + share, dataset.end)


class CountingSampler:
    """``range(length)`` that remembers how many indices were drawn, and in which process."""

    def __init__(self, length: int) -> None:
        self.length, self.drawn = length, 0
        self.pids: set[int] = set()

    def __iter__(self) -> Iterator[int]:
        for index in range(self.length):
            self.drawn += 1
            self.pids.add(os.getpid())
            yield index

    def __len__(self) -> int:
        return self.length


class ReversedBatches:
    """A batch sampler that is no list and no torch class: it can be iterated again and again."""

    def __init__(self, length: int, kind: type = list) -> None:
        self.length, self.kind = length, kind

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, self.length, 2):
            yield self.kind([start + 1, start])

    def __len__(self) -> int:
        return self.length // 2
