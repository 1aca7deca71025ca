"""Reads the options of a torch loader, for a loader of ours that is to do the same.

Used by `lightning/swapped_datamodule.py`: a ``torch.utils.data.DataLoader`` comes in, the arguments
of ``lit_loader.DataLoader`` go out.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import (
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
    default_convert,
)

__all__ = ["options_of"]

_SAME_OPTIONS = (
    *("batch_size", "num_workers", "pin_memory", "drop_last", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "generator", "prefetch_factor", "persistent_workers"),
    *("pin_memory_device", "in_order"),
)
"""Options that both classes have, and mean the same by."""


def options_of(loader: TorchLoader[Any]) -> dict[str, Any]:
    """Returns the options with which ``lit_loader.DataLoader`` does what a torch loader does.

    Samplers, batch samplers, functions and generators that the user has made are the same objects.

    Args:
        loader: Only looked at.
    """
    options = {name: getattr(loader, name) for name in _SAME_OPTIONS}
    if loader.collate_fn not in (default_collate, default_convert):
        options["collate_fn"] = loader.collate_fn
    if isinstance(loader.dataset, IterableDataset):
        return options
    if loader.batch_size is None and loader.batch_sampler is not None:
        return {**options, "batch_size": 1, "batch_sampler": loader.batch_sampler}
    sampler = loader.sampler
    whole = getattr(sampler, "data_source", None) is loader.dataset
    if type(sampler) is RandomSampler and whole and _is_plain(sampler, loader):
        options["shuffle"] = True
    elif not (type(sampler) is SequentialSampler and whole):
        options["sampler"] = sampler
    return options


def _is_plain(sampler: RandomSampler, loader: TorchLoader[Any]) -> bool:
    """Whether a sampler is as ``shuffle=True`` makes it."""
    return (
        not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
        and sampler.generator is loader.generator
    )
