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
import dataclasses
import functools
import math
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Final

import torch
from torch.utils.data import IterableDataset

from lit_loader.accelerator import pin_memory as pinning
from lit_loader.batch.batch_spec import BatchSpec, TorchModes
from lit_loader.batch.sample_errors import TRANSIENT_ERRORS, Tolerance
from lit_loader.batch.tensor_table import IN_PROCESS_BYTES, frozen
from lit_loader.checkpoint.other_streams import advice_if_it_sleeps, advice_if_unseeded
from lit_loader.checkpoint.position import Shards
from lit_loader.config.checks import check_dataset
from lit_loader.data.cached_dataset import figures_of
from lit_loader.describe import program_stacklevel
from lit_loader.errors import OptionError
from lit_loader.iteration.epoch import Ahead, Epoch
from lit_loader.iteration.exactness_check import ExactnessCheck
from lit_loader.iteration.executor import Executor, Inline
from lit_loader.iteration.iterator import LoaderIterator
from lit_loader.iteration.pool_executor import PoolExecutor
from lit_loader.iteration.shown import ShownLoader
from lit_loader.iteration.torch_surface import run_patches
from lit_loader.remote.starter import RemoteWorkers
from lit_loader.sampling.advice import advice_if_idle, advice_if_split_twice, advice_if_unsharded
from lit_loader.sampling.batch_plan import BatchPlan, distributed_sampler_of, lookahead
from lit_loader.sampling.epochs import Epochs, EpochStart, Said
from lit_loader.sampling.shown_samplers import ShardedSampler, ShownSamplers
from lit_loader.sampling.user_sampler import shown_epoch
from lit_loader.seeding.bases import Bases, LoaderSeeds
from lit_loader.seeding.find_generators import find_generators
from lit_loader.statistics.auto_workers import AutoWorkers
from lit_loader.statistics.recorder import WINDOW, Recorder
from lit_loader.statistics.records import LoaderStatistics, MemoryUse, Surroundings, Timings
from lit_loader.statistics.worker_waits import LONG
from lit_loader.streams.tail import ShardTail, Talks, tail_of
from lit_loader.system.cgroups import own_memory
from lit_loader.system.interrupts import HeldBack, let_handlers_through
from lit_loader.system.processors import times_of_threads, usable_processors
from lit_loader.transport import loader_page
from lit_loader.transport.loader_page import LoaderPage
from lit_loader.workers.pipes import PoolClosed
from lit_loader.workers.process_start import default_context
from lit_loader.workers.starters import WorkerProcess
from lit_loader.workers.worker_pool import MOST_WORKERS, WorkerPool

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
    *("remote_workers", "share", "reads"),
)
"""What a spec has as ``iter(loader)`` finds it: within, subclasses may show others than outside."""

_OF_WORKERS: Final = (
    *("collate_fn", "worker_init_fn", "seeding", "reseed_fn", "share", "reads", "memory_budget"),
    *("on_sample_error", "max_sample_errors", "sample_retries", "retry_backoff"),
    *("transient_errors", "multiprocessing_context", "timeout"),
)
"""What persistent workers are started with: where one is set anew, the next epoch has others."""

_OF_THE_PROCESS: Final = (
    *("begun", "_loader", "_lock", "pool", "_started_with", "_table", "latest"),
    *("pid", "runs", "_shown", "talks", "_found", "_makers"),
)
"""What a copy, or a pickle, begins anew with."""


