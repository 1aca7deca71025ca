"""`LOADERS`: each opens a loader with the same dataset, batch size, workers and prefetching.

What had to be decided to be fair to each:

- **torch, torchdata**: nothing; the options are theirs.
- **SPDL** and **Grain** start their processes anew for each epoch. That is not clocked, for it is
  the midst of an epoch that is; it counts in processor time, as it does for who uses them.
  ``in_order=True`` for SPDL, as torch has it.
- **Grain**'s worker processes hand NumPy arrays over by shared memory and pickle the rest, so the
  collated tensors are given to it as arrays (a view, not a copy). Its threads for reading ahead are
  off, as its documentation advises for data in memory.

A loader that begins the next epoch by itself also reads ahead while others are measured. So what is
there at an epoch's begin is not clocked; and after each turn, workers are waited for until they are
idle.

Every process computes with one thread, which is what torch makes of its own workers.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

import torch
from torch.utils.data import default_collate, default_convert

from lit_loader.bench.machine import wait_until_idle

__all__ = ["LOADERS", "CannotRun", "Open", "OpenLoader", "Setup"]


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


class _Spdl(OpenLoader):
    def close(self) -> None:
        shared = vars(self.loader).get("_shmem")  # reach: spdl: its shared memory, to be closed
        super().close()
        if shared is not None:  # with the dataset; it would stay to the end of the process
            shared.close()
            shared.unlink()


def _spdl(dataset: Any, setup: Setup) -> OpenLoader:
    from spdl.dataloader import get_pytorch_dataloader

    if setup.num_workers == 0:
        raise CannotRun("it has no mode without workers")
    loader = get_pytorch_dataloader(
        dataset,
        batch_size=setup.batch_size,
        num_workers=setup.num_workers,
        prefetch_factor=setup.prefetch_factor,
        collate_fn=setup.collate_fn,
        in_order=True,
        multiprocessing_context=setup.start_method,
    )
    return _Spdl(loader)


class _Grain(OpenLoader):
    def epoch(self) -> Iterator[Any]:
        with _without_stderr():
            batches = iter(self.loader)
            first = next(batches)  # starts its processes
        yield first
        yield from batches


def _grain(dataset: Any, setup: Setup) -> OpenLoader:
    import grain

    if setup.start_method not in (None, "spawn"):
        raise CannotRun(f"it starts its processes by spawn, not by {setup.start_method}")
    source = grain.MapDataset.source(dataset)
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
    return _Grain(batches)


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
