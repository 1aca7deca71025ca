"""`DataLoader`: the public face, with the names, meaning and defaults of torch's.

It holds the options, gives out iterators, and keeps what outlives one of them: the persistent
workers and the count of epochs. How batches are made and carried is told in `iteration/base.py`.

It is a subclass of torch's class so that programs and type checkers know it for a loader, and
rebuild, shard or wrap it as they do with torch's. Nothing of torch's machinery runs: every method
is overridden or reads attributes alone, and ``tests/parity/test_torch_class.py`` holds that against
the class of the torch that is installed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import multiprocessing
import operator
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.context import BaseContext
from typing import Any, Final, TypeVar

import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    default_collate,
)
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import default_convert as torch_default_convert
from torch.utils.data.dataloader import _DatasetKind  # programs compare _dataset_kind with it

from lit_loader.batch.make import BatchLoader, BatchSpec
from lit_loader.batch.sample_errors import TRANSIENT_ERRORS, Tolerance
from lit_loader.batch.tensor_table import frozen
from lit_loader.checkpoint.fingerprint import Fingerprint, fingerprint_of
from lit_loader.checkpoint.foreign_state import is_count
from lit_loader.checkpoint.loader_state import ELASTIC, LoaderState, check_batches, check_portable
from lit_loader.checkpoint.position import Position, ReadPoint
from lit_loader.checkpoint.stateful import is_stateful
from lit_loader.checkpoint.unsaved_position import ADVICE_WITHOUT_CALLBACK, called_by_lightning
from lit_loader.config.loader_config import LoaderConfig
from lit_loader.describe import short_repr
from lit_loader.errors import OptionError, StateError
from lit_loader.iteration import pin_memory as pinning
from lit_loader.iteration.base import LoaderIterator
from lit_loader.iteration.claims import Claim, WorkerRequest
from lit_loader.iteration.device_copy import DeviceCopy, Move
from lit_loader.iteration.exactness_check import ExactnessCheck, made_by_pool, made_here
from lit_loader.iteration.in_process import InProcessIterator
from lit_loader.iteration.multi_process import MultiProcessIterator
from lit_loader.iteration.persistent_workers import PersistentWorkers, temporary
from lit_loader.iteration.placement import faster_in_process
from lit_loader.pool.worker_pool import WorkerPool
from lit_loader.sampling.batch_plan import BatchPlan, UpcomingBatch
from lit_loader.sampling.certain_indices import certain_indices
from lit_loader.sampling.epochs import Epochs, EpochStart
from lit_loader.sampling.orders import (
    EndlessSampler,
    EpochOrder,
    OrderedSampler,
    Shard,
    ShuffledSampler,
    epoch_number,
)
from lit_loader.sampling.sharded_sampler import (
    ShardedSampler,
    Sharding,
    distributed_sampler_of,
    shard_items,
    sharding_of,
)
from lit_loader.sampling.unsharded import advice_if_unsharded
from lit_loader.seeding.generator_watch import GeneratorWatch
from lit_loader.seeding.seeds import BaseSeed
from lit_loader.statistics.recorder import Recorder
from lit_loader.statistics.records import LoaderStatistics
from lit_loader.system.interrupts import HeldBack
from lit_loader.system.processors import usable_processors

__all__ = ["DataLoader"]

T_co = TypeVar("T_co", covariant=True)

_DEFAULT_PREFETCH: Final = 2
_FIXED: Final = frozenset(
    {"dataset", "batch_size", "sampler", "batch_sampler", "drop_last", "persistent_workers"}
)


class DataLoader(TorchLoader[T_co]):
    """Loads batches of a dataset, in worker processes if wanted.

    Takes the place of ``torch.utils.data.DataLoader``, and is one: the same arguments, in the same
    order, with the same defaults. :class:`lit_loader.LoaderConfig` documents every one of them.

    A ``torch.utils.data.DistributedSampler`` is taken for what it says: rank, replicas, shuffle,
    seed, what to do with the rest, and the epoch that it is told. Where ``num_replicas`` and
    ``rank`` are given, ``loader.sampler`` is one, of this rank's indices.

    Nothing is started before the first ``next()`` of an iterator. With ``persistent_workers`` the
    workers live until :meth:`close`, the end of a ``with`` block, or the loader's own end. Several
    iterators of one loader may live at the same time, each gives a whole epoch; iterators and
    loader may be used from any thread, one thread at a time being served.

    Raises:
        OptionError: An option, or a combination of options, is refused (a ValueError).
    """

    __module__ = "lit_loader"

    collate_fn: Callable[[list[Any]], Any]
    worker_init_fn: Callable[[int], object] | None  # type: ignore[assignment]
    generator: torch.Generator | None
    batch_sampler: Iterable[Any] | None

    # The class has torch's name, and so this is torch's own flag under torch's own mangled name
    # (_DataLoader__initialized): programs that exchange samplers (timm's loaders) switch it off
    # for that, and on again.
    __initialized = False
    _plan: BatchPlan | None = None

    # torch's constructor is not called: it would set up torch's machinery.
    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        seeding: str = "batch",
        reseed_fn: Callable[[Any, int], object] | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        shard_tail: str = "pad",
        max_worker_restarts: int = 3,
        on_sample_error: str = "raise",
        max_sample_errors: int | None = None,
        sample_retries: int = 0,
        retry_backoff: float = 0.1,
        transient_errors: Sequence[type[Exception] | str] | None = None,
        memory_budget: int | None = None,
        prefetch_next_epoch: bool = True,
        check_exactness: int = 0,
    ) -> None:
        options = locals()
        config = LoaderConfig(**{name: options[name] for name in LoaderConfig.__dataclass_fields__})
        self._iterable = isinstance(dataset, IterableDataset)
        _check_dataset(dataset)
        config.check_dataset_kind(self._iterable)
        config = config.with_samplers_for(dataset)

        self.dataset = dataset
        self.num_workers = config.num_workers
        self.prefetch_factor = config.prefetch_factor
        if self.num_workers and self.prefetch_factor is None:
            self.prefetch_factor = _DEFAULT_PREFETCH
        self.pin_memory = config.pin_memory
        self.pin_memory_device = config.pin_memory_device
        self.timeout = config.timeout
        self.worker_init_fn = config.worker_init_fn
        self.multiprocessing_context = config.multiprocessing_context
        self.in_order = config.in_order
        self.drop_last = config.drop_last
        self.persistent_workers = config.persistent_workers
        self.generator = config.generator
        self.seed = config.seed
        # An object of its own: samplers hold it, and would hold the loader in a cycle otherwise.
        self._base_seed = BaseSeed(config.seed, config.generator, (config.num_replicas or 1) > 1)
        self.seeding = config.seeding
        self.reseed_fn = config.reseed_fn
        self.num_replicas = config.num_replicas
        self.rank = config.rank
        self.shard_tail = config.shard_tail
        self.max_worker_restarts = config.max_worker_restarts
        self.on_sample_error = config.on_sample_error
        self.max_sample_errors = config.max_sample_errors
        self.sample_retries = config.sample_retries
        self.retry_backoff = config.retry_backoff
        self.transient_errors: Any = config.transient_errors  # None, or a tuple of classes
        self.memory_budget = config.memory_budget
        self.prefetch_next_epoch = config.prefetch_next_epoch
        self.check_exactness = config.check_exactness

        self.batch_size = config.batch_size if config.batch_sampler is None else None
        self.sampler, self.batch_sampler = self._samplers(config)
        self.collate_fn = config.collate_fn or (
            torch_default_convert if self.batch_sampler is None else default_collate
        )
        self._dataset_kind = _DatasetKind.Iterable if self._iterable else _DatasetKind.Map
        self.promised: int | None = None
        self._copies_to: tuple[torch.device, Move] | None = None
        self._warnings_given: set[str] = set()
        self._made_here: bool | None = None  # not measured yet
        self._exactness_checked = False
        self._reads_again = False
        self._restored_by_lightning = False
        self.recorder = Recorder()
        self._reset_process_state()
        self.__initialized = True
        self.check_worker_number_rationality()

    def _reset_process_state(self) -> None:
        """Begin with what belongs to one process: no workers yet, no iterators."""
        self._lock, self._lock_pid = threading.RLock(), os.getpid()
        self._workers = PersistentWorkers()
        self._iterators: weakref.WeakSet[MultiProcessIterator[Any]] = weakref.WeakSet()
        self._watch: GeneratorWatch | None = None

    def _samplers(self, config: LoaderConfig) -> tuple[Iterable[Any], Iterable[Any] | None]:
        """Give what ``sampler`` and ``batch_sampler`` show: what this process reads."""
        certain = config.in_order and config.on_sample_error == "raise"
        batch_sampler = certain_indices(config.batch_sampler, certain)
        sampler = config.sampler
        given = distributed_sampler_of(sampler if batch_sampler is None else batch_sampler)
        if given is not None:
            _check_replicas(config, given)
            seed = getattr(given, "seed", None)
            self._base_seed.sampler = seed if isinstance(seed, int) else None
        if sampler is None:
            if self._iterable:
                sampler = EndlessSampler()
            elif config.shuffle:
                sampler = ShuffledSampler(self.dataset, self.generator, self._base_seed)
            else:
                sampler = OrderedSampler(self.dataset)  # type: ignore[arg-type]
        if config.num_replicas is not None and not self._iterable and given is None:
            shard = Shard(config.rank or 0, config.num_replicas, config.shard_tail)  # type: ignore[arg-type]
            sampler = shard_items(sampler, shard)
            if batch_sampler is not None:
                batch_sampler = shard_items(batch_sampler, shard)
        if batch_sampler is not None or config.batch_size is None:
            return sampler, batch_sampler
        return sampler, BatchSampler(sampler, config.batch_size, config.drop_last)

    def _make_plan(self) -> BatchPlan | None:
        """Make the plan of every epoch of what the samplers show; an iterable dataset has none."""
        if self._iterable:
            return None
        items: Any = self.sampler
        batches: Any = self.batch_sampler
        size, drop_last = None, False
        if type(batches) is BatchSampler:
            default = self.batch_size is not None and batches.sampler is items
            if default or sharding_of(batches.sampler, self._base_seed) is not None:
                items, size, drop_last = batches.sampler, batches.batch_size, batches.drop_last
                batches = None
        shown = items if batches is None else batches
        sharding = sharding_of(shown, self._base_seed) or Sharding(shown, Shard())
        if batches is None:
            items = sharding.items
        else:
            batches = sharding.items
        shard, watched = sharding.shard, sharding.watched
        return BatchPlan(
            items, batches, size, drop_last, shard, self._base_seed, watched, self.dataset
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__initialized and name in _FIXED:
            raise OptionError(
                f"{name} cannot be changed once the loader is built, "
                f"got {name}={short_repr(value)}: make a new loader"
            )
        super().__setattr__(name, value)
        if name == "_DataLoader__initialized" and value:
            self._plan, self._planned = self._make_plan(), self._shown()
            self._epochs = Epochs(self._plan, self._base_seed)

    def _shown(self) -> tuple[Any, ...]:
        """What the samplers show that a program may change: the next epoch is of that, as torch's.

        The attributes of the default batch sampler may be set, and the samplers themselves past
        ``__setattr__``.
        """
        batches: Any = self.batch_sampler
        if type(batches) is not BatchSampler:
            return self.sampler, batches, None, None, None
        return self.sampler, batches, batches.sampler, batches.batch_size, batches.drop_last

    def _follow_samplers(self) -> None:
        """Make the plan anew if the samplers have been changed."""
        shown = self._shown()
        samplers, numbers = slice(3), slice(3, None)  # samplers may compare by their items
        same = all(map(operator.is_, shown[samplers], self._planned[samplers]))
        if not same or shown[numbers] != self._planned[numbers]:
            self._plan, self._planned, self._made_here = self._make_plan(), shown, None
            self._epochs.replan(self._plan)

    @property
    def _iterator(self) -> Any:
        """The iterator that has the persistent workers; programs set it to None to end these."""
        if not self.persistent_workers:
            return None
        return next((each for each in self._iterators if each.connected), None)

    @_iterator.setter
    def _iterator(self, value: Any) -> None:
        if self.persistent_workers:
            self.close()

    @_iterator.deleter
    def _iterator(self) -> None:
        self._iterator = None

    @property
    def _IterableDataset_len_called(self) -> Any:  # type: ignore[override]
        return self.promised

    def check_worker_number_rationality(self) -> None:
        """Warn if there are more workers than processors that this process may use."""
        processors = math.ceil(usable_processors())
        if self.num_workers > processors:
            self._warn_once(
                f"{_AS_TORCH_BEGINS} {self.num_workers} worker processes, but this "
                f"process may use {processors} processors: for work that computes, more workers "
                f"only take time from each other and from training; num_workers={processors} is "
                "enough, unless samples wait for storage",
                4,
            )

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("_lock", "_lock_pid", "_workers", "_iterators", "_watch"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset_process_state()

    @property
    def lock(self) -> threading.RLock:
        """Held in every ``next()``, for iterators of one loader share workers."""
        # A forked child has its own: whoever held it at that moment is a thread of the parent's.
        if self._lock_pid != os.getpid():
            self._lock, self._lock_pid = threading.RLock(), os.getpid()
        return self._lock

    @property
    def multiprocessing_context(self) -> BaseContext | None:
        """The context that workers are started in; None: Python's default."""
        return self._context

    @multiprocessing_context.setter
    def multiprocessing_context(self, value: str | BaseContext | None) -> None:
        if value is not None:
            LoaderConfig(num_workers=self.num_workers, multiprocessing_context=value)
        self._context = multiprocessing.get_context(value) if isinstance(value, str) else value

    def copy_ahead(self, device: torch.device, move: Move) -> None:
        """Let iterators copy each batch to an accelerator while the one before is computed on.

        At most one batch more is on the device then. Nothing is done for a device that is not a
        CUDA device, or without workers. Without ``pin_memory`` the copy is exact, and not
        asynchronous.

        Args:
            device: Where to.
            move: Called with a batch and the device; returns the batch there, its tensors copied
                with ``non_blocking=True``.
        """
        self._copies_to = (device, move) if device.type == "cuda" else None

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iterator loads; without, epochs count up by themselves.

        A position within that very epoch, from :meth:`load_state_dict`, is kept; one within another
        epoch is given up.

        Args:
            epoch: Epoch number, from 0.

        Raises:
            OptionError: It is no whole number, or has more than 62 bits.
        """
        epoch = epoch_number(epoch)
        self._epochs.set_epoch(epoch)
        if isinstance(self.sampler, EpochOrder):
            self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        """Batches of a full epoch (of this rank).

        Raises:
            TypeError: The dataset or sampler has no length.
        """
        self._follow_samplers()
        if self._plan is not None:
            return len(self._plan)
        samples: int = len(self.dataset)  # type: ignore[arg-type]
        self.promised = samples
        if self.batch_size is None:
            return samples
        return (
            samples // self.batch_size if self.drop_last else math.ceil(samples / self.batch_size)
        )

    def __iter__(self) -> LoaderIterator[T_co]:  # type: ignore[override]
        return self._get_iterator()

    def _get_iterator(self) -> LoaderIterator[T_co]:  # type: ignore[override]
        """Make an iterator; where torch's loader makes its own, which subclasses override."""
        self._follow_samplers()
        pin, device = self._pinning()
        if self.num_workers == 0 or (pin is None and self._best_made_here()):
            spec = self._recipe_of_workers if self.num_workers else None
            here: InProcessIterator[T_co] = InProcessIterator(self, pin, spec)
            here.observer = self._exactness_check(in_process=True)
            return here
        iterator: MultiProcessIterator[T_co] = MultiProcessIterator(
            self,
            depth=self._depth(),
            num_workers=self.num_workers,
            in_order=self.in_order,
            assigned=self._assigned,
            timeout=self.timeout,
            max_restarts=self.max_worker_restarts,
            budgeted=self.memory_budget is not None,
            copy=self._copies_to and DeviceCopy(*self._copies_to),
            pin=pin,
            device=device,
        )
        iterator.observer = self._exactness_check(in_process=False)
        self._iterators.add(iterator)
        return iterator

    def _exactness_check(self, in_process: bool) -> ExactnessCheck | None:
        """What compares the first batches with themselves made again; None: nothing does."""
        if not self.check_exactness or self._exactness_checked:
            return None
        if in_process and self._iterable:
            self._warn_once(
                "check_exactness needs num_workers of at least 1 for an IterableDataset: it would "
                "be iterated twice in this process",
                4,
            )
            return None

        def tell(message: str, category: type[Warning]) -> None:
            self._warn_once(message, 7, category)

        def note() -> None:
            self._exactness_checked = True

        def begin() -> BatchLoader:
            spec = self.spec()
            return BatchLoader(spec, watch=self.generators(spec))

        remake = made_here(begin)
        if not in_process:
            readers = self.num_workers if self._iterable else 0
            remake = made_by_pool(self._start_pool, readers, self.timeout)
        return ExactnessCheck(self.check_exactness, remake, tell, note, from_start=self._iterable)

    def _best_made_here(self) -> bool:
        """Whether batches are so quickly made that workers would only be in the way."""
        if self.worker_init_fn is not None or self._copies_to is not None:
            return False
        if self._made_here is None:
            table = self.spec().table()
            self._made_here = table is not None and faster_in_process(
                table,
                len(self.dataset),  # type: ignore[arg-type]
                self._plan.size if self._plan is not None else 1,
                self.num_workers,
            )
        return self._made_here

    def _recipe_of_workers(self) -> BatchSpec:
        """The spec, with the table as workers would have it that were started now, or before."""
        if self._workers.dataset is None or not self.persistent_workers:
            self._workers.dataset = frozen(self.dataset)
        return dataclasses.replace(self.spec(), dataset=self._workers.dataset)

    @property
    def _assigned(self) -> bool:
        """Whether a worker's tasks are its own, instead of being pulled by whoever is free."""
        return self._iterable or self.seeding == "worker"

    def _depth(self) -> int:
        return (self.prefetch_factor or _DEFAULT_PREFETCH) * self.num_workers

    def _pinning(self) -> tuple[Callable[[Any], Any] | None, int | None]:
        if not self.pin_memory:
            return None, None
        device = pinning.find_accelerator(self.pin_memory_device)
        if device is None:
            self._warn_once(
                "pin_memory=True has no effect: there is no accelerator to pin memory for; set it "
                "to False on this machine",
                5,
            )
        return (None if device is None else pinning.pin_batch), device

    def spec(self) -> BatchSpec:
        """What a batch is made by."""
        return BatchSpec(
            dataset=self.dataset,
            iterable=self._iterable,
            batch_size=self.batch_size,
            batched=self.batch_sampler is not None,
            drop_last=self.drop_last,
            collate_fn=self.collate_fn,
            worker_init_fn=self.worker_init_fn,
            seeding=self.seeding,
            reseed_fn=self.reseed_fn,
            rank=self._replica[0],
            num_replicas=self._replica[1],
            tolerance=Tolerance(
                policy=self.on_sample_error,
                limit=self.max_sample_errors,
                retries=self.sample_retries,
                backoff=self.retry_backoff,
                transient=(
                    TRANSIENT_ERRORS if self.transient_errors is None else self.transient_errors
                ),
            ),
            own_order=self._plan is not None and isinstance(self._plan.source, EpochOrder),
        )

    @property
    def _replica(self) -> tuple[int, int]:
        """This process's number among those that share the data, and how many they are."""
        if self._plan is not None:
            return self._plan.rank, self._plan.num_replicas
        return self.rank or 0, self.num_replicas or 1

    def generators(self, spec: BatchSpec) -> GeneratorWatch:
        """Find the generators that are held in this process: once, and again what has changed."""
        watch = self._watch
        if watch is None or any(
            known is not root
            for known, root in zip(watch.roots, (spec.dataset, spec.collate_fn), strict=False)
        ):
            watch = self._watch = spec.watch()
        else:
            watch.refresh()
        return watch

    def begin_epoch(self) -> EpochStart:
        """Begin the epoch that comes next; called by an iterator at its first ``next()``."""
        if self.num_replicas is None:
            shown = self.sampler if self.batch_sampler is None else self.batch_sampler
            advice = advice_if_unsharded(self.dataset, shown, self._iterable)
            if advice is not None:
                self._warn_once(advice, 6)
        if self._restored_by_lightning:
            self._restored_by_lightning = False
            # Of loaders without length, Lightning takes a batch before any callback comes to act.
            if self._has_length():
                self._warn_once(ADVICE_WITHOUT_CALLBACK, 6)
        return self._epochs.begin(readers=max(1, self.num_workers) if self._iterable else 0)

    def _has_length(self) -> bool:
        try:
            return len(self) >= 0
        except (TypeError, NotImplementedError):
            return False

    def commit(self, ahead: bool = False, within: bool = False) -> None:
        """Declare everything given out so far as used.

        Once this has been called, :meth:`state_dict` gives the position of the last call instead of
        that of the last batch given out: a batch that was given out, and whose training step did
        not come to its end, is given out again after resuming.

        Args:
            ahead: Whether the last batch given out is not used yet, for a training loop that takes
                one ahead; for iterable datasets only.
            within: Whether the training loop's epoch goes on. If this loader has come to its end,
                it has nothing more to give then, also after resuming; else its next epoch begins.
        """
        self._epochs.commit(ahead, within)

    def state_dict(self) -> dict[str, Any]:
        """Give the position in the data, for :meth:`load_state_dict`.

        May be called at any time, in any process of a distributed job (all give the same), and
        starts nothing. Inside of the loop the position is behind the batch given out last, after
        the last batch of an epoch too; after the loop it is the start of the next epoch.

        Returns:
            A new dict of primitives, less than 2 kB unless a sampler or an iterable dataset has a
            state of its own. It survives ``torch.load(weights_only=True)``.
        """
        if self._plan is not None and is_stateful(self.dataset):
            self._warn_of_unused_state()
        if self._epochs.begun_without_commits and called_by_lightning():
            self._warn_once(ADVICE_WITHOUT_CALLBACK, 3)
        position = self._epochs.now()
        if self._plan is not None and (untold := self._plan.memory.untold) is not None:
            self._warn_once(
                f"{untold} changes from epoch to epoch and is not part of the state: resumed in a "
                "later epoch, the sampler may give another order; give it state_dict and "
                "load_state_dict, or make its order a function of set_epoch's epoch",
                3,
            )
        samples = position.batches
        if self._plan is not None:
            samples = self._plan.samples_after(position.batches)
        workers = None
        if position.readers:
            workers = [
                [point.batches, point.state, point.ended, *([point.behind] if point.behind else [])]
                for point in position.readers
            ]
        return LoaderState(
            epoch=position.epoch,
            batches=position.batches,
            samples=samples,
            fingerprint=self._fingerprint(position.seed),
            ahead=position.ahead,
            sampler=position.sampler,
            workers=workers,
            requested=None if position.requested == position.epoch else position.requested,
        ).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken: the next iterator begins there.

        Args:
            state: What :meth:`state_dict` of a loader of the same data gave. The number of workers,
                the prefetching and the start method may differ; ``batch_size`` and
                ``num_replicas`` may, if the position is at the start of a batch of this loader.

        Raises:
            StateError: The state does not fit, says which part and what to do.
        """
        # Set as an attribute: Lightning sets again, on a loader that it rebuilds with a sampler of
        # its own, what has been set on the one that a hook has made.
        self._loaded_state = state
        if self._reads_again:
            self._warn_of_reading_again()
        # A callback restores what Lightning has restored once more, before the first batch.
        self._restored_by_lightning = called_by_lightning()

    @property
    def _loaded_state(self) -> Mapping[str, Any] | None:
        return None  # it is in the epochs' hands

    @_loaded_state.setter
    def _loaded_state(self, state: Mapping[str, Any]) -> None:
        self._follow_samplers()
        loaded = LoaderState.from_dict(state)
        self._reads_again = False
        seed = self._base_seed.given()
        theirs = loaded.fingerprint.get("seed")
        # A seed that nobody chose is taken over: the data goes on as it would have.
        adopted = None
        if not self._base_seed.chosen and is_count(theirs, 2**64):
            seed = adopted = theirs
        fingerprint = self._fingerprint(seed)
        # So is the kind of shuffled order: where there are ranks it is DistributedSampler's.
        order = loaded.fingerprint.get("order")
        if {order, fingerprint["order"]} <= _SHUFFLED:
            fingerprint["order"] = order
        loaded.check_parts(self._iterable)
        batches = loaded.batches
        readers = tuple(ReadPoint(*point) for point in loaded.workers or ())
        if self._plan is not None:
            loaded.check(fingerprint)
        elif any(point.state is not None for point in readers):
            loaded.check(fingerprint, elastic=())
        else:
            loaded.check(fingerprint, elastic={"rank"})
            if any(point.batches and not point.ended for point in readers):
                self._reads_again = True
        if self._plan is not None and any(
            loaded.fingerprint.get(name) != fingerprint.get(name) for name in ELASTIC
        ):
            if loaded.ahead:
                raise StateError(
                    "a state taken with in_order=False in mid-epoch fits only the batch_size and "
                    "num_replicas it was taken with: resume with those"
                )
            batches = check_batches(self._plan.start_for(loaded.samples))
        if self.num_workers:
            check_portable(readers)
        if adopted is not None:
            self._base_seed.resumed = adopted
        if self._plan is not None and isinstance(self._plan.source, ShuffledSampler):
            self._plan.source.as_distributed = order == DistributedSampler.__name__
        self._epochs.load(
            Position(
                loaded.epoch,
                seed,
                batches,
                tuple(loaded.ahead),
                loaded.sampler,
                readers,
                requested=loaded.requested,
            )
        )

    def _fingerprint(self, seed: int) -> Fingerprint:
        """What a position in the data depends on."""
        try:
            length: int | None = len(self.dataset)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):
            length = None
        plan = self._plan
        return {
            "dataset_length": length,
            "seed": seed,
            "seeding": self.seeding,
            "order": _order_name(self.sampler if plan is None else plan.source),
            "batch_size": self.batch_size if plan is None or plan.single else plan.size,
            "num_replicas": self._replica[1],
            "rank": self.rank if self._iterable and self.num_replicas != 1 else None,
            "num_workers": max(1, self.num_workers) if self._iterable else None,
            **fingerprint_of("dataset", self.dataset),
            **(plan.fingerprint() if plan is not None else {}),
        }

    def tell(self, note: str) -> None:
        """Warn, once, of what was noticed while a batch was made."""
        self._warn_once(f"{type(self.dataset).__name__}: {note}", 6)

    def warn_of_broken_promise(self, promised: int, samples: int) -> None:
        """Warn that an iterable dataset gives more samples than its length says."""
        cause = (
            "; with several workers, its __iter__ must give each of them a share of its own "
            "(lit_loader.get_shard)"
            if self.num_workers
            else "; let its __len__ give as many as its __iter__"
        )
        warnings.warn(
            f"{type(self.dataset).__name__} promised {promised} samples by its __len__ (which "
            f"len(loader) asked), but {samples} samples have been fetched{cause}",
            stacklevel=5,
        )

    def warn_of_ignored_share(self) -> None:
        """Warn, once, that an iterable dataset gives all of its readers the same."""
        readers = max(1, self.num_workers) * (self.num_replicas or 1)
        self._warn_once(
            f"{type(self.dataset).__name__} is iterated by {readers} readers (workers x ranks) and "
            "has not asked which of them it serves, so that every sample comes "
            f"{readers} times: unless that is meant, let __iter__ (of a mixture: that of each "
            "source) use lit_loader.get_shard()",
            6,
        )

    def _warn_of_unused_state(self) -> None:
        self._warn_once(
            f"{type(self.dataset).__name__} has state_dict and load_state_dict, which are not "
            "called: a map-style dataset is read by whichever worker is free, so that each sample "
            "must follow from its index, get_epoch() and the random generators alone",
            4,
        )

    def _warn_of_reading_again(self) -> None:
        self._warn_once(
            f"{type(self.dataset).__name__} has no state_dict and load_state_dict: resuming reads "
            "again all that it has given out before; add these methods if that takes too long",
            4,
        )

    def _warn_once(
        self, message: str, stacklevel: int, category: type[Warning] = UserWarning
    ) -> None:
        if message not in self._warnings_given:
            self._warnings_given.add(message)
            warnings.warn(message, category, stacklevel=stacklevel)

    def claim(self, request: WorkerRequest) -> Claim:
        """Give workers to an iterator, for it alone."""
        workers = self.num_workers
        if not self.persistent_workers:
            return temporary(self._start_pool(request.seed, workers))
        return self._workers.claim(
            request,
            lambda: self._start_pool(request.seed, workers),
            workers,
            self.expected_batches,
        )

    def lookahead(self, epoch: int) -> Iterator[UpcomingBatch] | None:
        """Foresee the batches of the epochs after this one; None: nothing is made ahead."""
        if not (self.prefetch_next_epoch and self.persistent_workers):
            return None
        if self._plan is None or self._assigned:  # assigned: generators go on from batch to batch
            return None
        return self._plan.lookahead(epoch)

    def expected_batches(self, epoch: int) -> Iterator[Any]:
        """Foresee the indices of an epoch's batches, as they would be issued now."""
        assert self._plan is not None
        return self._plan.expected_batches(epoch)

    def _start_pool(self, seed: int, num_workers: int) -> WorkerPool:
        return WorkerPool(
            self.spec(),
            num_workers,
            self._context or _default_context(),
            in_flight=self._depth(),
            seed=seed,
            assigned=self._assigned,
            memory_budget=self.memory_budget,
        )

    def statistics(self) -> LoaderStatistics:
        """Tell where the time went, since the loader was made.

        Returns:
            Waits, the cost of every stage, each worker's part, the slowest samples, and counts of
            restarts and bad samples. A new, frozen object; taking it costs under a millisecond.
        """
        with self.lock:
            iterators = [iterator for iterator in self._iterators if iterator.connected]
            return self.recorder.summary(
                ready=sum(iterator.ready for iterator in iterators),
                shared_memory=sum(iterator.shared_memory for iterator in iterators),
            )

    def close(self) -> None:
        """End the workers and let go of all that belongs to them; a second call does nothing.

        Batches given out stay as they are. Iterators that are in use end with a LoaderError; the
        loader itself can be iterated anew.
        """
        with self.lock, HeldBack(), contextlib.ExitStack() as steps:
            steps.callback(self._workers.close)  # the last step, whatever the others raise
            for iterator in list(self._iterators):
                steps.callback(iterator.close)

    def end_idle_workers(self) -> None:
        """End the persistent workers that no iterator has."""
        with self.lock:
            if not any(iterator.connected for iterator in self._iterators):
                self._workers.close()

    def __enter__(self) -> DataLoader[T_co]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        parts = [type(self.dataset).__name__, f"batch_size={self.batch_size}"]
        if self.batch_size is None and self.batch_sampler is not None:
            parts[-1] = f"batch_sampler={type(_behind(self.batch_sampler)).__name__}"
        elif not self._iterable:
            parts.append(f"sampler={type(_behind(self.sampler)).__name__}")
        parts.append(f"num_workers={self.num_workers}")
        if self.num_replicas is not None:
            parts.append(f"rank={self.rank} of num_replicas={self.num_replicas}")
        return f"{type(self).__name__}({', '.join(parts)})"


