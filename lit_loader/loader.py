"""`DataLoader`: the public face, with the names, meaning and defaults of torch's.

It holds the options as attributes, gives out iterators and takes and loads states. What it keeps
for its iterators, and what they are given of it, is in `core/epoch/loader_core.py`.

It is a subclass of torch's class so that programs and type checkers know it for a loader, and
rebuild, shard or wrap it as they do with torch's. Nothing of torch's machinery runs: every method
is overridden or reads attributes alone, and ``tests/parity/test_torch_class.py`` holds that against
the class of the torch that is installed.

Lightning wraps ``__setattr__`` while a hook makes loaders, and sets again, on a loader that it
rebuilds with a sampler of its own, whatever was set meanwhile; after a hook that raised it does so
for good. So nothing is set on a loader after its construction but what a rebuilt one is to have.
"""

from __future__ import annotations

import copy
import functools
import multiprocessing
import operator
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from itertools import compress
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset, default_collate
from torch.utils.data import default_convert as torch_default_convert
from torch.utils.data.dataloader import _DatasetKind  # reach: torch: what _dataset_kind is of

import lit_loader
from lit_loader.core.epoch.iterator import LoaderIterator
from lit_loader.core.epoch.loader_checkpoint import load_state, take_state
from lit_loader.core.epoch.loader_core import DEFAULT_PREFETCH, ITERATED, LoaderCore
from lit_loader.core.epoch.seams import Seams
from lit_loader.core.options.checks import known_keywords
from lit_loader.core.options.loader_config import (
    AT_FIRST,
    DEFAULTS,
    FIXED,
    LoaderConfig,
    Retry,
    SampleErrorPolicy,
    Seeding,
    UnevenRanks,
    WorkerMethod,
    check_option,
)
from lit_loader.core.sampling.batch_plan import choose_samplers
from lit_loader.core.sampling.orders import epoch_number
from lit_loader.core.seeding.loader_seeds import LoaderSeeds
from lit_loader.core.state.position import PassPosition, Position
from lit_loader.core.system.linux import advice_if_too_many
from lit_loader.describe import program_stacklevel, public, short_repr
from lit_loader.errors import OptionError

__all__ = ["DataLoader"]

T_co = TypeVar("T_co", covariant=True)


class LoaderPosition(NamedTuple):
    """Where a loader is in the data; see `DataLoader.position`."""

    epoch: int
    batches: int


if TYPE_CHECKING:
    from lit_loader.accelerator.device_copy import Move
    from lit_loader.core.batch.progress import BatchLog
    from lit_loader.core.epoch.passes import Pass
    from lit_loader.profiling.shown import ShownLoader
    from lit_loader.profiling.statistics import LoaderStatistics
    from lit_loader.remote.ray_workers import RayWorkers

    _TorchLoader = TorchLoader
else:

    class _TorchLoader:
        """``_TorchLoader[...]`` is torch's class with all its type parameters: new ones have 2."""

        def __class_getitem__(cls, _: object) -> object:
            return TorchLoader[TorchLoader.__parameters__]


_SETTLING = 10.0
"""Seconds after which a pool notes how many processes the OOM killer has ended before."""

_PLAIN = (str, bytes, int, float, np.ndarray, torch.Tensor, os.PathLike, type(None))
"""Types of attributes of which none is an open handle."""


_options_in: Final = operator.itemgetter(*DEFAULTS)


def _from(module: str, name: str = "", given: Callable[..., Any] | None = None) -> Any:
    """Return a seam for which a module has the function, or class; without a ``name`` the module.

    ``given`` returns, from the core, what that is called with; None: nothing is to be added.
    """

    def seam(_: Seams, *arguments: Any) -> Any:
        if given is not None:
            arguments = given(*arguments)
            if arguments is None:
                return None
        found = lit_loader._load(f"lit_loader.{module}")
        return getattr(found, name)(*arguments) if name else found

    return seam


def _of_divided_stream(core: LoaderCore, made: Pass) -> tuple[LoaderCore, Pass] | None:
    return (core, made) if core.replica[1] > 1 else None


