"""`Limit`: what no loader can undercut; making the batches themselves, and moving their bytes once.

Measured in the same rounds as the loaders, see `Session.compare_with_limit`. The limit of a case,
seconds a batch, is the larger of

- fetch + collate in this process, with one thread, over the processors that the workers can use: so
  many as there are (affinity and the cgroup's quota), and no more than there are workers;
- one copy of the batch's bytes, by one processor or by all together, whatever is faster, into
  memory that was used before.

Tensors are collated into the memory of the batch before: the page faults of fresh memory are a cost
that a loader may avoid, so they are no part of the limit.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from lit_loader.bench.core.results import COPY, IN_PROCESS, LIMIT
from lit_loader.bench.loaders.interface import Setup
from lit_loader.system.processors import usable_processors

__all__ = ["InProcess", "Limit", "MemoryCopy", "collate_into", "nbytes"]


class InProcess:
    """Fetches and collates in this process.

    Args:
        dataset: Map-style.
        setup: Its batch size and collate_fn.
        batches: How many batches a call makes; each call goes on where the one before ended.
    """

    def __init__(self, dataset: Any, setup: Setup, batches: int) -> None:
        self._dataset, self._setup, self._batches = dataset, setup, batches
        self._numbers = itertools.cycle(range(max(1, len(dataset) // (setup.batch_size or 1))))
        self.batch: Any = None
        """The batch made last."""

    def __call__(self) -> float:
        """Seconds a batch."""
        begin = time.perf_counter()
        for number in itertools.islice(self._numbers, self._batches):
            self.batch = self._make(number)
        return (time.perf_counter() - begin) / self._batches

    def _make(self, number: int) -> Any:
        size = self._setup.batch_size
        if size is None:
            return self._setup.collate()(self._dataset[number])
        indices = range(number * size, min((number + 1) * size, len(self._dataset)))
        if hasattr(self._dataset, "__getitems__"):
            samples = self._dataset.__getitems__(list(indices))
        else:
            samples = [self._dataset[index] for index in indices]
        if self._setup.collate_fn is not None:
            return self._setup.collate_fn(samples)
        return collate_into(self.batch, samples)


def collate_into(before: Any, samples: list[Any]) -> Any:
    """Collate as torch does, tensors into the memory of a batch that is not needed any more.

    Args:
        before: That batch, of the same structure; anything else is not made use of.
        samples: At least one.
    """
    first = samples[0]
    if isinstance(first, torch.Tensor):
        shape = (len(samples), *first.shape)
        fits = isinstance(before, torch.Tensor) and before.shape == shape
        if fits and before.dtype == first.dtype:
            return torch.stack(samples, out=before)
        return torch.stack(samples)
    if isinstance(first, Mapping):
        old = before if isinstance(before, Mapping) else {}
        return {key: collate_into(old.get(key), [s[key] for s in samples]) for key in first}
    if isinstance(first, tuple) and not hasattr(first, "_fields"):
        columns = list(zip(*samples, strict=True))
        parts = before if isinstance(before, list) else [None] * len(columns)
        pairs = zip(parts, columns, strict=False)
        return [collate_into(part, list(column)) for part, column in pairs]
    return torch.utils.data.default_collate(samples)


class MemoryCopy:
    """Copies so many bytes, by one processor and by all, into memory that was used before.

    Args:
        nbytes: How many.
        cores: Threads that copy.
    """

    def __init__(self, nbytes: int, cores: int) -> None:
        self._from = torch.ones(max(1, nbytes), dtype=torch.uint8)
        self._to = torch.zeros_like(self._from)
        self._cores = cores
        self._to.copy_(self._from)  # now all of its pages are there

    def __call__(self) -> float:
        """Seconds for one copy: the fastest of those that fit into 20 ms, at least three each.

        The fastest, for several threads that have to wait for each other on a busy machine take
        far longer than what no loader can undercut.
        """
        return min(self._fastest(threads) for threads in {1, self._cores})

    def _fastest(self, threads: int) -> float:
        with _threads(threads):
            taken: list[float] = []
            while len(taken) < 3 or sum(taken) < 0.02:
                begin = time.perf_counter()
                self._to.copy_(self._from)
                taken.append(time.perf_counter() - begin)
        return min(taken)


class Limit:
    """The limit of a case, as a subject of the rounds.

    Args:
        dataset: Map-style.
        setup: As the loaders are opened.
        batches: Batches that are made in a round.
    """

    def __init__(self, dataset: Any, setup: Setup, batches: int) -> None:
        self._in_process = InProcess(dataset, setup, batches)
        self._in_process()
        self.nbytes = nbytes(self._in_process.batch)
        """Bytes of a batch."""
        self._copy = MemoryCopy(self.nbytes, max(1, int(usable_processors())))
        self._cores = min(usable_processors(), max(1, setup.num_workers))

    def __call__(self) -> dict[str, float]:
        """Seconds a batch: `LIMIT`, and what it was made of."""
        alone, copy = self._in_process(), self._copy()
        return {LIMIT: max(alone / self._cores, copy), IN_PROCESS: alone, COPY: copy}


def nbytes(value: Any) -> int:
    """Bytes of the tensors, arrays and strings in a batch."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, (np.ndarray, np.generic)):
        return int(value.nbytes)
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(nbytes(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return sum(nbytes(item) for item in value)
    return 8  # a number


@contextlib.contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
