"""What an iterator is given of its loader, out of sight of the loader's users.

::

    DataLoader ──┬─ LoaderInternals (one a loader): plan, epochs, workers, records
                 ╰─ LoaderHost (one an iterator) ──▶ InProcessIterator, MultiProcessIterator
                      reads the loader's options, which may be changed at any time

An iterator holds its host, the host holds the loader: a loader lives as long as it is iterated. The
loader holds no host, so that no cycle delays the end of its workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import threading
import warnings
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

from lit_loader.accelerator import pin_memory as pinning
from lit_loader.accelerator.device_copy import DeviceCopy
from lit_loader.batch.batch_loader import BatchLoader
from lit_loader.batch.batch_spec import BatchSpec
from lit_loader.batch.placement import faster_in_process
from lit_loader.batch.sample_errors import TRANSIENT_ERRORS, Tolerance
from lit_loader.batch.tensor_table import frozen
from lit_loader.cache.figures import figures_of
from lit_loader.checkpoint.reader_states import Shards
from lit_loader.checkpoint.saved_by_lightning import taken_ahead_by_lightning
from lit_loader.describe import program_stacklevel
from lit_loader.iteration.base import LoaderIterator
from lit_loader.iteration.claims import Claim, WorkerRequest
from lit_loader.iteration.exactness_check import ExactnessCheck, made_by_pool, made_here
from lit_loader.iteration.in_process import InProcessIterator
from lit_loader.iteration.internals import DEFAULT_PREFETCH, ITERATED, LoaderInternals
from lit_loader.iteration.memory_use import memory_use
from lit_loader.iteration.multi_process import MultiProcessIterator
from lit_loader.iteration.persistent_workers import temporary
from lit_loader.iteration.torch_surface import run_patches
from lit_loader.pool.shown_loader import ShownLoader
from lit_loader.pool.worker_pool import MOST_WORKERS, WorkerPool
from lit_loader.ranks.shard_tail import ShardTail, least_depth, tail_of
from lit_loader.remote.starter import RemoteWorkers
from lit_loader.sampling.epoch_batches import UpcomingBatch, expected_batches, lookahead
from lit_loader.sampling.epochs import EpochStart
from lit_loader.sampling.orders import EpochOrder
from lit_loader.sampling.stream_advice import broken_promise, ignored_share
from lit_loader.sampling.unsharded import advice_if_unsharded
from lit_loader.seeding.generator_watch import GeneratorWatch
from lit_loader.statistics.elsewhere import Elsewhere
from lit_loader.statistics.records import BatchRecord, LoaderStatistics
from lit_loader.system.interrupts import HeldBack
from lit_loader.system.processors import usable_processors
from lit_loader.system.start_method import default_context

__all__ = ["LoaderHost"]


class LoaderHost:
    """What an iterator needs of its loader: `iteration/base.py` says what each method is for.

    Args:
        loader: The loader; its attributes are its options, see `config/loader_config.py`.
        internals: The same loader's.
    """

    def __init__(self, loader: Any, internals: LoaderInternals) -> None:
        self._loader = loader
        self._internals = internals
        self.recorder, self.auto = internals.recorder, internals.auto
        self.max_sample_errors, self.promised = loader.max_sample_errors, internals.promised
        self.shown = ShownLoader(loader, internals)

    def __len__(self) -> int:
        return len(self._loader)

    def __repr__(self) -> str:
        return repr(self._loader)

    @property
    def lock(self) -> threading.RLock:
        """Held in every ``next()``, for iterators of one loader share workers."""
        internals = self._internals
        if internals.lock_pid != os.getpid():
            internals.renew_lock()
        return internals.lock

    @property
    def loader(self) -> Any:
        """The loader, for programs that ask an iterator for its options."""
        return self._loader

    def base_seed(self) -> int:
        """The seed that epochs are seeded by."""
        return self._internals.base_seed()

    @property
    def iterable(self) -> bool:
        """Whether the dataset is an iterable one."""
        return self._internals.plan is None

    @property
    def assigned(self) -> bool:
        """Whether a worker's tasks are its own, instead of being pulled by the next free one."""
        return self.iterable or self._loader.seeding == "worker"

    @property
    def _readers(self) -> int:
        """This rank's readers of an iterable dataset; 0 for a map-style one."""
        if not self.iterable:
            return 0
        shards = self.shards
        return max(1, self._loader.num_workers) if shards is None else len(shards.mine)

    @property
    def _turns(self) -> int:
        """Those who take turns in making batches; 0: any worker makes any."""
        return (self._readers or self._loader.num_workers) if self.assigned else 0

    @property
    def shards(self) -> Shards | None:
        """Which readers are this rank's; None: there are no ``num_shards``."""
        return self._internals.shards

    @property
    def _depth(self) -> int:
        loader, auto = self._loader, self._internals.auto
        usual = DEFAULT_PREFETCH if auto is None else auto.setting.prefetch
        depth: int = (loader.prefetch_factor or usual) * loader.num_workers
        depth += 0 if self._remote is None else self._remote.count
        return max(depth, least_depth(self.shards, loader.shard_tail))

    @property
    def _remote(self) -> RemoteWorkers | None:
        remote = self._loader.remote
        count = 0 if self.iterable else self._loader.remote_workers
        return RemoteWorkers(remote, count, self.recorder.nodes) if count else None

    @property
    def size(self) -> tuple[int, int]:
        """How many workers there are to be, and how many batches may be outstanding."""
        return self._loader.num_workers, self._depth

    @property
    def resizes(self) -> int:
        """Counts how often the number of workers was changed."""
        return self._internals.resizes

    def why_not_resized(self) -> str | None:
        """Say why the number of workers cannot be changed while they live; None: it can be."""
        if self.iterable and self.shards is None:
            return (
                "an IterableDataset without num_shards is read in shares, one for each of its "
                "workers"
            )
        if self.assigned and self.shards is None:
            return "with seeding='worker' the number of workers is part of the data"
        return None

    @property
    def replica(self) -> tuple[int, int]:
        """This process's number among those that share the data, and how many they are."""
        plan = self._internals.plan
        if plan is not None:
            return plan.rank, plan.num_replicas
        return self._internals.replica or (0, 1)

    # --- iterators ---

    def iterator(self) -> LoaderIterator[Any]:
        """Make the iterator that this host is for."""
        internals = self._internals
        if self._loader.persistent_workers and ITERATED.get() is not internals:
            internals.renew_workers()
        made = self._make()
        internals.latest = weakref.ref(made)
        run_patches(made, self._loader)
        return made

    def of_idle_workers(self) -> LoaderIterator[Any] | None:
        """Give the iterator that had the idle workers; None: there are no such.

        A loader does not hold its iterators: where that one is gone, it is another that has ended.
        """
        workers = self._internals.workers
        if workers.pool is None and workers.dataset is None:
            return None
        return self._internals.latest() or self._make().as_ended()

    def restart(self, iterator: LoaderIterator[Any]) -> None:
        """Let an iterator be as one that is new, with the options that the loader has now."""
        with self.lock:
            if isinstance(iterator, MultiProcessIterator):
                iterator.close()
            made = LoaderHost(self._loader, self._internals)._make()
            iterator.__class__, iterator.__dict__ = type(made), vars(made)
            if isinstance(iterator, MultiProcessIterator):
                self._internals.iterators.add(iterator)

    def pids(self, iterator: LoaderIterator[Any]) -> list[int]:
        """The processes of the workers that are an iterator's, or idle."""
        pool = iterator.pool if isinstance(iterator, MultiProcessIterator) else None
        pool = pool or self._internals.workers.idle
        return [] if pool is None or pool.closed else pool.pids

    def _make(self) -> LoaderIterator[Any]:
        loader, internals = self._loader, self._internals
        internals.follow_samplers(loader)
        pin, device = None, None
        if loader.pin_memory:
            pin, device = pinning.choose(loader.pin_memory_device, internals.warn_once)
        if loader.remote_workers and self.iterable:
            internals.warn_once(
                f"remote_workers={loader.remote_workers} make no batches of an IterableDataset: "
                "its readers stay on this machine"
            )
        elif loader.remote_workers and self.recorder.elsewhere is None:
            self.recorder.elsewhere = Elsewhere(MOST_WORKERS, self.recorder.nodes)
        workers = loader.num_workers or loader.remote_workers
        if workers == 0 or (loader.num_workers and pin is None and self._best_in_process()):
            spec = self._spec_of_workers if workers else None
            here: InProcessIterator[Any] = InProcessIterator(self, pin, spec)
            here.observer = self._exactness_check(in_process=True)
            return here
        iterator: MultiProcessIterator[Any] = MultiProcessIterator(
            self,
            depth=self._depth,
            in_order=loader.in_order,
            turns=self._turns,
            timeout=loader.timeout,
            max_restarts=loader.max_worker_restarts,
            budgeted=loader.memory_budget is not None,
            copy=internals.copies_to and DeviceCopy(*internals.copies_to),
            pin=pin,
            device=device,
        )
        iterator.observer = self._exactness_check(in_process=False)
        internals.iterators.add(iterator)
        return iterator

    def _best_in_process(self) -> bool:
        """Whether batches are so quickly made that workers would only be in the way."""
        loader, internals = self._loader, self._internals
        if loader.worker_init_fn is not None or internals.copies_to is not None:
            return False
        if internals.best_in_process is None:
            table, plan = self.spec().table(), internals.plan
            internals.best_in_process = table is not None and faster_in_process(
                table,
                len(loader.dataset),
                1 if plan is None else plan.size,
                loader.num_workers if internals.auto is None else math.ceil(usable_processors()),
            )
        return internals.best_in_process

    def _exactness_check(self, in_process: bool) -> ExactnessCheck | None:
        """What compares the first batches with themselves made again; None: nothing does."""
        loader, internals = self._loader, self._internals
        if not loader.check_exactness or internals.checked:
            return None
        if in_process and self.iterable:
            internals.warn_once(
                "check_exactness needs num_workers of at least 1 for an IterableDataset: it would "
                "be iterated twice in this process"
            )
            return None

        note = partial(setattr, internals, "checked", True)

        def begin() -> BatchLoader:
            spec = self.spec()
            return BatchLoader(spec, watch=self.generators(spec))

        remake = made_here(begin)
        if not in_process:
            workers = loader.num_workers if self.iterable else 0
            # One worker serves all readers, where these are no workers.
            workers = min(workers, 1) if internals.num_shards else workers
            remake = made_by_pool(self._start_pool, workers, loader.timeout)
        return ExactnessCheck(
            loader.check_exactness, remake, internals.warn_once, note, from_start=self.iterable
        )

    # --- batches ---

    def spec(self) -> BatchSpec:
        """What a batch is made by."""
        loader, plan = self._loader, self._internals.plan
        transient = loader.transient_errors
        rank, num_replicas = self.replica
        return BatchSpec(
            dataset=loader.dataset,
            iterable=self.iterable,
            batch_size=loader.batch_size,
            batched=loader.batch_sampler is not None,
            drop_last=loader.drop_last,
            collate_fn=loader.collate_fn,
            worker_init_fn=loader.worker_init_fn,
            seeding=loader.seeding,
            reseed_fn=loader.reseed_fn,
            rank=rank,
            num_replicas=num_replicas,
            tolerance=Tolerance(
                policy=loader.on_sample_error,
                limit=loader.max_sample_errors,
                retries=loader.sample_retries,
                backoff=loader.retry_backoff,
                transient=TRANSIENT_ERRORS if transient is None else transient,
            ),
            own_order=plan is not None and isinstance(plan.source, EpochOrder),
            timed=self._internals.auto is not None,
            watched=bool(loader.timeout),
            remote_workers=loader.remote_workers,
            share=loader.share,
            num_shards=self._internals.num_shards,
            ahead=self._internals.ahead(loader),
        )

    def _spec_of_workers(self) -> BatchSpec:
        """The spec, with the table as workers would have it that were started now, or before."""
        workers = self._internals.workers
        if workers.dataset is None or not self._loader.persistent_workers:
            workers.dataset = frozen(self._loader.dataset)
        return dataclasses.replace(self.spec(), dataset=workers.dataset)

    def generators(self, spec: BatchSpec) -> GeneratorWatch:
        """Find the generators that are held in this process: once, and again what has changed."""
        watch = self._internals.watch = spec.watch_again(self._internals.watch)
        return watch

    # --- epochs ---

    def begin_epoch(self) -> EpochStart:
        """Begin the epoch that comes next; called by an iterator at its first ``next()``."""
        loader, internals = self._loader, self._internals
        if internals.replica is None:
            shown = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
            advice = advice_if_unsharded(loader.dataset, shown, self.iterable, internals.num_shards)
            if advice is not None:
                internals.warn_once(advice)
        advice, internals.advice_at_start = internals.advice_at_start, None
        # Where Lightning takes a batch ahead, it does so before any callback comes to act.
        if advice is not None and not taken_ahead_by_lightning():
            internals.warn_once(advice)
        return internals.epochs.begin(self._readers)

    def tail(self, start: EpochStart) -> ShardTail | None:
        """Begin to agree with other ranks on a stream's end; None: there is no need."""
        return tail_of(self._loader, self.shards, self._internals.talks, start.position)

    def lookahead(self, epoch: int) -> Iterator[UpcomingBatch] | None:
        """Foresee the batches of the epochs after this one; None: nothing is made ahead."""
        loader, plan = self._loader, self._internals.plan
        ahead = loader.prefetch_next_epoch and loader.persistent_workers
        # Assigned: generators go on from batch to batch.
        return lookahead(plan, epoch) if ahead and plan is not None and not self.assigned else None

    def expected_batches(self, epoch: int) -> Iterator[Any]:
        """Foresee the indices of an epoch's batches, as they would be issued now."""
        assert self._internals.plan is not None
        return expected_batches(self._internals.plan, epoch)

    # --- workers ---

    def claim(self, request: WorkerRequest) -> Claim:
        """Give workers to an iterator, for it alone."""
        workers = self._loader.num_workers or (0 if self._remote else 1)  # 0: from the next one on
        start = partial(self._start_pool, request.seed, workers, self._remote)
        if not self._loader.persistent_workers:
            return temporary(start())
        return self._internals.workers.claim(request, start, workers, self.expected_batches)

    def _start_pool(
        self, seed: int, num_workers: int, remote: RemoteWorkers | None = None
    ) -> WorkerPool:
        return WorkerPool(
            self.spec(),
            num_workers,
            self._loader.multiprocessing_context or default_context(),
            in_flight=self._depth,
            seed=seed,
            turns=self._turns,
            memory_budget=self._loader.memory_budget,
            remote=remote,
        )

    def note(self, record: BatchRecord, workers: WorkerPool | None, again: bool) -> None:
        """Record a batch that is given out; and have another number of workers, if that helps."""
        self.recorder.add(record)
        auto = self.auto
        if auto is None or not auto.add(record, again) or workers is None:
            return
        loader, name = self._loader, type(self._loader.dataset).__name__
        bounds = loader.memory_budget, self._readers
        if auto is self._internals.auto and auto.decide(record, workers, name, *bounds):
            self._internals.resize(*self.size)

    def make_do(self, workers: int) -> None:
        """Have no more workers than these: no more can be started."""
        if self._internals.auto is not None:
            self._internals.auto.make_do(workers)
        elif workers < self._loader.num_workers:
            self._loader.num_workers = workers

    def statistics(self, memory: bool) -> LoaderStatistics:
        """Say where the time went, since the loader was made, and what memory it takes now."""
        with self.lock:
            auto = self._internals.auto
            connected = [each for each in self._internals.iterators if each.connected]
            pools = {pool for each in connected if (pool := each.pool) is not None}
            statistics = self.recorder.summary(
                ready=sum(iterator.ready for iterator in connected),
                shared_memory=sum(pool.shared_memory for pool in pools),
                memory=memory_use({*pools, self._internals.workers.pool}) if memory else None,
                num_workers=self._loader.num_workers,
                why_so_many="" if auto is None else auto.setting.reason,
            )
        return dataclasses.replace(statistics, **figures_of(self._loader.dataset))

    def close(self) -> None:
        """End the workers, and the iterators that have some."""
        internals = self._internals
        with self.lock, HeldBack(), contextlib.ExitStack() as steps:
            steps.callback(internals.workers.close)  # the last step, whatever the others raise
            steps.callback(self.shown.close)
            for iterator in list(internals.iterators):
                steps.callback(iterator.close)

    def end_idle_workers(self) -> None:
        """End the persistent workers that no iterator has."""
        with self.lock:
            if not any(iterator.connected for iterator in self._internals.iterators):
                self._internals.workers.close()

    # --- warnings ---

    def tell(self, note: str) -> None:
        """Warn, once, of what was noticed while a batch was made."""
        self._internals.warn_once(f"{type(self._loader.dataset).__name__}: {note}")

    def warn_of_broken_promise(self, promised: int, samples: int) -> None:
        """Warn that an iterable dataset gives more samples than its length says."""
        text = broken_promise(self._loader.dataset, promised, samples, self._loader.num_workers)
        warnings.warn(text, stacklevel=program_stacklevel())

    def warn_of_ignored_share(self) -> None:
        """Warn, once, that an iterable dataset gives all of its readers the same."""
        dataset, readers = self._loader.dataset, self._readers * self.replica[1]
        self._internals.warn_once(ignored_share(dataset, readers, self.shards is not None))
