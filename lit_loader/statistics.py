"""Where the time goes: what every batch has cost in every stage, summed up on request.

::

    worker    fetch ▶ collate ▶ encode ─▶╮          (clocked there; travels in the Result)
    parent           wait ▶ decode ▶ pin ─▶ step    (clocked where it happens)
                                          ╰─▶ Recorder ─▶ LoaderStatistics

For each batch one record is appended to a list, and nothing is computed until somebody asks or the
list is long. All clocks are ``time.monotonic_ns()``, which is the same in all processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BatchRecord",
    "LoaderStatistics",
    "Recorder",
    "SlowSample",
    "StageTimes",
    "StepRecord",
    "Stopwatch",
    "WorkerTimes",
]

WINDOW: Final = 1024
"""Batches that percentiles are taken of: the last so many."""

SLOW_SAMPLES: Final = 5

STRAGGLER: Final = 5
"""Times as long as the mean of the others in its batch that a sample takes to be a straggler."""

STAGES: Final = ("fetch", "collate", "encode", "wait", "decode", "pin", "step")


class BatchRecord(NamedTuple):
    """What one batch has cost; times in nanoseconds, moments by ``time.monotonic_ns()``.

    Attributes:
        epoch: Its epoch.
        number: Its number in the epoch.
        worker: Who has made it; -1: the consumer's own process.
        samples: Its samples.
        nbytes: Bytes of shared memory that it takes; 0 in the consumer's own process.
        began: When the worker took it up.
        fetch: Reading its samples.
        collate: Collating them.
        encode: Writing what is not there yet into shared memory.
        arrived: When the parent learned of it.
        asked: When the consumer asked for a batch.
        wait: How long the consumer waited for the workers then.
        decode: Rebuilding it in the parent.
        pin: Copying it into page-locked memory.
        step: What the consumer did since it was given the batch before; 0 for the first.
        slowest: Its slowest sample; 0: not known.
        slowest_index: That sample's index; None: not known.
    """

    epoch: int
    number: int
    worker: int
    samples: int
    nbytes: int
    began: int
    fetch: int
    collate: int
    encode: int
    arrived: int
    asked: int
    wait: int
    decode: int
    pin: int
    step: int
    slowest: int
    slowest_index: Any

    @property
    def waited(self) -> int:
        """How long the consumer was kept from its own work, in nanoseconds."""
        if self.worker < 0:
            return self.wait + self.pin
        # With a pin-memory thread that one has decoded it, and this was part of the wait or of none
        return self.wait if self.pin else self.wait + self.decode

    @property
    def given(self) -> int:
        """The moment at which the batch was given out."""
        return self.asked + self.waited


class StepRecord(NamedTuple):
    """What the consumer did with a batch; moments by ``time.monotonic_ns()``.

    Attributes:
        given: When the loader gave the batch out; 0: not known.
        start: When the step with it began: between the two it was brought to its device.
        end: When that step ended.
    """

    given: int
    start: int
    end: int


@dataclass(frozen=True)
class StageTimes:
    """Durations of one stage, in seconds.

    Attributes:
        total: Sum over all batches.
        mean: Per batch.
        p50: Median of the last batches (1,024, if there were as many).
        p90: Nine in ten of them took no longer.
        p99: 99 in a hundred.
        max: The longest of them.
    """

    total: float = 0.0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    max: float = 0.0


@dataclass(frozen=True)
class WorkerTimes:
    """What one worker did.

    Attributes:
        worker: Its number; -1: the consumer's own process.
        batches: Batches it made.
        samples: Samples in them.
        busy: Seconds that it was making them.
        busy_fraction: Part of the statistics' ``seconds``.
    """

    worker: int
    batches: int
    samples: int
    busy: float
    busy_fraction: float


@dataclass(frozen=True)
class SlowSample:
    """One of the slowest samples.

    Attributes:
        index: Its index; None for an iterable dataset.
        seconds: How long it took to read.
        epoch: In which epoch.
        batch: In which batch.
    """

    index: Any
    seconds: float
    epoch: int
    batch: int


@dataclass(frozen=True)
class LoaderStatistics:
    """Where a loader's time went, from its first batch on.

    Attributes:
        batches: Batches given out.
        samples: Samples in them.
        nbytes: Bytes of shared memory that they took.
        seconds: Spent in the loops over this loader: waiting for batches, and using them.
        fetch: Reading samples (``__getitem__``), in workers.
        collate: Collating, in workers.
        encode: Writing batches into shared memory, in workers.
        wait: The consumer's wait for the workers. With ``num_workers=0``: for fetch and collate.
        decode: Rebuilding batches, in the parent.
        pin: Copying them into page-locked memory, in the pin-memory thread.
        step: What the consumer did between batches; 0 before an iterator's first one.
        waited: Seconds that the consumer waited for data: ``wait``, and what it did itself: decode
            without a pin-memory thread, pin with ``num_workers=0``.
        wait_fraction: Part of ``seconds`` that ``waited`` is.
        starts: Iterators that have given out a batch.
        startup: Seconds of ``waited`` for their first batches.
        workers: Each worker's part.
        busy_fraction: Mean of the workers'.
        slowest_samples: The slowest, at most five, slowest first, each index once.
        stragglers: Seconds of ``fetch`` spent in samples that took over five times as long as the
            mean of the others in their batch.
        ready: Batches that were made and not asked for yet, when this was taken.
        worker_restarts: Workers that were replaced after they died or hung.
        sample_errors: Samples that could not be read, and were skipped or replaced.
        sample_retries: Times that a sample was read again.
        shared_memory: Bytes of the arena that are in use.
    """

    batches: int = 0
    samples: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    fetch: StageTimes = field(default_factory=StageTimes)
    collate: StageTimes = field(default_factory=StageTimes)
    encode: StageTimes = field(default_factory=StageTimes)
    wait: StageTimes = field(default_factory=StageTimes)
    decode: StageTimes = field(default_factory=StageTimes)
    pin: StageTimes = field(default_factory=StageTimes)
    step: StageTimes = field(default_factory=StageTimes)
    waited: float = 0.0
    wait_fraction: float = 0.0
    starts: int = 0
    startup: float = 0.0
    workers: tuple[WorkerTimes, ...] = ()
    busy_fraction: float = 0.0
    slowest_samples: tuple[SlowSample, ...] = ()
    stragglers: float = 0.0
    ready: int = 0
    worker_restarts: int = 0
    sample_errors: int = 0
    sample_retries: int = 0
    shared_memory: int = 0


class Stopwatch:
    """Sums up durations of some stages; percentiles are those of the last ones.

    Args:
        stages: Number of stages.
    """

    def __init__(self, stages: int) -> None:
        self.count = 0
        self._totals: NDArray[np.int64] = np.zeros(stages, np.int64)
        self._recent: NDArray[np.int64] = np.zeros((stages, WINDOW), np.int64)

    def add(self, durations: NDArray[np.int64]) -> None:
        """Take durations in.

        Args:
            durations: Nanoseconds, int64 of shape (stages, any number of batches).
        """
        self._totals += durations.sum(axis=1)
        kept = durations[:, -WINDOW:]
        end = self.count + durations.shape[1]
        self._recent[:, np.arange(end - kept.shape[1], end) % WINDOW] = kept
        self.count = end

    def times(self) -> list[StageTimes]:
        """Give the stages' times so far."""
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
            StageTimes(total / 1e9, total / 1e9 / self.count, *row)
            for total, row in zip(self._totals.tolist(), percentiles.tolist(), strict=True)
        ]


