"""`AutoWorkers`: ``num_workers="auto"``: measures batches, and sets the loader's number of workers.

There is one for each loader, used by its iterators one after another::

    Timings ─ add ─▶ a window of batches ─ measured ─▶ Load ─▶ Controller ─▶ Setting ─▶ resize
                                           Bounds: CPU cores of this rank, memory left ──╯

Batches that were begun before all workers were up do not count, nor does an iterator's first one.
"""

from __future__ import annotations

import logging
import math
import time
from typing import Final

from lit_loader.core.batch.progress import Timings
from lit_loader.core.executors.executor import Workers
from lit_loader.core.transport.messages import POSITION
from lit_loader.data.memory import memory_left
from lit_loader.profiling.controller import Bounds, Controller, Load, Setting
from lit_loader.profiling.resources import cores_of_this_rank, own_memory

__all__ = ["AutoWorkers"]

LEAST: Final = 50_000_000  # nanoseconds that a window lasts at least

MOST: Final = 32
"""The limit on a small machine; on a larger one it is eight for each CPU core."""

FRESH: Final = 5_000_000_000
"""Nanoseconds for which what is known of CPU cores and memory is used again."""

INTERLUDE: Final = 20
"""Times the median step from which on a window's longest step was not training alone."""

KEPT: Final = 4096  # batches of remote workers that are kept, if those here make none
SPARE: Final = 0.8  # the part of the memory left that more workers, or batches, may take
MUCH: Final = 1 << 60  # bytes of memory that are left where the system does not say
_NO_MEMORY: Final = "do not fit into the memory that is left"

_LOG: Final = logging.getLogger("lit_loader.tuning")


