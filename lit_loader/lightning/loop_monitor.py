"""Watches the loaders of one Lightning loop, training or validation, for `LoaderMonitor`.

::

    a loader's Recorder ─ records ─▶ LoaderHistory, one a loader ─┬─▶ figures of an interval
    a step starts, ends ───────────▶ LoopMonitor ─────────────────┴─▶ LoaderReport, LoaderTrace

Everything is computed from records that the loaders make anyway, and two readings of the clock for
each step. Of Lightning it knows the containers of loaders only.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from lit_loader.core.batch.timings import WINDOW, BatchLog, Timings
from lit_loader.loader import DataLoader
from lit_loader.profiling.recorder import Recorder, Stopwatch
from lit_loader.profiling.records import LoaderTrace, StageTimes, StepRecord
from lit_loader.profiling.verdict import LoaderStatistics, verdict

__all__ = ["LoaderReport", "LoopMonitor"]

_COUNTED: Final = (
    *("worker_restarts", "sample_errors", "sample_retries", "cache_hits", "cache_misses"),
)
_KEPT: Final = ("cache_bytes", "cache_bytes_missing")
_AS_THE_LOADER: Final = (
    *("num_workers", "num_workers_reason", "worker_looks", "lock_fraction", "page_fraction"),
    *("running_threads", "queued_threads", "active_threads", "surroundings"),
)


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


class LoaderHistory:
    """What is known of one loader, or of those that took its place one after another."""

    def __init__(self, began: int, keep: int) -> None:
        self.count = 0  # batches so far
        self.kept: deque[Timings] = deque(maxlen=keep)  # the last batches' records
        self._began = began  # when watching the loop began, by time.monotonic_ns()
        self._log = BatchLog()
        self._sums = self._source = Recorder(self._log)
        self._before = self._first = self._last = LoaderStatistics()
        self._besides: dict[str, Any] = dict.fromkeys((*_COUNTED, *_KEPT), 0)

    def begin(self, loader: DataLoader[Any]) -> None:
        """Take in the records of a loader from now on."""
        self._source = loader.recorder
        self._theirs = self._source.log
        # First those that it has made already: one without length has given out its first batch.
        self._source.listener = self._take
        self._before = self._first = loader.statistics()

    def end(self, loader: DataLoader[Any]) -> None:
        """Take in no more of that loader."""
        now = self._last = loader.statistics()
        self._source.listener = None
        for name in _COUNTED:
            self._besides[name] += getattr(now, name) - getattr(self._first, name)
        self._besides.update({name: getattr(now, name) for name in _KEPT})

    def _take(self, records: Sequence[Timings]) -> None:
        # A loader that was used before has given out batches that do not belong to this loop.
        records = [record for record in records if record.asked >= self._began]
        self._log.first_remote, self._log.nodes = self._theirs.first_remote, self._theirs.nodes
        if records:
            self.count += len(records)
            self._sums.extend(records)
            self.kept.extend(records)

    def interval(self, loader: DataLoader[Any]) -> dict[str, float]:
        """Returns what is logged of the time since the last call; empty if there was no batch."""
        before, after = self._before, loader.statistics()
        self._before = after
        batches = after.batches - before.batches
        if not batches:
            return {}
        waited, seconds = after.waited - before.waited, after.seconds - before.seconds
        busy = sum(w.busy for w in after.workers) - sum(w.busy for w in before.workers)
        num_remote = sum(node.workers for node in after.nodes)
        figures = {
            "wait_ms": 1e3 * waited / batches,
            "wait_fraction": _fraction(waited, seconds),
            "ready": float(after.ready),
            "num_workers": float(after.num_workers),
            "worker_busy": _fraction(busy, seconds * max(1, after.num_workers + num_remote)),
            "worker_restarts": float(after.worker_restarts - before.worker_restarts),
            "sample_errors": float(after.sample_errors - before.sample_errors),
        }
        if tokens := after.tokens - before.tokens:
            figures["tokens_per_second"] = tokens / seconds if seconds > 0 else 0.0
        if read := after.read.total - before.read.total:
            figures["read_fraction"] = _fraction(read, busy)
        if num_remote:
            remote = after.remote_batches - before.remote_batches
            nbytes = after.remote_nbytes - before.remote_nbytes
            figures["remote_fraction"] = _fraction(remote, batches)
            figures["remote_mb_per_s"] = nbytes / 1e6 / seconds if seconds > 0 else 0.0
            figures["transit_ms"] = 1e3 * (after.transit - before.transit) / max(1, remote)
        return figures

    def report(self, name: str, transfer: StageTimes, step: StageTimes) -> LoaderReport:
        """Returns the report on all batches so far, with the loop's transfers and steps."""
        last = self._last
        summary = self._sums.summary(**{name: getattr(last, name) for name in _AS_THE_LOADER})
        statistics = replace(summary, **self._besides)
        return LoaderReport(name, statistics, transfer, step, verdict(statistics, transfer))


