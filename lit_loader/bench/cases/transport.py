"""Transport: samples cost next to nothing, so what is measured is what a loader adds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lit_loader.bench.core.results import Measurement, Target
from lit_loader.bench.core.settings import Settings
from lit_loader.bench.data import datasets
from lit_loader.bench.loaders.interface import OpenLoader, Setup
from lit_loader.bench.measure.limits import Limit
from lit_loader.bench.measure.rounds import Figures, seconds_per_batch
from lit_loader.bench.measure.session import MICRO, Row, Session

__all__ = ["KINDS", "Kind", "rows"]

LARGE = 1_000_000
"""Bytes of a batch from which on the limit is a target, too."""


@dataclass(frozen=True)
class Kind:
    """A kind of batch.

    Attributes:
        name: What it is.
        make: Makes the dataset of a number of samples.
        batch_size: Samples a batch; None: samples are passed on as they are.
        batches: Batches a round.
        times: How many times as fast as torch our loader is to be.
        collate_fn: Makes the batch; None: torch's default.
    """

    name: str
    make: Callable[[int], Any]
    batch_size: int | None
    batches: int
    times: float
    collate_fn: Callable[[list[Any]], Any] | None = None


KINDS = (
    Kind(
        "32x3x224x224 float32 + 32 ints",
        lambda n: datasets.Tensors(n, (3, 224, 224), True),
        32,
        60,
        15,
    ),
    Kind("32x3x64x64 float32", lambda n: datasets.Tensors(n, (3, 64, 64)), 32, 400, 15),
    Kind("32x16 float32", lambda n: datasets.Tensors(n, (16,)), 32, 1000, 15),
    Kind("batch of 1", lambda n: datasets.Tensors(n, (16,)), 1, 1000, 15),
    Kind("dict of 20 tensors, batch of 8", lambda n: datasets.ManyTensors(n, 20), 8, 300, 15),
    Kind(
        "1,000 tensors of 32 bytes",
        lambda n: datasets.ManyTensors(n, 1000, numbers=8, keyed=False),
        None,
        20,
        10,
    ),
    Kind(
        "32 structured arrays of 1,000",
        lambda n: datasets.Arrays(n, 1000),
        32,
        300,
        10,
        datasets.stack_arrays,
    ),
    Kind("256 strings", datasets.Strings, 256, 300, 10),
    Kind(
        "8x3x1024x1024 float32 (100 MB)",
        lambda n: datasets.Tensors(n, (3, 1024, 1024), pool=8),
        8,
        12,
        10,
    ),
    Kind("32 ragged lists of ints", datasets.Ragged, 32, 500, 10, datasets.keep),
)


def rows(settings: Settings) -> list[Row]:
    """One row a kind of batch."""
    return [Row("transport", kind.name, _Run(kind)) for kind in KINDS]


class _Run:
    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def __call__(self, session: Session) -> None:
        kind, settings = self._kind, session.settings
        batches = settings.count(kind.batches)
        setup = Setup(
            kind.batch_size,
            settings.num_workers,
            settings.prefetch_factor,
            collate_fn=kind.collate_fn,
        )
        dataset = kind.make(setup.length(batches))
        limit = Limit(dataset, setup, max(1, batches // 10))
        targets = [Target("vs_torch", kind.times)]
        if limit.nbytes >= LARGE:
            targets.append(Target("of_limit", 0.5))
        measurement = Measurement("transport", kind.name, "µs/batch", tuple(targets))

        def figure(opened: OpenLoader) -> Figures:
            return {"": seconds_per_batch(opened, skip=setup.ahead, batches=batches) * MICRO}

        openers = session.loaders(dataset, setup, figure)
        session.compare_with_limit(measurement, openers, limit)