def _of_threads(core: LoaderCore, made: Pass) -> tuple[LoaderCore, Pass] | None:
    return (core, made) if core.loader.worker_method == "thread" else None


def _of_pinning(core: LoaderCore) -> tuple[str, Callable[..., None]]:
    return core.loader.pin_memory_device, core.warn_once


def _of_remote(core: LoaderCore) -> tuple[RayWorkers] | None:
    return (core.loader.remote,) if core.remote_workers else None


def _of_bad_samples(core: LoaderCore) -> tuple[int | None, BatchLog]:
    return core.loader.max_sample_errors, core.log


def _in_job() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


class _AddOns(Seams):
    """What is added to a loader by its options, its dataset, and what the program has imported.

    Here, and nowhere else, the core meets its add-ons; each is imported on first use.
    """

    stream_tasks = _from("streams.stream_tasks", "StreamTasks")
    end_policy = _from("streams.uneven_ranks", "tail_of", _of_divided_stream)
    reader_states = _from("streams.reader_states")
    words = _from("streams.advice")
    executor = _from("threads.thread_executor", "ThreadExecutor", _of_threads)
    torch_habits = _from("compat.torch_iterator")
    stall = _from("diagnostics.stall", "stall_of")
    explain = _from("diagnostics.death_messages", "explain")
    fewer_workers = _from("diagnostics.death_messages", "fewer_workers")
    device_copy = _from("accelerator.device_copy", "DeviceCopy", lambda c: c.loader._copies_to)
    pin_memory = _from("accelerator.pin_memory", "pinning_of", _of_pinning)
    auto = _from("profiling.auto_workers", "AutoWorkers", lambda _: ())
    remote_workers = _from("remote.starter", "RemoteWorkers", _of_remote)
    sample_errors = _from("data.sample_errors", "SampleErrorLog", _of_bad_samples)

    def name_in_job(self, kind: str) -> Any:  # written out, because a loader pickles this method
        from lit_loader.streams.rank_store import Name

        return Name(kind)

    def spec_parts(self, core: LoaderCore) -> dict[str, object]:
        loader = core.loader
        parts: dict[str, object] = {}
        if loader.on_sample_error != "raise" or loader.sample_retries:
            from lit_loader.data.bad_samples import BadSamples

            parts["tolerance"] = BadSamples.of(loader)
        if core.iterable:
            from lit_loader.streams.readers import Readers

            parts["streams"] = Readers
            if _in_job() and core.shards is None and core.given_replica is None:
                parts["job"] = torch.distributed.get_rank(), torch.distributed.get_world_size()
        if type(core.dataset) in (TensorDataset, Subset):
            from lit_loader.data.tensor_table import table_of

            parts["table_of"] = table_of
        return parts

    def advice(self, core: LoaderCore) -> Iterable[str]:
        loader = core.loader
        threads = loader.num_workers if loader.worker_method == "thread" else 0
        if loader.read_threads > 1 or threads > 1:
            from lit_loader.diagnostics.fork_dangers import thread_dangers

            yield from thread_dangers(core.dataset)
        if core.iterable or _in_job():
            from lit_loader.streams.advice import advice_before_epoch

            yield from advice_before_epoch(core)

    def idle(self, core: LoaderCore) -> str | None:
        if core.auto is not None or core.shards is None:
            return None
        from lit_loader.streams.advice import advice_if_idle

        return advice_if_idle(core.shards, core.loader.num_workers)

    def position(self, core: LoaderCore, start: Position) -> PassPosition:
        if not core.iterable:
            return PassPosition(start)
        from lit_loader.streams.stream_position import StreamPosition

        return StreamPosition(start, core.readers)

    def statistics(self, core: LoaderCore, memory: bool) -> LoaderStatistics:
        from lit_loader.profiling.recorder import statistics_of

        caches = sys.modules.get("lit_loader.data.cached_dataset")
        return statistics_of(core, memory, caches.figures_of(core.dataset) if caches else {})

    def figures(self, core: LoaderCore, epoch: int, now: int) -> dict[str, object]:
        made = lit_loader._load("lit_loader.profiling.shown").ShownLoader()
        shown: ShownLoader = core.of_process.setdefault("shown", made)
        return shown.figures(core, epoch, now)

    def shared_by_fork(self, core: LoaderCore, num_workers: int) -> Iterable[str]:
        held = getattr(core.dataset, "__dict__", None) or {}
        plain = all(isinstance(value, _PLAIN) for value in held.values())
        if plain or "handles" in core.of_process:
            return ()  # nothing is imported for a plain dataset
        core.of_process["handles"] = "looked at"
        from lit_loader.diagnostics.fork_dangers import fork_dangers

        return fork_dangers(core.dataset, num_workers > 1, core.loader.worker_init_fn is not None)

    def look_at_workers(self, core: LoaderCore, pool: Any, now: float) -> None:
        if pool.processes and pool.oom_kills is None and now >= pool.began + _SETTLING:
            from lit_loader.data.memory import memory_limits

            pool.oom_kills = memory_limits().oom_kills or 0


