"""The loaders, each opened with the same options: same dataset, batches, workers and prefetch.

What had to be decided to be fair to each:

- **torch, torchdata**: nothing; the options are theirs.
- **SPDL** starts its processes anew at each ``iter()``. Where workers are to persist it is given a
  sampler without end, and an epoch is so many batches of the one iterator. ``in_order=True``, as
  torch has it.
- **Grain** likewise, by ``repeat()``. Its worker processes hand NumPy arrays over by shared memory
  and pickle the rest, so the collated tensors are given to it as arrays (a view, not a copy). Its
  threads for reading ahead are off, as its documentation advises for data in memory.

An iterator without end, and any loader that begins the next epoch by itself, also reads ahead while
others are measured. So what is clocked is the midst of an epoch, what lies ready is taken from an
iterator without end before each turn, and after each turn workers are waited for until they are
idle.

Every process computes with one thread, which is what torch makes of its own workers.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from lit_loader.bench.loaders.endless import Grain, Spdl
from lit_loader.bench.loaders.opened import (
    Cannot,
    Contender,
    Opened,
    Reiterable,
    Setup,
    check_sampler_memory,
)

__all__ = ["Cannot", "Contender", "Opened", "Setup", "contenders"]


PATIENCE: Final = 120.0
"""Seconds that torch's loaders wait for a batch. A worker of theirs that has too many open files
says so, and sends nothing: without a limit they would wait for it for ever."""


class LitLoader(Contender):
    """This package's."""

    name = "lit_loader"

    def open(self, dataset: Any, setup: Setup) -> Opened:
        """Open it with torch's options."""
        from lit_loader.loader import DataLoader

        return Reiterable(DataLoader(dataset, **_torch_options(setup)))


class Torch(Contender):
    """``torch.utils.data.DataLoader``."""

    name = "torch"

    def open(self, dataset: Any, setup: Setup) -> Opened:
        """Open it, unless its sampler would take most of the memory there is."""
        check_sampler_memory(dataset, setup)
        options = _torch_options(setup, patience=PATIENCE)
        return Reiterable(torch.utils.data.DataLoader(dataset, **options))


class Torchdata(Contender):
    """torchdata's ``StatefulDataLoader``."""

    name = "torchdata"

    def open(self, dataset: Any, setup: Setup) -> Opened:
        """Open it, unless its sampler would take most of the memory there is."""
        from torchdata.stateful_dataloader import StatefulDataLoader

        check_sampler_memory(dataset, setup)
        return Reiterable(StatefulDataLoader(dataset, **_torch_options(setup, patience=PATIENCE)))


def contenders() -> dict[str, Contender]:
    """All loaders by name, installed or not."""
    every: tuple[Contender, ...] = (LitLoader(), Torch(), Torchdata(), Spdl(), Grain())
    return {contender.name: contender for contender in every}


def _torch_options(setup: Setup, patience: float = 0) -> dict[str, Any]:
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
            "timeout": patience,
        }
    return {**options, **setup.options}
