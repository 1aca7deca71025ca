"""`AutoWorkers`: ``num_workers="auto"``: measures, has it decided, and says what is to be done.

One a loader, from iterator to iterator. Left out are batches that were begun before all workers
were up, and an iterator's first one.
"""

from __future__ import annotations

import logging
import math
import time
from typing import Any, Final

from lit_loader.core.batch.timings import Timings
from lit_loader.data.memory import memory_left
from lit_loader.diagnostics.sentences import counted
from lit_loader.profiling.controller import Bounds, Controller, Load, Setting
from lit_loader.profiling.resources import own_memory, processors_of_this_rank

__all__ = ["AutoWorkers"]

LEAST: Final = 50_000_000  # nanoseconds that a window has at least

QUICK, REST = 1e-3, 4
"""Batches quicker than that (seconds) are not looked at for so many windows after a quiet one."""

MOST: Final = 32
"""Workers that there may be on a small machine; on a larger one, eight for each processor."""

WAITING: Final = 0.5
"""The part of a batch's time that samples wait for reads, from which on more reads would help."""

FRESH: Final = 5_000_000_000
"""Nanoseconds for which processors and memory are taken to be as they were."""

INTERLUDE: Final = 20
"""Times the median step from which on a window's longest one is something else."""

KEPT: Final = 4096  # batches that are kept of workers elsewhere, if those here make none
SPARE: Final = 0.8  # the part of the memory left that more workers may take

_LOG: Final = logging.getLogger("lit_loader.tuning")


class AutoWorkers:
    """Sets a loader's number of workers. A copy of it begins with the number of the moment."""

    def __init__(self, workers: int = 2) -> None:  # so few that they do not wait for each other
        self.measured = False  # whether the setting is one that was found
        self._controller = Controller(workers)
        self._settled = False  # whether the workers are all up, and the window has begun
        self._begin(0)
        self._latest = (-1, 0, 0)  # epoch and batch that is given out, and the moment
        self._changed = (-1, 0)  # epoch and batch at which it was decided last
        self._rest = 0  # batches that are not looked at
        self._due = 0  # batches in the window at which something is to be done
        self._most = 1 << 20  # workers that could be started
        self._looked = -FRESH  # at the following, by time.monotonic_ns()
        self._processors, self._room = 0.0, 0
        self._why = ""  # there is no more room

    def __reduce__(self) -> tuple[type[AutoWorkers], tuple[int]]:
        return AutoWorkers, (self.setting.workers,)

    @property
    def setting(self) -> Setting:
        """How many workers there are to be, and why."""
        return self._controller.setting

    def begin_with(self, workers: int) -> None:
        """Begin with so many, if nothing was found yet; they may be those of a larger machine."""
        if not self.measured and workers > 0:
            most = _most_on(processors_of_this_rank())
            self._controller = Controller(min(workers, most))

    def cap_workers(self, workers: int) -> None:
        """Have no more workers than these, from now on: no more can be started."""
        self._most = workers
        self._controller.bound(workers)

    def add(self, record: Timings, again: bool = False) -> bool:
        """Take in a batch that is given out; returns whether :meth:`decide` is to be called.

        Where readers that move to another worker read ``again`` what they have given, an epoch's
        next change waits until there are twice as many batches.
        """
        self._latest = record.epoch, record.number, record.given
        if again and record.epoch == self._changed[0] and record.number < 2 * self._changed[1]:
            return False
        if self._rest:
            self._rest -= 1
            return False
        if record.began >= self._since and record.step:
            if record.processor or len(self._records) < KEPT:
                self._records.append(record)
            self._here += record.processor > 0
        return self._here >= self._due

    def _begin(self, moment: int) -> None:
        """Begin a window: count what workers take up from this moment on."""
        self._since = moment
        self._records: list[Timings] = []
        self._here = 0  # batches of it that workers of this machine have made

    def decide(
        self, pool: Any, name: str, budget: int | None, readers: int = 0, reads: int = 0
    ) -> Setting | None:
        """Say how many workers a `WorkerPool` is to have now (0 readers: any); None: as before."""
        controller, records = self._controller, self._records
        if not self._settled:
            if pool.settled:  # what they take up from now on is work, and no start
                self._settled, self._due = True, controller.window
                self._begin(self._latest[2])
            return None
        if (records[-1].asked - records[0].asked if records else 0) < LEAST:
            self._due += controller.window
            return None
        load, before = measured(records, pool.num_workers), controller.setting
        self._begin(self._since)
        bounds = self._bounds(pool, load.nbytes, budget, readers)
        if reads and load.reading > WAITING:
            # Reads at a time count as workers: what waits for storage does so in a thread as well.
            most = max(2, math.ceil(self._processors), self._room // reads)
            if most < bounds.most:
                why = "are not begun for samples that wait for storage: raise "
                why += f"concurrent_reads, now {reads}"
                bounds = bounds._replace(most=most, why=why)
        now = controller.decide(load, bounds)
        self.measured, self._due = True, controller.window
        if (now.workers, now.prefetch) == (before.workers, before.prefetch):
            self._rest = REST * load.batches if load.between < QUICK else 0
            return None
        _LOG.info(
            "%s: %d -> %d workers, %d -> %d batches ahead for each: %s (a batch takes a worker "
            "%.3g ms, %.3g of them computing and %.3g waiting for a processor; the consumer is "
            "busy for %.3g ms and waits for %.3g)",
            *(name, before.workers, now.workers, before.prefetch, now.prefetch, now.reason),
            *(1e3 * load.worker, 1e3 * load.processor, 1e3 * load.queued),
            *(1e3 * load.step, 1e3 * load.wait),
        )
        self._changed = self._latest[:2]
        self._settled, self._due = False, 0
        return now

    def _bounds(self, pool: Any, nbytes: int, budget: int | None, readers: int) -> Bounds:
        """What may be used now; looked up anew where it is some seconds old."""
        now = time.monotonic_ns()
        if now - self._looked > FRESH:
            self._looked, left = now, memory_left()
            self._processors = processors_of_this_rank()
            self._room = _most_on(self._processors)
            self._why = f"are not started on {counted(math.ceil(self._processors), 'processor')}"
            each = own_memory(all_[0].pid) if (all_ := pool.processes) else None
            if left is not None and each:
                by_memory = pool.num_workers + int(SPARE * left / each)
                if by_memory < self._room:
                    self._room, self._why = by_memory, "do not fit into the memory that is left"
        batches = max(1, budget // nbytes) if budget is not None and nbytes else 1 << 20
        most, why = min(
            (self._most, "cannot be started"),
            (self._room, self._why),
            (batches, "do not fit into memory_budget"),
            (readers or batches, "would have no shard to read"),
        )
        return Bounds(self._processors, max(1, most), batches, why)


def _most_on(processors: float) -> int:
    return max(MOST, 8 * math.ceil(processors))


def measured(records: list[Timings], workers: int) -> Load:
    """Say what a window's batches have cost so many workers of this machine.

    Batches of workers on other machines, whose processor time is not measured, count as the
    consumer waits for them. A step in which it was at something else for long (validation, a
    checkpoint) is left out.
    """
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
