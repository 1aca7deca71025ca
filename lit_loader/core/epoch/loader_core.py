"""`LoaderCore`: what a loader keeps from one iterator to the next.

::

    DataLoader ── _core ─▶ LoaderCore ─▶ LoaderIterator ─▶ Inline, or PoolExecutor ─▶ WorkerPool
       options, which may be     │ passes    which pass comes next, and where a state is
       changed at any time,      │ options   of the pass, as iter(loader) has found them
       are its attributes        │ keeper    the workers
                                 ╰ log       what batches have cost, and what has happened

All that changes after a loader's construction is in here, and not set on the loader itself. The
core does not hold the loader, so that no cycle delays the end of its workers; an iterator holds
both.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal

from torch.utils.data import BatchSampler, IterableDataset, RandomSampler

from lit_loader.core.batch.batch_spec import BatchSpec, TorchModes
from lit_loader.core.batch.progress import WINDOW, BatchLog, Timings
from lit_loader.core.epoch.iterator import LoaderIterator
from lit_loader.core.epoch.pass_tasks import NextEpochTasks
from lit_loader.core.epoch.passes import Pass, Passes, PassOptions
from lit_loader.core.epoch.seams import Seams
from lit_loader.core.epoch.worker_keeper import WorkerKeeper
from lit_loader.core.executors.executor import MOST_WORKERS, Workers
from lit_loader.core.options.checks import check_dataset
from lit_loader.core.sampling.batch_plan import (
    BatchPlan,
    ShownSamplers,
    distributed_sampler_of,
    is_share,
)
from lit_loader.core.seeding.held_generators import find_generators
from lit_loader.core.seeding.loader_seeds import LoaderSeeds
from lit_loader.core.state.position import Shards
from lit_loader.core.transport import viewer_page
from lit_loader.core.transport.viewer_page import ViewerPage
from lit_loader.describe import warn
from lit_loader.errors import OptionError

if TYPE_CHECKING:
    from lit_loader.profiling.auto_workers import AutoWorkers

__all__ = ["DEFAULT_PREFETCH", "ITERATED", "LoaderCore"]

DEFAULT_PREFETCH: Final = 2
"""Batches in flight for each worker, unless ``prefetch_factor`` says otherwise."""

ITERATED: Final[ContextVar[Callable[[], object]]] = ContextVar("ITERATED", default=lambda: None)
"""A weak reference to the core of the loader whose ``__iter__`` runs: its workers go on.

