"""What a loader keeps from one iterator to the next, out of sight of its users.

The loader has it in one attribute, ``_internals``; `iteration/host.py` works with it. All that
changes after a loader's construction is in here, and not set on the loader itself.
"""

from __future__ import annotations

import contextlib
import copy
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

import torch
from torch.utils.data import IterableDataset

from lit_loader.accelerator.device_copy import Move
from lit_loader.checkpoint.reader_states import Shards
from lit_loader.describe import program_stacklevel
from lit_loader.iteration.multi_process import MultiProcessIterator
from lit_loader.iteration.persistent_workers import PersistentWorkers
from lit_loader.pool.pipes import PoolClosed
from lit_loader.pool.worker_pool import WorkerPool
from lit_loader.ranks.job_store import Talks
from lit_loader.sampling.batch_plan import BatchPlan
from lit_loader.sampling.epochs import Epochs
from lit_loader.sampling.sharded_sampler import ShardedSampler
from lit_loader.sampling.shown_samplers import ShownSamplers
from lit_loader.seeding.generator_watch import GeneratorWatch
from lit_loader.seeding.seeds import BaseSeed
from lit_loader.statistics.recorder import Recorder
from lit_loader.system.weak_sets import members
from lit_loader.transport.loader_page import LoaderPage
from lit_loader.transport.own_page import OwnPage
from lit_loader.tuning.auto_workers import AutoWorkers

__all__ = ["DEFAULT_PREFETCH", "ITERATED", "LoaderInternals"]

DEFAULT_PREFETCH: Final = 2
"""Batches in flight for each worker, unless ``prefetch_factor`` says otherwise."""

ITERATED: Final[ContextVar[object]] = ContextVar("ITERATED", default=None)
"""The internals of the loader whose ``__iter__`` runs: its workers go on. A ``_get_iterator()``
that a program calls by itself has new ones, as with torch's: it wants the dataset as it is now."""

_OF_THE_PROCESS: Final = (
    *("lock", "lock_pid", "workers", "iterators", "latest", "watch", "page", "own_page"),
    "talks",
)


def _none() -> None:
    return None


