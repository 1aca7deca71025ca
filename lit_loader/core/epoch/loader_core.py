"""`LoaderCore`: a loader's life, from one iterator to the next: plan, epochs, workers, records.

::

    DataLoader ── _core ─▶ LoaderCore ──▶ LoaderIterator ─▶ Inline, or PoolExecutor ─▶ WorkerPool
       options, which may be changed         an iterator holds the loader and its core:
       at any time, are its attributes       a loader lives as long as it is iterated

All that changes after a loader's construction is in here, and not set on the loader itself. The
core does not hold the loader, so that no cycle delays the end of its workers. Persistent workers
are lent to one iterator at a time, the one that was begun last; an earlier one that is used again
has workers of its own. What they have begun of the next epochs (`Ahead`) waits here for the next
iterator.
"""

from __future__ import annotations

import contextlib
import copy
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

from torch.utils.data import IterableDataset

from lit_loader.core.batch.batch_spec import BatchSpec, TorchModes
from lit_loader.core.batch.timings import WINDOW, BatchLog, Timings
from lit_loader.core.epoch.epoch import Ahead, Epoch
from lit_loader.core.epoch.epochs import Epochs, EpochStart, Said
from lit_loader.core.epoch.iterator import LoaderIterator
from lit_loader.core.epoch.seams import Seams
from lit_loader.core.epoch.torch_surface import run_patches
from lit_loader.core.executors.executor import Executor, Inline
from lit_loader.core.executors.pipes import PoolClosed
from lit_loader.core.executors.pool_executor import PoolExecutor
from lit_loader.core.executors.process_start import default_context
from lit_loader.core.executors.starters import WorkerProcess
from lit_loader.core.executors.worker_pool import MOST_WORKERS, WorkerPool
from lit_loader.core.options.checks import check_dataset
from lit_loader.core.sampling.batch_plan import BatchPlan, distributed_sampler_of, lookahead
from lit_loader.core.sampling.orders import shown_epoch
from lit_loader.core.sampling.sampler_view import ShownSamplers, is_share
from lit_loader.core.seeding.bases import Bases, LoaderSeeds
from lit_loader.core.seeding.find_generators import find_generators
from lit_loader.core.state.position import Shards
from lit_loader.core.system.interrupts import HeldBack, let_handlers_through
from lit_loader.core.system.processors import AS_TORCH_SAYS
from lit_loader.core.transport import viewer_page
from lit_loader.core.transport.viewer_page import ViewerPage
from lit_loader.describe import program_stacklevel
from lit_loader.errors import OptionError

__all__ = ["DEFAULT_PREFETCH", "ITERATED", "LoaderCore"]

DEFAULT_PREFETCH: Final = 2
"""Batches in flight for each worker, unless ``prefetch_factor`` says otherwise."""

ITERATED: Final[ContextVar[Callable[[], Any]]] = ContextVar("ITERATED", default=lambda: None)
"""A weak reference to the core of the loader whose ``__iter__`` runs: its workers go on.

A ``_get_iterator()`` that a program calls by itself has new ones, as with torch's: it wants the
dataset as it is now.
"""

_AS_THE_LOADER: Final = (
    *("dataset", "batch_size", "drop_last", "collate_fn", "worker_init_fn", "seeding", "reseed_fn"),
    "num_remote_workers",
)
"""What a spec has as ``iter(loader)`` finds it: within, subclasses may show others than outside."""

_OF_WORKERS: Final = (
    *("collate_fn", "worker_init_fn", "seeding", "reseed_fn", "memory_budget"),
    *("share_lists", "concurrent_reads"),
    *("on_sample_error", "max_sample_errors", "sample_retries", "retry_backoff"),
    *("transient_errors", "multiprocessing_context", "timeout"),
)
"""What persistent workers are started with: where one is set anew, the next epoch has others."""

_OF_THE_PROCESS: Final = (
    *("begun", "early", "_loader", "_lock", "pool", "_started_with", "latest"),
    *("pid", "runs", "of_process", "_found"),
)
"""What a copy, or a pickle, begins anew with."""


