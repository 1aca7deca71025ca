"""Says in words which settings to use for a dataset and what bounds them, from measured figures.

Used by `bench/grid.py`. The setting: the fewest workers, then the fewest batches ahead, that come
within 5 % of the fastest, which is named too; where the training step's time is known, that keep up
with it. No workers only if any are slower; threads, or "auto", only where processes, or fixed
numbers, do not come as near. What bounds it is the verdict on our loader's statistics
(`profiling/verdict.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from lit_loader.bench.rounds import Spread
from lit_loader.bench.settings import OURS, REFERENCE
from lit_loader.diagnostics.sentences import percent
from lit_loader.profiling.verdict import MADE, LoaderStatistics, cause

__all__ = ["FIGURES", "Point", "advise", "choose"]

FIGURES: Final = (
    "first_batch_seconds", "seconds_per_batch", "processor_seconds_per_batch", "memory_megabytes",
    "descriptors", "step_waits",
)  # fmt: skip
"""What is measured of a setting in a round; the last only where it is known how long a step is."""

_NEAR: Final = 1.05  # times the fastest setting's time that is as good
UNSURE: Final = 0.25  # of its median, that a setting's figures may differ by
CROWDED: Final = 0.5  # load a processor, before anything is measured, from which on others run
_DEAR: Final = 2e-3  # seconds of a batch for which handing it over is not what takes long
_HIDDEN: Final = 0.02  # part of a step that loading without workers may add to it


@dataclass
class Point:
    """A setting, and what was measured with it."""

    num_workers: int
    prefetch_factor: int  # without workers 0
    rounds: list[dict[str, dict[str, float]]] = field(default_factory=list)  # loader to FIGURES
    cannot: dict[str, str] = field(default_factory=dict)  # loader to why it has no figures
    statistics: LoaderStatistics | None = None  # of our loader, from its last round
    cpu: float = 0.0  # processors that were busy with it then, all its processes together
    threads: bool = False  # whether the workers are threads
    auto: bool = False  # whether it is num_workers="auto", which came to so many

    def __str__(self) -> str:
        if self.auto:
            return 'num_workers="auto"'
        prefetch = f" prefetch_factor={self.prefetch_factor}" if self.num_workers else ""
        method = ' worker_method="thread"' if self.threads else ""
        return f"num_workers={self.num_workers}{prefetch}{method}"

    @property
    def loaders(self) -> list[str]:
        """Loaders with figures, or a reason for having none."""
        found = dict.fromkeys(name for figures in self.rounds for name in figures)
        return list(found | dict.fromkeys(self.cannot))

    def figure(self, loader: str, name: str = "seconds_per_batch") -> Spread | None:
        """One of `FIGURES`; None: not measured."""
        return Spread.of(self.values(loader, name))

    def values(self, loader: str, name: str) -> list[float]:
        """One of `FIGURES`, round by round."""
        found = [figures[loader] for figures in self.rounds if loader in figures]
        return [figures[name] for figures in found if name in figures]

    @property
    def running(self) -> LoaderStatistics | None:
        """``statistics`` of what followed the start of the workers."""
        if (whole := self.statistics) is None:
            return None
        made = sum(getattr(whole, name).mean for name in ("fetch", "collate", "encode"))
        seconds = whole.seconds - max(0.0, whole.startup - whole.starts * made)
        workers = tuple(
            replace(each, busy_fraction=min(1.0, each.busy / max(seconds, 1e-9)))
            for each in whole.workers
        )
        return replace(
            whole,
            workers=workers,
            busy_fraction=sum(w.busy_fraction for w in workers) / max(1, self.num_workers),
            seconds=seconds,
            waited=whole.waited - whole.startup,
            startup=0.0,
        )

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
    return min(enough, key=lambda p: (p.auto, p.threads, p.num_workers, p.prefetch_factor))


def advise(
    points: Sequence[Point],
    *,
    step_ms: float | None,
    samples: float,
    nbytes: int,
    cores: float,
    now: tuple[int, int] | None = None,
    load: float = 0.0,
) -> list[str]:
    """Say which setting to use, what bounds it, and what that is concluded from; a line each.

    A batch has so many ``samples`` and ``nbytes``; ``now`` are workers and batches ahead that the
    program has so far; ``load`` is the machine's before anything was measured.
    """
    points = [point for point in points if point.measured]
    chosen = choose(points, step_ms)
    if chosen is None or chosen.statistics is None:
        return ["nothing was measured, so there is nothing to advise"]
    most = max(point.num_workers for point in points)
    stages = {name: getattr(chosen.statistics, name).mean for name in (*MADE, "decode")}
    costs = ", ".join(f"{name} {_time(seconds)}" for name, seconds in stages.items() if seconds)
    return [
        f"use {chosen}: {_use(chosen, points, samples)}{_step(chosen, step_ms)}",
        *_doubts(chosen, load, cores),
        *_other_kind(chosen, points, samples),
        *_now(chosen, points, now, samples),
        f"bound: {_bound(chosen, points, cores, most)}",
        f"measured: a batch of {nbytes / 1e6:.3g} MB: {costs}; {chosen.cpu:.1f} processors used",
        "step: " + (
            "none is in these figures, which are of a loop that does nothing else; "
            "grid.step_ms=… says how long a step of yours would wait"
            if step_ms is None
            else f"samples/s are without one; waits are beside a step of {step_ms:g} ms, which "
            "sleeps: one that computes takes processors from the workers"
        ),
    ]  # fmt: skip


def _use(chosen: Point, points: Sequence[Point], samples: float) -> str:
    parts = [f"{_time(chosen.seconds)} a batch ({_rate(chosen.figure(OURS), samples)})"]
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
        parts.append(f"{times:.2f} times as fast as torch's loader with it")
    better = _better(chosen, points)
    if better is not None:
        rate = _rate(better.figure(REFERENCE), samples)
        parts.append(f"but torch's loader was faster with {better} ({rate})")
    return ", ".join(parts)


def _rate(spread: Spread | None, samples: float) -> str:
    if spread is None:
        return "not measured"
    text = f"{samples / spread.median:,.0f} samples/s"
    if spread.low < spread.high:
        text += f", {samples / spread.high:,.0f} to {samples / spread.low:,.0f} by round"
    return text


def _better(chosen: Point, points: Sequence[Point]) -> Point | None:
    """Where torch's loader was faster than ours with the best of its settings; None: nowhere."""
    best = min(point.seconds for point in points)
    found = [(spread.median, point) for point in points if (spread := point.figure(REFERENCE))]
    seconds, point = min(found, key=lambda each: each[0], default=(math.inf, chosen))
    return point if _NEAR * seconds < best else None