def _behind(sampler: object) -> object:
    """What a share was taken of."""
    return sampler.source if isinstance(sampler, ShardedSampler) else sampler


_AS_TORCH_BEGINS: Final = "This DataLoader will create"
"""The warning's first words are torch's: programs filter it by them."""

_SHUFFLED: Final = frozenset({ShuffledSampler.__name__, DistributedSampler.__name__})
"""Names in a state of the two orders that a `ShuffledSampler` can give."""


def _order_name(source: Any) -> str:
    if isinstance(source, ShuffledSampler) and source.as_distributed:
        return DistributedSampler.__name__
    return type(source).__name__


def _check_replicas(config: LoaderConfig, sampler: DistributedSampler[Any]) -> None:
    """Make sure that a sampler which shards, and the options, mean the same processes.

    Raises:
        OptionError: They do not.
    """
    theirs, ours = (sampler.rank, sampler.num_replicas), (config.rank, config.num_replicas)
    if ours not in ((None, None), theirs):
        raise OptionError(
            f"the sampler shards for rank {theirs[0]} of {theirs[1]}, but rank={ours[0]} and "
            f"num_replicas={ours[1]} were given: leave these at None"
        )


def _check_dataset(dataset: Any) -> None:
    """Refuse what can be neither indexed nor iterated.

    Raises:
        OptionError: It has none of the methods that samples are read by.
    """
    # Python looks these two up in the class; a forgotten pair of brackets is found so, too.
    if any(hasattr(type(dataset), name) for name in ("__getitem__", "__iter__")):
        return
    if isinstance(dataset, type):
        raise OptionError(
            f"dataset must be an object, got the class {dataset.__name__} itself: call it, as in "
            f"{dataset.__name__}()"
        )
    if not hasattr(dataset, "__getitems__"):
        raise OptionError(
            "dataset must have __getitem__ (and __len__), __getitems__ or __iter__, got "
            f"{short_repr(dataset)} ({type(dataset).__name__}): pass a dataset"
        )


def _default_context() -> BaseContext:
    """Python's default context, if it is one that can start workers.

    joblib's loky sets a start method of its own in its processes, under which even an explicit
    "spawn" fails in the child: there, workers are forked.
    """
    method = multiprocessing.get_start_method(allow_none=True)
    if method is not None and method not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("fork")
    return multiprocessing.get_context()