class LoaderCore:
    """A loader's life. A copy of it has no workers.

    The loader's attributes are its options, see `core/options/loader_config.py`. But its ``rank``,
    ``num_replicas`` and ``num_shards`` are not read from it later: subclasses keep numbers of their
    own under such names.
    """

    def __init__(
        self,
        loader: Any,
        seeds: LoaderSeeds,
        replica: tuple[int, int] | None,
        readers: int | None,
        seams: Seams,
    ) -> None:
        self.seeds = seeds
        self.dataset: Any = None  # as the iterator made last has found it
        self.given_replica = replica
        self._given_readers = readers
        self.seams, self.log = seams, BatchLog()
        self.plan: BatchPlan | None = None  # what each batch holds; None for an iterable dataset
        self._planned_for = ShownSamplers(None, None)
        self.epochs = Epochs(None, seeds)
        # The epochs that the dataset was told, and has shown, when the last pass began.
        self._heard: tuple[int | None, int | None] = None, None
        self.promised: int | None = None  # samples of a stream, once ``len(loader)`` has asked
        self.auto: Any = None  # with ``num_workers="auto"``
        self.checked = False  # whether ``check_determinism`` has compared its batches
        self.reads_again = False  # whether resuming reads again what has been given out before
        self._warnings_given: set[str] = set()
        self.resizes = 0  # how often the number of workers was changed while they live
        self.begin_in_this_process(loader)

    def begin_in_this_process(self, loader: Any) -> None:
        """Begin with what belongs to one process: no workers yet, no iterators."""
        self._loader = weakref.ref(loader)
        # A forked child has the workers no more.
        self._lock, self.pid = threading.RLock(), os.getpid()
        self.pool: WorkerPool | None = None  # the persistent workers
        self._started_with: dict[str, Any] = {}  # options
        self._shares: bool | None = None  # whether the dataset holds what others may change
        self.begun: Ahead | None = None  # what the workers are at for the next epoch
        self.early: Any = None  # workers that have begun before an iterator has
        # The iterators with workers that are alive.
        self.runs: weakref.WeakSet[LoaderIterator[Any]] = weakref.WeakSet()
        self.latest: Callable[[], Any] = lambda: None  # the iterator made last, while it lives
        self.of_process: dict[str, Any] = {}  # what add-ons keep, by their names
        self._found: dict[str, Any] = {}  # the loader's attributes, when the last iterator was made

    def __getstate__(self) -> dict[str, Any]:
        state = {name: part for name, part in vars(self).items() if name not in _OF_THE_PROCESS}
        seeds = self.seeds.of_copy()
        epochs, auto = self.epochs.with_seeds(seeds), copy.copy(self.auto)
        return {**state, "seeds": seeds, "epochs": epochs, "auto": auto}

    @property
    def lock(self) -> threading.RLock:
        """Held in every ``next()``, for iterators of one loader share workers."""
        if self.pid != os.getpid():  # a forked child: a thread of the parent's may hold that one
            self._lock, self.pid = threading.RLock(), os.getpid()
        return self._lock

    # --- options, as they are now ---

    @property
    def loader(self) -> Any:
        """The loader; whoever asks holds it, or an iterator of it."""
        loader = self._loader()
        assert loader is not None
        return loader

    @property
    def iterable(self) -> bool:
        """Whether the dataset is an iterable one."""
        return self.plan is None

    @property
    def assigned(self) -> bool:
        """Whether a worker's tasks are its own, and no other could do them."""
        return self.iterable or self.loader.seeding == "worker"

    @property
    def shards(self) -> Shards | None:
        """Which readers of an iterable dataset are this rank's; None: each worker is one."""
        count = self._given_readers
        return None if count is None else Shards(*self.given_replica or (0, 1), count)

    @property
    def replica(self) -> tuple[int, int]:
        """This process's number among those that share the data, and how many they are."""
        if self.plan is not None:
            return self.plan.rank, self.plan.num_replicas
        return self.given_replica or (0, 1)

    @property
    def readers(self) -> int:
        """This rank's readers of an iterable dataset; 0 for a map-style one."""
        if not self.iterable:
            return 0
        shards = self.shards
        return max(1, self.loader.num_workers) if shards is None else len(shards.mine)

    @property
    def turns(self) -> int:
        """Those who take turns in making batches; 0: any worker makes any."""
        return (self.readers or self.loader.num_workers) if self.assigned else 0

    @property
    def depth(self) -> int:
        """Batches that may be outstanding at the same time."""
        loader, auto = self.loader, self.auto
        usual = DEFAULT_PREFETCH if auto is None else auto.setting.prefetch
        depth: int = (loader.prefetch_factor or usual) * loader.num_workers
        if loader.num_remote_workers and not self.iterable:
            depth += loader.num_remote_workers * loader.remote.in_flight
        return depth

    @property
    def size(self) -> tuple[int, int]:
        """How many workers there are to be, and how many batches may be outstanding."""
        return self.loader.num_workers, self.depth

    def why_not_resized(self) -> str | None:
        """Say why the number of workers cannot be changed while they live; None: it can be."""
        if self.shards is not None or not self.assigned:
            return None
        if self.iterable:
            return (
                "an IterableDataset without num_shards is read in shares, one for each of its "
                "workers"
            )
        return "with seeding='worker' the number of workers is part of the data"

    def describe(self) -> str:
        """Give the loader's ``repr``: what it reads, in which batches, by how many workers."""
        loader = self.loader
        parts = [type(self.dataset).__name__, f"batch_size={loader.batch_size}"]
        if loader.batch_size is None and loader.batch_sampler is not None:
            parts[-1] = f"batch_sampler={type(_behind(loader.batch_sampler)).__name__}"
        elif self.plan is not None:
            parts.append(f"sampler={type(_behind(loader.sampler)).__name__}")
        auto = "" if self.auto is None else "auto, now "
        parts.append(f"num_workers={auto}{loader.num_workers}")
        if loader.num_remote_workers:
            parts.append(f"num_remote_workers={loader.num_remote_workers}")
        if loader.num_replicas is not None:
            parts.append(f"rank={loader.rank} of num_replicas={loader.num_replicas}")
        return f"{type(loader).__name__}({', '.join(parts)})"

    # --- plan ---

    def make_plan(self) -> None:
        """Make the plan, and count the epochs from the first one."""
        self._planned_for = ShownSamplers(None, None)
        loader = self.loader
        self.dataset = vars(loader).get("dataset", loader.dataset)
        self.follow_samplers()
        self.epochs = Epochs(self.plan, self.seeds)
        self._heard = None, shown_epoch(self.dataset)

    def follow_samplers(self) -> None:
        """Make the plan anew, for the next epoch, if the samplers have been changed."""
        loader = self.loader
        shown = ShownSamplers.of(loader.sampler, loader.batch_sampler)
        if shown.is_same(self._planned_for):
            return
        plan = None
        if not isinstance(self.dataset, IterableDataset):
            batches = shown.batch_sampler
            given = distributed_sampler_of(shown.sampler if batches is None else batches)
            if given is not None and not is_share(given):
                self.seeds.of_ranks(given.num_replicas, getattr(given, "seed", None))
            plan = shown.plan(loader.batch_size, self.seeds, self.dataset)
        self.plan, self.epochs.plan, self._planned_for = plan, plan, shown

    # --- iterators ---

    def iterator(self) -> LoaderIterator[Any]:
        """Make the iterator that the loader gives out."""
        loader = self.loader
        if loader.persistent_workers and ITERATED.get()() is not self:
            self._renew_workers()
        made = self._make()
        self.latest = weakref.ref(made)
        run_patches(made, loader)
        return made

    def of_idle_workers(self) -> LoaderIterator[Any] | None:
        """Give the iterator that had the idle workers; None: there are no such.

        A loader does not hold its iterators: where that one is gone, it is another that has ended.
        """
        if self.pool is None:
            return None
        latest = self.latest()
        return self._make().as_ended() if latest is None else latest

    def restart(self, iterator: LoaderIterator[Any]) -> None:
        """Let an iterator be as one that is new, with the options that the loader has now."""
        with self.lock:
            if iterator in self.runs:
                iterator.close()
            made = self._make()
            iterator.__dict__ = vars(made)
            if made in self.runs:
                self.runs.add(iterator)

    def _make(self) -> LoaderIterator[Any]:
        loader = self.loader
        self._found = {name: getattr(loader, name) for name in _AS_THE_LOADER}
        self.dataset = self._found["dataset"]
        check_dataset(self.dataset, loading=True)
        self.follow_samplers()
        pin = self.seams.pin_memory(self)
        if loader.num_remote_workers and not self.iterable:
            self.log.first_remote = MOST_WORKERS
        if (idle := self.seams.idle(self)) is not None:
            self.warn_once(idle)
        workers = loader.num_workers or loader.num_remote_workers
        here = self.spec if workers == 0 else None
        made: LoaderIterator[Any] = LoaderIterator(self, here, pin)
        made.observer = self.seams.observer(self, here is not None)
        if here is None:
            self.runs.add(made)
        return made

    # --- batches ---

    def spec(self) -> BatchSpec:
        """What a batch is made by."""
        loader, plan = self.loader, self.plan
        rank, num_replicas = self.replica
        kept = self.shards is not None and self._may_begin_early()
        return BatchSpec(
            **{name: self._found.get(name, getattr(loader, name)) for name in _AS_THE_LOADER},
            iterable=self.iterable,
            batched=loader.batch_sampler is not None,
            rank=rank,
            num_replicas=num_replicas,
            own_order=plan is not None and plan.is_computed,
            modes=TorchModes.now(),
            timed=self.auto is not None,
            watched=bool(loader.timeout),
            start_method_chosen=loader.multiprocessing_context is not None,
            shards=self.shards if self.iterable else None,
            ahead=(loader.prefetch_factor or DEFAULT_PREFETCH) if kept else 0,
            **self.seams.spec_parts(self),
        )

    # --- epochs ---

    def begin_epoch(self, iterator: object) -> EpochStart:
        """Begin the epoch that comes next; called by an iterator at its first ``next()``."""
        for advice in self.seams.advice(self):
            self.warn_once(advice)
        place = partial(self.seams.position, self)
        start = self.epochs.begin(place, iterator, self._said())
        self.hear(start)
        return start

    def hear(self, start: EpochStart) -> None:
        """Note which epoch the dataset shows: what it shows at the next pass is the program's."""
        self._heard = start.seeds.told, shown_epoch(self.dataset)

    def _said(self) -> Said:
        """Find out whether the program has told the dataset itself an epoch since the last pass."""
        loader = self.loader
        if not callable(getattr(self.dataset, "set_epoch", None)):
            return Said()
        shown = shown_epoch(self.dataset)
        itself = None if shown in self._heard else shown
        return Said(True, itself, loader.persistent_workers and loader.num_workers > 0)

    def lookahead(self, epoch: int, bases: Bases) -> Iterator[tuple[int, int, Any]]:
        """Foresee the batches of the epochs after this one, as far as they may be made ahead."""
        plan = self.plan
        # Assigned: generators go on from batch to batch.
        if self.assigned or plan is None or not plan.is_computed or not self._may_begin_early():
            return iter(())
        return lookahead(plan, epoch, bases)

    def _may_begin_early(self) -> bool:
        """Whether workers may begin an epoch that the program has not asked for yet.

        Before it does, it may change what it shares with them.
        """
        loader = self.loader
        if not (loader.persistent_workers and loader.prefetch_next_epoch):
            return False
        if loader.worker_method == "thread":  # they end with the epoch
            return False
        if self._shares is None:
            self._shares = find_generators(self.dataset, loader.collate_fn).shared is not None
        return not self._shares

    # --- workers ---

    def inline(self, spec: BatchSpec, start: EpochStart, pin: Any) -> Inline:
        """Give what makes batches in this process."""
        known = self.of_process.setdefault("inline", {})
        return Inline(spec, self.worker_seed(start), pin, known)

    def foresee(self) -> EpochStart | None:
        """Give the pass that comes next; None: workers have nothing to do with it.

        Where no seed is set, its base is drawn by that: without workers, too.
        """
        made = self._make()
        place = self.epochs.foresee(self._said())
        if place is None or made not in self.runs:
            return None
        position = self.seams.position(self, place)
        return EpochStart(place.epoch, place.bases, place.seeds, None, position)

    def acquire_executor(
        self, run: LoaderIterator[Any], epoch: Epoch
    ) -> tuple[Executor, Ahead | None]:
        """Give workers to an iterator; and what they have begun of its epoch, if that fits."""
        early = None if self.early is None else self.early.hand_over(self, epoch)
        if early is None and (other := self.seams.executor(self, epoch.start)) is not None:
            return other, None
        if early is not None and isinstance(early[0], Executor):
            return early  # type: ignore[no-any-return]
        pool, begun = early or self._claim_pool(run, epoch)
        loader, start = self.loader, epoch.start
        if early is not None and loader.persistent_workers:
            self.pool, self._started_with = pool, self.options()
        executor = PoolExecutor(pool, run.healer, self.depth, loader.memory_budget is not None)
        pool.patient, pool.waits = bool(loader.timeout), self.log.waits
        pool.page.begin_epoch(start.epoch, start.position.now().delivered)
        if begun is not None:
            executor.adopt(begun.tasks)
        return executor, begun

    def _claim_pool(
        self, run: LoaderIterator[Any], epoch: Epoch
    ) -> tuple[WorkerPool, Ahead | None]:
        holder, start = self._holder, epoch.start
        if not self.loader.persistent_workers or (holder is not None and run.superseded):
            return self.new_workers(start), None
        if holder is not None:
            holder.revoke()
        if (had := self.pool) is not None and (
            had.closed or had.num_workers != self._local or not self.has(self._started_with)
        ):
            self._end_workers()
        begun, self.begun = self.begun, None
        pool = self.pool
        if pool is None:
            self._started_with = self.options()
            pool = self.pool = self.new_workers(start)
            return pool, None
        # A forgotten iterator is collected at any time, also when others have used the workers.
        known = begun is not None and begun.token == pool.token
        if known and begun is not None and epoch.is_new and begun.fits(start, self.plan):
            pool.trim()
            return pool, begun
        pool.resume()  # which calls off what they were at
        return pool, None

    def give_back(self, executor: Any, begun: Ahead | None, reusable: bool) -> None:
        """Take workers back; those that are persistent go on, with what they have ``begun``."""
        if (
            executor.pool is None or not reusable or self.pool is not executor.pool
        ):  # the loader has, or will have, others
            executor.close()
            self.of_process["makers"] = executor.makers if reusable else {}
        elif begun is not None:
            begun.token, self.begun = executor.token, begun
        else:
            executor.call_off()

    def worker_seed(self, start: EpochStart) -> int:
        """Give what ``torch.initial_seed()`` is in worker 0: of the pass that has it started.

        Persistent workers have one seed, by which a resumed loader's are as those before.
        """
        persistent = self.loader.persistent_workers
        return start.bases.torch if persistent else start.seeds.of(start.epoch)[0] >> 1

    @property
    def _local(self) -> int:
        """How many workers there are to be on this machine."""
        loader = self.loader
        remote = loader.num_remote_workers and not self.iterable
        return loader.num_workers or int(not remote)  # 0: from the next one on

    def options(self, *more: str) -> dict[str, Any]:
        """Give the options that workers are started with, as ``iter(loader)`` has found them."""
        names = (*_OF_WORKERS, *more)
        return {name: self._found.get(name, getattr(self.loader, name)) for name in names}

    def has(self, options: dict[str, Any]) -> bool:
        """Whether the loader has these options still."""
        now = self.options(*options)
        return all(now[name] is value or now[name] == value for name, value in options.items())

    def new_workers(self, start: EpochStart) -> Any:
        """Start the workers that an epoch needs: a pool, or another executor."""
        if (other := self.seams.executor(self, start)) is not None:
            return other
        remote = self.seams.remote_workers(self)
        return self.start_pool(self.worker_seed(start), self._local, remote)

    def start_pool(self, seed: int, num_workers: int, remote: Any = None) -> WorkerPool:
        """Start workers for batches of a base seed."""
        loader = self.loader
        context = loader.multiprocessing_context or default_context()
        if context.get_start_method() == "fork":
            for text in self.seams.shared_by_fork(self, num_workers):
                warnings.warn(text, RuntimeWarning, stacklevel=program_stacklevel())
        pool = WorkerPool(
            self.spec(),
            num_workers,
            context,
            in_flight=self.depth,
            seed=seed,
            turns=self.turns,
            memory_budget=loader.memory_budget,
            remote=remote,
            stall_warning=loader.stall_warning,
            stall=self.seams.stall,
            # Under a budget idle workers are not to copy what waits at its home.
            steady=loader.persistent_workers
            and loader.memory_budget is None
            and self.plan is not None
            and self.plan.is_steady,
            batches=len(self.plan)
            if self.plan is not None
            and self.plan.is_computed
            and not (loader.persistent_workers or self.auto)
            else None,
        )
        pool.of_readers = self.iterable
        return pool

    def _renew_workers(self) -> None:
        """Let the next iterator start workers; one that has those of now keeps them as its own."""
        if self._holder is None:
            self._end_workers()
        self.pool = self.begun = None
        self.of_process.pop("makers", None)

    def _end_workers(self) -> None:
        pools, self.pool, self.early = (self.pool, self.early), None, None
        self.begun = None
        self.of_process.pop("makers", None)
        for pool in filter(None, pools):
            pool.close()

    def end_idle_workers(self) -> None:
        """End the persistent workers that no iterator has."""
        with self.lock:
            if not any(run.pool for run in self.alive()):
                self._end_workers()

    def alive(self) -> list[LoaderIterator[Any]]:
        """The iterators with workers that are alive; another thread may be making one."""
        while True:  # another thread may add one meanwhile, and nobody would hear of an exception
            with contextlib.suppress(RuntimeError):
                return list(self.runs)

    def _idle(self) -> WorkerPool | None:
        """The workers, if there are some that no iterator has."""
        return self.pool if self._holder is None else None

    @property
    def _holder(self) -> LoaderIterator[Any] | None:
        """The iterator that has the persistent workers; None: it is over, or there are none."""
        pool = self.pool
        return next((run for run in self.alive() if pool is not None and run.pool is pool), None)

    def workers(self, iterator: LoaderIterator[Any]) -> list[WorkerProcess]:
        """The processes of the workers that are an iterator's, or idle, for others to watch."""
        pool = iterator.pool or self._idle()
        return [] if pool is None or pool.closed else pool.workers.twins

    def close(self) -> None:
        """End the workers, and the iterators that have some."""
        with self.lock, HeldBack(), contextlib.ExitStack() as steps:
            steps.callback(self._end_workers)  # the last step, whatever the others raise
            for run in self.alive():
                steps.callback(run.close)

    # --- how many workers ---

    def set_auto(self, auto: bool) -> None:
        """Have the number of workers set by what batches cost, or not."""
        if auto != (self.auto is not None):
            self.auto = self.seams.auto(self) if auto else None

    def resize(self, num_workers: int, prefetch_factor: int | None) -> None:
        """Change the number of workers at any moment; see ``DataLoader.resize``.

        A batch does not depend on who makes it, so nothing else changes: what workers were asked
        for stays outstanding, and comes in its turn. No thread waits for another: a run that is
        being given workers just then compares the count of resizes.
        """
        loader = self.loader
        running = any(run.pool for run in self.alive())
        _check_resize(num_workers, self.why_not_resized(), running)
        if prefetch_factor is None and num_workers and loader.prefetch_factor is None:
            prefetch_factor = DEFAULT_PREFETCH
        if prefetch_factor is not None:
            loader.prefetch_factor = prefetch_factor
        loader.num_workers = num_workers
        if num_workers == 0:
            self.end_idle_workers()
            return
        self._tell_size()
        self._resize_here()
        pools = {*filter(None, [*(run.pool for run in self.alive()), self.pool])}
        self.cap_workers(min((pool.num_workers for pool in pools), default=num_workers))

    def _tell_size(self) -> None:
        """Tell all that have workers how many there are to be, and how many batches ahead."""
        self.resizes += 1  # before they are looked for: of one that is begun now, or found
        self.log.resized = time.monotonic_ns()
        size = self.size
        for run in self.alive():
            run.resize(*size)
        pool = self.pool
        if pool is not None:
            pool.resize(*size)

    def _resize_here(self) -> None:
        """Have processes started and ended now, if no one is in ``next()``, who would see to it."""
        # Not this thread either, further up: a signal's handler may resize.
        if _is_held_here(self.lock) or not self.lock.acquire(blocking=False):
            return
        try:
            with HeldBack(), contextlib.suppress(PoolClosed):  # a handler may close the loader
                for pool in [*(run.unattended for run in self.alive()), self._idle()]:
                    if pool is not None:
                        pool.adapt()
        finally:
            self.lock.release()

    def cap_workers(self, workers: int) -> None:
        """Have no more workers than these: no more can be started."""
        if self.auto is not None:
            self.auto.cap_workers(workers)
        elif workers < self.loader.num_workers:
            self.loader.num_workers = workers

    # --- records ---

    def note(self, record: Timings, pool: WorkerPool | None = None, again: bool = False) -> None:
        """Record a batch that is given out; and have another number of workers, if that helps.

        ``pool``: who makes batches; None: they are gone. ``again``: a reader that moves reads again
        what it has given.
        """
        log = self.log
        log.records.append(record)
        log.last = record
        if len(log.records) >= WINDOW:
            self.seams.sum_up(self)
        auto = self.auto
        if auto is None or record.worker < 0 or not auto.add(record, again) or pool is None:
            return  # what this process has made itself says nothing of workers
        loader, plan, name = self.loader, self.plan, type(self.dataset).__name__
        # More workers than readers, or than an epoch has batches, would have nothing to do.
        most = self.readers if plan is None else len(plan) if plan.is_computed else 0
        if auto.decide(pool, name, loader.memory_budget, most):
            self._tell_size()

    def show(self, page: ViewerPage, run: LoaderIterator[Any]) -> None:
        """Write down, for viewers in other processes, what the loader is at."""
        now = time.monotonic_ns()
        first, page.due = not page.due, now + viewer_page.EVERY
        figures: Any = None
        if not first:
            try:
                figures = self.seams.figures(self, page.row[viewer_page.EPOCH], now)
            except Exception as error:  # of the user's: the repr of a slow sample's index
                let_handlers_through(error)
                return
        page.write(figures or self._shown_at_first(), run.ready, now)
        if run.pool is not None:
            self.seams.look_at_workers(self, run.pool, now / 1e9)

    def _shown_at_first(self) -> dict[str, Any]:
        """What viewers are shown before the first second is over: nothing is summed up for it."""
        (rank, ranks), plan = self.replica, self.plan
        return {
            "rank": rank,
            "ranks": ranks,
            "ahead": self.depth,
            "role": self.loader.role,
            "dataset": type(self.dataset).__name__,
            "options": self.describe(),
            "length": len(plan) if plan is not None and plan.is_computed else None,
        }

    # --- warnings ---

    def warn_once(self, message: str, category: type[Warning] = UserWarning) -> None:
        """Warn, at the line of the program that called the package; of the same thing once."""
        if message not in self._warnings_given:
            self._warnings_given.add(message)
            if not message.startswith(AS_TORCH_SAYS):
                message = f"lit_loader: {message}"
            warnings.warn(message, category, stacklevel=program_stacklevel())

    def tell(self, note: str) -> None:
        """Warn, once, of what was noticed while a batch was made."""
        self.warn_once(f"{type(self.dataset).__name__}: {note}")


