"""Data in memory: an epoch of small rows, shuffled, against slicing the tensors by hand.

The limit is ``x[order[i : i + n]], y[order[i : i + n]]`` in this process, its permutation included.
Without workers nothing is handed over; with workers everything is, so there the limit is what a
loader should come close to although its way is longer.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import TensorDataset

from lit_loader.bench.core.results import LIMIT, Measurement, Target
from lit_loader.bench.core.settings import Settings
from lit_loader.bench.data.datasets import Slices, keep
from lit_loader.bench.loaders.interface import OpenLoader, Setup
from lit_loader.bench.measure.rounds import Figures, seconds_per_batch
from lit_loader.bench.measure.session import MICRO, Row, Session, plain_opener

__all__ = ["rows"]

_BATCH = 256
_WIDTH = 64

_KINDS: tuple[tuple[str, Callable[[torch.Tensor, torch.Tensor], Any], Any], ...] = (
    ("TensorDataset", TensorDataset, None),
    ("__getitems__, collated", functools.partial(Slices, whole=False), None),
    ("__getitems__, whole batches", functools.partial(Slices, whole=True), keep),
)


def rows(settings: Settings) -> list[Row]:
    """Kinds of datasets × without and with workers."""
    found = []
    for kind, make, collate_fn in _KINDS:
        for workers in (0, settings.num_workers):
            name = f"{kind}, {workers} workers"
            run = functools.partial(
                _run, name=name, make=make, collate_fn=collate_fn, workers=workers
            )
            found.append(Row("in_memory", name, run))
    return found


def _run(session: Session, *, name: str, make: Any, collate_fn: Any, workers: int) -> None:
    settings = session.settings
    setup = Setup(_BATCH, workers, settings.prefetch_factor, shuffle=True, collate_fn=collate_fn)
    batches = settings.count(400)
    samples = setup.length(batches)
    data, labels = torch.rand(samples, _WIDTH), torch.arange(samples)

    def by_hand() -> Figures:
        begin = time.perf_counter()
        order = torch.randperm(samples)
        for first in range(0, samples, _BATCH):
            chosen = order[first : first + _BATCH]
            data[chosen], labels[chosen]
        return {"": (time.perf_counter() - begin) / (samples // _BATCH) * MICRO}

    measurement = Measurement(
        "in_memory", name, "µs/batch", (Target("of_limit", 0.5),), limit_by="slicing by hand"
    )

    def figure(opened: OpenLoader) -> Figures:
        return {"": seconds_per_batch(opened, skip=setup.ahead, batches=batches) * MICRO}

    openers = session.loaders(make(data, labels), setup, figure)
    session.compare(measurement, {**openers, LIMIT: plain_opener(by_hand)})
