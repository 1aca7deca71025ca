"""`Recorder`: sums up the timings of a loader's batches; `statistics_of` says what they show.

::

    BatchLog ─ it is full, or somebody asks ─▶ Recorder ─▶ LoaderStatistics
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from operator import attrgetter
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset

from lit_loader.core.batch.timings import WINDOW, BatchLog, Timings
from lit_loader.core.system.processors import times_of_threads, usable_processors
from lit_loader.profiling.records import (
    MemoryUse,
    NodeTimes,
    SlowSample,
    StageTimes,
    Surroundings,
    WorkerTimes,
)
from lit_loader.profiling.resources import own_memory
from lit_loader.profiling.verdict import LoaderStatistics

__all__ = ["Recorder", "Stopwatch", "statistics_of"]

SLOW_SAMPLES: Final = 5
"""Slowest samples that are remembered."""

STRAGGLER: Final = 5
"""Times as long as the mean of the others in its batch that a sample takes to be a straggler."""

ACTIVE: Final = 0.2
"""Part of the time that a thread runs, or waits for a processor, from which on it is active."""

STAGES: Final = ("fetch", "collate", "encode", "wait", "decode", "pin", "step", "read", "state")

_NUMBERS: Final = tuple(field.name for field in fields(Timings))[:-2]
"""The fields that fit into int64: not an epoch, which is any integer, nor a sample's index."""

_numbers = attrgetter(*_NUMBERS)


class Stopwatch:
    """Sums up the durations of some stages; percentiles are those of the last durations."""

    def __init__(self, stages: int) -> None:
        self.count = 0
        self._totals: NDArray[np.int64] = np.zeros(stages, np.int64)
        self._recent: NDArray[np.int64] = np.zeros((stages, WINDOW), np.int64)

    def add(self, durations: NDArray[np.int64]) -> None:
        """Add durations: nanoseconds, int64 of shape (stages, any number of batches)."""
        self._totals += durations.sum(axis=1)
        kept = durations[:, -WINDOW:]
        end = self.count + durations.shape[1]
        self._recent[:, np.arange(end - kept.shape[1], end) % WINDOW] = kept
        self.count = end

    def times(self) -> list[StageTimes]:
        """Returns the times of each stage so far."""
        if not self.count:
            return [StageTimes()] * len(self._totals)
        recent = self._recent[:, : self.count]
        percentiles = _percentiles(recent, (0.5, 0.9, 0.99, 1.0)) / 1e9
        return [
            StageTimes(total / 1e9, total / 1e9 / self.count, *of_stage)
            for total, of_stage in zip(self._totals.tolist(), percentiles.tolist(), strict=True)
        ]


def _percentiles(rows: NDArray[np.int64], parts: Sequence[float]) -> NDArray[np.float64]:
    """Like ``np.percentile``, whose first call loads ``numpy.ma``: 8 MB, within a training step."""
    ordered = np.sort(rows, axis=1).astype(np.float64)
    places: NDArray[np.float64] = np.array(parts, np.float64) * (rows.shape[1] - 1)
    below = places.astype(np.intp)
    above = np.minimum(below + 1, rows.shape[1] - 1)
    return ordered[:, below] + (places - below) * (ordered[:, above] - ordered[:, below])


