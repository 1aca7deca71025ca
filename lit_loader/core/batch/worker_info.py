"""`WorkerInfo`: what ``torch.utils.data.get_worker_info()`` answers, which datasets call.

Datasets that were written for torch take their share by it. So it names a reader's number among all
readers, whichever process the reader is served by.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch.utils.data._utils import worker as torch_worker  # reach: torch: get_worker_info()

from lit_loader.context import WORKERS, get_rng, reading


class WorkerInfo(torch_worker.WorkerInfo):
    """Torch's, which notes that a dataset (or worker_init_fn) asks whose share it is to give."""

    def __getattribute__(self, name: str) -> Any:
        context = reading()
        if name in ("id", "num_workers", "dataset"):
            context.shard_asked = max(context.shard_asked, WORKERS)
        elif context.maker is None:
            pass
        elif name == "seed" and context.maker.seed is not None:
            return context.maker.seed  # of the batch, or of the sample
        elif name == "rng" and _TorchRNG is not None:
            return context.maker.rng.give(None, _generators)
        return super().__getattribute__(name)


# reach: torch: the class of WorkerInfo.rng, which torch 2.13 gives workers in threads
_TorchRNG = getattr(torch_worker, "_RNG", None)


def _generators(seed: int) -> Any:
    """Return a generator of each kind for the sample that is being read."""
    return _TorchRNG(random.Random(seed), torch.Generator().manual_seed(seed), get_rng())  # type: ignore[misc]


def shown() -> Any:
    """Return what is answered now; None: this is no worker."""
    context = reading()
    # reach: torch: the variable behind get_worker_info()
    return context.info if context.of_thread else torch_worker._worker_info


def show(info: Any) -> None:
    """Let this be answered; None: this is no worker."""
    context = reading()
    if context.of_thread:
        context.info = info
        return
    # reach: torch: the variable behind get_worker_info()
    torch_worker._worker_info = info
