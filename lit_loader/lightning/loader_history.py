"""What one loader's batches, and the steps, have cost over a loop, and what is reported of it.

Used by `lightning/loop_monitor.py`. The records of a loader's batches come in, as its
`statistics/recorder.py` passes them on, and the moments of the loop's steps (two readings of the
clock for each); figures of an interval, a `LoaderReport` with a verdict, and the records for
timeline and picture go out.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from lit_loader.loader import DataLoader, recorder_of
from lit_loader.statistics.recorder import WINDOW, Recorder, Stopwatch
from lit_loader.statistics.records import (
    BatchRecord,
    LoaderStatistics,
    LoaderTrace,
    StageTimes,
    StepRecord,
)
from lit_loader.statistics.verdict import verdict
from lit_loader.system.processors import usable_processors

__all__ = ["LoaderHistory", "LoaderReport", "StepTimer", "interval_figures"]

_CACHE: Final = ("cache_hits", "cache_misses", "cache_bytes", "cache_lacking")


@dataclass(frozen=True)
class LoaderReport:
    """Where the time of one loader's loop went, over a whole fit.

    Attributes:
        name: The loop, and the loader in it where there are several: "train", "val/1", "train/a".
        statistics: The loader's, of this fit alone.
        transfer: From the moment at which a batch was given out to that at which the step with it
            started: Lightning brings it to the device. What an accelerator does by itself
            meanwhile, copying page-locked memory say, is not in it.
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


class StepTimer:
    """The steps of one loop, and the transfers before them.

    Args:
        keep: How many of the last steps' records are kept.

    Attributes:
        kept: These records.
    """

    def __init__(self, keep: int) -> None:
        self.kept: deque[StepRecord] = deque(maxlen=keep)
        self._stopwatch = Stopwatch(2)
        self._new: list[StepRecord] = []
        self._given = self._last_given = self._started = 0

    def start(self, recorders: Sequence[Recorder]) -> None:
        """Note that a step starts, with batches of these recorders' loaders."""
        self._started = time.monotonic_ns()
        given = 0
        for recorder in recorders:
            if recorder.last is not None:
                given = max(given, recorder.last.given)
        # Without a new batch, Lightning has had this one for a while: its transfer is not known.
        self._given = given if given > self._last_given else 0
        self._last_given = given

    def end(self) -> None:
        """Note that the step has ended."""
        self._new.append(
            StepRecord(given=self._given, start=self._started, end=time.monotonic_ns())
        )
        if len(self._new) >= WINDOW:
            self.sum_up()

    def times(self) -> list[StageTimes]:
        """Returns the times of transfers, and those of steps."""
        self.sum_up()
        return self._stopwatch.times()

    def sum_up(self) -> None:
        """Add the new records to the times and to those kept."""
        new, self._new = self._new, []
        if not new:
            return
        given, start, end = np.array(new, np.int64).T
        self._stopwatch.add(np.stack([np.where(given > 0, start - given, 0), end - start]))
        if self.kept.maxlen:
            self.kept.extend(new)


