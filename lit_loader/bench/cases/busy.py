"""A busy consumer: a training loop that holds the GIL in pure Python for 5 ms at a time.

What a loader does in threads of the training process has to wait for the GIL; workers that depend
on it stand still meanwhile. Two rows: the consumer is slower than the workers together, or the
workers are slower. The limit is the larger of the consumer's own time for a step and the time of a
batch over the workers, both measured in the same rounds; the samples sleep.
"""

from __future__ import annotations

import functools
import time

from lit_loader.bench.cases.stragglers import Oversleep
from lit_loader.bench.core.results import LIMIT, Measurement, Target
from lit_loader.bench.core.settings import Settings
from lit_loader.bench.data.datasets import Sleeping
from lit_loader.bench.loaders.interface import OpenLoader, Setup
from lit_loader.bench.measure.rounds import Figures, seconds_per_batch
from lit_loader.bench.measure.session import MICRO, Row, Session, plain_opener

__all__ = ["hold_the_gil", "rows"]

STEP = 0.005
"""Seconds of a step."""


def rows(settings: Settings) -> list[Row]:
    """Workers faster, workers slower than the consumer."""
    workers = settings.num_workers
    found = []
    for what, share in (("consumer", 0.8), ("workers", 1.2)):
        name = f"steps of 5 ms, the {what} slower"
        # So that the workers together need `share` of a step for a batch.
        run = functools.partial(_run, name=name, seconds=share * STEP * workers)
        found.append(Row("busy", name, run))
    return found


def hold_the_gil(seconds: float) -> None:
    """Compute in pure Python, for so long."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(100))


def _run(session: Session, *, name: str, seconds: float) -> None:
    settings = session.settings
    batches = settings.count(200, quick=10)
    setup = Setup(1, settings.num_workers, settings.prefetch_factor)
    dataset = Sleeping(setup.length(batches), seconds)
    oversleep = Oversleep(dataset, times=5)

    def figure(opened: OpenLoader) -> Figures:
        seconds = seconds_per_batch(
            opened, skip=setup.ahead, batches=batches, step=lambda: hold_the_gil(STEP)
        )
        return {"": seconds * MICRO}

    def bound() -> Figures:
        begin = time.perf_counter()
        for _ in range(20):
            hold_the_gil(STEP)
        step = (time.perf_counter() - begin) / 20
        return {"": max(step, (seconds + oversleep()) / settings.num_workers) * MICRO}

    measurement = Measurement(
        "busy", name, "µs/batch", (Target("of_limit", 0.95),), limit_by="the slower of the two"
    )
    openers = session.loaders(dataset, setup, figure)
    session.compare(measurement, {**openers, LIMIT: plain_opener(bound)})