class LoaderCore:
    """A loader's life. A copy of it has no workers.

    The loader's attributes are its options, see `config/loader_config.py`. But its ``rank``,
    ``num_replicas`` and ``num_shards`` are not read from it later: subclasses keep numbers of their
    own under such names.
    """

    def __init__(
        self,
        loader: Any,
        seeds: LoaderSeeds,
        replica: tuple[int, int] | None,
        readers: int | None,
    ) -> None:
        self.seeds = seeds
        self.dataset: Any = None  # as the iterator made last has found it
        self.given_replica = replica
        self._given_readers = readers
        self.recorder = Recorder()
        self.plan: BatchPlan | None = None  # what each batch holds; None for an iterable dataset
        self._planned_for = ShownSamplers(None, None)
        self.epochs = Epochs(None, seeds)
        # The epochs that the dataset was told, and has shown, when the last pass began.
        self._heard: tuple[int | None, int | None] = None, None
        self.promised: int | None = None  # samples of a stream, once ``len(loader)`` has asked
        self.auto: AutoWorkers | None = None  # with ``num_workers="auto"``
        self.checked = False  # whether ``check_exactness`` has compared its batches
        self.reads_again = False  # whether resuming reads again what has been given out before
        self.role = ""  # what the loader is for, as messages name it
        self._warnings_given: set[str] = set()
        self.resizes = 0  # how often the number of workers was changed while they live
        self.begin_in_this_process(loader)

    def begin_in_this_process(self, loader: Any) -> None:
        """Begin with what belongs to one process: no workers yet, no iterators."""
        self._loader = weakref.ref(loader)
        # A forked child has the workers no more.
        self._lock, self.pid = threading.RLock(), os.getpid()
        self.pool: WorkerPool | None = None  # the persistent workers
        self._makers: Any = {}  # what they are in threads
        self._started_with: list[Any] = []  # options
        self._shares: bool | None = None  # whether the dataset holds what others may change
        self._table: Any = None  # in their stead: the dataset as it was when they would have begun
        self.begun: Ahead | None = None  # what the workers are at for the next epoch
        # The iterators with workers that are alive.
        self.runs: weakref.WeakSet[LoaderIterator[Any]] = weakref.WeakSet()
        self.latest: Callable[[], Any] = lambda: None  # the iterator made last, while it lives
        self.talks = Talks()
        self._shown = ShownLoader()
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
        return depth + (0 if self._remote is None else self._remote.count)

    @property
    def _remote(self) -> RemoteWorkers | None:
        count = 0 if self.iterable else self.loader.remote_workers
        return RemoteWorkers(self.loader.remote, count, self.recorder.nodes) if count else None

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
        if loader.remote_workers:
            parts.append(f"remote_workers={loader.remote_workers}")
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
            if given is not None and not isinstance(given, ShardedSampler):
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
        if self.pool is None and self._table is None:
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
        pin, device = None, None
        if loader.pin_memory:
            pin, device = pinning.choose(loader.pin_memory_device, self.warn_once)
        if loader.remote_workers and self.iterable:
            self.warn_once(
                f"remote_workers={loader.remote_workers} make no batches of an IterableDataset: "
                "its readers stay on this machine"
            )
        elif loader.remote_workers:
            self.recorder.first_remote = MOST_WORKERS
        if self.shards and self.auto is None:
            idle = advice_if_idle(self.shards, loader.num_workers)
            if idle is not None:
                self.warn_once(idle)
        workers = loader.num_workers or loader.remote_workers
        here: Callable[[], BatchSpec] | None = None
        if workers == 0 or (loader.num_workers and pin is None and self._is_best_in_process()):
            here = self._spec_of_workers if workers else self.spec
        made: LoaderIterator[Any] = LoaderIterator(self, here, pin, device)
        made.observer = self._exactness_check(here is not None)
        if here is None:
            self.runs.add(made)
        return made

    def _is_best_in_process(self) -> bool:
        """Whether batches are of a table, and so small that workers are only in the way."""
        loader = self.loader
        if loader.worker_init_fn is not None or loader._copies_to is not None:
            return False
        table = self.spec().table()
        size = 1 if self.plan is None else self.plan.size
        return table is not None and table.nbytes(size) <= IN_PROCESS_BYTES

    def _exactness_check(self, in_process: bool) -> ExactnessCheck | None:
        """What compares the first batches with themselves made again; None: nothing does."""
        loader = self.loader
        if not loader.check_exactness or self.checked:
            return None
        if in_process and self.iterable:
            self.warn_once(
                "check_exactness needs num_workers of at least 1 for an IterableDataset: it would "
                "be iterated twice in this process"
            )
            return None
        return ExactnessCheck(self, in_process)

    # --- batches ---

    def spec(self) -> BatchSpec:
        """What a batch is made by."""
        loader, plan = self.loader, self.plan
        transient = loader.transient_errors
        rank, num_replicas = self.replica
        kept = self.shards is not None and self._may_begin_early()
        # What each process reads ahead takes a quarter of the budget, together.
        parts = 4 * max(1, loader.num_workers + loader.remote_workers)
        return BatchSpec(
            **{name: self._found.get(name, getattr(loader, name)) for name in _AS_THE_LOADER},
            iterable=self.iterable,
            batched=loader.batch_sampler is not None,
            rank=rank,
            num_replicas=num_replicas,
            tolerance=Tolerance(
                policy=loader.on_sample_error,
                limit=loader.max_sample_errors,
                retries=loader.sample_retries,
                backoff=loader.retry_backoff,
                transient=TRANSIENT_ERRORS if transient is None else transient,
            ),
            own_order=plan is not None and plan.is_computed,
            modes=TorchModes.now(),
            timed=self.auto is not None,
            watched=bool(loader.timeout),
            start_method_chosen=loader.multiprocessing_context is not None,
            shards=self.shards if self.iterable else None,
            ahead=(loader.prefetch_factor or DEFAULT_PREFETCH) if kept else 0,
            read_bytes=None if loader.memory_budget is None else loader.memory_budget // parts,
        )

    def _spec_of_workers(self) -> BatchSpec:
        """The spec, with the table as workers would have it that were started now, or before."""
        loader = self.loader
        if self._table is None or not loader.persistent_workers:
            self._table = frozen(self.dataset)
        return dataclasses.replace(self.spec(), dataset=self._table)

    # --- epochs ---

    def begin_epoch(self, iterator: object) -> EpochStart:
        """Begin the epoch that comes next; called by an iterator at its first ``next()``."""
        loader = self.loader
        if self.given_replica is None:
            shown = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
            advice = advice_if_unsharded(self.dataset, shown, self.iterable, self.shards)
            if advice is not None:
                self.warn_once(advice)
        elif self.shards and (advice := advice_if_split_twice(self.dataset, self.shards)):
            self.warn_once(advice)
        for advice_if in (advice_if_unseeded, advice_if_it_sleeps) if self.iterable else ():
            if (advice := advice_if(self.dataset)) is not None:
                self.warn_once(advice)
        start = self.epochs.begin(self.readers, iterator, self._said())
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

    def tail(self, start: EpochStart) -> ShardTail | None:
        """Begin to agree with other ranks on a stream's end; None: there is no need."""
        return tail_of(self.loader, self.shards, self.talks, start.position)

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
        return Inline(spec, self.worker_seed(start), pin)

    def hire(self, run: LoaderIterator[Any], epoch: Epoch) -> tuple[Executor, Ahead | None]:
        """Give workers to an iterator; and what they have begun of its epoch, if that fits."""
        if self.loader.worker_method == "thread":
            return self.threads(epoch.start), None
        pool, begun = self._claim(run, epoch)
        loader, start = self.loader, epoch.start
        executor = PoolExecutor(pool, run.healer, self.depth, loader.memory_budget is not None)
        pool.patient = bool(loader.timeout)
        pool.page.begin_epoch(start.epoch, start.position.now().delivered)
        if begun is not None:
            executor.adopt(begun.tasks)
        return executor, begun

    def threads(self, start: EpochStart) -> Executor:
        """Give threads as workers; persistent ones have what those before had."""
        from lit_loader.iteration.thread_executor import ThreadExecutor  # which few programs need

        loader, makers, now = self.loader, self._makers, self._given_to_workers()
        self._makers = {}  # another iterator has others, meanwhile
        if not loader.persistent_workers or _differ(now, self._started_with):
            self._started_with, makers = now, {}
        executor = ThreadExecutor(
            self.spec(),
            self.worker_seed(start),
            loader.num_workers or 1,  # 0: from the next iterator on
            max(1, self.depth),
            loader.timeout,
            loader.stall_warning,
            strict=bool(loader.check_exactness),
            makers=makers,
            page_bytes=loader_page.PAGE_BYTES,
        )
        executor.page = LoaderPage(executor.memory)
        executor.page.begin_epoch(start.epoch, start.position.now().delivered)
        return executor

    def _given_to_workers(self) -> list[Any]:
        """What workers are started with that may be set anew; a forked child has none."""
        now = [self._found.get(name, getattr(self.loader, name)) for name in _OF_WORKERS]
        return [*now, self.loader.num_workers, os.getpid()]

    def _claim(self, run: LoaderIterator[Any], epoch: Epoch) -> tuple[WorkerPool, Ahead | None]:
        remote, holder, start = self._remote, self._holder, epoch.start
        workers = self.loader.num_workers or (0 if remote else 1)  # 0: from the next one on
        if not self.loader.persistent_workers or (holder is not None and run.superseded):
            return self.start_pool(self.worker_seed(start), workers, remote), None
        if holder is not None:
            holder.revoke()
        now = self._given_to_workers()
        if (had := self.pool) is not None and (
            had.closed or had.num_workers != workers or _differ(now[:-2], self._started_with[:-2])
        ):
            self._end_workers()
        begun, self.begun = self.begun, None
        pool = self.pool
        if pool is None:
            self._started_with = now
            pool = self.pool = self.start_pool(self.worker_seed(start), workers, remote)
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
            self._makers = executor.makers if reusable else {}
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

    def start_pool(
        self, seed: int, num_workers: int, remote: RemoteWorkers | None = None
    ) -> WorkerPool:
        """Start workers for batches of a base seed."""
        loader = self.loader
        pool = WorkerPool(
            self.spec(),
            num_workers,
            loader.multiprocessing_context or default_context(),
            in_flight=self.depth,
            seed=seed,
            turns=self.turns,
            memory_budget=loader.memory_budget,
            remote=remote,
            stall_warning=loader.stall_warning,
            # Under a budget idle workers are not to copy what waits at its home.
            steady=loader.persistent_workers
            and loader.memory_budget is None
            and self.plan is not None
            and self.plan.is_steady,
        )
        pool.of_readers = self.iterable
        return pool

    def _renew_workers(self) -> None:
        """Let the next iterator start workers; one that has those of now keeps them as its own."""
        if self._holder is None:
            self._end_workers()
        self.pool = self._table = self.begun = None
        self._makers = {}

    def _end_workers(self) -> None:
        pool, self.pool, self._makers = self.pool, None, {}
        self.begun = self._table = None
        if pool is not None:
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
            self.auto = AutoWorkers() if auto else None

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
        self.make_do(min((pool.num_workers for pool in pools), default=num_workers))

    def _tell_size(self) -> None:
        """Tell all that have workers how many there are to be, and how many batches ahead."""
        self.resizes += 1  # before they are looked for: of one that is begun now, or found
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

    def make_do(self, workers: int) -> None:
        """Have no more workers than these: no more can be started."""
        if self.auto is not None:
            self.auto.make_do(workers)
        elif workers < self.loader.num_workers:
            self.loader.num_workers = workers

    # --- records ---

    def note(self, record: Timings, pool: WorkerPool | None = None, again: bool = False) -> None:
        """Record a batch that is given out; and have another number of workers, if that helps.

        ``pool``: who makes batches; None: they are gone. ``again``: a reader that moves reads again
        what it has given.
        """
        recorder = self.recorder
        recorder.records.append(record)
        if len(recorder.records) >= WINDOW:
            recorder.flush()
        if recorder.threads is None:
            recorder.threads = times_of_threads()
        if record.wait > LONG and pool is not None:  # so there is time to look at its workers
            recorder.waits.look(record.arrived, pool.workers.pids)
        auto = self.auto
        if auto is None or record.worker < 0 or not auto.add(record, again) or pool is None:
            return  # what this process has made itself says nothing of workers
        loader, name = self.loader, type(self.dataset).__name__
        if auto.decide(pool, name, loader.memory_budget, self.readers, loader.reads):
            self._tell_size()

    def statistics(self, memory: bool) -> LoaderStatistics:
        """Say where the time went, since the loader was made, and what memory it takes now."""
        with self.lock:
            auto = self.auto
            pools = {run.pool for run in self.alive() if run.pool is not None}
            return self.recorder.summary(
                ready=sum(run.ready for run in self.alive()),
                shared_memory=sum(pool.arena.resident for pool in pools),
                memory=_memory_use({*pools, self.pool}) if memory else None,
                num_workers=self.loader.num_workers,
                why_so_many="" if auto is None else auto.setting.reason,
                surroundings=Surroundings(
                    processors=_processors(),
                    persistent_workers=self.loader.persistent_workers,
                    iterable=isinstance(self.dataset, IterableDataset),
                    threads=torch.get_num_threads(),
                    device=torch.cuda.is_initialized(),  # type: ignore[no-untyped-call]
                ),
                **figures_of(self.dataset),
            )

    def show(self, page: LoaderPage, run: LoaderIterator[Any]) -> None:
        """Write down, for viewers in other processes, what the loader is at."""
        now = time.monotonic_ns()
        page.due = now + loader_page.EVERY
        try:
            figures = self._shown.figures(self, page.row[loader_page.EPOCH], now)
        except Exception as error:  # of the user's: the repr of a slow sample's index
            let_handlers_through(error)
            return
        page.write(figures, run.ready, now)
        if run.pool is not None:
            run.pool.look_at_memory(now / 1e9)

    # --- warnings ---

    def warn_once(self, message: str, category: type[Warning] = UserWarning) -> None:
        """Warn, at the line of the program that called the package; of the same thing once."""
        if message not in self._warnings_given:
            self._warnings_given.add(message)
            warnings.warn(message, category, stacklevel=program_stacklevel())

    def tell(self, note: str) -> None:
        """Warn, once, of what was noticed while a batch was made."""
        self.warn_once(f"{type(self.dataset).__name__}: {note}")


@functools.lru_cache
def _processors() -> int:
    return math.ceil(usable_processors())


def _memory_use(pools: set[WorkerPool | None]) -> MemoryUse:
    """What memory a loader takes now, in its own process and in its workers."""
    running = [pool for pool in pools if pool is not None and not pool.closed]
    return MemoryUse(
        parent=own_memory(),
        arena=sum(pool.arena.resident for pool in running),
        shared_data=sum(pool.workers.shared_data for pool in running),
        workers=tuple(own_memory(pid) for pool in running for pid in pool.workers.pids),
    )


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
        raise OptionError(text)


def _differ(now: list[Any], before: list[Any]) -> bool:
    return len(now) != len(before) or any(
        a is not b and a != b for a, b in zip(now, before, strict=True)
    )


def _is_held_here(lock: threading.RLock) -> bool:
    """Whether this very thread holds a lock."""
    try:
        threading.Condition(lock).notify_all()
    except RuntimeError:
        return False
    return True


def _behind(sampler: object) -> object:
    """What a share was taken of."""
    return sampler.source if isinstance(sampler, ShardedSampler) else sampler