class LoaderInternals:
    """What a loader keeps from one iterator to the next. A copy of it has no workers.

    Args:
        base_seed: The loader's.
        replica: Its ``rank`` and ``num_replicas``, if these were given. Not read from the loader
            later: subclasses keep numbers of their own under such names.
        num_shards: Its ``num_shards``, likewise.

    Attributes:
        base_seed: As given.
        replica: As given; None: not given.
        num_shards: As given; 0: not given.
        recorder: Collects what batches have cost.
        plan: What each batch holds; None for an iterable dataset.
        epochs: Which epoch comes next, and where in it.
        promised: Samples of an iterable dataset, once ``len(loader)`` has asked for them.
        copies_to: The device to copy batches to while the one before is computed on, and how.
        auto: Sets the number of workers, with ``num_workers="auto"``; else None.
        checked: Whether ``check_exactness`` has compared its batches.
        reads_again: Whether resuming reads again what has been given out before.
        advice_at_start: What to warn of when the next epoch begins.
        role: What the loader is for, as messages to the user name it; "": not known.
        page: What viewers are shown of the workers that were used last; None: there were none.
        own_page: Where they are shown batches that are made without workers; None: nowhere.
        first_here: When the first of these was asked for, in nanoseconds; 0: none was.
        resizes: Counts how often the number of workers was changed while they live.
        workers: Those that outlive an iterator.
        iterators: With workers, all that are alive.
        latest: Gives the one that was made last, while it is alive.
        talks: With the other ranks, on the ends of its epochs.
    """

    def __init__(
        self, base_seed: BaseSeed, replica: tuple[int, int] | None, num_shards: int | None
    ) -> None:
        self.base_seed = base_seed
        self.replica = replica
        self.num_shards = num_shards or 0
        self.recorder = Recorder()
        self.plan: BatchPlan | None = None
        self.planned_for = ShownSamplers(None, None)
        self.epochs = Epochs(None, base_seed)
        self.promised: int | None = None
        self.copies_to: tuple[torch.device, Move] | None = None
        self.auto: AutoWorkers | None = None
        self.checked = self.reads_again = False
        self.advice_at_start: str | None = None
        self.role = ""
        self.warnings_given: set[str] = set()
        self.best_in_process: bool | None = None  # not measured yet
        self.resizes = 0
        self._begin_in_this_process()

    def _begin_in_this_process(self) -> None:
        """Begin with what belongs to one process: no workers yet, no iterators."""
        self.lock, self.lock_pid = threading.RLock(), os.getpid()
        self.workers = PersistentWorkers()
        self.iterators: weakref.WeakSet[MultiProcessIterator[Any]] = weakref.WeakSet()
        self.latest: Callable[[], Any] = _none
        self.watch: GeneratorWatch | None = None
        self.page: LoaderPage | None = None
        self.own_page: OwnPage | None = None
        self.first_here = 0
        self.talks = Talks()

    def __getstate__(self) -> dict[str, Any]:
        state = {name: part for name, part in vars(self).items() if name not in _OF_THE_PROCESS}
        return {**state, "epochs": copy.copy(self.epochs), "auto": copy.copy(self.auto)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin_in_this_process()

    def ahead(self, loader: Any) -> int:
        """How many of its readers a worker may begin the next epoch of."""
        kept = loader.persistent_workers and loader.prefetch_next_epoch and self.num_shards
        return (loader.prefetch_factor or DEFAULT_PREFETCH) if kept else 0

    @property
    def shards(self) -> Shards | None:
        """Which readers of an iterable dataset are this rank's; None: there are no num_shards."""
        rank, replicas = self.replica or (0, 1)
        return Shards(rank, replicas, self.num_shards) if self.num_shards else None

    def renew_lock(self) -> None:
        """Let a forked child have its own: a thread of the parent's may hold the one it has."""
        self.lock, self.lock_pid = threading.RLock(), os.getpid()

    def renew_workers(self) -> None:
        """Let the next iterator start workers; one that has those of now keeps them as its own."""
        if self.workers.idle is not None:
            self.workers.close()
        self.workers = PersistentWorkers()

    def set_auto(self, auto: bool) -> None:
        """Have the number of workers set by what batches cost, or not."""
        if auto != (self.auto is not None):
            self.auto = AutoWorkers() if auto else None

    def resize(self, num_workers: int, depth: int) -> None:
        """Tell all that have workers how many there are to be, and how many batches ahead."""
        self.resizes += 1  # before they are looked for: of one that is begun now, or found
        for iterator in self.alive():
            iterator.resize(num_workers, depth)
        self.workers.resize(num_workers, depth)

    def alive(self) -> list[MultiProcessIterator[Any]]:
        """The iterators with workers that are alive; another thread may be making one."""
        return members(self.iterators)

    def pools(self) -> set[WorkerPool]:
        """All of the loader's workers."""
        return {*filter(None, [*(each.pool for each in self.alive()), self.workers.pool])}

    def adapt(self) -> None:
        """Do what a resize asks for, with the workers that no thread receives from."""
        pools = [*(each.unattended for each in self.alive()), self.workers.idle]
        with contextlib.suppress(PoolClosed):  # a signal's handler may close the loader
            for pool in filter(None, pools):
                pool.adapt()

    def make_plan(self, loader: Any) -> None:
        """Make the plan, and count the epochs from the first one."""
        self._plan_for(loader, ShownSamplers.of(loader.sampler, loader.batch_sampler))
        self.epochs = Epochs(self.plan, self.base_seed)

    def follow_samplers(self, loader: Any) -> None:
        """Make the plan anew, for the next epoch, if the samplers have been changed."""
        shown = ShownSamplers.of(loader.sampler, loader.batch_sampler)
        if not shown.is_same(self.planned_for):
            self._plan_for(loader, shown)
            self.best_in_process = None
            self.epochs.replan(self.plan)

    def _plan_for(self, loader: Any, shown: ShownSamplers) -> None:
        plan = None
        if not isinstance(loader.dataset, IterableDataset):
            plan = shown.plan(loader.batch_size, self.base_seed, loader.dataset)
        self.plan, self.planned_for = plan, shown

    def describe(self, loader: Any) -> str:
        """Give the loader's ``repr``: what it reads, in which batches, by how many workers."""
        parts = [type(loader.dataset).__name__, f"batch_size={loader.batch_size}"]
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

    def warn_once(self, message: str, category: type[Warning] = UserWarning) -> None:
        """Warn, at the line of the program that called the package; of the same thing once."""
        if message not in self.warnings_given:
            self.warnings_given.add(message)
            warnings.warn(message, category, stacklevel=program_stacklevel())


def _behind(sampler: object) -> object:
    """What a share was taken of."""
    return sampler.source if isinstance(sampler, ShardedSampler) else sampler
