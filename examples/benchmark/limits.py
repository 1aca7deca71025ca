"""`Limit`: what no loader can undercut; making the batches themselves, and moving their bytes once.

Measured in the same rounds as the loaders. The larger of

- fetch + collate in this process, with one thread, over the processors that the workers can use: so
  many as there are (affinity and the cgroup's quota), and no more than there are workers;
- one copy of the batch's bytes, by one processor or by all together, whatever is faster, into
  memory that was used before.

Tensors are collated into the memory of the batch before: the page faults of fresh memory are a cost
that a loader may avoid, so they are no part of the limit.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from loaders import Setup
from torch.utils.data import default_collate

from lit_loader.core.system.linux import usable_cores


class Limit:
    """The limit of a case; a call makes so many batches, from where the one before ended on."""

    by = "making it, or one copy"

    def __init__(self, dataset: Any, setup: Setup, batches: int) -> None:
        self._dataset, self._setup, self._batches = dataset, setup, batches
        self._numbers = itertools.cycle(range(max(1, len(dataset) // (setup.batch_size or 1))))
        self._cores = min(usable_cores(), max(1, setup.num_workers))
        self._batch: Any = None
        self._make()
        self._nbytes = nbytes(self._batch)

    def __call__(self) -> dict[str, float]:
        """Microseconds a batch."""
        return {"": 1e6 * max(self._make() / self._cores, copy_seconds(self._nbytes))}

    def _make(self) -> float:
        size, collate = self._setup.batch_size, self._setup.collate_fn
        begin = time.perf_counter()
        for number in itertools.islice(self._numbers, self._batches):
            if size is None:
                self._batch = self._setup.collate(self._dataset[number])
                continue
            samples = [self._dataset[index] for index in range(number * size, (number + 1) * size)]
            self._batch = collate(samples) if collate else collate_into(self._batch, samples)
        return (time.perf_counter() - begin) / self._batches


def collate_into(before: Any, samples: list[Any]) -> Any:
    """Collate as torch does, tensors into the memory of a batch that is not needed any more."""
    first = samples[0]
    if isinstance(first, torch.Tensor):
        shape = (len(samples), *first.shape)
        fits = isinstance(before, torch.Tensor) and before.shape == shape
        fits = fits and before.dtype == first.dtype
        return torch.stack(samples, out=before) if fits else torch.stack(samples)
    if isinstance(first, Mapping):
        old = before if isinstance(before, Mapping) else {}
        return {key: collate_into(old.get(key), [s[key] for s in samples]) for key in first}
    if type(first) is tuple:
        columns = list(zip(*samples, strict=True))
        parts = before if isinstance(before, list) else [None] * len(columns)
        return [collate_into(p, list(c)) for p, c in zip(parts, columns, strict=False)]
    return default_collate(samples)


def copy_seconds(size: int) -> float:
    """Seconds to copy so many bytes, by one processor or by all, into memory used before.

    The fastest of the copies that fit into 20 ms, at least three each: several threads that have to
    wait for each other on a busy machine take far longer than what no loader can undercut.
    """
    source = torch.ones(max(1, size), dtype=torch.uint8)
    target = source.clone()  # all of its pages are there
    before, fastest = torch.get_num_threads(), float("inf")
    try:
        for threads in {1, max(1, int(usable_cores()))}:
            torch.set_num_threads(threads)
            taken: list[float] = []
            while len(taken) < 3 or sum(taken) < 0.02:
                begin = time.perf_counter()
                target.copy_(source)
                taken.append(time.perf_counter() - begin)
            fastest = min(fastest, *taken)
    finally:
        torch.set_num_threads(before)
    return fastest


def nbytes(value: Any) -> int:
    """Bytes of the tensors, arrays and strings in a batch."""
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        return int(value.nbytes)
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(nbytes(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return sum(nbytes(item) for item in value)
    return 8  # a number
