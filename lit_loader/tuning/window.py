"""`Window`: adds up the records of some batches to the `Load` that a controller decides by.

Records come in as batches are given out. Left out are batches that were begun before the workers
were those of the last decision, an iterator's first one, and steps in which the consumer was at
something else for long (validation, a checkpoint). What a batch costs a worker is that of the
workers here, whose processor time is measured; those on other machines show in what is left of the
consumer's wait.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Final

from lit_loader.statistics.records import BatchRecord
from lit_loader.tuning.estimate import Load

__all__ = ["Window"]

INTERLUDE: Final = 20
"""Times the window's median step from which on a step is something else."""

MOST: Final = 4096
"""Batches that are kept; after so many without enough of the workers here, a window begins anew."""

_COLUMN: Final = {name: place for place, name in enumerate(BatchRecord._fields)}


class Window:
    """The batches since the last decision.

    Attributes:
        since: Batches that a worker took up before this moment do not count, by
            ``time.monotonic_ns()``.
    """

    def __init__(self) -> None:
        self.since = 0
        self._records: list[BatchRecord] = []
        self._here = 0  # those of them that workers of this machine have made

    def __len__(self) -> int:
        return self._here

    def begin(self, moment: int) -> None:
        """Forget what has come in, and count what workers take up from this moment on."""
        self.since = moment
        self._records.clear()
        self._here = 0

    def add(self, record: BatchRecord) -> None:
        """Add a batch that was given out."""
        if record.began >= self.since and record.step:
            self._records.append(record)
            if record.processor:
                self._here += 1
            elif len(self._records) >= MOST:
                self.begin(self.since)

    @property
    def seconds(self) -> float:
        """How long the window is, from its first batch to its last."""
        records = self._records
        return (records[-1].asked - records[0].asked) / 1e9 if records else 0.0

    @property
    def nbytes(self) -> int:
        """Bytes of the largest batch."""
        return max((record.nbytes for record in self._records), default=0)

    def take(self, workers: int, consumer_processors: float = 0.0) -> Load:
        """Give what the batches have cost, and begin another window.

        Args:
            workers: Workers of this machine that have made them.
            consumer_processors: Processors that the consumer's own process kept busy meanwhile.
        """
        records, self._records, self._here = self._records, [], 0
        usual = INTERLUDE * sorted(record.step for record in records)[len(records) // 2]
        if max(record.step for record in records) > usual:
            records = [record for record in records if record.step <= usual]
        count, here = len(records), [record for record in records if record.processor]
        elsewhere = [record for record in records if not record.processor] if here else []
        here = here or records
        # By column, for which C does the loops: it is done for every batch there is.
        column = list(zip(*records, strict=True))
        own = list(zip(*here, strict=True)) if elsewhere else column

        def seconds(name: str, table: Sequence[Sequence[int]] = column) -> float:
            values = table[_COLUMN[name]]
            return float(sum(values)) / len(values) / 1e9

        made = [*map(sum, zip(*(own[_COLUMN[stage]] for stage in _STAGES), strict=True))]
        worker = sum(made) / len(here)
        variance = sum(map(operator.mul, made, made)) / len(here) - worker * worker
        # Decoding is the consumer's own work, unless a thread pins the batches meanwhile.
        step = seconds("step") + (0.0 if any(column[_COLUMN["pin"]]) else seconds("decode"))
        # What it takes to be given a batch that is there is no wait for workers.
        wait = _waited(own, map(operator.add, own[_COLUMN["began"]], made))
        if elsewhere:
            there = list(zip(*elsewhere, strict=True))
            wait += _waited(there, there[_COLUMN["arrived"]])
        wait = wait / count / 1e9
        step += seconds("wait") - wait
        made_in = worker * len(here) / count / 1e9 / max(1, workers)
        return Load(
            workers=workers,
            batches=len(here),
            rate=1 / max(step + wait, 1e-9),
            worker=worker / 1e9,
            processor=seconds("processor", own),
            queued=min(seconds("queued", own), worker / 1e9),
            spread=math.sqrt(max(variance, 0.0)) / max(worker, 1.0),
            step=step,
            wait=wait,
            # Of workers that are waited for it is not the consumer that they wait for.
            idle=_idle(here) if wait > 0.01 * step else max(0.0, 1 - made_in / max(step, 1e-9)),
            consumer_processors=consumer_processors,
            remote=len(elsewhere) / count,
        )


def _waited(column: Sequence[Sequence[int]], made_at: Iterable[int]) -> float:
    """Nanoseconds that the consumer has waited for these batches, made at these moments."""
    late = map(operator.sub, made_at, column[_COLUMN["asked"]])
    pairs = zip(column[_COLUMN["wait"]], late, strict=True)
    return float(sum(max(0, min(pair)) for pair in pairs))


def _idle(records: Sequence[BatchRecord]) -> float:
    """Part of their time in which workers have had nothing to do between these batches."""
    ended: dict[int, int] = {}
    idle = busy = 0
    for record in records:
        worker, began = record.worker, record.began
        took = record.fetch + record.collate + record.encode
        if worker in ended:
            idle += max(0, began - ended[worker])
            busy += took
        ended[worker] = began + took
    return idle / (idle + busy) if busy else 0.0


_STAGES: Final = ("fetch", "collate", "encode")
