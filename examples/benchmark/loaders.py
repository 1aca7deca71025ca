"""`LOADERS`: each opens a loader with the same dataset, batch size, workers and prefetching.

What had to be decided to be fair to each:

- **torch, torchdata**: nothing; the options are theirs.
- **SPDL** starts its processes anew at each ``iter()``. Where workers are to persist it is given a
  sampler without end, and an epoch is so many batches of the one iterator. ``in_order=True``, as
  torch has it.
- **Grain** likewise, by ``repeat()``. Its worker processes hand NumPy arrays over by shared memory
  and pickle the rest, so the collated tensors are given to it as arrays (a view, not a copy). Its
  threads for reading ahead are off, as its documentation advises for data in memory.

An iterator without end, and any loader that begins the next epoch by itself, also reads ahead while
others are measured. So the midst of an epoch is clocked; before each turn, what lies ready is taken
from an iterator without end; and after each turn, workers are waited for until they are idle.

Every process computes with one thread, which is what torch makes of its own workers.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

import torch
from machine import wait_until_idle
from torch.utils.data import BatchSampler, SequentialSampler, default_collate, default_convert


class CannotRun(Exception):
    """A loader cannot do what a case asks for; the text says why."""


@dataclass(frozen=True)
class Setup:
    """How a loader is opened."""

    batch_size: int | None  # None: samples are passed on one by one
    num_workers: int = 2
    prefetch_factor: int = 2
    persistent: bool = True  # whether the workers outlive an epoch
    collate_fn: Callable[[list[Any]], Any] | None = None  # None: torch's default
    start_method: str | None = None  # of the workers; None: Python's default
    options: Mapping[str, Any] = field(default_factory=dict)  # further ones, by torch's names

    @property
    def ahead(self) -> int:
        """Batches in flight at most."""
        return self.num_workers * self.prefetch_factor

    def length(self, batches: int) -> int:
        """Samples of an epoch in whose midst so many batches can be clocked."""
        return (batches + 2 * self.ahead) * (self.batch_size or 1)

    def collate(self, samples: Any) -> Any:
        """Make a batch of a list of samples, or of the one sample."""
        usual = default_convert if self.batch_size is None else default_collate
        return (self.collate_fn or usual)(samples)


class OpenLoader:
    """A loader that is open, and gives an epoch at each ``iter()``."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def before_turn(self) -> None:
        """Take away what was made ahead, unclocked; here that comes first in the next epoch."""

    def epoch(self) -> Iterator[Any]:
        """Begin an epoch; gives its batches. May be left before its end."""
        return iter(self.loader)

    def after_turn(self) -> None:
        """Wait until the workers are idle, unclocked."""
        wait_until_idle()

    def close(self) -> None:
        """End all that was started."""
        close = getattr(self.loader, "close", None)
        self.loader = None
        if close is not None:
            close()
        gc.collect()  # torch's workers end with the last reference


Open: TypeAlias = Callable[[Any, Setup], OpenLoader]
"""Opens a loader for a dataset; may start workers, or leave that to the first epoch."""


def _of_torchs_options(module: str, name: str, dataset: Any, setup: Setup) -> OpenLoader:
    options: dict[str, Any] = {
        "batch_size": setup.batch_size,
        "collate_fn": setup.collate_fn,
        "num_workers": setup.num_workers,
    }
    if setup.num_workers:
        options |= {
            "prefetch_factor": setup.prefetch_factor,
            "persistent_workers": setup.persistent,
            "multiprocessing_context": setup.start_method,
            # A worker of torch's that has too many open files prints that and sends nothing:
            # without a limit its loaders would wait for it for ever.
            "timeout": 0.0 if module.startswith("lit_loader") else 120.0,
        }
    kind = getattr(importlib.import_module(module), name)
    return OpenLoader(kind(dataset, **{**options, **setup.options}))


