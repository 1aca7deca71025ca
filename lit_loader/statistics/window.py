"""`Window`: adds up the records of some batches to the `Load` that a controller decides by.

Left out are batches that were begun before all workers were up, an iterator's first one, and a step
in which the consumer was at something else for long (validation, a checkpoint). Batches of workers
on other machines, whose processor time is not measured, count as the consumer waits for them.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from lit_loader.statistics.records import BatchRecord

__all__ = ["Load", "Window"]

INTERLUDE: Final = 20
"""Times the median step from which on a window's longest one is something else."""

WAITING: Final = 0.03
"""The part of its time that a consumer may wait, and of the batches that others may make."""

MOST: Final = 4096
"""Batches that are kept of workers elsewhere, if those here make none."""


class Load(NamedTuple):
    """What the batches of a window have cost; seconds are means per batch."""

    workers: int  # of this machine that there were
    batches: int  # that they have made
    worker: float  # seconds from a worker's taking a batch up to its result
    processor: float  # seconds of processor time in that, of all of the worker's threads
    queued: float  # seconds of it in which the worker waited for a processor
    spread: float  # standard deviation of ``worker`` over its mean
    step: float  # seconds that the consumer was busy between two batches
    wait: float  # seconds that it waited for one
    remote: float = 0.0  # part of the batches that workers on other machines made
    nbytes: int = 0  # bytes of the largest batch
    reading: float = 0.0  # part of ``worker`` in which samples waited for reads

    @property
    def capacity(self) -> float:
        """Batches per second that the workers make while none is idle, by Little's law."""
        return self.workers / self.worker

    @property
    def alone(self) -> float:
        """Seconds that a batch takes a worker that need not wait for a processor."""
        return max(self.worker - self.queued, 1e-9)

    @property
    def noise(self) -> float:
        """What means over so many batches differ by, relatively, without a cause."""
        return self.spread / math.sqrt(self.batches)

    @property
    def between(self) -> float:
        """Seconds from batch to batch."""
        return self.step + self.wait

    @property
    def waits(self) -> bool:
        """Whether the consumer waits for more than a little of its time."""
        return self.wait > WAITING * self.between

    @property
    def lacking(self) -> bool:
        """Whether the workers here fail to give something: it is waited for, or made elsewhere."""
        return self.waits or self.remote > WAITING


class Window:
    """The batches since the last decision; its length is the number made by workers here."""

    def __init__(self) -> None:
        self._since = self._here = 0
        self._records: list[BatchRecord] = []

    def __len__(self) -> int:
        return self._here

    def begin(self, moment: int) -> None:
        """Forget what has come in, and count what workers take up from this moment on."""
        self._since, self._here, self._records = moment, 0, []

    def add(self, record: BatchRecord) -> None:
        """Add a batch that was given out."""
        if record.began >= self._since and record.step:
            if record.processor or len(self._records) < MOST:
                self._records.append(record)
            self._here += record.processor > 0

    @property
    def nanoseconds(self) -> int:
        """How long the window is, from its first batch to its last."""
        return self._records[-1].asked - self._records[0].asked if self._records else 0

    def take(self, workers: int) -> Load:
        """Say what the batches have cost so many workers of this machine; begin another window."""
        records = self._records
        self.begin(self._since)
        steps = sorted(record.step for record in records)
        if steps[-1] > INTERLUDE * steps[len(steps) // 2]:
            records = [record for record in records if record.step < steps[-1]]
        made: list[int] = []
        processor = queued = read = step = wait = 0
        for record in records:
            there = record.arrived
            if record.processor:
                took = record.fetch + record.collate + record.encode
                made.append(took)
                processor += record.processor
                read += record.read
                queued += min(record.queued, took)
                there = record.began + took
            # What was there when it was asked for is not waited for, however long its way takes.
            waited = max(0, min(record.wait, there - record.asked))
            wait += waited
            # Decoding is the consumer's own work, unless a thread pins the batches meanwhile.
            step += record.step + record.wait - waited + (0 if record.pin else record.decode)
        here = max(1, len(made))
        worker = max(1.0, sum(made) / here)
        variance = sum((took - worker) ** 2 for took in made) / here
        return Load(
            workers=max(1, workers),
            batches=here,
            worker=worker / 1e9,
            processor=processor / here / 1e9,
            queued=queued / here / 1e9,
            spread=math.sqrt(variance) / worker,
            step=max(1, step) / len(records) / 1e9,
            wait=wait / len(records) / 1e9,
            remote=1 - len(made) / len(records),
            nbytes=max(record.nbytes for record in records),
            reading=read / here / worker,
        )