def _check_resize(num_workers: Any, reason: str | None, running: bool) -> None:
    """Refuse a number of workers that a loader cannot be resized to, which may have some."""
    text, later = "", "which counts from the next epoch on"
    if num_workers == "auto":
        text = "a loader is resized to a number of workers, got resize('auto'): set "
        text += f"loader.num_workers = 'auto', {later}"
    elif reason is not None:
        text = f"{reason}, so it cannot be resized, got resize({num_workers}): set "
        text += f"loader.num_workers = {num_workers}, {later}"
    elif num_workers > MOST_WORKERS:
        text = f"a loader is resized to at most {MOST_WORKERS} workers, got resize({num_workers}): "
        text += "make a new loader if there are to be so many"
    elif num_workers == 0 and running:
        text = "there is an iterator whose batches workers make, and which needs one of them, got "
        text += f"resize(0): resize to 1, or set loader.num_workers = 0, {later}"
    if text:
        raise OptionError(f"{text} [LL209]")


def _is_held_here(lock: threading.RLock) -> bool:
    """Whether this very thread holds a lock."""
    try:
        threading.Condition(lock).notify_all()
    except RuntimeError:
        return False
    return True


def _behind(sampler: Any) -> object:
    """What a share was taken of."""
    return sampler.source if is_share(sampler) else sampler
