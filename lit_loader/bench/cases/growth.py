"""Growth: what a batch costs against its bytes, its tensors, the workers, the dataset's length.

Each line is measured point by point. Its figure is the steepest growth between neighbours: the
exponent e of cost ~ x**e. 0 is a cost that stays, 1 one that grows in proportion; a knee is more.
(The bounds for e are this benchmark's own: what caches of two sizes do to a copy stays below them.)
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lit_loader.bench.core.results import Measurement, Target
from lit_loader.bench.core.settings import Settings
from lit_loader.bench.data.datasets import Block, ManyTensors, Tensors
from lit_loader.bench.loaders.interface import OpenLoader, Setup
from lit_loader.bench.measure.limits import Limit
from lit_loader.bench.measure.rounds import Figures, seconds_per_batch
from lit_loader.bench.measure.session import MICRO, Row, Session

__all__ = ["Line", "rows", "steepest"]


@dataclass(frozen=True)
class Line:
    """A line of points.

    Attributes:
        axis: What x counts.
        xs: The points.
        quick: The points of a quick run.
        steepest: Growth that is allowed between neighbours, as an exponent.
        point: Gives dataset, setup and batches of a round for an x.
    """

    axis: str
    xs: tuple[int, ...]
    quick: tuple[int, ...]
    steepest: float
    point: Callable[[int, Settings], tuple[Any, Setup, int]]


def _bytes(x: int, settings: Settings) -> tuple[Any, Setup, int]:
    batches = settings.count(max(4, min(300, 10**9 // x)))
    setup = Setup(None, settings.num_workers, settings.prefetch_factor)
    return Block(setup.length(batches), x), setup, batches


def _tensors(x: int, settings: Settings) -> tuple[Any, Setup, int]:
    batches = settings.count(max(4, min(300, 20_000 // x)))
    setup = Setup(None, settings.num_workers, settings.prefetch_factor)
    return ManyTensors(setup.length(batches), x, numbers=8, keyed=False), setup, batches


def _workers(x: int, settings: Settings) -> tuple[Any, Setup, int]:
    batches = settings.count(1000, quick=8)
    setup = Setup(32, x, settings.prefetch_factor)
    return Tensors(setup.length(batches), (16,)), setup, batches


def _length(x: int, settings: Settings) -> tuple[Any, Setup, int]:
    setup = Setup(32, settings.num_workers, settings.prefetch_factor, shuffle=True)
    return Tensors(x, (16,)), setup, min(x // 32 - 1, settings.count(300))


LINES = (
    Line("bytes", tuple(10**e for e in range(3, 10)), (1_000, 1_000_000), 1.3, _bytes),
    Line("tensors", (1, 10, 100, 1_000, 10_000), (1, 100), 1.3, _tensors),
    Line("workers", (1, 2, 4, 8, 16, 32, 64), (1, 2), 0.3, _workers),
    Line("samples", tuple(10**e for e in range(3, 10)), (1_000, 10**9), 0.1, _length),
)


def rows(settings: Settings) -> list[Row]:
    """All points of all lines; a line's growth comes with its last point."""
    found = []
    for line in LINES:
        xs = line.quick if settings.quick else line.xs
        for x in xs:
            run = functools.partial(_run, line=line, x=x, last=x == xs[-1])
            found.append(Row("growth", f"{x:,} {line.axis}", run))
    return found


def steepest(points: list[tuple[float, float]]) -> float | None:
    """The largest exponent between neighbouring points; None: there are less than two.

    Args:
        points: (x, cost), both above 0.
    """
    ordered = sorted(points)
    pairs = itertools.pairwise(ordered)
    return max((math.log(d / b) / math.log(c / a) for (a, b), (c, d) in pairs), default=None)


def _run(session: Session, *, line: Line, x: int, last: bool) -> None:
    dataset, setup, batches = line.point(x, session.settings)
    measurement = Measurement("growth", f"{x:,} {line.axis}", "µs/batch", axis=line.axis, x=x)
    reason = _too_large(x * setup.ahead) if line.axis == "bytes" else ""
    # Epochs of all lengths are left early and begun anew, which is part of their cost.
    skip = 0 if line.axis == "samples" else setup.ahead

    def figure(opened: OpenLoader) -> Figures:
        return {"": seconds_per_batch(opened, skip=skip, batches=batches, leave=not skip) * MICRO}

    openers = session.loaders(dataset, setup, figure)
    if reason:
        measurement.cannot = dict.fromkeys(openers, reason)
        session.compare(measurement, {})
    else:
        limit = Limit(dataset, setup, max(1, batches // 10))
        session.compare_with_limit(measurement, openers, limit)
    if last:
        _add_growth(session, line)


def _too_large(nbytes: int) -> str:
    """Why so many bytes in flight are too many, for each of several loaders; "": they are not."""
    from lit_loader.system.cgroups import memory_limits

    available = memory_limits().available
    if available is None or 2 * nbytes < available:
        return ""
    return f"{nbytes / 1e9:.0f} GB would be in flight, {available / 1e9:.0f} are available"


def _add_growth(session: Session, line: Line) -> None:
    """Add the row with a line's steepest growth, once all of its points are measured."""
    points = [m for m in session.measurements if m.case == "growth" and m.axis == line.axis]
    summary = Measurement(
        "growth",
        f"steepest growth with {line.axis}",
        "exponent",
        (Target("figure", line.steepest),),
    )
    figures = {}
    for name in dict.fromkeys(name for m in points for name in m.loaders):
        found = [(m.x, spread.median) for m in points if m.x and (spread := m.figure(name))]
        growth = steepest(found)
        if growth is not None:
            figures[name] = growth
    if figures:
        summary.add_round(figures)
        session.measurements.append(summary)