def _now(
    chosen: Point, points: Sequence[Point], now: tuple[int, int] | None, samples: float
) -> list[str]:
    """The loader that the program has: torch's, with the options that ``loader`` has."""
    found = [p for p in points if (p.num_workers, p.prefetch_factor) == now and p.figure(REFERENCE)]
    spread = found[0].figure(REFERENCE) if found else None
    if spread is None:
        return []
    return [
        f"now: torch's loader with {found[0]} (loader.*, set it to what you have): "
        f"{_rate(spread, samples)}; the above is {spread.median / chosen.seconds:.2f} times as fast"
    ]


def _other_kind(chosen: Point, points: Sequence[Point], samples: float) -> list[str]:
    """Threads where processes are advised, and the other way round: the best of their settings."""
    others = [point for point in points if point.num_workers and point.threads != chosen.threads]
    if not others or not any(point.threads for point in points) or not chosen.num_workers:
        return []
    best = min(others, key=lambda point: point.seconds)
    times = chosen.seconds / best.seconds
    kind, turns = "processes", ""
    if best.threads:
        kind, turns = "threads", "; they take turns with what a step runs in Python"
    return [
        f"{kind}: {best}: {_rate(best.figure(OURS), samples)}, {times:.2f} times as fast as the "
        f"above{turns}"
    ]


def _doubts(chosen: Point, load: float, cores: float) -> list[str]:
    spread, reasons = chosen.figure(OURS), []
    if spread is not None and len(chosen.rounds) < 2:
        reasons.append("there was one round only")
    elif spread is not None and (spread.high - spread.low) / spread.median > UNSURE:
        by = percent((spread.high - spread.low) / spread.median)
        reasons.append(f"its figures differ by {by} from round to round")
    if load > CROWDED * cores:
        reasons.append(f"other programs ran (load {load:.1f} on {cores:g} processors)")
    if not reasons:
        return []
    return [f"not sure: {' and '.join(reasons)}: measure again on a quiet machine, or for longer"]


def _step(chosen: Point, step_ms: float | None) -> str:
    if step_ms is None:
        return ""
    if chosen.num_workers and chosen.seconds * 1e3 <= step_ms:
        return f"; it keeps up with steps of {step_ms:g} ms"
    if not chosen.num_workers and chosen.seconds * 1e3 <= _HIDDEN * step_ms:
        return f"; beside steps of {step_ms:g} ms that hardly shows"
    return f"; no setting keeps up with steps of {step_ms:g} ms"


def _bound(chosen: Point, points: Sequence[Point], cores: float, most: int) -> str:
    """What is said of a loop that does nothing but wait, once its workers are up."""
    if not chosen.num_workers and chosen.seconds < _DEAR:
        return (
            "making a batch costs this process less than handing it over does: larger batches make "
            "workers worth while"
        )
    why = ""
    if not chosen.num_workers:
        working = [point for point in points if point.num_workers]
        if not working:
            return "this process makes the batches itself: no workers were measured"
        chosen, why = min(working, key=lambda point: point.seconds), "workers did not help: "
    running = chosen.running
    assert running is not None  # it was measured
    busy = max(sum(each.busy_fraction for each in running.workers), 1e-9)
    running = replace(
        running,
        processor_fraction=min(1.0, chosen.cpu / busy),
        # More are not advised where more were measured, and did not help.
        num_workers_reason="as measured" if chosen.num_workers < most else "",
        num_workers=chosen.num_workers,
        surroundings=replace(
            running.surroundings, processors=math.ceil(cores), persistent_workers=True
        ),
    )
    return why + cause(running)


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
