"""`Early`: workers, and the first batches, begin before an iterator does: ``loader.start()``.

No epoch begins by it, and no position changes. Where the tasks cannot be foreseen (a sampler of the
user's has to be drawn from), workers start and make nothing yet.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

from lit_loader.core.epoch.epoch import Ahead
from lit_loader.core.epoch.epochs import EpochStart
from lit_loader.core.executors.executor import Task
from lit_loader.core.sampling.batch_plan import lookahead
from lit_loader.core.system.interrupts import HeldBack

_COUNTING: Final = ("num_workers", "num_remote_workers", "worker_method", "in_order")
"""Options that workers and tasks follow from, besides those that workers are started with."""


def start(core: Any) -> None:
    """Let a loader's workers begin before an iterator does; see ``DataLoader.start``."""
    with core.lock, HeldBack():
        coming: EpochStart | None = core.foresee() if core.pool is None else None
        early = core.early
        if coming is not None and (early is None or not early.fits(core, coming)):
            core.end_idle_workers()
            core.early = Early(core, coming)


class Early:
    """Workers of a loader for the epoch that was foreseen, and what they are at."""

    def __init__(self, core: Any, start: EpochStart) -> None:
        self._seed, self._options = core.worker_seed(start), core.options(*_COUNTING)
        self._ahead = Ahead(start)
        self.workers = core.new_workers(start)  # a WorkerPool, or a ThreadExecutor
        self._submit(core, start)

    def _submit(self, core: Any, start: EpochStart) -> None:
        """Submit the epoch's first tasks, as many as an iterator would."""
        ahead, workers, plan = self._ahead, self.workers, core.plan
        threads, place = core.loader.worker_method == "thread", start.position.start
        if plan is None:
            epoch = core.seams.stream_epoch(core, start, core.loader.in_order)
            tasks = iter(epoch.next_task, None)
        elif plan.is_computed:
            coming = lookahead(plan, place.epoch - 1, place.bases, place.batches, place.ahead)
            this = itertools.takewhile(lambda each: each[0] == place.epoch, coming)
            tasks = iter(lambda: ahead.next_task(lambda *_: this), None)
        else:
            tasks = iter(())
        room = workers.room if threads else workers.arena.room
        while len(ahead.tasks) < core.depth and room(len(ahead.tasks)) > 0:
            task: Task | None = next(tasks, None)
            if task is None:
                break
            ahead.tasks[task.number] = task
            if threads:
                workers.submit(task)
            else:
                workers.submit(*task[:5])
        if threads:
            workers.begin()

    def fits(self, core: Any, start: EpochStart) -> bool:
        """Whether an epoch that begins there would start such workers, and ask them for this."""
        return (
            not self.workers.closed
            and self._seed == core.worker_seed(start)
            and core.has(self._options)
            and (not self._ahead.tasks or self._ahead.fits(start, core.plan))
        )

    def hand_over(self, core: Any, epoch: Any) -> tuple[Any, Ahead | None] | None:
        """Give the workers to whoever ends them from now on; and what they are at, if anything.

        None: they are none that this epoch needs.
        """
        if not epoch.is_new:
            return None
        core.early = None
        if not self.fits(core, epoch.start):
            self.close()
            return None
        return self.workers, self._ahead if self._ahead.tasks else None

    def close(self) -> None:
        """End the workers."""
        self.workers.close()