A ``_get_iterator()`` that a program calls by itself has new ones, as with torch's: it wants the
dataset as it is now.
"""

_UNPLANNED: Final = ShownSamplers(None, None)

_OF_THE_PROCESS: Final = (
    *("_loader", "_lock", "pid", "keeper", "log", "options", "of_process"),
    *("_started", "_kept_draw"),
)
"""What a copy, or a pickle, begins without."""


class LoaderCore:
    """What a loader keeps. A copy of it has no workers.

    The loader's attributes are its options, see `core/options/loader_config.py`. But its ``rank``,
    ``num_replicas`` and ``num_shards`` are not read from it later: subclasses keep numbers of their
    own under such names.
    """

    dataset: Any = None  # as the iterator made last has found it
    iterable = True  # whether it is an iterable one: it has no plan
    _planned_for = _UNPLANNED
    passes: Passes  # since the plan was made
    options: PassOptions  # of the iterator made last
    promised: int | None = None  # samples of a stream, once ``len(loader)`` has asked
    auto: AutoWorkers | None = None  # with ``num_workers="auto"``
    # How many numbers the last iterator has drawn; None: none was made.
    _drawn_last: int | None = None
    # What `start` has begun, and what was before it.
    _started: tuple[LoaderIterator[object], Passes] | None = None
    _kept_draw: int | None = None  # of a start that was forgotten

    def __init__(
        self,
        loader: Any,
        seeds: LoaderSeeds,
        replica: tuple[int, int] | None,
        shards: int | None,
        seams: Seams,
    ) -> None:
        self.seeds, self.seams = seeds, seams
        # This process's number among those that share the data, and how many they are.
        self.given_replica, self.replica = replica, replica or (0, 1)
        # Which shards of an iterable dataset are this rank's; None: each worker is one.
        self.shards = None if shards is None else Shards(*self.replica, shards)
        self._warnings_given: set[str] = set()
        self.begin_in_this_process(loader)

    def begin_in_this_process(self, loader: Any) -> None:
        """Begin with what belongs to one process: no workers yet, no iterators."""
        self._loader = weakref.ref(loader)
        self._lock, self.pid = threading.RLock(), os.getpid()
        self.keeper, self.log = WorkerKeeper(self), BatchLog()
        self.of_process: dict[str, Any] = {}  # what add-ons keep, by their names

    def __getstate__(self) -> dict[str, object]:
        state = {name: part for name, part in vars(self).items() if name not in _OF_THE_PROCESS}
        seeds = copy.copy(self.seeds)
        passes = self.passes.of_copy(seeds)
        return {**state, "seeds": seeds, "passes": passes, "auto": copy.copy(self.auto)}

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
    def plan(self) -> BatchPlan | None:
        """What each batch holds; None for an iterable dataset."""
        return self.passes.plan

    @property
    def readers(self) -> int:
        """This rank's readers of an iterable dataset, which take turns; 0 for a map-style one."""
        if not self.iterable:
            return 0
        shards = self.shards
        return max(1, self.loader.num_workers) if shards is None else len(shards.mine)

    @property
    def depth(self) -> int:
        """Batches that may be outstanding at the same time."""
        loader, auto = self.loader, self.auto
        usual = DEFAULT_PREFETCH if auto is None else auto.setting.prefetch
        depth: int = (loader.prefetch_factor or usual) * loader.num_workers
        if self.remote_workers:
            depth += self.remote_workers * loader.remote.in_flight
        return depth

    @property
    def size(self) -> tuple[int, int]:
        """How many workers there are to be, and how many batches may be outstanding."""
        return self.loader.num_workers, self.depth

    @property
    def remote_workers(self) -> int:
        """How many workers there are on other machines."""
        remote = self.loader.remote
        return 0 if remote is None or self.iterable else int(remote.num_workers)

    @property
    def local_workers(self) -> int:
        """How many workers there are to be on this machine."""
        return self.loader.num_workers or int(not self.remote_workers)  # 0: from the next one on

    def why_not_resized(self) -> str | None:
        """Say why the number of workers cannot be changed while they live; None: it can be."""
        if self.shards is not None or not self.iterable:
            return None
        return "an IterableDataset without num_shards is read in one part per worker"

    def describe(self) -> str:
        """Return the loader's ``repr``: what it reads, in which batches, by how many workers."""
        loader = self.loader
        parts = [type(self.dataset).__name__, f"batch_size={loader.batch_size}"]
        if loader.batch_size is None and loader.batch_sampler is not None:
            parts[-1] = f"batch_sampler={type(_shared(loader.batch_sampler)).__name__}"
        elif self.plan is not None:
            parts.append(f"sampler={type(_shared(loader.sampler)).__name__}")
        auto = "" if self.auto is None else "auto, now "
        parts.append(f"num_workers={auto}{loader.num_workers}")
        if self.remote_workers:
            parts.append(f"remote workers={self.remote_workers}")
        if loader.num_replicas is not None:
            parts.append(f"rank={loader.rank} of num_replicas={loader.num_replicas}")
        return f"{type(loader).__name__}({', '.join(parts)})"

    # --- plan ---

    def make_plan(self) -> None:
        """Make the plan, and count the passes from the first one."""
        self._planned_for = _UNPLANNED
        loader = self.loader
        self.dataset = vars(loader).get("dataset", loader.dataset)
        self.passes = Passes(self.seeds)
        self.follow_samplers()

    def follow_samplers(self) -> None:
        """Make the plan again, for the next pass, if the samplers have been changed."""
        loader = self.loader
        samplers = loader.sampler, loader.batch_sampler
        if self._planned_for.is_of(*samplers):
            return
        plan, shown = None, ShownSamplers.of(*samplers)
        if not isinstance(self.dataset, IterableDataset):
            batches = shown.batch_sampler
            given = distributed_sampler_of(shown.sampler if batches is None else batches)
            if given is not None and not is_share(given):
                self.seeds.of_ranks(given.num_replicas)
            plan = shown.plan(loader.batch_size, loader.uneven_ranks)
            self.replica = plan.rank, plan.num_replicas
        self.passes.plan, self.iterable, self._planned_for = plan, plan is None, shown
        self.passes.shares_data = self.replica[1] > 1

    # --- passes ---

    def iterator(self) -> LoaderIterator[Any]:
        """Make the iterator that the loader returns, and draw the seed of its pass."""
        loader = self.loader
        if self._started is not None:
            begun, _ = self._started
            self._started = None
            return begun
        if loader.persistent_workers and ITERATED.get()() is not self:
            self.keeper.renew()
        self.options = PassOptions.of(loader)
        self.dataset = self.options.dataset
        check_dataset(self.dataset, loading=True)
        self.follow_samplers()
        pin = self.seams.pin_memory(self) if loader.pin_memory else None
        passes, remote_workers = self.passes, self.remote_workers
        if remote_workers:
            self.log.first_remote = MOST_WORKERS
        if self.shards is not None:
            self.warn_once(self.seams.idle(self))
        workers = loader.num_workers or remote_workers
        drawn, self._kept_draw = self._kept_draw, None
        passes.find_generator()
        numbers, self._drawn_last = self._numbers_to_draw(loader, workers), 0
        if drawn is None and not passes.resumes:
            drawn, self._drawn_last = self.seeds.draw(numbers), numbers
        made: LoaderIterator[Any] = LoaderIterator(self, drawn, not workers, pin)
        passes.newest = weakref.ref(made)
        if workers:
            self.keeper.add(made)
        made.run_patches()
        return made

    def _numbers_to_draw(self, loader: Any, workers: int) -> int:
        """Return how many numbers torch's loader draws in ``iter(loader)``, at least one.

        One for the workers, but with persistent ones only the first time; and one if its sampler is
        a ``RandomSampler`` without a generator.
        """
        sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        if type(sampler) is BatchSampler:
            sampler = sampler.sampler
        if not isinstance(sampler, RandomSampler) or sampler.generator is not None:
            return 1
        starts = self._drawn_last is None or not (loader.persistent_workers and workers)
        return 2 if starts and not self.passes.shares_data else 1

    def draw_again(self) -> None:
        """Move torch's generator, which was restored, as far as the last iterator has."""
        self.passes.mixed = None
        if self.seeds.generator is None:  # its own is where the loaded state says
            self.seeds.draw(self._drawn_last or 0)

    def start(self) -> None:
        """Make and begin the iterator that the next ``iter(loader)`` returns."""
        loader = self.loader
        with self.lock:
            # One that was made and has not begun has the next pass.
            busy = any(run.workers or run.made is None for run in self.keeper.alive())
            if self._started or busy or not (loader.num_workers or self.remote_workers):
                return
            before, made = self.passes.of_copy(self.seeds), self.iterator()
            made.begin()
            self._started = made, before

    def forget_start(self) -> None:
        """Undo what `start` has begun, because something was changed after it."""
        if self._started is not None:
            made, self.passes = self._started
            self._started, self._kept_draw = None, made.drawn
            made.close()

    def close(self) -> None:
        """End the workers, and the iterators that have some."""
        self.forget_start()
        self.keeper.close()

    def begin_pass(self, iterator: LoaderIterator[Any]) -> Pass:
        """Begin the pass that comes next; called by an iterator at its first ``next()``."""
        for advice in self.seams.advice(self):
            self.warn_once(advice)
        plan, seeds, options = self.plan, self.seeds, self.options
        if seeds.lacks_seed and not (
            plan is not None and plan.is_computed and not plan.is_shuffled
        ):
            self.warn_once(
                f"the data is divided among {self.replica[1]} processes outside of a "
                "torch.distributed job, so they cannot agree on a seed, and seed 0 is used. "
                "Pass the same seed= in each of them [LL336]"
            )
        roots = self.dataset, options.collate_fn, options.worker_init_fn
        found = find_generators(*roots, sharing=self.loader.persistent_workers)
        held = found.generators
        if held and seeds.seed is None:
            # generator= may be a global of the dataset's module. Nothing more is drawn from it: the
            # seed of its pass decides what it yields there.
            held = tuple(each for each in held if each[1] is not seeds.generator)
        position = functools.partial(self.seams.position, self)
        made = self.passes.begin(iterator, held, position, self.keeper.pool is not None)
        made.found = found
        return made

    def set_epoch(self, epoch: int, informed: tuple[object, ...] = ()) -> None:
        """Set the epoch of the passes to come, and tell samplers and dataset.

        ``informed``: samplers whose ``set_epoch`` somebody else calls.
        """
        self.follow_samplers()
        begun = None if self._started is None else self._started[0].made
        if begun is not None and begun.epoch != epoch:
            self.forget_start()
        self.passes.set_epoch(epoch, informed)
        self.tell_dataset(epoch)

    def tell_dataset(self, epoch: int) -> None:
        """Call ``set_epoch`` of the dataset; living workers do so when the pass begins."""
        set_epoch = getattr(self.loader.dataset, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)

    def next_epoch_tasks(self, made: Pass) -> NextEpochTasks | None:
        """Return the tasks of the epoch after a pass; None: they may not be made ahead.

        Only where nothing can change what they are made of: the program may change what it shares
        with its workers before it asks for the next epoch.
        """
        loader, plan = self.loader, self.plan
        if (
            not loader.persistent_workers
            or not loader.num_workers
            or loader.worker_method != "multiprocessing"  # threads end with the iterator
            or plan is None
            or not plan.is_computed
            or made.found is None
            or made.found.shared is not None
        ):
            return None
        foreseen = self.passes.foresee(made)
        return None if foreseen is None else NextEpochTasks(plan, *foreseen)

    # --- batches ---

    def spec(self, made: Pass) -> BatchSpec:
        """Return what the batches of a pass are made by."""
        loader, plan = self.loader, self.plan
        rank, num_replicas = self.replica
        return BatchSpec(
            **self.options.of_batches,
            iterable=self.iterable,
            batched=loader.batch_sampler is not None,
            size=None if plan is None or plan.batched else plan.size,
            rank=rank,
            num_replicas=num_replicas,
            own_order=plan is not None and plan.is_computed,
            held=made.own,
            seeded=bool(made.seeds.held),
            modes=TorchModes.now(),
            timed=self.auto is not None,
            watched=bool(loader.timeout),
            shards=self.shards if self.iterable else None,
            **self.seams.spec_parts(self),
        )

    # --- how many workers ---

    def set_auto(self, auto: bool) -> None:
        """Set the number of workers by what batches cost, or not."""
        if auto != (self.auto is not None):
            self.auto = self.seams.auto(self) if auto else None

    def resize(self, num_workers: int | Literal["auto"], prefetch_factor: int | None) -> None:
        """Change the number of workers at any moment; see ``DataLoader.resize``.

        A batch does not depend on who makes it, so nothing else changes: what workers were asked
        for stays outstanding, and comes in its turn. An iterator that is being given workers just
        then compares the count of resizes.
        """
        loader, keeper = self.loader, self.keeper
        reason = self.why_not_resized()
        if num_workers == "auto":
            reason = "a loader is resized to a number of workers"
        elif reason is None and num_workers > MOST_WORKERS:
            reason = f"a loader is resized to at most {MOST_WORKERS} workers"
        elif reason is None and num_workers == 0 and any(run.workers for run in keeper.alive()):
            reason = "an iterator needs its workers"
        if reason is not None:
            raise OptionError(
                f"{reason}, got resize({num_workers!r}): set loader.num_workers = {num_workers!r}, "
                "which counts from the next epoch on"
            )
        if prefetch_factor is None and num_workers and loader.prefetch_factor is None:
            prefetch_factor = DEFAULT_PREFETCH
        if prefetch_factor is not None:
            loader.prefetch_factor = prefetch_factor
        loader.num_workers = num_workers
        if num_workers == 0:
            keeper.end_idle_workers()
            return
        keeper.announce_size()

    def cap_workers(self, workers: int) -> None:
        """Cap the number of workers; the system cannot start more."""
        if self.auto is not None:
            self.auto.cap_workers(workers)
        elif workers < self.loader.num_workers:
            self.loader.num_workers = workers

    # --- records ---

    def note(self, record: Timings, workers: Workers | None, again: bool) -> None:
        """Record a batch that is given out; and change the number of workers, if that helps.

        ``workers``: who makes batches; None: they are gone. ``again``: a reader that moves replays
        what it has given.
        """
        records = self.log.records
        records.append(record)
        if len(records) >= WINDOW:
            self.log.sum_up()
        auto = self.auto
        if auto is None or record.worker < 0 or not auto.add(record, again) or workers is None:
            return  # what this process has made itself says nothing of workers
        plan, name = self.plan, type(self.dataset).__name__
        # More workers than readers, or than an epoch has batches, would have nothing to do.
        most = self.readers if plan is None else len(plan) if plan.is_computed else 0
        if auto.decide(workers, name, most):
            self.keeper.announce_size()

    def show(self, page: ViewerPage, run: LoaderIterator[object]) -> None:
        """Write down, for viewers in other processes, what the loader is at."""
        now = time.monotonic_ns()
        page.due = now + viewer_page.EVERY
        with contextlib.suppress(Exception):  # of the user's: the repr of a slow sample's index
            figures = self.seams.figures(self, page.row[viewer_page.EPOCH], now)
            page.write(figures, run.ready, now)
        if run.workers is not None:
            self.seams.look_at_workers(self, run.workers, now / 1e9)

    # --- warnings ---

    def warn_once(self, text: str | None, category: type[Warning] = UserWarning) -> None:
        """Warn of something, once; None: there is nothing to say."""
        if text is not None and text not in self._warnings_given:
            self._warnings_given.add(text)
            warn(text, category)


def _shared(sampler: Any) -> object:
    """Return the sampler that a share was taken of."""
    return sampler.source if is_share(sampler) else sampler