class Recorder:
    """Sums up what a `BatchLog` has; a ``listener`` is called with every full window of records.

    And, by :meth:`flush`, with the rest.
    """

    def __init__(self, log: BatchLog) -> None:
        self.log = log
        self.listener: Callable[[Sequence[Timings]], object] | None = None
        self._stages = Stopwatch(len(STAGES))
        self._sums: Counter[str] = Counter()
        self._workers: dict[int, NDArray[np.int64]] = {}
        self._slow: list[SlowSample] = []

    @classmethod
    def of(cls, log: BatchLog) -> Recorder:
        """Give the one that sums up a log."""
        if log.summary is None:
            log.summary = cls(log)
        found: Recorder = log.summary
        return found

    def _of_the_process(self) -> dict[str, Any]:
        """What was found of the workers, and of this process's threads, beside the batches."""
        waits, threads = self.log.waits, self.log.threads
        looks, seconds = max(1, waits.looks), self._sums["waited"] + self._sums["step"]
        before, running, queued, active = threads or {}, 0, 0, 0
        for thread, (ran, waited) in times_of_threads().items() if threads else ():
            since = before.get(thread, (0, 0))
            running += ran - since[0]
            queued += waited - since[1]
            active += ran + waited - sum(since) > ACTIVE * seconds
        return {
            "worker_looks": waits.looks,
            "lock_fraction": waits.locked / looks,
            "page_fraction": waits.paging / looks,
            "running_threads": max(0, running) / max(1, seconds),
            "queued_threads": max(0, queued) / max(1, seconds),
            "active_threads": active,
        }

    def flush(self) -> None:
        """Sum up the records that were added."""
        records, self.log.records = self.log.records, []
        if records:
            self.extend(records)

    def extend(self, records: Sequence[Timings]) -> None:
        """Sum up the records of several batches at once."""
        numbers = chain.from_iterable(map(_numbers, records))  # quicker than an array of tuples
        table = np.fromiter(numbers, np.int64).reshape(len(records), -1).T
        column = dict(zip(_NUMBERS, table, strict=True))
        self._stages.add(np.stack([column[name] for name in STAGES]))
        busy = column["fetch"] + column["collate"] + column["encode"]
        waited = _waited(column)
        late = column["asked"] + waited - np.maximum(column["asked"], column["arrived"])
        first, timed = column["step"] == 0, column["processor"] > 0
        sums = {
            "samples": column["samples"],
            "nbytes": column["nbytes"],
            "tokens": column["tokens"],
            "waited": waited,
            "handover": np.maximum(late[column["arrived"] > 0], 0),
            "step": column["step"],
            "starts": first,
            "startup": waited[first],
            "startup_fetch": np.minimum(column["fetch"], waited)[first],
            "timed": busy[timed],
            "processor": column["processor"],
            "queued": column["queued"][timed],
        }
        self._sums.update({name: int(values.sum()) for name, values in sums.items()})
        self._note_workers(column, busy)
        self._note_slow_samples(column, records)
        if self.listener is not None:
            self.listener(records)

    def _note_workers(self, column: dict[str, NDArray[np.int64]], busy: NDArray[np.int64]) -> None:
        transit = np.maximum(column["arrived"] - column["began"] - busy, 0)
        table = np.stack([np.ones_like(busy), column["samples"], busy, column["nbytes"], transit])
        for worker in set(column["worker"].tolist()):
            sums = table[:, column["worker"] == worker].sum(axis=1)
            self._workers[worker] = self._workers.get(worker, np.zeros(5, np.int64)) + sums

    def _note_slow_samples(
        self, column: dict[str, NDArray[np.int64]], records: Sequence[Timings]
    ) -> None:
        slowest, others = column["slowest"], column["samples"] - 1
        mean = (column["fetch"] - slowest) / np.maximum(others, 1)
        stragglers = slowest[(others > 0) & (slowest > STRAGGLER * mean)]
        self._sums["stragglers"] += int(stragglers.sum())
        least = self._slow[-1].seconds if len(self._slow) == SLOW_SAMPLES else 0
        found = [*self._slow]
        for record in (records[place] for place in np.flatnonzero(slowest / 1e9 > least).tolist()):
            seconds = record.slowest / 1e9
            found.append(SlowSample(record.slowest_index, seconds, record.epoch, record.number))
        # By their text: an index is any object, perhaps one that cannot be hashed or compared.
        distinct: dict[Any, SlowSample] = {}
        for sample in sorted(found, key=lambda each: -each.seconds):
            distinct.setdefault(id(sample) if sample.index is None else repr(sample.index), sample)
            if len(distinct) == SLOW_SAMPLES:
                break
        self._slow = list(distinct.values())

    def summary(self, **now: Any) -> LoaderStatistics:
        """Returns the statistics of all batches so far, and what is known of this moment."""
        self.flush()
        sums = self._sums
        seconds = max(sums["waited"] + sums["step"], 1) / 1e9
        workers = [self._worker(number, seconds) for number in sorted(self._workers)]
        names = sorted({worker.node for worker in workers if worker.node})
        nodes = [_node(name, [each for each in workers if each.node == name]) for name in names]
        stages: dict[str, Any] = dict(zip(STAGES, self._stages.times(), strict=True))
        return LoaderStatistics(
            batches=self._stages.count,
            samples=sums["samples"],
            nbytes=sums["nbytes"],
            tokens=sums["tokens"],
            seconds=seconds if self._stages.count else 0.0,
            **stages,
            waited=sums["waited"] / 1e9,
            wait_fraction=sums["waited"] / 1e9 / seconds,
            handover=sums["handover"] / 1e9,
            starts=sums["starts"],
            startup=sums["startup"] / 1e9,
            startup_fetch=sums["startup_fetch"] / 1e9,
            workers=tuple(workers),
            busy_fraction=sum(w.busy_fraction for w in workers) / max(1, len(workers)),
            slowest_samples=tuple(self._slow),
            straggler_seconds=sums["stragglers"] / 1e9,
            worker_restarts=self.log.worker_restarts,
            worker_growth=self.log.worker_growth,
            sample_errors=self.log.counts["sample_errors"],
            sample_retries=self.log.counts["sample_retries"],
            remote_batches=sum(node.batches for node in nodes),
            remote_nbytes=sum(node.nbytes for node in nodes),
            transit=sum(node.transit for node in nodes),
            nodes=tuple(nodes),
            processor_fraction=sums["processor"] / max(1, sums["timed"]),
            queued_fraction=sums["queued"] / max(1, sums["timed"]),
            **{**self._of_the_process(), **now},
        )

    def _worker(self, number: int, seconds: float) -> WorkerTimes:
        batches, samples, nanoseconds, nbytes, transit = self._workers[number].tolist()
        busy, node = nanoseconds / 1e9, ""
        if number >= self.log.first_remote:
            node = self.log.nodes.get(number - int(self.log.first_remote), "unknown")
        fraction, transit = min(1.0, busy / seconds), transit / 1e9 if node else 0.0
        return WorkerTimes(number, batches, samples, busy, fraction, node, nbytes, transit)