class Recorder:
    """Collects records of batches; for one thread at a time. A copy of it begins anew.

    Attributes:
        worker_restarts: As in `LoaderStatistics`.
        sample_errors: As in `LoaderStatistics`.
        sample_retries: As in `LoaderStatistics`.
        last: The record of the batch given out last, or None.
        watcher: Gets every full window of records, and the rest by `flush`; None: nobody.
    """

    def __init__(self) -> None:
        self.worker_restarts = self.sample_errors = self.sample_retries = 0
        self.last: BatchRecord | None = None
        self.watcher: Callable[[Sequence[BatchRecord]], object] | None = None
        self._records: list[BatchRecord] = []
        self._stages = Stopwatch(len(STAGES))
        self._samples = self._nbytes = 0
        self._waited = self._step = self._starts = self._startup = self._stragglers = 0
        self._workers: dict[int, NDArray[np.int64]] = {}
        self._slow: list[tuple[int, SlowSample]] = []

    def __reduce__(self) -> tuple[type[Recorder], tuple[()]]:
        # A watcher belongs to the loop that is watched, and figures to the loader that has them.
        return Recorder, ()

    def add(self, record: BatchRecord) -> None:
        """Take in what a batch has cost, when it is given out."""
        self.last = record
        self._records.append(record)
        if len(self._records) >= WINDOW:
            self.flush()

    def flush(self) -> None:
        """Sum up what has come in."""
        records, self._records = self._records, []
        if records:
            self.extend(records)

    def extend(self, records: Sequence[BatchRecord]) -> None:
        """Take in, at once, what several batches have cost."""
        # Column by column, a row a field; epochs are any integers, indices are any objects.
        table = np.array([record[1:-1] for record in records], np.int64).T
        column = dict(zip(BatchRecord._fields[1:-1], table, strict=True))
        self._stages.add(np.stack([column[name] for name in STAGES]))
        self._samples += int(column["samples"].sum())
        self._nbytes += int(column["nbytes"].sum())
        waited = _waited(column)
        first = column["step"] == 0
        self._waited += int(waited.sum())
        self._step += int(column["step"].sum())
        self._starts += int(first.sum())
        self._startup += int(waited[first].sum())
        self._note_workers(column)
        self._note_slow_samples(column, records)
        if self.watcher is not None:
            self.watcher(records)

    def _note_workers(self, column: dict[str, NDArray[np.int64]]) -> None:
        busy = column["fetch"] + column["collate"] + column["encode"]
        for worker in set(column["worker"].tolist()):
            mine = column["worker"] == worker
            sums = (int(mine.sum()), int(column["samples"][mine].sum()), int(busy[mine].sum()))
            self._workers[worker] = self._workers.get(worker, np.zeros(3, np.int64)) + sums

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
                record.slowest_index, record.slowest / 1e9, record.epoch, record.number
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

    def summary(self, ready: int = 0, shared_memory: int = 0) -> LoaderStatistics:
        """Give the statistics of all batches so far."""
        self.flush()
        seconds = max(self._waited + self._step, 1) / 1e9
        workers = tuple(
            WorkerTimes(worker, n, samples, busy / 1e9, min(1.0, busy / 1e9 / seconds))
            for worker, (n, samples, busy) in sorted(
                (worker, mine.tolist()) for worker, mine in self._workers.items()
            )
        )
        return LoaderStatistics(
            batches=self._stages.count,
            samples=self._samples,
            nbytes=self._nbytes,
            seconds=seconds if self._stages.count else 0.0,
            **dict(zip(STAGES, self._stages.times(), strict=True)),
            waited=self._waited / 1e9,
            wait_fraction=self._waited / 1e9 / seconds,
            starts=self._starts,
            startup=self._startup / 1e9,
            workers=workers,
            busy_fraction=sum(w.busy_fraction for w in workers) / max(1, len(workers)),
            slowest_samples=tuple(sample for _, sample in self._slow),
            stragglers=self._stragglers / 1e9,
            ready=ready,
            worker_restarts=self.worker_restarts,
            sample_errors=self.sample_errors,
            sample_retries=self.sample_retries,
            shared_memory=shared_memory,
        )


def _waited(column: dict[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    """`BatchRecord.waited`, of many at once."""
    wait, decode, pin = column["wait"], column["decode"], column["pin"]
    own = np.where(column["worker"] < 0, pin, np.where(pin > 0, 0, decode))
    return wait + own