class AutoWorkers:
    """Sets a loader's number of workers. A copy begins with the current number."""

    def __init__(self, workers: int = 2) -> None:  # so few that they do not wait for each other
        self.measured = False  # whether a window was measured
        self._controller = Controller(workers)
        self._settled = False  # whether all workers are up, and the window has begun
        self._due = 0  # batches in the window at which something is to be done
        self._latest = (-1, 0, 0)  # epoch, number and moment of the batch yielded last
        self._changed = (-1, 0)  # epoch and number of the batch at the last change
        self._most = 1 << 20  # workers that can be started
        self._looked = -FRESH  # when the following were read, by time.monotonic_ns()
        self._cores = 0.0
        self._left = 0  # bytes of memory that may be used
        self._room = 0, ""  # workers, and why there is no room for more
        self._begin(0)

    def __reduce__(self) -> tuple[type[AutoWorkers], tuple[int]]:
        return AutoWorkers, (self.setting.workers,)

    @property
    def setting(self) -> Setting:
        """How many workers there are to be, and why."""
        return self._controller.setting

    def begin_with(self, workers: int) -> None:
        """Begin with a number that was found elsewhere, if none was found here yet."""
        if not self.measured and workers > 0:
            self._controller = Controller(min(workers, _limit(cores_of_this_rank())))

    def cap_workers(self, workers: int) -> None:
        """Use at most this number from now on: no more can be started."""
        self._most = workers
        self._controller.bound(workers)

    def add(self, record: Timings, again: bool = False) -> bool:
        """Add a batch that was yielded; returns whether to call :meth:`decide`.

        With ``again``, readers that move to another worker replay what they have yielded: then an
        epoch's next change waits until it has twice the number of batches.
        """
        epoch, number = record.number & ~POSITION, record.number & POSITION
        self._latest = epoch, number, record.given
        if again and epoch == self._changed[0] and number < 2 * self._changed[1]:
            return False
        if record.began >= self._since and record.step:
            if record.cpu_time or len(self._records) < KEPT:
                self._records.append(record)
            self._here += record.cpu_time > 0
        return self._here >= self._due

    def _begin(self, moment: int) -> None:
        """Begin a window: count the batches that workers begin from this moment on."""
        self._since = moment
        self._records: list[Timings] = []
        self._here = 0  # batches of workers on this machine

    def decide(self, pool: Workers, name: str, tasks: int = 0) -> Setting | None:
        """Return what a `WorkerPool` is to have from now on; None: no change.

        ``tasks``: how many workers an epoch keeps busy at most, 0 if that is not known.
        """
        controller, records, before = self._controller, self._records, self.setting
        if not self._settled:
            if pool.settled:  # what workers take up from now on is work, not a start
                self._settled, self._due = True, controller.window
                self._begin(self._latest[2])
            return None
        if (records[-1].asked - records[0].asked if records else 0) < LEAST:
            self._due += controller.window
            return None
        load = measured(records, pool.num_workers)
        self._begin(self._since)
        now = controller.decide(load, self._bounds(pool, load.nbytes, tasks))
        self.measured, self._due = True, controller.window
        if now[:2] == before[:2]:
            return None
        _LOG.info(
            "%s: %d -> %d workers, %d -> %d batches in flight for each: %s (a batch takes a worker "
            "%.3g ms, %.3g of CPU time, and %.3g waiting for a CPU core; the loop is busy for "
            "%.3g ms and waits for %.3g)",
            *(name, before.workers, now.workers, before.prefetch, now.prefetch, now.reason),
            *(1e3 * load.worker, 1e3 * load.cpu_time, 1e3 * load.queued),
            *(1e3 * load.step, 1e3 * load.wait),
        )
        self._changed = self._latest[:2]
        self._settled, self._due = False, 0
        return now

    def _bounds(self, pool: Workers, nbytes: int, tasks: int) -> Bounds:
        now = time.monotonic_ns()
        if now - self._looked > FRESH:
            self._looked, left = now, memory_left()
            self._left = MUCH if left is None else int(SPARE * left)
            self._cores = cores_of_this_rank()
            cores = math.ceil(self._cores)
            self._room = _limit(cores), f"are not started on {cores} CPU core(s)"
            each = own_memory(all_[0].pid) if (all_ := pool.processes) else None
            if each:
                self._room = min(self._room, (pool.num_workers + self._left // each, _NO_MEMORY))
        # Batches that are in flight now have their memory already.
        batches = math.prod(self.setting[:2]) + self._left // max(1, nbytes)
        most, why = min(
            (self._most, "cannot be started"),
            self._room,
            (batches, _NO_MEMORY),
            (tasks or batches, "would have nothing to do"),
        )
        return Bounds(self._cores, max(1, most), batches, why)


def _limit(cores: float) -> int:
    return max(MOST, 8 * math.ceil(cores))


def measured(records: list[Timings], workers: int) -> Load:
    """Return what a window's batches have cost, with this number of workers on this machine.

    Batches of remote workers, whose CPU time is not measured, count as far as the loop waits for
    them. A step during which the loop did something else (validation, a checkpoint) is left out.
    """
    steps = sorted(record.step for record in records)
    if steps[-1] > INTERLUDE * steps[len(steps) // 2]:
        records = [record for record in records if record.step < steps[-1]]
    made: list[int] = []
    cpu_time = queued = step = wait = 0
    for record in records:
        there = record.arrived
        if record.cpu_time:
            took = record.fetch + record.collate + record.encode
            made.append(took)
            cpu_time += record.cpu_time
            queued += min(record.queued, took)
            there = record.began + took
        # A batch that was there when it was asked for is not waited for, however long its transfer.
        waited = max(0, min(record.wait, there - record.asked))
        wait += waited
        # Decoding is the loop's own work, unless a thread pins batches meanwhile.
        step += record.step + record.wait - waited + (0 if record.pin else record.decode)
    here = max(1, len(made))
    worker = max(1.0, sum(made) / here)
    variance = sum((took - worker) ** 2 for took in made) / here
    return Load(
        workers=max(1, workers),
        batches=here,
        worker=worker / 1e9,
        cpu_time=cpu_time / here / 1e9,
        queued=queued / here / 1e9,
        spread=math.sqrt(variance) / worker,
        step=max(1, step) / len(records) / 1e9,
        wait=wait / len(records) / 1e9,
        remote=1 - len(made) / len(records),
        nbytes=max(record.nbytes for record in records),
    )
