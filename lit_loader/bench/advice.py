"""Says in words which settings to use for a dataset and what bounds them, from measured figures.

Used by `bench/grid.py`. The setting: the fewest workers, then the fewest batches ahead, that come
within 5 % of the fastest, which is named too; where the training step's time is known, that keep up
with it. No workers only if any are slower. What bounds it: the first that applies in `_bound`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from lit_loader.bench.rounds import Spread
from lit_loader.bench.settings import OURS, REFERENCE
from lit_loader.statistics.records import LoaderStatistics
from lit_loader.statistics.sentences import percent
from lit_loader.statistics.verdict import CHEAPER, PLACES

__all__ = ["FIGURES", "Point", "advise", "choose"]

FIGURES: Final = (
    "first_batch_seconds", "seconds_per_batch", "processor_seconds_per_batch", "memory_megabytes",
    "descriptors", "step_waits",
)  # fmt: skip
"""What is measured of a setting in a round; the last only where it is known how long a step is."""

_NEAR: Final = 1.05  # times the fastest setting's time that is as good
_BUSY: Final = 0.7  # part of the time from which on a worker or processor counts as busy
_MOST: Final = 0.5  # part of the time that makes one thing its cause
_HIDDEN: Final = 0.02  # part of a step that loading without workers may add to it


@dataclass
class Point:
    """A setting, and what was measured with it."""

    num_workers: int
    prefetch_factor: int  # without workers 0
    rounds: list[dict[str, tuple[float, ...]]] = field(default_factory=list)  # loader to FIGURES
    cannot: dict[str, str] = field(default_factory=dict)  # loader to why it has no figures
    statistics: LoaderStatistics | None = None  # of our loader, from its last round
    cpu: float = 0.0  # processors that were busy with it then, all its processes together
    others: float = 0.0  # processors that were busy with other programs meanwhile

    def __str__(self) -> str:
        prefetch = f" prefetch_factor={self.prefetch_factor}" if self.num_workers else ""
        return f"num_workers={self.num_workers}{prefetch}"

    @property
    def loaders(self) -> list[str]:
        """Loaders with figures, or a reason for having none."""
        found = dict.fromkeys(name for figures in self.rounds for name in figures)
        return list(found | dict.fromkeys(self.cannot))

    def figure(self, loader: str, name: str = "seconds_per_batch") -> Spread | None:
        """One of `FIGURES`; None: not measured."""
        found = [figures[loader] for figures in self.rounds if loader in figures]
        at = FIGURES.index(name)
        return Spread.of([each[at] for each in found if len(each) > at])

    @property
    def measured(self) -> bool:
        """Whether our loader was."""
        return self.statistics is not None and self.figure(OURS) is not None

    @property
    def seconds(self) -> float:
        """A batch of our loader, which was measured."""
        spread = self.figure(OURS)
        assert spread is not None
        return spread.median

    def mean(self, stage: str) -> float:
        """Seconds of a stage of a batch."""
        found: float = getattr(self.statistics, stage).mean
        return found

    @property
    def costs(self) -> dict[str, float]:
        """Seconds a batch of each stage, in whatever process does it."""
        return {name: self.mean(name) for name in PLACES}

    @property
    def busy(self) -> float:
        """How busy the workers were once they ran: what they did for a batch over what it took."""
        return min(1.0, sum(self.costs.values()) / (self.seconds * max(1, self.num_workers)))


def choose(points: Sequence[Point], step_ms: float | None = None) -> Point | None:
    """Choose a setting; None: our loader was measured in none."""
    points = [point for point in points if point.measured]
    if not points:
        return None
    fastest = min(point.seconds for point in points)
    enough = [p for p in points if p.num_workers and p.seconds <= _NEAR * fastest]
    if step_ms is not None:
        step = step_ms / 1e3
        alone = [p for p in points if not p.num_workers and p.seconds <= _HIDDEN * step]
        enough = alone or [p for p in points if p.num_workers and p.seconds <= step] or enough
    if not enough:  # without workers it is fastest
        return min(points, key=lambda point: point.seconds)
    return min(enough, key=lambda point: (point.num_workers, point.prefetch_factor))


def advise(
    points: Sequence[Point],
    *,
    step_ms: float | None,
    samples: float,
    nbytes: int,
    copy: float,
    cores: float,
) -> list[str]:
    """Say which setting to use, what bounds it, and what that is concluded from; a line each.

    A batch has so many ``samples`` and ``nbytes``, which take ``copy`` seconds to be copied.
    """
    points = [point for point in points if point.measured]
    chosen = choose(points, step_ms)
    if chosen is None:
        return ["nothing was measured, so there is nothing to advise"]
    most = max(point.num_workers for point in points)
    return [
        f"use {chosen}: {_use(chosen, points, samples)}{_step(chosen, step_ms)}",
        f"bound by {_bound(chosen, copy, cores, most)}",
        f"measured: {_measured(chosen, nbytes, copy)}",
    ]


def _use(chosen: Point, points: Sequence[Point], samples: float) -> str:
    parts = [f"{_time(chosen.seconds)} a batch ({samples / chosen.seconds:,.0f} samples/s)"]
    alone = next((point for point in points if not point.num_workers), None)
    if alone is not None and chosen.num_workers:
        parts.append(f"{alone.seconds / chosen.seconds:.1f} times as fast as without workers")
    fastest = min(points, key=lambda point: point.seconds)
    if fastest.seconds < chosen.seconds:
        slower = chosen.seconds / fastest.seconds - 1
        cost = "takes more processes or memory" if fastest.num_workers else "adds to each step"
        parts.append(f"{percent(slower)} slower than {fastest}, which {cost}")
    theirs = chosen.figure(REFERENCE)
    if theirs is not None:
        times = theirs.median / chosen.seconds
        parts.append(f"{times:.1f} times as fast as torch's loader with it")
    return ", ".join(parts)


def _step(chosen: Point, step_ms: float | None) -> str:
    if step_ms is None:
        return ""
    if chosen.num_workers and chosen.seconds * 1e3 <= step_ms:
        return f"; it keeps up with steps of {step_ms:g} ms"
    if not chosen.num_workers and chosen.seconds * 1e3 <= _HIDDEN * step_ms:
        return f"; beside steps of {step_ms:g} ms that hardly shows"
    return f"; no setting keeps up with steps of {step_ms:g} ms"


def _bound(chosen: Point, copy: float, cores: float, most: int) -> str:
    costs, busy = chosen.costs, percent(chosen.busy)
    stage = max(costs, key=costs.__getitem__)
    cheaper = CHEAPER[stage]
    spent = f"{percent(costs[stage] / max(sum(costs.values()), 1e-12))} of it {PLACES[stage]}"
    if not chosen.num_workers:
        return (
            "this process itself: making a batch costs less than handing it over does, "
            f"{spent}: larger batches make workers worth while"
        )
    if copy >= _MOST * chosen.seconds:
        return (
            f"memory: copying a batch once takes {_time(copy)}: "
            "smaller types (uint8, bfloat16) until the data is on the accelerator help"
        )
    if chosen.busy < _BUSY:
        if chosen.mean("decode") >= _MOST * chosen.seconds:
            return (
                "rebuilding batches in this process: return tensors or arrays, or fewer of them, "
                "instead of objects that take long to unpickle"
            )
        return (
            f"handing batches over: workers were only {busy} busy; larger batches cost less for "
            "each sample"
        )
    computing = min(1.0, chosen.cpu / max(chosen.busy * chosen.num_workers, 1e-12))
    idle = cores - chosen.cpu - chosen.others
    if computing < _BUSY and idle < (1 - _BUSY) * cores and chosen.others > chosen.cpu:
        return (
            f"other programs, which kept {chosen.others:.1f} of {cores:g} processors busy: workers "
            f"were {busy} busy, {spent}, and had a processor for {percent(computing)} of that; "
            "measure again on a quiet machine"
        )
    if computing < _BUSY and chosen.cpu < _BUSY * cores:
        more = f"; try grid.num_workers=[{2 * most}]" if chosen.num_workers == most else ""
        return (
            f"waiting, {spent}: workers were {busy} busy and computed for {percent(computing)} of "
            f"that, so more of them than there are processors help{more}"
        )
    advice = f"more workers do not help: {cheaper}"
    if most < cores:
        advice = (
            f"there are {cores:g} processors: try grid.num_workers=[{int(cores)}], or {cheaper}"
        )
    return f"processors: workers were {busy} busy, {spent}; {advice}"


def _measured(chosen: Point, nbytes: int, copy: float) -> str:
    costs = ", ".join(f"{name} {_time(seconds)}" for name, seconds in chosen.costs.items())
    text = f"a batch of {nbytes / 1e6:.3g} MB: {costs}"
    if not chosen.num_workers:
        return text
    return (
        f"{text} in a worker, decode {_time(chosen.mean('decode'))} here; one copy {_time(copy)}; "
        f"workers {percent(chosen.busy)} busy; {chosen.cpu:.1f} processors used"
    )


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