class LoaderHistory:
    """What is known of one loader, or of those that took its place one after another.

    Args:
        name: Its name in the loop.
        began: When watching the loop began, by ``time.monotonic_ns()``.
        steps: The loop's steps.
        keep: How many of the last batches' records are kept.

    Attributes:
        name: The name.
        count: Batches so far.
    """

    def __init__(self, name: str, began: int, steps: StepTimer, keep: int) -> None:
        self.name = name
        self.count = 0
        self._new: list[BatchRecord] = []
        self._steps = steps
        self._recorder = self._source = Recorder()
        self._kept: deque[BatchRecord] = deque(maxlen=keep)
        self._before = self._first = self._last = LoaderStatistics()
        self._cache: dict[str, Any] = dict.fromkeys(_CACHE, 0)
        self._num_workers = 0
        self._persistent = False
        self._began = began

    def begin(self, loader: DataLoader[Any]) -> None:
        """Take in the records of a loader from now on."""
        self._num_workers, self._persistent = loader.num_workers, loader.persistent_workers
        self._source = recorder_of(loader)
        # A loader without length has given out its first batch already; one that was used before
        # has given out batches that do not belong to this loop.
        recorder_of(loader).listener = self._take_since_began
        self._before = self._first = loader.statistics()
        recorder_of(loader).listener = self._take

    def end(self, loader: DataLoader[Any]) -> None:
        """Take in no more of that loader."""
        now = self._last = loader.statistics()
        self._num_workers = loader.num_workers
        recorder_of(loader).listener = None
        sums = self._recorder
        sums.worker_restarts += now.worker_restarts - self._first.worker_restarts
        sums.sample_errors += now.sample_errors - self._first.sample_errors
        sums.sample_retries += now.sample_retries - self._first.sample_retries
        self._cache = {name: getattr(now, name) for name in _CACHE}
        for name in ("cache_hits", "cache_misses"):
            self._cache[name] -= getattr(self._first, name)

    def _take(self, records: Sequence[BatchRecord]) -> None:
        self.count += len(records)
        self._new.extend(records)
        if len(self._new) >= WINDOW:  # many at once take half the time
            self._sum_up()

    def _sum_up(self) -> None:
        new, self._new = self._new, []
        self._recorder.elsewhere = self._source.elsewhere
        if new:
            self._recorder.extend(new)
            self._kept.extend(new)

    def _take_since_began(self, records: Sequence[BatchRecord]) -> None:
        if recent := [record for record in records if record.asked >= self._began]:
            self._take(recent)

    def interval(self, loader: DataLoader[Any]) -> dict[str, float]:
        """Returns the figures since the last call; none if there was no batch."""
        before, self._before = self._before, loader.statistics()
        self._num_workers = loader.num_workers  # it may be another than before
        return interval_figures(before, self._before, self._num_workers)

    def report(self) -> LoaderReport:
        """Returns the report on all batches so far."""
        self._sum_up()
        statistics = replace(
            self._recorder.summary(
                num_workers=self._num_workers, why_so_many=self._last.why_so_many
            ),
            **self._cache,
        )
        transfer, step = self._steps.times()
        words = verdict(
            statistics,
            transfer=transfer,
            num_workers=self._num_workers,
            cores=math.ceil(usable_processors()),
            persistent_workers=self._persistent,
        )
        return LoaderReport(
            name=self.name, statistics=statistics, transfer=transfer, step=step, verdict=words
        )

    def trace(self) -> LoaderTrace:
        """Returns what timeline and picture show: the records that were kept."""
        self._sum_up()
        self._steps.sum_up()
        since = min((min(r.began, r.asked) for r in self._kept), default=0)
        steps = [step for step in self._steps.kept if step.start >= since]
        return LoaderTrace(
            name=self.name,
            records=tuple(self._kept),
            steps=steps,
            left_out=self.count - len(self._kept),
        )


def interval_figures(
    before: LoaderStatistics, after: LoaderStatistics, num_workers: int
) -> dict[str, float]:
    """Returns what is logged of the time between two moments.

    Args:
        before: A loader's statistics at the first.
        after: At the second.
        num_workers: Its worker processes.

    Returns:
        ``wait_ms``, ``wait_fraction``, ``ready``, ``num_workers``, ``worker_busy``,
        ``worker_restarts`` and ``sample_errors``; with remote workers also ``remote_fraction`` (of
        the batches), ``remote_mb_per_s`` and ``transit_ms`` (for a remote batch); empty if there
        was no batch between them.
    """
    batches = after.batches - before.batches
    if not batches:
        return {}
    waited, seconds = after.waited - before.waited, after.seconds - before.seconds
    busy = sum(w.busy for w in after.workers) - sum(w.busy for w in before.workers)
    num_remote = sum(node.workers for node in after.nodes)
    return {
        "wait_ms": 1e3 * waited / batches,
        "wait_fraction": _fraction(waited, seconds),
        "ready": float(after.ready),
        "num_workers": float(num_workers),
        "worker_busy": _fraction(busy, seconds * max(1, num_workers + num_remote)),
        "worker_restarts": float(after.worker_restarts - before.worker_restarts),
        "sample_errors": float(after.sample_errors - before.sample_errors),
        **(_from_elsewhere(before, after, seconds) if num_remote else {}),
    }


def _from_elsewhere(
    before: LoaderStatistics, after: LoaderStatistics, seconds: float
) -> dict[str, float]:
    batches = after.remote_batches - before.remote_batches
    nbytes = after.remote_nbytes - before.remote_nbytes
    return {
        "remote_fraction": _fraction(batches, after.batches - before.batches),
        "remote_mb_per_s": nbytes / 1e6 / seconds if seconds > 0 else 0.0,
        "transit_ms": 1e3 * (after.transit - before.transit) / max(1, batches),
    }


def _fraction(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole > 0 else 0.0
