"""The loaders by name, each opened with the same dataset, batch size, workers and prefetching.

`adapters` gives them to `bench/runner.py`. Those that take torch's options are here, the two others
in `bench/loaders/spdl_grain.py`. What had to be decided to be fair to each:

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

from typing import Any, Final

import torch

from lit_loader.bench.loaders.interface import (
    LoaderAdapter,
    OpenLoader,
    Reiterable,
    Setup,
    check_sampler_memory,
)
from lit_loader.bench.loaders.spdl_grain import Grain, Spdl

__all__ = ["adapters"]


TIMEOUT: Final = 120.0
"""Seconds that torch's loaders wait for a batch. A worker of theirs that has too many open files
prints that and sends nothing: without a limit they would wait for it for ever."""


class LitLoader(LoaderAdapter):
    """`lit_loader.DataLoader`."""

    name = "lit_loader"

    def open(self, dataset: Any, setup: Setup) -> OpenLoader:
        """Open it with torch's options."""
        from lit_loader.loader import DataLoader

        return Reiterable(DataLoader(dataset, **_torch_options(setup)))


class Torch(LoaderAdapter):
    """``torch.utils.data.DataLoader``."""

    name = "torch"

    def open(self, dataset: Any, setup: Setup) -> OpenLoader:
        """Open it, unless its sampler would take most of the memory there is."""
        check_sampler_memory(dataset, setup)
        options = _torch_options(setup, timeout=TIMEOUT)
        return Reiterable(torch.utils.data.DataLoader(dataset, **options))


class Torchdata(LoaderAdapter):
    """torchdata's ``StatefulDataLoader``."""

    name = "torchdata"

    def open(self, dataset: Any, setup: Setup) -> OpenLoader:
        """Open it, unless its sampler would take most of the memory there is."""
        from torchdata.stateful_dataloader import StatefulDataLoader

        check_sampler_memory(dataset, setup)
        return Reiterable(StatefulDataLoader(dataset, **_torch_options(setup, timeout=TIMEOUT)))


def adapters() -> dict[str, LoaderAdapter]:
    """All loaders by name, installed or not."""
    every: tuple[LoaderAdapter, ...] = (LitLoader(), Torch(), Torchdata(), Spdl(), Grain())
    return {adapter.name: adapter for adapter in every}


def _torch_options(setup: Setup, timeout: float = 0) -> dict[str, Any]:
    options: dict[str, Any] = {
        "batch_size": setup.batch_size,
        "collate_fn": setup.collate_fn,
        "num_workers": setup.num_workers,
    }
    if setup.shuffle:
        options["shuffle"] = True
    if setup.num_workers:
        options |= {
            "prefetch_factor": setup.prefetch_factor,
            "persistent_workers": setup.persistent,
            "multiprocessing_context": setup.start_method,
            "timeout": timeout,
        }
    return {**options, **setup.options}