class _NumWorkers:
    """The attribute ``num_workers``: with "auto" the number of the moment.

    Copies ask for what the loader's ``__dict__`` has.
    """

    def __get__(self, loader: object, owner: type) -> int:
        own = {} if loader is None else vars(loader)
        number = own.get("num_workers")
        if number is None:  # of the class; or a wrapper's own __getattr__ may know it
            raise AttributeError(f"{owner.__name__!r} object has no attribute 'num_workers'")
        if number == "auto" and "_core" in own:
            return own["_core"].auto.setting.workers  # type: ignore[no-any-return]
        return number  # type: ignore[no-any-return]

    def __set__(self, loader: object, value: int | Literal["auto"]) -> None:
        core = vars(loader).get("_core")
        if core is not None:  # else this is the constructor, a wrapper or a subclass
            reason = core.why_not_resized() if value == "auto" else None
            if reason is not None:
                raise OptionError(f"{reason}: set a number, got num_workers='auto'")
            if value == "auto":
                core.keeper.end_idle_workers()  # they measure nothing
            core.set_auto(value == "auto")
        vars(loader)["num_workers"] = value


def _share(sampler: Any, shard: Any) -> Any:
    from lit_loader.compat.torch_samplers import shard_items

    return shard_items(sampler, shard)


def _context(chosen: str | BaseContext | None) -> BaseContext | None:
    return multiprocessing.get_context(chosen) if isinstance(chosen, str) else chosen