class _Endless(OpenLoader):
    """An open loader whose one iterator has no end; workers persist within one iterator only."""

    def __init__(self, iterator: Any, dataset: Any, setup: Setup, shared: Any = None) -> None:
        super().__init__(iterator)
        self._batches = math.ceil(len(dataset) / (setup.batch_size or 1))
        self._ahead = 2 * max(1, setup.ahead)  # prefetching, and queues of such loaders besides
        self._shared = shared  # SPDL's, with the dataset; it would stay to the end of the process

    def before_turn(self) -> None:
        for _ in itertools.islice(self.loader, self._ahead):
            pass

    def epoch(self) -> Iterator[Any]:
        return itertools.islice(self.loader, self._batches)

    def close(self) -> None:
        super().close()
        if self._shared is not None:
            self._shared.close()
            self._shared.unlink()


def _spdl(dataset: Any, setup: Setup) -> OpenLoader:
    from spdl.dataloader import get_pytorch_dataloader

    if setup.num_workers == 0:
        raise CannotRun("it has no mode without workers")
    options: dict[str, Any] = {
        "num_workers": setup.num_workers,
        "prefetch_factor": setup.prefetch_factor,
        "collate_fn": setup.collate_fn,
        "in_order": True,
        "multiprocessing_context": setup.start_method,
    }
    if not setup.persistent:
        return OpenLoader(get_pytorch_dataloader(dataset, batch_size=setup.batch_size, **options))
    sampler: Any = SequentialSampler(dataset)
    if setup.batch_size is None:
        options["sampler"] = _EndlessSampler(sampler)
    else:
        options["batch_sampler"] = _EndlessSampler(BatchSampler(sampler, setup.batch_size, False))
    loader = get_pytorch_dataloader(dataset, batch_size=None, **options)
    # reach: spdl: its shared memory, to be closed
    return _Endless(iter(loader), dataset, setup, vars(loader).get("_shmem"))


def _grain(dataset: Any, setup: Setup) -> OpenLoader:
    import grain

    if setup.start_method not in (None, "spawn"):
        raise CannotRun(f"it starts its processes by spawn, not by {setup.start_method}")
    source = grain.MapDataset.source(dataset)
    if setup.persistent:
        source = source.repeat(1_000_000)  # without end its own arithmetic overflows
    collate = _AsArrays(setup)
    if setup.batch_size is None:
        source = source.map(collate)
    else:
        source = source.batch(setup.batch_size, batch_fn=collate)
    batches = source.to_iter_dataset(
        grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    ).mp_prefetch(
        grain.MultiprocessingOptions(
            num_workers=setup.num_workers, per_worker_buffer_size=setup.prefetch_factor
        ),
        worker_init_fn=_one_thread,
    )
    if not setup.persistent:
        return OpenLoader(batches)
    with _without_stderr():
        iterator = iter(batches)
        next(iterator)  # starts its processes; which batches an epoch has is all the same
    return _Endless(iterator, dataset, setup)


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """For processes that start within; Grain's print, each of them, that they miss a profiler."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


class _EndlessSampler:
    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self._sampler

    def __len__(self) -> int:
        return len(self._sampler)


class _AsArrays:
    """Collates, and gives every tensor as the NumPy array that shares its memory."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def __call__(self, samples: Any) -> Any:
        samples = list(samples) if isinstance(samples, tuple) else samples
        return _arrays(self._setup.collate(samples))


def _arrays(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _arrays(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_arrays(item) for item in value]
    return value.numpy() if isinstance(value, torch.Tensor) else value


def _one_thread(worker: int, workers: int) -> None:
    torch.set_num_threads(1)


LOADERS: Final[Mapping[str, Open]] = {
    "lit_loader": partial(_of_torchs_options, "lit_loader.loader", "DataLoader"),
    "torch": partial(_of_torchs_options, "torch.utils.data", "DataLoader"),
    "torchdata": partial(_of_torchs_options, "torchdata.stateful_dataloader", "StatefulDataLoader"),
    "spdl": _spdl,
    "grain": _grain,
}
"""Name to what opens it, installed or not."""