def _node(name: str, workers: Sequence[WorkerTimes]) -> NodeTimes:
    """Sum up what the workers of one machine did."""
    names = ("batches", "samples", "nbytes", "busy", "transit")
    sums = {field: sum(getattr(each, field) for each in workers) for field in names}
    return NodeTimes(node=name, workers=len(workers), **sums)


def _waited(column: dict[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    """`Timings.waited`, of many at once."""
    wait, decode, pin = column["wait"], column["decode"], column["pin"]
    own = np.where(column["worker"] < 0, pin, np.where(pin > 0, 0, decode))
    return wait + own


def statistics_of(core: Any, memory: bool, caches: Mapping[str, Any]) -> LoaderStatistics:
    """Say where a loader's time went, since it was made, and what ``memory`` it takes now.

    ``caches`` are the figures of the caches in its dataset, by their names in the statistics.
    """
    with core.lock:
        auto, loader = core.auto, core.loader
        workers = {run.workers for run in core.alive() if run.workers is not None}
        return Recorder.of(core.log).summary(
            ready=sum(run.ready for run in core.alive()),
            shared_memory=sum(each.memory[0] for each in workers),
            memory=_memory_use({*workers, *filter(None, [core.pool])}) if memory else None,
            num_workers=loader.num_workers,
            num_workers_reason="" if auto is None else auto.setting.reason,
            surroundings=Surroundings(
                processors=_processors(),
                persistent_workers=loader.persistent_workers,
                iterable=isinstance(core.dataset, IterableDataset),
                threads=torch.get_num_threads(),
                device=torch.cuda.is_initialized(),  # type: ignore[no-untyped-call]
                worker_method=loader.worker_method,
            ),
            **caches,
        )


@functools.lru_cache
def _processors() -> int:
    return math.ceil(usable_processors())


def _memory_use(workers: set[Any]) -> MemoryUse:
    """What memory a loader takes now, in its own process and in its workers."""
    return MemoryUse(
        parent=own_memory(),
        arena=sum(each.memory[0] for each in workers),
        shared_data=sum(each.memory[1] for each in workers),
        workers=tuple(own_memory(process.pid) for each in workers for process in each.processes),
    )
