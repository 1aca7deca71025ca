"""`Window`: adds up the records of some batches to the `Load` that a controller decides by.

Left out are batches that were begun before the workers were those of the last decision, an
iterator's first one, and steps in which the consumer was at something else for long (validation, a
checkpoint). What a batch costs a worker is that of the workers here, whose processor time is
measured; those on other machines show in what is left of the consumer's wait.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from lit_loader.statistics.records import BatchRecord

__all__ = ["Load", "Window"]

INTERLUDE: Final = 20
"""Times the window's median step from which on its longest step is something else."""

MOST: Final = 4096
"""Batches that are kept; after so many without enough of the workers here, a window begins anew."""


@dataclass(frozen=True)
class Load:
    """What the batches of a window have cost; seconds are means per batch.

    Attributes:
        workers: Workers of this machine that there were.
        batches: Batches that they have made.
        worker: Seconds from a worker's taking a batch up to its result.
        processor: Seconds of processor time in that, of all of the worker's threads.
        queued: Seconds of it in which the worker waited for a processor.
        spread: Standard deviation of ``worker`` over its mean.
        step: Seconds that the consumer was busy between two batches.
        wait: Seconds that it waited for one.
        remote: Part of the batches that workers on other machines made.
    """

    workers: int
    batches: int
    worker: float
    processor: float
    queued: float
    spread: float
    step: float
    wait: float
    remote: float = 0.0

    @property
    def capacity(self) -> float:
        """Batches per second that the workers make while none is idle, by Little's law."""
        return self.workers / self.worker

    @property
    def alone(self) -> float:
        """Seconds that a batch takes a worker that need not wait for a processor."""
        return max(self.worker - self.queued, 1e-9)

    @property
    def threads(self) -> float:
        """Processors that a worker keeps busy while it computes."""
        return max(1.0, self.processor / self.alone)

    @property
    def compute(self) -> float:
        """Seconds in which it computes, were there a processor for each thread."""
        return max(self.processor / self.threads, 1e-9)

    @property
    def between(self) -> float:
        """Seconds from batch to batch."""
        return max(self.step + self.wait, 1e-12)

    @property
    def waiting(self) -> float:
        """The part of its time that the consumer waits."""
        return self.wait / self.between

    @property
    def noise(self) -> float:
        """What means over so many batches differ by, relatively, without a cause."""
        return self.spread / math.sqrt(self.batches)


class Window:
    """The batches since the last decision."""

    def __init__(self) -> None:
        self._since = 0
        self._records: list[BatchRecord] = []
        self._here = 0  # those of them that workers of this machine have made

    def __len__(self) -> int:
        return self._here

    def begin(self, moment: int) -> None:
        """Forget what has come in, and count what workers take up from this moment on."""
        self._since, self._here = moment, 0
        self._records.clear()

    def add(self, record: BatchRecord) -> None:
        """Add a batch that was given out."""
        if record.began >= self._since and record.step:
            self._records.append(record)
            if record.processor:
                self._here += 1
            elif len(self._records) >= MOST:
                self.begin(self._since)

    @property
    def seconds(self) -> float:
        """How long the window is, from its first batch to its last."""
        records = self._records
        return (records[-1].asked - records[0].asked) / 1e9 if records else 0.0

    @property
    def nbytes(self) -> int:
        """Bytes of the largest batch."""
        return max((record.nbytes for record in self._records), default=0)

    def take(self, workers: int) -> Load:
        """Give what the batches have cost, and begin another window.

        Args:
            workers: Workers of this machine that have made them.
        """
        records, self._records, self._here = self._records, [], 0
        steps = sorted(record.step for record in records)
        if steps[-1] > INTERLUDE * steps[len(steps) // 2]:
            records = [record for record in records if record.step < steps[-1]]
        made: list[int] = []
        processor = queued = step = wait = 0
        for record in records:
            there = record.arrived
            if record.processor:
                took = record.fetch + record.collate + record.encode
                made.append(took)
                processor += record.processor
                queued += min(record.queued, took)
                there = record.began + took
            # What was there when it was asked for is not waited for, however long its way takes.
            waited = max(0, min(record.wait, there - record.asked))
            wait += waited
            # Decoding is the consumer's own work, unless a thread pins the batches meanwhile.
            step += record.step + record.wait - waited + (0 if record.pin else record.decode)
        here, ns = max(1, len(made)), 1e9
        worker = sum(made) / here
        variance = sum((each - worker) ** 2 for each in made) / here
        return Load(
            workers=workers,
            batches=here,
            worker=max(worker, 1.0) / ns,
            processor=processor / here / ns,
            queued=queued / here / ns,
            spread=math.sqrt(variance) / max(worker, 1.0),
            step=max(step, 1) / len(records) / ns,
            wait=wait / len(records) / ns,
            remote=1 - len(made) / len(records),
        )
