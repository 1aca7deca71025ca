"""What exactness costs: checkpoints, resuming early and late, seeding, a billion shuffled items.

Figures of our loader alone: others have no such state, or replay the data to reach it.
"""

from __future__ import annotations

import functools
import pickle
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from lit_loader.bench.core.names import OURS
from lit_loader.bench.core.results import Measurement
from lit_loader.bench.core.settings import Settings
from lit_loader.bench.data.datasets import Tensors
from lit_loader.bench.measure.rounds import Figures
from lit_loader.bench.measure.session import MICRO, Row, Session, plain_opener
from lit_loader.loader import DataLoader
from lit_loader.seeding.seeds import derive, extend, sample_seed, seed_globals

__all__ = ["rows"]

_LENGTH = 1_000_000
_EPOCH_SEED = derive(1, 2)


def rows(settings: Settings) -> list[Row]:
    """State, resuming, seeding, a long order."""
    figures: tuple[tuple[str, str, Callable[[int], float]], ...] = (
        ("checkpoint state, pickled", "bytes", lambda _: float(len(pickle.dumps(_state())))),
        ("state_dict()", "µs", _state_dict),
        ("first batch, not resumed", "µs", functools.partial(_first_batch, None)),
        ("first batch, resumed at 1 %", "µs", functools.partial(_first_batch, 1)),
        ("first batch, resumed at 99 %", "µs", functools.partial(_first_batch, 99)),
        ("seeding a batch", "µs", _seed_batch),
        ("seeding a sample", "µs", _seed_sample),
        ("first batch of 10^9 shuffled items", "µs", _billion),
        ("memory for it", "kB", _billion_memory),
    )
    return [
        Row("exactness", name, functools.partial(_run, name=name, unit=unit, figure=figure))
        for name, unit, figure in figures
    ]


def _run(session: Session, *, name: str, unit: str, figure: Callable[[int], float]) -> None:
    times = session.settings.count(51, quick=3)

    def measured() -> Figures:
        return {"": figure(times)}

    # Other loaders have no such figure, so it makes no difference which were chosen.
    session.compare(Measurement("exactness", name, unit), {OURS: plain_opener(measured)})


def _loader() -> DataLoader[Any]:
    return DataLoader(Tensors(_LENGTH, (16,)), batch_size=32, shuffle=True, seed=1)


def _state() -> dict[str, Any]:
    loader = _loader()
    next(iter(loader))
    return loader.state_dict()


def _state_dict(times: int) -> float:
    loader = _loader()
    next(iter(loader))
    return _median(loader.state_dict, times)


def _first_batch(percent: int | None, times: int) -> float:
    state = _state()
    if percent is not None:
        batches = len(_loader()) * percent // 100
        state["samples"] = state["samples"] // state["batches"] * batches
        state["batches"] = batches

    def first_batch() -> None:
        loader = _loader()
        if percent is not None:
            loader.load_state_dict(state)
        next(iter(loader))

    return _median(first_batch, times)


def _seed_batch(times: int) -> float:
    return _median(lambda: seed_globals(extend(_EPOCH_SEED, 3)), times)


def _seed_sample(times: int) -> float:
    return _median(lambda: seed_globals(sample_seed(_EPOCH_SEED, 3)), times)


def _billion(times: int) -> float:
    return _median(lambda: next(iter(_long())), times)


def _billion_memory(times: int) -> float:
    tracemalloc.start()
    try:
        next(iter(_long()))
        return tracemalloc.get_traced_memory()[1] / 1e3
    finally:
        tracemalloc.stop()


def _long() -> DataLoader[Any]:
    return DataLoader(range(10**9), batch_size=32, shuffle=True, seed=1)  # type: ignore[arg-type]


def _median(call: Callable[[], object], times: int) -> float:
    """Microseconds of a call."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken) * MICRO
