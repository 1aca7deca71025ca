"""`Recorder`: collects the record of every batch of a loader, and sums them up on request.

Each `DataLoader` has one, which its iterators add records to::

    worker    fetch ▶ collate ▶ encode ─▶╮          (clocked there; travels in the Result)
    parent           wait ▶ decode ▶ pin ─▶ step    (clocked where it happens)
                                          ╰─▶ Recorder ─▶ LoaderStatistics

For each batch one record is appended to a list, and nothing is computed until the statistics are
asked for or the list is long.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lit_loader.statistics.records import (
    BatchRecord,
    LoaderStatistics,
    MemoryUse,
    NodeTimes,
    SlowSample,
    StageTimes,
    WorkerTimes,
)

__all__ = ["WINDOW", "Recorder", "Stopwatch"]

WINDOW: Final = 1024
"""Batches that percentiles are taken of: the last so many."""

SLOW_SAMPLES: Final = 5
"""Slowest samples that are remembered."""

EVENTS: Final = 7
"""What has happened last: so many restarts and bad samples are remembered, and so much of each."""

_TEXT: Final = 450

STRAGGLER: Final = 5
"""Times as long as the mean of the others in its batch that a sample takes to be a straggler."""

STAGES: Final = ("fetch", "collate", "encode", "wait", "decode", "pin", "step", "read")

_NUMBERS: Final = slice(1, BatchRecord._fields.index("slowest_index"))
"""The fields of a record that are summed up and fit into int64: from after the first, the epoch,
which is any integer, to before a sample's index, which is any object."""


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
        # Sorted and interpolated by hand: np.percentile takes several times as long.
        ordered = np.sort(self._recent[:, : self.count], axis=1)
        places = np.array((0.5, 0.9, 0.99, 1.0)) * (ordered.shape[1] - 1)
        below = places.astype(np.int64)
        above = np.minimum(below + 1, ordered.shape[1] - 1)
        low = ordered[:, below]
        percentiles = (low + (ordered[:, above] - low) * (places - below)) / 1e9
        return [
            StageTimes(
                total=total / 1e9,
                mean=total / 1e9 / self.count,
                p50=p50,
                p90=p90,
                p99=p99,
                max=most,
            )
            for total, (p50, p90, p99, most) in zip(
                self._totals.tolist(), percentiles.tolist(), strict=True
            )
        ]