@public
class DataLoader(_TorchLoader[T_co]):
    """Loads batches of a dataset, in worker processes if you want them.

    It replaces ``torch.utils.data.DataLoader`` and is a subclass of it: the same arguments, in the
    same order, with the same defaults. More follow, by keyword.

    A ``torch.utils.data.DistributedSampler`` keeps its meaning: lit_loader uses its rank, replicas,
    shuffle, seed, drop_last, and the epoch that is set on it. If you pass ``num_replicas`` and
    ``rank``, ``loader.sampler`` is one, with this rank's indices.

    Nothing starts before the first ``next()`` of an iterator, or `start`. With
    ``persistent_workers`` the workers live until `close`, the end of a ``with`` block, or the end
    of the loader. Several iterators of one loader may be in use, and each yields a whole epoch. Any
    thread may use them and the loader, one thread at a time.

    Args:
        dataset: A map-style dataset (``__getitem__`` and ``__len__``), or a
            ``torch.utils.data.IterableDataset``.
        batch_size: Samples in a batch. None yields single samples, not collated.
        shuffle: True gives a new order in every pass. None and False keep the dataset's order. It
            does not apply to an IterableDataset.
        sampler: An iterable of sample indices, or a callable that makes one from the dataset. None
            takes every index once.
        batch_sampler: An iterable of lists of indices, or a callable that makes one from the
            dataset. It replaces batch_size, shuffle, sampler and drop_last.
        num_workers: Worker processes. 0 loads in the calling process. "auto" finds a number while
            it runs (map-style, or with num_shards). ``loader.resize(n)`` changes the number within
            an epoch.
        collate_fn: Called with a list of samples, returns the batch. None is `default_collate`, or
            `default_convert` if batch_size is None.
        pin_memory: True copies batches into pinned memory. Set it if you copy batches to a GPU.
            Without an accelerator it only warns.
        drop_last: True omits the last batch of an epoch if it is smaller than batch_size.
        timeout: Seconds that a worker may spend on one sample, on collating or in worker_init_fn
            while your program waits. Then the worker is replaced. 0: never. Set it if reads may
            hang.
        worker_init_fn: Called with the worker's id (0 … num_workers - 1) in each worker, after
            seeding and before the first sample.
        multiprocessing_context: How worker processes start: "fork", "spawn", "forkserver", or a
            context object. None is Python's default. Set "forkserver" or "spawn" if the program has
            threads when workers start.
        generator: A torch.Generator from which ``iter(loader)`` draws the seed of a pass if seed is
            None. Its state is part of ``state_dict()``. None draws from torch's global generator.
        prefetch_factor: Batches in flight for each worker: 8 workers × 2 = 16 batches. None is 2,
            or more with ``num_workers="auto"``. Lower it to save memory.
        persistent_workers: True keeps the workers from epoch to epoch. Set it if epochs are short.
            `close` ends them.
        pin_memory_device: The accelerator to pin memory for; "" is the current one. Deprecated in
            torch.
        in_order: False yields batches as they are finished (those of one shard in order). Set it if
            some batches are slow and their order does not matter.
        worker_method: "multiprocessing" uses worker processes, "thread" threads of the training
            process: nothing is forked, pickled or copied. Set "thread" for work that releases the
            GIL, and draw from `lit_loader.get_rng`.
        seed: Base of all randomness, 0 … 2**64 - 1: a pass follows from seed, epoch, and how often
            the epoch was begun. None: each ``iter(loader)`` draws a seed from generator; ranks that
            share the data use rank 0's. Set it for runs that repeat.
        seeding: When the random generators are seeded. "batch": before each batch, from its number.
            "sample": before each sample, from its position in the pass, so random numbers do not
            depend on batch_size or ranks.
        reseed_fn: Called with (dataset, seed) wherever the generators are seeded. Set it for a
            generator that lit_loader does not find in the dataset. It is refused with threads.
        num_replicas: Processes (ranks) that share an epoch; "auto" takes number and rank from
            ``torch.distributed``. None does not divide the data. `LoaderDataModule` sets it.
        rank: Number of this process among them, 0 … num_replicas - 1. None does not divide the
            data. `LoaderDataModule` sets it.
        num_shards: Shards of an IterableDataset, a multiple of num_replicas: the data then does not
            depend on workers and ranks. Each shard reads its own copy of the dataset;
            `lit_loader.get_shard` says which. None: each worker is one.
        uneven_ranks: What ranks do with samples that do not divide evenly: "pad" repeats some,
            "drop" omits some (not with num_shards), "keep" yields each once, and ranks may differ
            in length. Set "keep" to evaluate.
        max_worker_restarts: Workers that may be replaced in one epoch after they crash or hang. 0
            raises at the first one.
        stall_warning: Seconds without a batch after which a StallWarning shows what each worker
            does; 0: never. Without workers, press Ctrl-C to see where a sample hangs.
        on_sample_error: What happens if a sample raises. "raise" raises. "skip" makes the batch
            smaller, and ``len(loader)`` an upper bound. "replace" takes another sample (map-style
            only), the same for any number of workers.
        max_sample_errors: Bad samples that one epoch may skip or replace. One more raises a
            SampleErrorsError that lists them. None: any number, but not all.
        sample_retries: How often to retry a sample after an OSError or TimeoutError. A
            `Retry`, or a mapping of its options, chooses the wait and the errors.
        read_threads: Threads with which each worker reads the samples of a batch; 0: one after
            another. Set 16, say, if samples wait for storage. The dataset must be thread-safe and
            draw from `lit_loader.get_rng`.
        remote: Workers on other machines, in addition to num_workers: a `RayWorkers`, or a mapping
            of its options. Streams stay on this machine.

    Raises:
        OptionError: An option, or a combination of options, is refused (a ValueError).
        TypeError: There is no such option; the message names the nearest one.

    Examples:
        >>> from lit_loader import DataLoader
        >>> loader = DataLoader(range(6), batch_size=2, shuffle=True, seed=1)
        >>> [batch.tolist() for batch in loader]  # tensors of int64, of shape (2,)
        [[3, 1], [4, 0], [2, 5]]
        >>> batches = iter(loader)  # the next epoch
        >>> first = next(batches)
        >>> state = loader.state_dict()
        >>> rest = [batch.tolist() for batch in batches]

        In another process, the loader continues with the next batch:

        >>> resumed = DataLoader(range(6), batch_size=2, shuffle=True, seed=1)
        >>> resumed.load_state_dict(state)
        >>> resumed.position
        LoaderPosition(epoch=1, batches=1)
        >>> [batch.tolist() for batch in resumed] == rest
        True
    """

    collate_fn: Callable[[list[Any]], Any]
    worker_init_fn: Callable[[int], object] | None  # type: ignore[assignment]
    generator: torch.Generator | None
    batch_sampler: Iterable[Any] | None
    num_workers = _NumWorkers()
    seed: int | None
    worker_method: WorkerMethod
    seeding: Seeding
    reseed_fn: Callable[[Any, int], object] | None
    num_replicas: int | None
    rank: int | None
    num_shards: int | None
    uneven_ranks: UnevenRanks
    max_worker_restarts: int
    stall_warning: float
    on_sample_error: SampleErrorPolicy
    max_sample_errors: int | None
    sample_retries: int | Retry
    read_threads: int

    # The class has torch's name, and so this is torch's own flag under torch's own mangled name
    # (_DataLoader__initialized): programs that exchange samplers (timm's loaders) switch it off
    # for that, and on again.
    __initialized = False
    _core: LoaderCore
    role = ""
    """What the loader is for ("train"), as `lit-loader-top` shows it; any text may be set."""
    _copies_to: tuple[torch.device, Any] | None = None

    # torch's constructor is not called: it would set up torch's machinery.
    @known_keywords
    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | Callable[[Any], Iterable[Any]] | None = None,
        batch_sampler: Iterable[Any] | Callable[[Any], Iterable[Any]] | None = None,
        num_workers: int | Literal["auto"] = 0,
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
        worker_method: WorkerMethod = "multiprocessing",
        seed: int | None = None,
        seeding: Seeding = "batch",
        reseed_fn: Callable[[Any, int], object] | None = None,
        num_replicas: int | Literal["auto"] | None = None,
        rank: int | None = None,
        num_shards: int | None = None,
        uneven_ranks: UnevenRanks = "pad",
        max_worker_restarts: int = 3,
        stall_warning: float = 60,
        on_sample_error: SampleErrorPolicy = "raise",
        max_sample_errors: int | None = None,
        sample_retries: int | Retry | Mapping[str, Any] = 0,
        read_threads: int = 0,
        remote: RayWorkers | Mapping[str, Any] | None = None,
    ) -> None:
        iterable = isinstance(dataset, IterableDataset)
        if iterable:
            from lit_loader.streams.datapipes import set_shuffle

            shuffle = None if set_shuffle(dataset, shuffle) else shuffle
        values = _options_in(locals())
        given = map(operator.is_not, values, DEFAULTS.values())
        config = LoaderConfig(**dict(compress(zip(DEFAULTS, values, strict=True), given)))
        config = config.with_ranks()
        if iterable:
            from lit_loader.streams.advice import check_split_once

            check_split_once(dataset, config)
        config.check_kind(iterable)
        if config.remote is not None:
            config.remote.check_installed()
        config = config.with_samplers_for(dataset)
        uncertain = not config.in_order or config.on_sample_error != "raise"
        if config.batch_sampler is not None and uncertain:
            from lit_loader.lightning.noted_batches import unnoted

            config = config.merged(batch_sampler=unnoted(config.batch_sampler))
        # An object of its own: samplers hold the seeds, and would hold the loader in a cycle.
        seams = _AddOns()
        name_in_job = functools.partial(seams.name_in_job, type(dataset).__name__)
        replica = config.replica
        ranks = 1 if replica is None else replica[1]
        seeds = LoaderSeeds(config.seed, config.generator, ranks, name_in_job)

        shown = {"dataset": dataset, **config.as_kwargs()}
        del shown["shuffle"]  # as torch's, it shows the samplers that this leads to
        workers = config.num_workers != "auto" and (config.num_workers or config.remote)
        if workers and config.prefetch_factor is None:
            shown["prefetch_factor"] = DEFAULT_PREFETCH
        if config.batch_sampler is not None:
            shown["batch_size"] = None
        sampler, batch_sampler = choose_samplers(config, dataset, iterable, seeds, _share)
        shown["sampler"], shown["batch_sampler"] = sampler, batch_sampler
        if config.collate_fn is None:
            plain = batch_sampler is None
            shown["collate_fn"] = torch_default_convert if plain else default_collate
        # reach: torch: programs look at _dataset_kind
        shown["_dataset_kind"] = _DatasetKind.Iterable if iterable else _DatasetKind.Map
        if type(self) is DataLoader:
            shown["_context"] = _context(shown.pop("multiprocessing_context"))
            vars(self).update(shown)
        else:  # a subclass may see to them
            for name, value in shown.items():
                setattr(self, name, value)
        core = vars(self)["_core"] = LoaderCore(self, seeds, replica, config.num_shards, seams)
        core.set_auto(config.num_workers == "auto")
        core.make_plan()
        vars(self)["_DataLoader__initialized"] = True
        self.check_worker_number_rationality()

    def __setattr__(self, name: str, value: object) -> None:
        if "_core" not in self.__dict__:  # the constructor
            object.__setattr__(self, name, value)
            return
        if self.__initialized:
            if name in FIXED or (name in AT_FIRST and type(self) is DataLoader):
                raise OptionError(
                    f"{name} cannot be changed once the loader is built, "
                    f"got {name}={short_repr(value)}: make a new loader"
                )
            value = check_option(name, value)
        super().__setattr__(name, value)
        if name in DEFAULTS:
            self._core.forget_start()
            if name in ("seed", "generator"):
                setattr(self._core.seeds, name, value)
        # reach: torch: its loader sets it when it is made, and Lightning when it has renewed one
        if name == "_DataLoader__initialized" and value:
            self._core.make_plan()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_core": copy.copy(self._core)}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._core.begin_in_this_process(self)

    _is_finalizing = staticmethod(sys.is_finalizing)

    @property
    def _iterator(self) -> Any:
        """The iterator that has the persistent workers; programs set it to None to end these."""
        own = self.__dict__.get("_iterator")  # that a wrapper has set
        if own is not None or "_core" not in self.__dict__ or not self.persistent_workers:
            return own
        connected = [run for run in self._core.keeper.alive() if run.workers is not None]
        return connected[0] if connected else self._core.keeper.idle_iterator()

    @_iterator.setter
    def _iterator(self, value: Any) -> None:
        if "_core" in self.__dict__ and self.persistent_workers:
            self.close()
        self.__dict__.pop("_iterator", None)
        if value is not None and getattr(value, "_data_loader", None) is not self:
            self.__dict__["_iterator"] = value

    @_iterator.deleter
    def _iterator(self) -> None:
        self._iterator = None

    @property
    def _IterableDataset_len_called(self) -> int | None:  # type: ignore[override]
        return self._core.promised

    def check_worker_number_rationality(self) -> None:
        """Warn if there are more workers than CPU cores for this process."""
        advice = advice_if_too_many(self.num_workers)
        processes = self.worker_method == "multiprocessing"
        if advice is not None and processes and self._core.auto is None:
            warnings.warn(advice, stacklevel=program_stacklevel())

    @property
    def multiprocessing_context(self) -> BaseContext | None:
        """The context that workers are started in; None: Python's default."""
        return self.__dict__["_context"]  # type: ignore[no-any-return]

    @multiprocessing_context.setter
    def multiprocessing_context(self, value: str | BaseContext | None) -> None:
        if value is not None:
            LoaderConfig(num_workers=self.num_workers, multiprocessing_context=value)
        self.__dict__["_context"] = _context(value)  # past __setattr__, which calls this

    def _copy_ahead(self, device: torch.device, move: Move) -> None:
        """Copy each batch to a CUDA device while the step uses the one before.

        At most one batch more is on the device then. Other devices, and loaders without workers,
        are left alone. Without ``pin_memory`` the copy is exact, but not asynchronous. ``move`` is
        called with a batch and the device, and copies its tensors with ``non_blocking=True``.
        """
        # An attribute: a loader that Lightning rebuilds has it, too.
        self._copies_to = (device, move) if device.type == "cuda" else None

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the passes that begin from now on.

        Without it the epoch counts up, or stays 0 if ranks share the data. The loader calls
        ``set_epoch`` of your sampler and your dataset, if they have it; persistent workers call it
        of their copies.

        A position within that epoch, from `load_state_dict`, is kept. One within another epoch is
        given up, with a warning.

        Args:
            epoch: Epoch number; one below 0 has an order of its own, as with torch's samplers.

        Raises:
            OptionError: It is no whole number, or has more than 62 bits.
        """
        self._core.set_epoch(epoch_number(epoch))

    def __len__(self) -> int:
        """Number of batches in a full epoch (of this rank).

        For an IterableDataset it follows from the dataset's ``__len__``, as with torch.

        Raises:
            TypeError: The dataset or sampler has no length; or several shards are read
                (``num_shards`` of at least 2), and nobody knows how many batches each has.
        """
        self._core.follow_samplers()
        if self._core.plan is not None:
            return len(self._core.plan)
        samples: int = len(self._core.dataset)
        shards = self._core.shards
        if shards and shards.count > 1 and (shards.replicas > 1 or self.batch_size is not None):
            # Loops would end too early by one that is too small, and Lightning does not validate
            # behind an epoch that gives less.
            raise TypeError(
                f"lit_loader: this loader has no length: {type(self.dataset).__name__} is read by "
                f"num_shards={shards.count} readers, and its __len__ does not say how many "
                "batches each gives"
            )
        self._core.promised = samples
        if self.batch_size is None:
            return samples
        whole, rest = divmod(samples, self.batch_size)
        return whole + (1 if rest and not self.drop_last else 0)

    def __iter__(self) -> LoaderIterator[Any]:
        if not self.persistent_workers:
            return self._get_iterator()
        token = ITERATED.set(weakref.ref(self._core))  # a signal's handler may let it stay set
        try:
            return self._get_iterator()
        finally:
            ITERATED.reset(token)

    def _get_iterator(self) -> LoaderIterator[Any]:
        """Make an iterator; subclasses of torch's loader override this method.

        If a program calls it itself, persistent workers are started again.
        """
        return self._core.iterator()

    def commit(self, ahead: bool = False, within: bool = False) -> None:
        """Mark every batch yielded so far as used. `LoaderStateCallback` calls this.

        After the first call, `state_dict` returns the position of the last call, not that of the
        last batch yielded. So a batch whose training step failed is yielded again after a resume.

        Args:
            ahead: True if the last batch is not used yet, because the training loop fetches one
                batch ahead.
            within: True if the training loop's epoch continues although this loader has ended.
                After a resume it then yields nothing more in that epoch. False: its next epoch
                begins.
        """
        self._core.passes.commit(ahead, within)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data, for `load_state_dict`.

        You may call it at any time; it starts nothing. All ranks return the same. With an
        IterableDataset each rank returns its own shards: see `lit_loader.merge_states`. In the loop
        the position is after the last batch yielded; after the loop it is the start of the next
        epoch.

        Returns:
            A new dict of primitives, of less than 2 kB unless a sampler or an IterableDataset has
            a state of its own. ``torch.load(weights_only=True)`` reads it.
        """
        return take_state(self._core)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where a state was taken: the next iterator begins there.

        Args:
            state: What `state_dict` of a loader of the same data returned. The number of workers,
                prefetching and the start method may differ. ``batch_size`` and ``num_replicas``
                may differ if the position is at the start of a batch of this loader.

        Raises:
            StateError: The state does not fit; the message names the part and what to do.
        """
        self._loaded_state = state  # an attribute, as the device above

    def indices_of(self, epoch: int, batch: int, rank: int | None = None) -> Any:
        """Return the indices of a batch of any epoch, at once; it draws and starts nothing.

        It works for orders that are computed: ``shuffle=True``, the dataset's own order, torch's
        ``DistributedSampler`` and lit_loader's samplers. If a run has changed the weights or
        sources of a mixture, load its state first.

        Args:
            epoch: Epoch number, from 0.
            batch: The batch's number within its epoch, of one rank, from 0.
            rank: Whose batch. None is this process's.

        Returns:
            A list of indices; one index if ``batch_size`` is None.

        Raises:
            TypeError: The dataset is iterable, or the sampler is your own.
            IndexError: The epoch has fewer batches.
            OptionError: A number is refused, or there is no such rank.
        """
        from lit_loader.profiling.ledger import indices_of

        return indices_of(self._core, epoch, batch, rank)

    def state_at(self, epoch: int, batch: int) -> dict[str, Any]:
        """Return the state of this loader before a batch of any epoch, for `load_state_dict`.

        With it you begin there, go back, or omit batches. It is the same on all ranks. If a run
        has changed the weights or sources of a mixture, load its state first.

        Args:
            epoch: Epoch number, from 0.
            batch: Number of the next batch, from 0. After the last one the next epoch begins.

        Raises:
            TypeError: The dataset is iterable, or the sampler is your own.
            OptionError: A number is refused, or the epoch has fewer batches.
        """
        from lit_loader.profiling.ledger import state_at

        return state_at(self._core, epoch, batch)

    @property
    def position(self) -> LoaderPosition:
        """The epoch, and the batches of it that were yielded: where a state taken now is.

        After `load_state_dict` it is the loaded place, so a loop knows which step comes next::

            loader.load_state_dict(state)
            step = loader.position.epoch * len(loader) + loader.position.batches
        """
        now = self._core.passes.now()
        return LoaderPosition(now.epoch, now.delivered)

    @property
    def _loaded_state(self) -> Mapping[str, object] | None:
        return None  # the passes have taken it over

    @_loaded_state.setter
    def _loaded_state(self, state: Mapping[str, object]) -> None:
        load_state(self._core, state)

    def start(self) -> None:
        """Start the workers now, and let them make the first batches, while you build the model.

        It makes and begins the iterator that the next ``iter(loader)`` returns; no batch differs
        for it. Call it after `load_state_dict` and `set_epoch`: if you change a position, epoch or
        option afterwards, the workers are started again. Without workers, or while an iterator of
        this loader has some or has not begun, nothing is done. If you never iterate the loader,
        `close` and the loader's own end stop the workers.

        Raises:
            LoaderError: No worker can be started, or there is no memory.
        """
        self._core.start()

    def resize(self, num_workers: int, prefetch_factor: int | None = None) -> None:
        """Change the number of workers, also within an epoch.

        No batch changes or is lost. New workers start when the program waits for a batch; those
        that are too many finish their batches and end. Any thread may call this, and it does not
        wait. (Setting ``loader.num_workers`` counts from the next iterator.)

        Args:
            num_workers: The new number. A change to 0, or from 0, counts from the next iterator.
            prefetch_factor: Batches in flight for each worker. None keeps it.

        Raises:
            OptionError: The number is part of the data (an IterableDataset without num_shards), is
                refused, or is 0 while an iterator has workers.
        """
        workers = check_option("num_workers", num_workers)
        self._core.resize(workers, check_option("prefetch_factor", prefetch_factor))

    def statistics(self, memory: bool = False) -> LoaderStatistics:
        """Return where the time went since the loader was made: see `LoaderStatistics`.

        Args:
            memory: Whether to measure the memory of all its processes, too. Without it the call
                takes about a millisecond.
        """
        return self._core.seams.statistics(self._core, memory)  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the workers and free what belongs to them; a second call does nothing.

        Batches that you hold stay valid. An iterator with workers that has not ended raises a
        LoaderError; one without workers continues. You can iterate the loader again.
        """
        if not self._is_finalizing():  # then workers end by themselves, and modules may be gone
            self._core.close()

    def __enter__(self) -> DataLoader[T_co]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return self._core.describe()
