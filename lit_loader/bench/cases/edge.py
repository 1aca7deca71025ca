"""Epoch edge: how much longer the first batch of an epoch is waited for than others are.

The consumer does nothing, the samples sleep for times that differ, at random, by up to a half, and
the workers persist. The wait at an edge begins when the last batch of the epoch before was given
out, so that it includes the end of that epoch. Both waits are medians; their ratio is the figure.
"""

from __future__ import annotations

import functools
import statistics
import time

from lit_loader.bench.core.results import Measurement, Target
from lit_loader.bench.core.settings import Settings
from lit_loader.bench.data.datasets import Jittering
from lit_loader.bench.loaders.interface import OpenLoader, Setup
from lit_loader.bench.measure.rounds import Figures
from lit_loader.bench.measure.session import Row, Session

__all__ = ["rows", "waits"]


def rows(settings: Settings) -> list[Row]:
    """Short epochs, long epochs."""
    return [
        Row("edge", f"epochs of {n:,} batches", functools.partial(_run, batches=n, epochs=epochs))
        for n, epochs in ((3, 40), (settings.count(1000, quick=20), 5))
    ]


def waits(opened: OpenLoader, epochs: int) -> tuple[list[float], list[float]]:
    """Seconds waited at the edges, and within epochs.

    Args:
        opened: A loader that has loaded an epoch before.
        epochs: So many edges are met, one fewer than epochs.
    """
    edges: list[float] = []
    within: list[float] = []
    last: float | None = None
    for _ in range(epochs):
        first = True
        for _ in opened.epoch():
            now = time.perf_counter()
            if last is not None:
                (edges if first else within).append(now - last)
            last, first = time.perf_counter(), False
    return edges, within


def _run(session: Session, *, batches: int, epochs: int) -> None:
    settings = session.settings
    epochs = settings.count(epochs, quick=4)
    dataset = Jittering(batches, 0.004 if batches <= 20 else 0.001, 0.5)
    setup = Setup(1, settings.num_workers, settings.prefetch_factor)
    name = f"epochs of {batches:,} batches"
    ratio = Measurement("edge", name, "ratio", (Target("figure", 1.2),))
    edge = Measurement("edge", f"{name}: wait at the edge", "µs")
    usual = Measurement("edge", f"{name}: median wait", "µs")

    def figure(opened: OpenLoader) -> Figures:
        edges, within = (statistics.median(found) for found in waits(opened, epochs))
        return {"": edges / within, "edge": edges * 1e6, "usual": within * 1e6}

    openers = session.loaders(dataset, setup, figure)
    session.compare({"": ratio, "edge": edge, "usual": usual}, openers)
