"""Watching the loaders of a Trainer's loop: what their batches cost, and the steps between.

::

    recorder_of(loader) ─records─▶ LoaderWatch ─┬─▶ figures of an interval
    step begins, step ends ──▶ StepWatch ───┴─▶ LoaderReport, LoaderTrace

Knows Lightning only as far as its containers of loaders. Everything is computed from records that
the loaders make anyway; a step costs two readings of the clock.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from lightning.pytorch.utilities import CombinedLoader

from lit_loader.loader import DataLoader, recorder_of
from lit_loader.statistics.chrome_trace import LoaderTrace
from lit_loader.statistics.recorder import WINDOW, Recorder, Stopwatch
from lit_loader.statistics.records import BatchRecord, LoaderStatistics, StageTimes, StepRecord
from lit_loader.statistics.verdict import verdict
from lit_loader.system.processors import usable_processors

__all__ = ["LoaderReport", "LoopWatch", "interval_figures"]


@dataclass(frozen=True)
class LoaderReport:
    """Where the time of one loader's loop went, over a whole fit.

    Attributes:
        name: The loop, and the loader in it where there are several: "train", "val/1", "train/a".
        statistics: The loader's, of this fit alone.
        transfer: From the moment at which a batch was given out to that at which the step with it
            began: Lightning brings it to the device. What an accelerator does by itself meanwhile,
            copying page-locked memory say, is not in it.
        step: The step itself, of training or validation.
        verdict: What it comes to, in words.
    """

    name: str
    statistics: LoaderStatistics
    transfer: StageTimes
    step: StageTimes
    verdict: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}: {self.verdict})"


class LoopWatch:
    """The training loop, or that of validation.

    Attributes:
        split: "train" or "val".
        watched: What is known of each of its loaders, by name.
        wait_fraction: Part of the time that it waited for all of them, in the last interval.
    """

    def __init__(self, split: str, keep: int) -> None:
        self.split = split
        self.watched: dict[str, LoaderWatch] = {}
        self.wait_fraction = 0.0
        self._keep = keep
        self._began = time.monotonic_ns()
        self._loaders: dict[str, DataLoader[Any]] = {}
        self._recorders: list[Recorder] = []
        self._steps = StepWatch(keep)

    def watch(self, loaders: Any) -> None:
        """Watch these loaders, and no others any more."""
        found = dict(_named(self.split, loaders))
        if found == self._loaders:
            return
        self.let_go()
        for name, loader in found.items():
            if name not in self.watched:
                self.watched[name] = LoaderWatch(name, self._began, self._steps, self._keep)
            self.watched[name].begin(loader)
        self._loaders = found
        self._recorders = [recorder_of(loader) for loader in found.values()]

    def start(self) -> None:
        """Note that a step begins."""
        self._steps.start(self._recorders)

    def end(self) -> None:
        """Note that a step has ended."""
        self._steps.end()

    def figures(self) -> dict[str, float]:
        """Give what is logged of the interval that ends here, and begin another one."""
        logged: dict[str, float] = {}
        self.wait_fraction = 0.0
        for name, loader in self._loaders.items():
            figures = self.watched[name].interval(loader)
            if not figures:
                continue
            self.wait_fraction = min(1.0, self.wait_fraction + figures["wait_fraction"])
            inner = name if self.split != "train" else name.removeprefix("train").lstrip("/")
            prefix = "/".join(filter(None, ("loader", inner)))
            logged.update({f"{prefix}/{key}": value for key, value in figures.items()})
        return logged

    def let_go(self) -> None:
        """Watch no loader any more."""
        for name, loader in self._loaders.items():
            self.watched[name].end(loader)
        self._loaders = {}
        self._recorders = []


class StepWatch:
    """The steps of one loop, and the transfers before them.

    Args:
        keep: Steps to keep, the last so many.

    Attributes:
        kept: These.
    """

    def __init__(self, keep: int) -> None:
        self.kept: deque[StepRecord] = deque(maxlen=keep)
        self._stopwatch = Stopwatch(2)
        self._new: list[tuple[int, int, int]] = []
        self._given = self._last_given = self._started = 0

    def start(self, recorders: Sequence[Recorder]) -> None:
        """Note that a step begins, with batches of these recorders' loaders."""
        self._started = time.monotonic_ns()
        given = 0
        for recorder in recorders:
            if recorder.last is not None:
                given = max(given, recorder.last.given)
        # Lightning may have had this batch for a while: then nobody knows.
        self._given = given if given > self._last_given else 0
        self._last_given = given

    def end(self) -> None:
        """Note that it has ended."""
        self._new.append((self._given, self._started, time.monotonic_ns()))
        if len(self._new) >= WINDOW:
            self.sum_up()

    def times(self) -> list[StageTimes]:
        """Give the times of transfers, and of steps."""
        self.sum_up()
        return self._stopwatch.times()

    def sum_up(self) -> None:
        """Take in what is new."""
        new, self._new = self._new, []
        if not new:
            return
        given, start, end = np.array(new, np.int64).T
        self._stopwatch.add(np.stack([np.where(given > 0, start - given, 0), end - start]))
        if self.kept.maxlen:
            self.kept.extend(StepRecord(*step) for step in new)