class Recorder:
    """Collects records of batches; for one thread at a time. A copy of it begins anew.

    Attributes:
        worker_restarts: As in `LoaderStatistics`.
        sample_errors: As in `LoaderStatistics`.
        sample_retries: As in `LoaderStatistics`.
        last: The record of the batch given out last, or None.
        first_remote: The number of the first worker that is on another machine, if there are such.
        nodes: Which machine each of those is on, or was last, by its place among them.
        events: The last restarts and bad samples: seconds since 1970, the kind, the text.
        listener: Called with every full window of records, and by `flush` with the rest; or None.
    """

    def __init__(self) -> None:
        self.worker_restarts = self.sample_errors = self.sample_retries = 0
        self.last: BatchRecord | None = None
        self.first_remote = math.inf
        self.nodes: dict[int, str] = {}
        self.events: deque[tuple[float, str, str]] = deque(maxlen=EVENTS)
        self.listener: Callable[[Sequence[BatchRecord]], object] | None = None
        self._records: list[BatchRecord] = []
        self._stages = Stopwatch(len(STAGES))
        self._samples = self._nbytes = 0
        self._timed = self._processor = self._queued = 0
        self._waited = self._step = self._starts = self._startup = self._stragglers = 0
        self._workers: dict[int, NDArray[np.int64]] = {}
        self._slow: list[tuple[int, SlowSample]] = []

    def __reduce__(self) -> tuple[type[Recorder], tuple[()]]:
        # A listener belongs to the loop that is watched, and records to the loader that made them.
        return Recorder, ()

    def note(self, kind: str, text: str) -> None:
        """Remember, for viewers, what has happened."""
        self.events.append((time.time(), kind, text[:_TEXT]))

    def add(self, record: BatchRecord) -> None:
        """Add the record of a batch, when it is given out."""
        self.last = record
        self._records.append(record)
        if len(self._records) >= WINDOW:
            self.flush()

    def flush(self) -> None:
        """Sum up the records that were added."""
        records, self._records = self._records, []
        if records:
            self.extend(records)

    def extend(self, records: Sequence[BatchRecord]) -> None:
        """Sum up the records of several batches at once."""
        table = np.array([record[_NUMBERS] for record in records], np.int64).T
        column = dict(zip(BatchRecord._fields[_NUMBERS], table, strict=True))
        column["read"] = np.array([record.read for record in records], np.int64)
        self._stages.add(np.stack([column[name] for name in STAGES]))
        self._samples += int(column["samples"].sum())
        self._nbytes += int(column["nbytes"].sum())
        waited = _waited(column)
        first = column["step"] == 0
        self._waited += int(waited.sum())
        self._step += int(column["step"].sum())
        self._starts += int(first.sum())
        self._startup += int(waited[first].sum())
        self._note_processors(records)
        self._note_workers(column)
        self._note_slow_samples(column, records)
        if self.listener is not None:
            self.listener(records)

    def _note_processors(self, records: Sequence[BatchRecord]) -> None:
        timed = [record for record in records if record.processor]
        self._timed += sum(each.fetch + each.collate + each.encode for each in timed)
        self._processor += sum(each.processor for each in timed)
        self._queued += sum(each.queued for each in timed)

    def _note_workers(self, column: dict[str, NDArray[np.int64]]) -> None:
        busy = column["fetch"] + column["collate"] + column["encode"]
        transit = np.maximum(column["arrived"] - column["began"] - busy, 0)
        table = np.stack([np.ones_like(busy), column["samples"], busy, column["nbytes"], transit])
        for worker in set(column["worker"].tolist()):
            sums = table[:, column["worker"] == worker].sum(axis=1)
            self._workers[worker] = self._workers.get(worker, np.zeros(5, np.int64)) + sums

    def _note_slow_samples(
        self, column: dict[str, NDArray[np.int64]], records: Sequence[BatchRecord]
    ) -> None:
        slowest, others = column["slowest"], column["samples"] - 1
        mean = (column["fetch"] - slowest) / np.maximum(others, 1)
        self._stragglers += int(slowest[(others > 0) & (slowest > STRAGGLER * mean)].sum())
        least = self._slow[-1][0] if len(self._slow) == SLOW_SAMPLES else 0
        found = list(self._slow)
        for position in np.flatnonzero(slowest > least).tolist():
            record = records[position]
            sample = SlowSample(
                index=record.slowest_index,
                seconds=record.slowest / 1e9,
                epoch=record.epoch,
                batch=record.number,
            )
            found.append((record.slowest, sample))
        found.sort(key=lambda item: -item[0])
        # By their text: an index is any object, perhaps one that cannot be hashed or compared.
        distinct: dict[Any, tuple[int, SlowSample]] = {}
        for item in found:
            index = item[1].index
            distinct.setdefault(id(item) if index is None else repr(index), item)
            if len(distinct) == SLOW_SAMPLES:
                break
        self._slow = list(distinct.values())

    def summary(
        self,
        ready: int = 0,
        shared_memory: int = 0,
        memory: MemoryUse | None = None,
        num_workers: int = 0,
        why_so_many: str = "",
    ) -> LoaderStatistics:
        """Returns the statistics of all batches so far; the arguments are as they say of now."""
        self.flush()
        seconds = max(self._waited + self._step, 1) / 1e9
        workers = [self._worker(number, seconds) for number in sorted(self._workers)]
        by_node = {
            worker.node: [each for each in workers if each.node == worker.node]
            for worker in workers
            if worker.node
        }
        nodes = [_node(name, by_node[name]) for name in sorted(by_node)]
        stages: dict[str, Any] = dict(zip(STAGES, self._stages.times(), strict=True))
        return LoaderStatistics(
            batches=self._stages.count,
            samples=self._samples,
            nbytes=self._nbytes,
            seconds=seconds if self._stages.count else 0.0,
            **stages,
            waited=self._waited / 1e9,
            wait_fraction=self._waited / 1e9 / seconds,
            starts=self._starts,
            startup=self._startup / 1e9,
            workers=tuple(workers),
            busy_fraction=sum(w.busy_fraction for w in workers) / max(1, len(workers)),
            slowest_samples=tuple(sample for _, sample in self._slow),
            stragglers=self._stragglers / 1e9,
            ready=ready,
            worker_restarts=self.worker_restarts,
            sample_errors=self.sample_errors,
            sample_retries=self.sample_retries,
            shared_memory=shared_memory,
            remote_batches=sum(node.batches for node in nodes),
            remote_nbytes=sum(node.nbytes for node in nodes),
            transit=sum(node.transit for node in nodes),
            nodes=tuple(nodes),
            memory=memory,
            num_workers=num_workers,
            why_so_many=why_so_many,
            processor_fraction=self._processor / max(1, self._timed),
            queued_fraction=self._queued / max(1, self._timed),
        )

    def _worker(self, number: int, seconds: float) -> WorkerTimes:
        batches, samples, busy, nbytes, transit = self._workers[number].tolist()
        node = ""
        if number >= self.first_remote:
            node = self.nodes.get(number - int(self.first_remote), "unknown")
        return WorkerTimes(
            worker=number,
            batches=batches,
            samples=samples,
            busy=busy / 1e9,
            busy_fraction=min(1.0, busy / 1e9 / seconds),
            node=node,
            nbytes=nbytes,
            transit=transit / 1e9 if node else 0.0,
        )


def _node(name: str, workers: Sequence[WorkerTimes]) -> NodeTimes:
    """Sum up what the workers of one machine did."""
    names = ("batches", "samples", "nbytes", "busy", "transit")
    sums = {field: sum(getattr(each, field) for each in workers) for field in names}
    return NodeTimes(node=name, workers=len(workers), **sums)


def _waited(column: dict[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    """`BatchRecord.waited`, of many at once."""
    wait, decode, pin = column["wait"], column["decode"], column["pin"]
    own = np.where(column["worker"] < 0, pin, np.where(pin > 0, 0, decode))
    return wait + own
