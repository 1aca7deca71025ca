"""What torch's functions answer a worker thread: they are asked by datasets, and know processes."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch
import torch.utils.data

from lit_loader.context import reading_here
from lit_loader.core.batch.worker_info import shown
from lit_loader.core.seeding.seeds import of_thread


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
