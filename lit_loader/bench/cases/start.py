"""Start: the time from making a loader to its first batch, then everything is ended again.

For a dataset object that is small and one that is large (an array and many strings, all of which
a start method other than fork has to carry over), under each start method, with more and more
workers.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from multiprocessing import get_all_start_methods
from typing import Any

from lit_loader.bench.core.results import Measurement
from lit_loader.bench.core.settings import Settings
from lit_loader.bench.data.datasets import LargeObject, Tensors
from lit_loader.bench.loaders.interface import LoaderAdapter, Setup
from lit_loader.bench.measure.rounds import Opener, Subject
from lit_loader.bench.measure.session import Row, Session

__all__ = ["rows"]

_ROUNDS = 3
"""At most: starting 32 workers by spawn takes a minute where there are two processors."""

_LENGTH = 4096
_BATCH = 16


def rows(settings: Settings) -> list[Row]:
    """Datasets × start methods × workers."""
    found = []
    for size in ("small", "large"):
        for method in get_all_start_methods():
            for workers in _workers(settings, method):
                name = f"{size} dataset, {method}, {workers} workers"
                run = functools.partial(_run, name=name, size=size, method=method, workers=workers)
                found.append(Row("start", name, run))
    return found


def _workers(settings: Settings, method: str) -> tuple[int, ...]:
    if not settings.quick:
        return (1, 8, 32)
    return (1, 2) if method == "fork" else (1,)


def _run(session: Session, *, name: str, size: str, method: str, workers: int) -> None:
    dataset: Any = Tensors(_LENGTH, (16,))
    if size == "large":
        quick = session.settings.quick
        dataset = LargeObject(_LENGTH, 1 if quick else 200, 1_000 if quick else 500_000)
    setup = Setup(
        _BATCH,
        workers,
        session.settings.prefetch_factor,
        persistent=False,
        start_method=method,
    )
    measurement = Measurement("start", name, "ms")
    openers = {name: _opener(each, dataset, setup) for name, each in session.adapters.items()}
    session.compare(measurement, openers, rounds=min(_ROUNDS, session.settings.rounds))


def _opener(adapter: LoaderAdapter, dataset: Any, setup: Setup) -> Opener:
    def first_batch() -> dict[str, float]:
        begin = time.perf_counter()
        opened = adapter.open(dataset, setup)
        try:
            epoch = opened.epoch()
            next(epoch)
            taken = time.perf_counter() - begin
            # Its workers end with it; SPDL's iterator ends them only when it is closed.
            close = getattr(epoch, "close", None)
            if close is not None:
                close()
            del epoch
        finally:
            opened.close()
        return {"": taken * 1e3}

    @contextlib.contextmanager
    def open_() -> Iterator[Subject]:
        yield first_batch

    return open_
