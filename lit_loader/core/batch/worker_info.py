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

from lit_loader.context import WORKERS, get_rng, reading, reading_here
from lit_loader.core.seeding.seeds import of_thread
from lit_loader.errors import OptionError

__all__ = ["ProcessInfo", "WorkerInfo", "answer_threads", "show", "show_in_place_of", "shown"]


class WorkerInfo(torch_worker.WorkerInfo):
    """Torch's, which notes that a dataset (or worker_init_fn) asks whose share it is to give."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("id", "num_workers", "dataset"):
            reading.shard_asked = max(reading.shard_asked, WORKERS)
        elif name == "rng" and _TorchRNG is not None and reading.maker is not None:
            return reading.maker.rng.give(None, _generators)
        return super().__getattribute__(name)


# reach: torch: the class of WorkerInfo.rng, which torch 2.13 gives workers in threads
_TorchRNG = getattr(torch_worker, "_RNG", None)


def _generators(seed: int) -> Any:
    """Give a generator of each kind for the sample that is being read."""
    return _TorchRNG(random.Random(seed), torch.Generator().manual_seed(seed), get_rng())  # type: ignore[misc]


class ProcessInfo(WorkerInfo):
    """What worker_init_fn finds with ``num_shards``: the process, in which no reader is."""

    def __getattribute__(self, name: str) -> Any:
        if name == "dataset":
            raise OptionError(
                "worker_init_fn asks for get_worker_info().dataset, but with num_shards each "
                "reader has a copy of the dataset, whichever worker serves it: let the dataset "
                "take its share itself, in __iter__, by lit_loader.get_shard() or "
                "get_worker_info() [LL203]"
            )
        return super().__getattribute__(name)


def shown() -> Any:
    """Give what is answered now; None: this is no worker."""
    own = reading_here()
    if own is not None:
        return own.info
    # reach: torch: the variable behind get_worker_info()
    return torch_worker._worker_info


def show(info: Any) -> None:
    """Let this be answered; None: this is no worker."""
    own = reading_here()
    if own is not None:
        own.info = info
        return
    # reach: torch: the variable behind get_worker_info()
    torch_worker._worker_info = info


def show_in_place_of(former: Any, dataset: Any) -> None:
    """Let a reader's dataset be answered where another was."""
    told, info = object.__getattribute__, shown()  # nobody has asked for a share
    if type(info) is WorkerInfo and told(info, "dataset") is former:
        rest = {name: told(info, name) for name in ("id", "num_workers", "seed")}
        show(WorkerInfo(**rest, dataset=dataset))


# --- worker threads ---


def answer_threads() -> None:
    """Have torch's functions answer each worker thread, and what reads for it, from now on.

    `torch.thread_safe_generator` gives what numbers the global generator has in a worker process,
    `torch.initial_seed` what it has been seeded by there.
    """
    _put_before(torch.initial_seed, lambda: getattr(shown(), "seed", 0))
    _put_before(torch.utils.data.get_worker_info, shown)
    # From 2.13 on, for transforms; a process has the global generator for it.
    found = getattr(torch, "thread_safe_generator", None)
    if found is not None:
        _put_before(found, lambda: of_thread.generator)


def _put_before(function: Any, answer: Callable[[], Any]) -> None:
    """Let a function without arguments ask another one first, whoever has imported it by now."""
    name = f"lit_loader_{function.__name__}"
    names, code = function.__globals__, function.__code__
    if name not in names:
        before = FunctionType(code, names, function.__name__)
        names[name] = lambda: before() if reading_here() is None else answer()
        inner = compile(f"def {function.__name__}(): return {name}()", __file__, "exec").co_consts
        function.__code__ = next(each for each in inner if isinstance(each, CodeType))