class LoopMonitor:
    """The training loop ("train"), or that of validation ("val")."""

    def __init__(self, split: str, keep: int) -> None:
        self.split = split
        self.wait_fraction = 0.0  # of the last interval, for all of the loop's loaders
        self._keep = keep  # that many of the last records of batches and steps
        self._began = time.monotonic_ns()
        self._histories: dict[str, LoaderHistory] = {}
        self._loaders: dict[str, DataLoader[Any]] = {}
        self._logs: list[BatchLog] = []
        self._steps: deque[StepRecord] = deque(maxlen=keep)
        self._new_steps: list[StepRecord] = []
        self._stopwatch = Stopwatch(2)
        self._given = self._last_given = self._started = 0

    def watch(self, loaders: Any) -> None:
        """Watch these loaders from now on, and no others."""
        found = dict(_named(self.split, loaders))
        if found == self._loaders:
            return
        self.release()
        for name, loader in found.items():
            if name not in self._histories:
                self._histories[name] = LoaderHistory(self._began, self._keep)
            self._histories[name].begin(loader)
        self._loaders = found
        self._logs = [loader.recorder.log for loader in found.values()]

    def start_step(self) -> None:
        """Note that a step starts."""
        self._started = time.monotonic_ns()
        given = 0
        for log in self._logs:
            if log.last is not None:
                given = max(given, log.last.given)
        # Without a new batch, Lightning has had this one for a while: its transfer is not known.
        self._given = given if given > self._last_given else 0
        self._last_given = given

    def end_step(self) -> None:
        """Note that a step has ended."""
        now = time.monotonic_ns()
        self._new_steps.append(StepRecord(given=self._given, start=self._started, end=now))
        if len(self._new_steps) >= WINDOW:
            self._sum_up_steps()

    def _sum_up_steps(self) -> None:
        new, self._new_steps = self._new_steps, []
        if new:
            given, start, end = np.array(new, np.int64).T
            self._stopwatch.add(np.stack([np.where(given > 0, start - given, 0), end - start]))
            self._steps.extend(new)

    def figures(self) -> dict[str, float]:
        """Returns what is logged of the interval that ends here, and begins another one."""
        logged: dict[str, float] = {}
        self.wait_fraction = 0.0
        for name, loader in self._loaders.items():
            figures = self._histories[name].interval(loader)
            if not figures:
                continue
            self.wait_fraction = min(1.0, self.wait_fraction + figures["wait_fraction"])
            inner = name if self.split != "train" else name.removeprefix("train").lstrip("/")
            prefix = "/".join(filter(None, ("loader", inner)))
            logged.update({f"{prefix}/{key}": value for key, value in figures.items()})
        return logged

    def release(self) -> None:
        """Watch no loader any more."""
        for name, loader in self._loaders.items():
            self._histories[name].end(loader)
        self._loaders, self._logs = {}, []

    def results(self) -> Iterator[tuple[LoaderReport, LoaderTrace]]:
        """Returns a report and the kept records of each loader that gave out a batch."""
        self._sum_up_steps()
        transfer, step = self._stopwatch.times()
        for name, history in self._histories.items():
            if history.count:
                report = history.report(name, transfer, step)
                since = min((min(r.began, r.asked) for r in history.kept), default=0)
                steps = [step for step in self._steps if step.start >= since]
                left_out = history.count - len(history.kept)
                yield report, LoaderTrace(name, tuple(history.kept), steps, left_out)


def _fraction(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole > 0 else 0.0


def _named(split: str, loaders: Any) -> Iterator[tuple[str, DataLoader[Any]]]:
    """A loop's loaders that are ours, with the name of the split and their place among several."""
    if isinstance(loaders, DataLoader):
        yield split, loaders
    elif hasattr(loaders, "iterables"):  # a CombinedLoader of either name
        yield from _named(split, loaders.iterables)
    elif isinstance(loaders, (Mapping, list, tuple)):
        pairs = loaders.items() if isinstance(loaders, Mapping) else enumerate(loaders)
        for key, member in pairs:
            yield from _named(f"{split}/{key}", member)
