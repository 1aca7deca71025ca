"""How fast a loader is, and what it takes."""

from __future__ import annotations

import statistics
import time
from typing import Final

from lit_loader.bench.cluster.loaders import CASES, opened
from lit_loader.bench.cluster.nodes import processor_seconds

__all__ = ["FIGURES", "batches_in_all", "measured"]

_WARM: Final = 2
_EPOCHS: Final = 3

FIGURES: Final = ("ms a batch", "first batch, s", "epoch edge, ms", "processor, ms a batch")


def batches_in_all(case: str) -> int:
    """How many batches a measurement takes."""
    _, _, length, size = CASES[case]
    return (_WARM + _EPOCHS) * (length // size)


def measured(loader: str, case: str, workers: int, address: str) -> dict[str, float]:
    """Measure a loader once; the first two epochs are not counted but for their beginnings.

    What a batch takes is counted from an epoch's first one on: some take seconds to begin an epoch.
    """
    began = time.perf_counter()
    used = opened(loader, case, workers, address)
    batches = used.epoch()
    next(batches)
    first = time.perf_counter() - began
    for _ in batches:
        pass
    ended = time.perf_counter()
    batches = used.epoch()
    next(batches)
    edge = time.perf_counter() - ended
    for _ in batches:  # the relay compares a first batch, for which it imports torch
        pass
    times, count, processor = [], 0, processor_seconds()
    for _ in range(_EPOCHS):
        batches = used.epoch()
        next(batches)
        began = time.perf_counter()
        others = sum(1 for _ in batches)
        times.append((time.perf_counter() - began) / others)
        count += 1 + others
    spent = processor_seconds() - processor
    figures = (1e3 * statistics.median(times), first, 1e3 * edge, 1e3 * spent / count)
    return dict(zip(FIGURES, figures, strict=True))
