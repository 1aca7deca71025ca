"""Stragglers: one sample in a hundred takes 50 times as long; four workers; batches in order.

The samples sleep, so four workers can keep busy on any number of processors, and the bound is the
mean cost of a batch over four. What a sample's sleep costs beyond its nominal time is measured in
this process and part of the bound.
"""

from __future__ import annotations

import itertools
import time

from lit_loader.bench.core.results import LIMIT, Measurement, Target
from lit_loader.bench.core.settings import Settings
from lit_loader.bench.data.datasets import Sleeping
from lit_loader.bench.loaders.interface import OpenLoader, Setup
from lit_loader.bench.measure.rounds import Figures, seconds_per_batch
from lit_loader.bench.measure.session import MICRO, Row, Session, plain_opener

__all__ = ["Oversleep", "rows"]

WORKERS = 4
BATCH = 32
_NAME = "32 samples of 1 ms, 1 % of 50 ms"


def rows(settings: Settings) -> list[Row]:
    """One row."""
    return [Row("stragglers", _NAME, _run)]


class Oversleep:
    """What a sleep takes beyond its time, in seconds, measured now.

    Args:
        dataset: Whose samples are slept; the cheap ones, in their order, again and again.
        times: How many of them for one figure.
    """

    def __init__(self, dataset: Sleeping, times: int = 50) -> None:
        costs = dataset.seconds
        usual = sorted(costs)[len(costs) // 2]
        cheap = [index for index, cost in enumerate(costs) if cost <= 2 * usual]
        self._dataset, self._times, self._cheap = dataset, times, itertools.cycle(cheap)

    def __call__(self) -> float:
        """Seconds a sample."""
        indices = list(itertools.islice(self._cheap, self._times))
        begin = time.perf_counter()
        for index in indices:
            self._dataset[index]
        taken = time.perf_counter() - begin
        return max(0.0, taken - sum(self._dataset.seconds[i] for i in indices)) / self._times


def _run(session: Session) -> None:
    settings = session.settings
    batches = settings.count(100, quick=8)
    setup = Setup(BATCH, WORKERS, settings.prefetch_factor)
    dataset = Sleeping(setup.length(batches), 0.001, slow=0.01, times=50)
    oversleep = Oversleep(dataset)
    mean = sum(dataset.seconds) / len(dataset)

    def bound() -> Figures:
        return {"": BATCH * (mean + oversleep()) / WORKERS * MICRO}

    measurement = Measurement(
        "stragglers",
        _NAME,
        "µs/batch",
        (Target("of_limit", 0.9),),
        limit_by="mean cost of a batch / 4 workers",
    )

    def figure(opened: OpenLoader) -> Figures:
        return {"": seconds_per_batch(opened, skip=setup.ahead, batches=batches) * MICRO}

    openers = session.loaders(dataset, setup, figure)
    session.compare(measurement, {**openers, LIMIT: plain_opener(bound)})