class LoaderWatch:
    """What is known of one loader, or of those that took its place one after another.

    Args:
        name: Its name in the loop.
        began: When the loop was begun to be watched.
        steps: The loop's steps.
        keep: Records of batches to keep, the last so many.

    Attributes:
        name: The name.
        count: Batches so far.
    """

    def __init__(self, name: str, began: int, steps: StepWatch, keep: int) -> None:
        self.name = name
        self.count = 0
        self._new: list[BatchRecord] = []
        self._steps = steps
        self._recorder = Recorder()
        self._kept: deque[BatchRecord] = deque(maxlen=keep)
        self._before = self._first = LoaderStatistics()
        self._num_workers = 0
        self._persistent = False
        self._began = began

    def begin(self, loader: DataLoader[Any]) -> None:
        """Watch a loader."""
        self._num_workers, self._persistent = loader.num_workers, loader.persistent_workers
        # A loader without length has given out its first batch already; others, if they have been
        # used before, batches that are no business of this loop.
        recorder_of(loader).watcher = self._take_since_began
        self._before = self._first = loader.statistics()
        recorder_of(loader).watcher = self._take

    def end(self, loader: DataLoader[Any]) -> None:
        """Watch it no more."""
        now = loader.statistics()
        recorder_of(loader).watcher = None
        mine = self._recorder
        mine.worker_restarts += now.worker_restarts - self._first.worker_restarts
        mine.sample_errors += now.sample_errors - self._first.sample_errors
        mine.sample_retries += now.sample_retries - self._first.sample_retries

    def _take(self, records: Sequence[BatchRecord]) -> None:
        self.count += len(records)
        self._new.extend(records)
        if len(self._new) >= WINDOW:  # many at once: that takes half the time
            self._sum_up()

    def _sum_up(self) -> None:
        new, self._new = self._new, []
        if new:
            self._recorder.extend(new)
            self._kept.extend(new)

    def _take_since_began(self, records: Sequence[BatchRecord]) -> None:
        if recent := [record for record in records if record.asked >= self._began]:
            self._take(recent)

    def interval(self, loader: DataLoader[Any]) -> dict[str, float]:
        """Give the figures since the last time; none if there was no batch."""
        before, self._before = self._before, loader.statistics()
        return interval_figures(before, self._before, self._num_workers)

    def report(self) -> LoaderReport:
        """Give what it came to."""
        self._sum_up()
        statistics = self._recorder.summary()
        transfer, step = self._steps.times()
        words = verdict(
            statistics,
            transfer=transfer,
            num_workers=self._num_workers,
            cores=math.ceil(usable_processors()),
            persistent_workers=self._persistent,
        )
        return LoaderReport(self.name, statistics, transfer, step, words)

    def trace(self) -> LoaderTrace:
        """Give what timeline and picture show."""
        self._sum_up()
        self._steps.sum_up()
        since = min((min(r.began, r.asked) for r in self._kept), default=0)
        steps = [step for step in self._steps.kept if step.start >= since]
        return LoaderTrace(self.name, tuple(self._kept), steps, self.count - len(self._kept))


def interval_figures(
    before: LoaderStatistics, after: LoaderStatistics, num_workers: int
) -> dict[str, float]:
    """Give what is logged of the time between two moments.

    Args:
        before: A loader's statistics at the first.
        after: At the second.
        num_workers: Its worker processes.

    Returns:
        ``wait_ms``, ``wait_fraction``, ``ready``, ``worker_busy``, ``worker_restarts`` and
        ``sample_errors``; empty if there was no batch between them.
    """
    batches = after.batches - before.batches
    if not batches:
        return {}
    waited, seconds = after.waited - before.waited, after.seconds - before.seconds
    busy = sum(w.busy for w in after.workers) - sum(w.busy for w in before.workers)
    return {
        "wait_ms": 1e3 * waited / batches,
        "wait_fraction": _fraction(waited, seconds),
        "ready": float(after.ready),
        "worker_busy": _fraction(busy, seconds * max(1, num_workers)),
        "worker_restarts": float(after.worker_restarts - before.worker_restarts),
        "sample_errors": float(after.sample_errors - before.sample_errors),
    }


def _fraction(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole > 0 else 0.0


def _named(split: str, loaders: Any) -> Iterator[tuple[str, DataLoader[Any]]]:
    """A loop's loaders that are ours, with the name of the split and their place among several."""
    if isinstance(loaders, DataLoader):
        yield split, loaders
    elif isinstance(loaders, CombinedLoader):
        yield from _named(split, loaders.iterables)
    elif isinstance(loaders, Mapping):
        for key, member in loaders.items():
            yield from _named(f"{split}/{key}", member)
    elif isinstance(loaders, (list, tuple)):
        for number, member in enumerate(loaders):
            yield from _named(f"{split}/{number}", member)
