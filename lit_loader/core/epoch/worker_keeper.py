"""`WorkerKeeper`: keeps a loader's workers from one iterator to the next.

Persistent workers are lent to one iterator at a time, the one that was begun last; an earlier one
that is used again has workers of its own. What they have begun of the next epoch
(`NextEpochTasks`) waits here for the next iterator.
"""

from __future__ import annotations

import contextlib
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from lit_loader.core.epoch.iterator import LoaderIterator
from lit_loader.core.epoch.pass_tasks import NextEpochTasks
from lit_loader.core.epoch.passes import Pass, PassOptions
from lit_loader.core.executors.executor import Executor
from lit_loader.core.seeding.seeds import UNTOLD
from lit_loader.core.system.interrupts import HeldBack
from lit_loader.describe import program_stacklevel

if TYPE_CHECKING:  # a loader without workers imports nothing of theirs
    from lit_loader.core.epoch.loader_core import LoaderCore
    from lit_loader.core.executors.worker_pool import WorkerPool
    from lit_loader.core.executors.worker_process import WorkerProcess

__all__ = ["WorkerKeeper"]


class WorkerKeeper:
    """The workers of one loader in one process; ``core`` is the loader's."""

    pool: WorkerPool | None = None  # the persistent workers
    _started_with: PassOptions  # what these were started with
    _begun: NextEpochTasks | None = None  # what the workers are at for the next epoch
    resizes = 0  # how often the number of workers was changed while they live

    def __init__(self, core: LoaderCore) -> None:
        self._core = weakref.ref(core)
        self._runs: list[weakref.ref[LoaderIterator[object]]] = []  # those with workers

    @property
    def core(self) -> LoaderCore:
        """The loader's core; whoever asks holds it, or an iterator of it."""
        core = self._core()
        assert core is not None
        return core

    # --- for an iterator ---

    def acquire(
        self, run: LoaderIterator[object], made: Pass
    ) -> tuple[Executor, NextEpochTasks | None]:
        """Return workers for a pass; and what they have begun of it, if that fits."""
        core = self.core
        other = core.seams.executor(core, made)
        if other is not None:
            return other, None
        from lit_loader.core.executors.pool_executor import PoolExecutor

        pool, begun = self._claim_pool(run, made)
        assert run.healer is not None
        executor = PoolExecutor(pool, run.healer, core.depth)
        pool.patient, pool.waits = bool(core.loader.timeout), core.log.waits
        pool.page.begin_epoch(made.epoch, made.position.now().delivered)
        return executor, begun

    def _claim_pool(
        self, run: LoaderIterator[object], made: Pass
    ) -> tuple[WorkerPool, NextEpochTasks | None]:
        holder, core = self.holder, self.core
        if not core.loader.persistent_workers or (holder is not None and run.superseded):
            return self.start_pool(made), None
        if holder is not None:
            holder.revoke()
        had = self.pool
        if had is not None and (
            had.closed
            or had.num_workers != core.local_workers
            or not core.options.suits_workers_of(self._started_with)
        ):
            self._end_workers()
        begun, self._begun = self._begun, None
        pool = self.pool
        if pool is None:
            self._started_with = core.options
            pool = self.pool = self.start_pool(made)
            return pool, None
        # A forgotten iterator is collected at any time, also when others have used the workers.
        known = begun is not None and begun.token == pool.token
        # Workers call the dataset's ``set_epoch`` themselves, which may replace anything.
        untold = made.seeds.dataset_epoch == UNTOLD
        replaced = pool.workers.attributes.replaced() if untold else []
        if replaced:
            core.warn_once(
                f"persistent workers do not see that {', '.join(replaced)} changed between two "
                "passes: only numbers, strings, booleans, None and tuples of these are sent to "
                "them. Choose between values by a plain attribute, or call loader.close() before "
                "the pass, which starts new workers [LL337]"
            )
        changed = pool.send_attributes()
        if known and begun is not None and not changed and begun.fits(made):
            pool.trim()
            return pool, begun
        pool.resume()  # which calls off what they were at
        return pool, None

    def give_back(self, executor: Any, begun: NextEpochTasks | None, reusable: bool) -> None:
        """Take workers back; those that are persistent go on, with what they have ``begun``."""
        persistent = reusable and self.pool is not None and self.pool is executor.workers
        if persistent and begun is not None:
            begun.token, self._begun = executor.token, begun
        else:
            executor.close(keep_workers=persistent)

    def start_pool(self, made: Pass) -> WorkerPool:
        """Start worker processes for a pass."""
        from lit_loader.core.executors.process_start import default_context
        from lit_loader.core.executors.worker_pool import WorkerPool

        core = self.core
        loader, options = core.loader, core.options
        context = options.multiprocessing_context or default_context()
        if context.get_start_method() == "fork":
            for text in core.seams.shared_by_fork(core, core.local_workers):
                warnings.warn(text, RuntimeWarning, stacklevel=program_stacklevel())
        pool = WorkerPool(
            core.spec(made),
            core.local_workers,
            context,
            in_flight=core.depth,
            seed=made.seeds.seed >> 1,
            turns=core.readers,
            remote=core.seams.remote_workers(core),
            stall_warning=loader.stall_warning,
            stall=core.seams.stall,
        )
        pool.of_readers = core.iterable
        return pool

    # --- ending them ---

    def renew(self) -> None:
        """Make the next iterator start workers; one that has the present ones keeps them."""
        if self.holder is None:
            self._end_workers()
        self.pool = self._begun = None

    def _end_workers(self) -> None:
        pool, self.pool, self._begun = self.pool, None, None
        if pool is not None:
            pool.close()

    def end_idle_workers(self) -> None:
        """End the persistent workers that no iterator has."""
        with self.core.lock:
            if not any(run.workers for run in self.alive()):
                self._end_workers()

    def close(self) -> None:
        """End the workers, and the iterators that have some."""
        with self.core.lock, HeldBack(), contextlib.ExitStack() as steps:
            steps.callback(self._end_workers)  # the last step, whatever the others raise
            for run in self.alive():
                steps.callback(run.close)

    # --- who has them ---

    def add(self, run: LoaderIterator[object]) -> None:
        """Note an iterator with workers, for as long as it lives; any thread may do so."""
        self._runs.append(weakref.ref(run, self._runs.remove))

    def alive(self) -> list[LoaderIterator[object]]:
        """Return the iterators with workers that are alive, in the order of their making."""
        return [run for each in [*self._runs] if (run := each()) is not None]

    @property
    def holder(self) -> LoaderIterator[object] | None:
        """The iterator that has the persistent workers; None: it is over, or there are none."""
        pool = self.pool
        return next((run for run in self.alive() if pool is not None and run.workers is pool), None)

    def idle_iterator(self) -> LoaderIterator[object] | None:
        """Return an ended iterator that stands for idle workers; None: there are no such."""
        return (
            None if self.pool is None else LoaderIterator(self.core, None, False, None).as_ended()
        )

    def processes(self, iterator: Any) -> list[WorkerProcess]:
        """Return the processes of the workers that are an iterator's, or idle."""
        workers = iterator.workers or (self.pool if self.holder is None else None)
        return [] if workers is None else workers.processes

    def announce_size(self) -> None:
        """Tell all that have workers how many there are to be, and how many batches ahead.

        Processes start and end when somebody waits for a batch, or when the next pass begins.
        """
        self.resizes += 1  # before they are looked for: of one that is begun now, or found
        self.core.log.resized = time.monotonic_ns()
        size = self.core.size
        for run in self.alive():
            run.resize(*size)
        if self.pool is not None:
            self.pool.resize(*size)
