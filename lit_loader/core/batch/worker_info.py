"""`WorkerInfo`: what ``torch.utils.data.get_worker_info()`` answers, which datasets call.

Datasets that were written for torch take their share by it. So it names a reader's number among all
readers, whichever process the reader is served by.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.utils.data._utils import worker as torch_worker  # reach: torch: get_worker_info()

from lit_loader.context import WORKERS, Reading, get_rng, reading, reading_apart


class WorkerInfo(torch_worker.WorkerInfo):
    """Torch's, which notes that a dataset (or worker_init_fn) asks whose share it is to give."""

    def __getattribute__(self, name: str) -> Any:
        context = reading()
        if name in ("id", "num_workers", "dataset"):
            context.shard_asked = max(context.shard_asked, WORKERS)
        elif name == "seed" and context.maker is not None:
            return context.maker.seed  # of the batch, or of the sample
        elif name == "rng" and context.maker is not None and _TorchRNG is not None:
            return context.maker.rng.give(None, _generators)
        return super().__getattribute__(name)


# reach: torch: the class of WorkerInfo.rng, which torch 2.13 gives workers in threads
_TorchRNG = getattr(torch_worker, "_RNG", None)


def _generators(seed: int) -> object:
    """Return a generator of each kind for the sample that is being read."""
    return _TorchRNG(random.Random(seed), torch.Generator().manual_seed(seed), get_rng())  # type: ignore[misc]


def shown() -> torch_worker.WorkerInfo | None:
    """Return what is answered now; None: this is no worker."""
    context = reading()
    # reach: torch: the variable behind get_worker_info()
    return context.info if context.of_thread else torch_worker._worker_info


def show(info: torch_worker.WorkerInfo | None) -> None:
    """Set the answer; None: this is no worker."""
    context = reading()
    if context.of_thread:
        context.info = info
        return
    # reach: torch: the variable behind get_worker_info()
    torch_worker._worker_info = info


# --- in threads ---


def answer_threads() -> None:
    """Make torch's functions answer threads of the loader by what they read, from now on.

    They know only the process. A worker thread gets the numbers that a worker process gets.
    """
    _ask_first(torch.utils.data.get_worker_info, lambda own: own.info, lambda own: own.of_thread)
    _ask_first(torch.initial_seed, lambda own: own.maker.seed, lambda own: own.maker is not None)
    found = getattr(torch, "thread_safe_generator", None)  # from 2.13 on
    if found is not None:
        _ask_first(found, lambda own: own.generator, lambda own: own.of_thread)


def _ask_first(
    function: Any, answer: Callable[[Reading], object], knows: Callable[[Reading], bool]
) -> None:
    """Make a function of torch ask ``answer`` where ``knows`` says so, whoever has imported it.

    Datasets have imported the function by now: so its code is replaced, and not its name.
    """
    name = f"lit_loader_{function.__name__}"
    names, code = function.__globals__, function.__code__
    if name in names:
        return
    before = FunctionType(code, names, function.__name__)

    def asked() -> object:
        own = reading_apart()
        return before() if own is None or not knows(own) else answer(own)

    names[name] = asked
    calls = compile(f"def {function.__name__}(): return {name}()", __file__, "exec").co_consts
    function.__code__ = next(each for each in calls if isinstance(each, CodeType))
