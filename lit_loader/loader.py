"""`DataLoader`: the public face, with the names, meaning and defaults of torch's.

It holds the options as attributes, gives out iterators and takes and loads states. What it keeps
for its iterators, and what they are given of it, is in `iteration/core.py`.

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
import multiprocessing
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, IterableDataset, default_collate
from torch.utils.data import default_convert as torch_default_convert
from torch.utils.data.dataloader import _DatasetKind  # reach: torch: what _dataset_kind is of

from lit_loader.accelerator.device_copy import Move
from lit_loader.checkpoint.other_streams import advice_on_reading_again
from lit_loader.checkpoint.saved_by_lightning import (
    ADVICE_WITHOUT_CALLBACK,
    CALLBACKS,
    called_by_lightning,
)
from lit_loader.config.checks import check_split_once, known_keywords
from lit_loader.config.loader_config import (
    AT_FIRST,
    FIXED,
    SHOWN_OTHERWISE,
    LoaderConfig,
    SampleErrorPolicy,
    Seeding,
    ShardTailRule,
    WorkerMethod,
    check_option,
)
from lit_loader.config.ray_workers import RayWorkers
from lit_loader.describe import public, short_repr
from lit_loader.errors import OptionError
from lit_loader.iteration.core import DEFAULT_PREFETCH, ITERATED, LoaderCore
from lit_loader.iteration.iterator import LoaderIterator
from lit_loader.iteration.ledger import indices_of, state_at
from lit_loader.iteration.loader_checkpoint import load_state, take_state
from lit_loader.sampling.orders import epoch_number
from lit_loader.sampling.shown_samplers import choose_samplers
from lit_loader.seeding.bases import LoaderSeeds
from lit_loader.statistics.auto_workers import NumWorkers
from lit_loader.statistics.records import LoaderStatistics
from lit_loader.streams.datapipes import set_shuffle
from lit_loader.system.processors import advice_if_too_many

__all__ = ["DataLoader"]

T_co = TypeVar("T_co", covariant=True)

if TYPE_CHECKING:
    _TorchLoader = TorchLoader
else:

    class _TorchLoader:
        """``_TorchLoader[...]`` is torch's class with as many type parameters as that torch has."""

        def __class_getitem__(cls, _: object) -> object:
            return TorchLoader[TorchLoader.__parameters__]


@public
class DataLoader(_TorchLoader[T_co]):
    """Loads batches of a dataset, in worker processes if wanted.

    Takes the place of ``torch.utils.data.DataLoader``, and is one: the same arguments, in the same
    order, with the same defaults; more come after them, by keyword.

    A ``torch.utils.data.DistributedSampler`` is taken for what it says: rank, replicas, shuffle,
    seed, what to do with the rest, and the epoch that is set on it. Where ``num_replicas`` and
    ``rank`` are given, ``loader.sampler`` is one, of this rank's indices.

    Nothing is started before the first ``next()`` of an iterator. With ``persistent_workers`` the
    workers live until `close`, the end of a ``with`` block, or the loader's own end. Several
    iterators of one loader may live at the same time, each gives a whole epoch; iterators and
    loader may be used from any thread, one thread at a time being served.

    Args:
        dataset: A map-style dataset (``__getitem__`` and ``__len__``), or a
            ``torch.utils.data.IterableDataset``.
        batch_size: Samples in a batch; None: samples are passed on one by one, uncollated.
        shuffle: A new order every epoch; None: not shuffled (IterableDataset: its own order).
        sampler: Iterable of sample indices, or a callable that makes one from the dataset;
            None: every index once.
        batch_sampler: Iterable of lists of indices, or a callable that makes one from the
            dataset; takes the place of batch_size, shuffle, sampler and drop_last.
        num_workers: Worker processes; 0: samples are loaded in the calling process; "auto": as
            many as are found to help, while it runs, by what batches cost (map-style datasets, and
            iterable ones with num_shards; ``loader.num_workers`` is the number of the moment).
            ``loader.resize(n)`` changes it while they are at work.
        collate_fn: Turns a list of samples into a batch; None: `default_collate`, or
            `default_convert` where batch_size is None.
        pin_memory: Copy batches into page-locked memory before they are given out.
        drop_last: Leave off an epoch's last batch if it is smaller than batch_size.
        timeout: Seconds that a worker may spend on one sample (or on collating, or in
            worker_init_fn) while the consumer waits; then it hangs and is replaced, see
            max_worker_restarts. 0: for ever.
        worker_init_fn: Called with the worker's id (0 … num_workers - 1) in each worker, after
            seeding and before the first sample; None: nothing is called.
        multiprocessing_context: Start method ("fork", "spawn", "forkserver") or a context object;
            None: Python's default.
        generator: A torch.Generator that the base seed is drawn from where seed is None, in place
            of torch's own. It may be shared with samplers.
        prefetch_factor: Batches in flight for each worker (8 workers × 2 = 16 batches); None: 2
            with workers, nothing ahead without; with ``num_workers="auto"`` 2 or more, as batches
            differ in what they take.
        persistent_workers: Keep the workers alive from epoch to epoch.
        pin_memory_device: Deprecated in torch, kept for old programs: the accelerator whose
            memory is pinned for; "": the current one.
        in_order: Give batches out in the sampler's order; False: as they are finished, but those of
            one reader of an iterable dataset in order.
        worker_method: "multiprocessing" has worker processes; "thread" has threads of the training
            process: nothing is forked, pickled or copied, for work that releases the interpreter's
            lock. Samples draw from `lit_loader.get_rng`, ``get_worker_info().rng`` or
            ``torch.thread_safe_generator()``. Each reader of a stream has a copy of it.
        seed: Base of all randomness, 0 … 2**64 - 1. None: drawn at the loader's first pass from
            generator, else from torch's generator, so that loaders are independent and
            ``torch.manual_seed`` fixes them. Processes that share the data have rank 0's, and a
            DistributedSampler's seed (else PL_GLOBAL_SEED) decides their order. Set on a loader
            (generator, too), it counts from the next pass on.
        seeding: What the random generators are seeded from, besides seed and epoch: the number of
            the "batch", the index of the "sample", or the "worker" (torch's own scheme).
        reseed_fn: Called with (dataset, seed) wherever the generators are seeded, for those that
            cannot be found in the dataset; None: nothing is called.
        num_replicas: Processes that share an epoch; None: not sharded.
        rank: Number of this process among them, 0 … num_replicas - 1; None: not sharded.
        num_shards: Readers that an IterableDataset is read by, whatever the number of workers and
            ranks: reader k has ``lit_loader.get_shard() == (k, num_shards)``, its own copy of the
            dataset, and its turn in every round of batches. A multiple of num_replicas; None: each
            worker of each rank is a reader, as with torch.
        shard_tail: What the ranks do with samples that cannot be split evenly: "pad" repeats some,
            "drop" leaves them off, "keep" gives each sample once (ranks may differ in length). With
            num_shards: "pad" lets a rank's readers begin again until all ranks have as many
            batches; "drop" is refused.
        max_worker_restarts: Workers that may be replaced in an epoch after they died or hung;
            0: their death is raised at once.
        stall_warning: Seconds that the consumer waits, while no worker sends a batch, after which a
            StallWarning shows what each worker does; once more after ten times as long. 0: never.
            With num_workers=0 there is nobody to watch: press Ctrl-C to see where a sample hangs.
        on_sample_error: What becomes of a sample whose reading raises an exception: "raise" it;
            "skip" the sample (a map-style batch gets shorter, and one of which nothing is left is
            omitted: ``len(loader)`` is then an upper bound; an IterableDataset is asked for the
            next sample); "replace" it by another, the same for any number of workers (drawn from
            the whole dataset; under a sampler of the user's, from the rest of the batch).
        max_sample_errors: Bad samples that an epoch may have where they are skipped or replaced;
            more raise a SampleErrorsError that lists them. None: any number, if not all are bad.
        sample_retries: Times that a sample is read again after a transient error, before the error
            counts. An IterableDataset's iterator is asked again, and gives the same sample only if
            it has not moved on; `lit_loader.read_stream` reads its key again.
        retry_backoff: Seconds before the first of these, doubled for each further one up to 10 s
            (0.1 and 3 retries: 0.1 + 0.2 + 0.4 s).
        transient_errors: Exception classes, or their names ("OSError", "my.module.Error"), after
            which a sample is read again; None: OSError and TimeoutError.
        memory_budget: Shared memory that batches may take: bytes, or text such as "2 GB"; None:
            unlimited.
        prefetch_next_epoch: Let workers that have nothing left to do in an epoch begin the next
            one, where they are persistent and the order is the loader's own (no sampler or
            batch_sampler, no seeding="worker", of iterable datasets those with num_shards). What
            they made is dropped if that epoch, seed or position is not what comes next. Not where
            the dataset holds what other processes may change (multiprocessing's Value or Manager, a
            shared tensor). False for datasets that are changed between epochs in other ways, by
            files, say.
        check_exactness: So many of the first batches are made again, after others and, where there
            are workers, in another process. One warning names the first difference: something in
            the samples is not a function of seed and index. The samples are read twice. 0: none.
            For a test run, or for the first of many.
        share: Let workers read the dataset's long lists and tuples (10,000 strings, numbers, or
            tuples, lists and dicts of such, and more) from memory that all of them share, instead
            of a copy in each. They and their records read as before, and raise if they are
            written to. The training process's own stay as they are.
        reads: Reads that each worker has under way at a time, ahead of their samples, where the
            dataset says by `lit_loader.reads_ahead` or `lit_loader.read_stream` what waits for
            storage. They hold up to a quarter of memory_budget besides. 0: one at a time, when the
            sample asks.
        remote_workers: Workers on other machines, besides those of num_workers here; readers of an
            iterable dataset stay here. 0: none.
        remote: Where remote workers come from: a `RayWorkers`, or a mapping of its options; None:
            ``RayWorkers()``, the Ray cluster that this machine is a node of.

    Raises:
        OptionError: An option, or a combination of options, is refused (a ValueError).
        TypeError: There is no such option; names the nearest one.
    """

    collate_fn: Callable[[list[Any]], Any]
    worker_init_fn: Callable[[int], object] | None  # type: ignore[assignment]
    generator: torch.Generator | None
    batch_sampler: Iterable[Any] | None
    num_workers = NumWorkers()
    seed: int | None
    worker_method: WorkerMethod
    seeding: Seeding
    reseed_fn: Callable[[Any, int], object] | None
    num_replicas: int | None
    rank: int | None
    num_shards: int | None
    shard_tail: ShardTailRule
    max_worker_restarts: int
    stall_warning: float
    on_sample_error: SampleErrorPolicy
    max_sample_errors: int | None
    sample_retries: int
    retry_backoff: float
    transient_errors: tuple[type[Exception], ...] | None
    memory_budget: int | None
    prefetch_next_epoch: bool
    check_exactness: int
    share: bool
    reads: int
    remote_workers: int

    # The class has torch's name, and so this is torch's own flag under torch's own mangled name
    # (_DataLoader__initialized): programs that exchange samplers (timm's loaders) switch it off
    # for that, and on again.
    __initialized = False
    _core: LoaderCore
    _copies_to: tuple[torch.device, Move] | None = None

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
        num_replicas: int | None = None,
        rank: int | None = None,
        num_shards: int | None = None,
        shard_tail: ShardTailRule = "pad",
        max_worker_restarts: int = 3,
        stall_warning: float = 60,
        on_sample_error: SampleErrorPolicy = "raise",
        max_sample_errors: int | None = None,
        sample_retries: int = 0,
        retry_backoff: float = 0.1,
        transient_errors: Sequence[type[Exception] | str] | None = None,
        memory_budget: int | str | None = None,
        prefetch_next_epoch: bool = True,
        check_exactness: int = 0,
        share: bool = False,
        reads: int = 16,
        remote_workers: int = 0,
        remote: RayWorkers | Mapping[str, Any] | None = None,
    ) -> None:
        if set_shuffle(dataset, shuffle):
            shuffle = None
        options = locals()
        config = LoaderConfig(**{name: options[name] for name in LoaderConfig.__dataclass_fields__})
        iterable = isinstance(dataset, IterableDataset)
        check_split_once(dataset, config)
        config.check_dataset_kind(iterable)
        config = config.with_samplers_for(dataset)
        # An object of its own: samplers hold it, and would hold the loader in a cycle otherwise.
        kind = type(dataset).__name__
        seeds = LoaderSeeds(config.seed, config.generator, config.num_replicas or 1, kind)
        self._core = LoaderCore(self, seeds, config.replica, config.num_shards)

        self.dataset = dataset
        for name, value in config.as_kwargs().items():
            if name not in SHOWN_OTHERWISE:
                setattr(self, name, value)
        workers = config.num_workers != "auto" and (config.num_workers or config.remote_workers)
        if workers and self.prefetch_factor is None:
            self.prefetch_factor = DEFAULT_PREFETCH
        if config.batch_sampler is not None:
            self.batch_size = None
        self.sampler, self.batch_sampler = choose_samplers(config, dataset, iterable, seeds)
        if config.collate_fn is None:
            plain = self.batch_sampler is None
            self.collate_fn = torch_default_convert if plain else default_collate
        self._dataset_kind = _DatasetKind.Iterable if iterable else _DatasetKind.Map
        self.__initialized = True
        self.check_worker_number_rationality()

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__initialized and name in FIXED:
            raise OptionError(
                f"{name} cannot be changed once the loader is built, "
                f"got {name}={short_repr(value)}: make a new loader"
            )
        if self.__initialized and name in AT_FIRST and type(self) is DataLoader:
            raise OptionError(
                f"{name} divides the data among processes and cannot be changed once the loader is "
                f"built, got {name}={short_repr(value)}: make a new loader"
            )
        if self.__initialized and name != "multiprocessing_context":  # whose property checks it
            value = check_option(name, value)
        super().__setattr__(name, value)
        if name in ("seed", "generator") and "_core" in self.__dict__:
            self._core.seeds.choose(name, value)
        # reach: torch: its loader sets it when it is made, and Lightning when it has renewed one
        if name == "_DataLoader__initialized" and value:
            self._core.make_plan()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_core": copy.copy(self._core)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._core.begin_in_this_process(self)

    @property
    def _iterator(self) -> Any:
        """The iterator that has the persistent workers; programs set it to None to end these."""
        if "_iterator" in self.__dict__:  # a wrapper's own, of another loader
            return self.__dict__["_iterator"]
        if "_core" not in self.__dict__ or not self.persistent_workers:
            return None
        connected = [run for run in self._core.alive() if run.pool is not None]
        return connected[0] if connected else self._core.of_idle_workers()

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
    def _IterableDataset_len_called(self) -> Any:  # type: ignore[override]
        return self._core.promised

    def check_worker_number_rationality(self) -> None:
        """Warn if there are more workers than processors that this process may use."""
        advice = advice_if_too_many(self.num_workers)
        processes = self.worker_method == "multiprocessing"
        if advice is not None and processes and self._core.auto is None:
            self._core.warn_once(advice)

    @property
    def multiprocessing_context(self) -> BaseContext | None:
        """The context that workers are started in; None: Python's default."""
        return self.__dict__["_context"]  # type: ignore[no-any-return]

    @multiprocessing_context.setter
    def multiprocessing_context(self, value: str | BaseContext | None) -> None:
        if value is not None:
            LoaderConfig(num_workers=self.num_workers, multiprocessing_context=value)
        context = multiprocessing.get_context(value) if isinstance(value, str) else value
        self.__dict__["_context"] = context  # past __setattr__, which was called for the property

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
        # An attribute: a loader that Lightning rebuilds has it, too.
        self._copies_to = (device, move) if device.type == "cuda" else None

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iterator loads; without, epochs count up by themselves.

        A sampler of the program's own is told it, if it has ``set_epoch``, and nothing otherwise.

        A position within that very epoch, from `load_state_dict`, is kept; one within another
        epoch is given up. Where the program had set the epoch on its sampler alone, what that gives
        now tells whether it is the same epoch.

        Args:
            epoch: Epoch number, from 0.

        Raises:
            OptionError: It is no whole number, or has more than 62 bits.
        """
        epoch = epoch_number(epoch)
        self._core.follow_samplers()
        self._core.epochs.set_epoch(epoch)
        if self._core.plan is not None:
            self._core.plan.sampler.tell(epoch)

    def __len__(self) -> int:
        """Batches of a full epoch (of this rank).

        Of an iterable dataset: those of so many samples as it says, as with torch.

        Raises:
            TypeError: The dataset or sampler has no length; or the dataset is read by several
                readers (``num_shards``), of which nobody knows how many batches each gives.
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
                f"this loader has no length: {type(self.dataset).__name__} is read by num_shards="
                f"{shards.count} readers, and its __len__ does not say how many batches each gives"
            )
        self._core.promised = samples
        if self.batch_size is None:
            return samples
        whole, rest = divmod(samples, self.batch_size)
        return whole + (1 if rest and not self.drop_last else 0)

    def __iter__(self) -> LoaderIterator[Any]:
        token = ITERATED.set(weakref.ref(self._core))  # a signal's handler may let it stay set
        try:
            return self._get_iterator()
        finally:
            ITERATED.reset(token)

    def _get_iterator(self) -> LoaderIterator[Any]:
        """Make an iterator; where torch's loader makes its own, which subclasses override.

        Where a program calls it, and not ``iter(loader)``, persistent workers are started anew.
        """
        return self._core.iterator()

    def commit(self, ahead: bool = False, within: bool = False) -> None:
        """Declare everything given out so far as used.

        Once this has been called, `state_dict` gives the position of the last call instead of
        that of the last batch given out: a batch that was given out, and whose training step did
        not come to its end, is given out again after resuming.

        Args:
            ahead: Whether the last batch given out is not used yet, for a training loop that takes
                one ahead. It has taken none if it has been told of this loader's end.
            within: Whether the training loop's epoch goes on. If this loader has come to its end,
                it has nothing more to give then, also after resuming; else its next epoch begins.
        """
        self._core.epochs.commit(ahead, within)

    def state_dict(self) -> dict[str, Any]:
        """Give the position in the data, for `load_state_dict`.

        May be called at any time and starts nothing. All processes of a distributed job give the
        same; of an iterable dataset each gives its own readers (`lit_loader.merge_states`). Inside
        of the loop the position is behind the batch given out last, after the last batch of an
        epoch too; after the loop it is the start of the next epoch.

        Returns:
            A new dict of primitives, less than 2 kB unless a sampler or an iterable dataset has a
            state of its own. It survives ``torch.load(weights_only=True)``.
        """
        if self._core.epochs.begun_without_commits and called_by_lightning():
            self._core.warn_once(ADVICE_WITHOUT_CALLBACK)
        return take_state(self._core)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken: the next iterator begins there.

        Args:
            state: What `state_dict` of a loader of the same data gave. The number of workers,
                the prefetching and the start method may differ; ``batch_size`` and
                ``num_replicas`` may, if the position is at the start of a batch of this loader.

        Raises:
            StateError: The state does not fit, says which part and what to do.
        """
        self._loaded_state = state  # an attribute, as the device above
        core = self._core
        if core.reads_again:
            now = core.epochs.now()
            knows = now.epoch == 0 or now.told is not None
            core.warn_once(advice_on_reading_again(self.dataset, knows))
        if not CALLBACKS and called_by_lightning():
            core.warn_once(ADVICE_WITHOUT_CALLBACK)

    def indices_of(self, epoch: int, batch: int, rank: int | None = None) -> Any:
        """Say which samples a batch holds: of any epoch, at once; nothing is drawn or begun.

        For the orders that are computed: ``shuffle=True`` or the dataset's own, torch's
        ``DistributedSampler``, and the samplers of this package. If a run has changed a mixture's
        weights or sources, load its checkpoint's state first: a new loader knows its own alone.

        Args:
            epoch: Epoch number, from 0.
            batch: The batch's number within its epoch, of one rank, from 0.
            rank: Whose batch; None: this process's.

        Returns:
            The indices that the dataset is asked for, in a list; one index if ``batch_size`` is
            None.

        Raises:
            TypeError: The dataset is iterable, or its sampler has to be iterated.
            IndexError: The epoch has fewer batches.
            OptionError: A number is none, or there is no such rank.
        """
        return indices_of(self._core, epoch, batch, rank)

    def state_at(self, epoch: int, batch: int) -> dict[str, Any]:
        """Give the state of this loader where so many batches of an epoch have been given out.

        To begin there, to go back, or to leave batches out: pass it to `load_state_dict`. It is the
        same on all ranks. If a run has changed a mixture's weights or sources, load its
        checkpoint's state first: a new loader knows its own alone.

        Args:
            epoch: Epoch number, from 0.
            batch: Number of the batch that comes next, from 0; behind the last one the next epoch
                does.

        Raises:
            TypeError: The dataset is iterable, or its sampler has to be iterated.
            OptionError: A number is none, or the epoch has fewer batches.
        """
        return state_at(self._core, epoch, batch)

    @property
    def _loaded_state(self) -> Mapping[str, Any] | None:
        return None  # the epochs have taken it over

    @_loaded_state.setter
    def _loaded_state(self, state: Mapping[str, Any]) -> None:
        load_state(self._core, state)

    def resize(self, num_workers: int, prefetch_factor: int | None = None) -> None:
        """Change the number of workers now, also while they are at work in the midst of an epoch.

        No batch changes, is lost or is made twice. New workers take part as soon as they are up;
        those that are too many finish what they have, and end. Any thread may call this; it does
        not wait. (Setting ``loader.num_workers`` counts from the next iterator.)

        Args:
            num_workers: How many there are to be. To 0, and from 0, from the next iterator on.
            prefetch_factor: Batches in flight for each worker; None: as before.

        Raises:
            OptionError: The number is part of the data (iterable datasets without num_shards, and
                seeding="worker"), is refused, or is 0 while an iterator has workers.
        """
        workers = check_option("num_workers", num_workers)
        self._core.resize(workers, check_option("prefetch_factor", prefetch_factor))

    def statistics(self, memory: bool = False) -> LoaderStatistics:
        """Say where the time went, since the loader was made: see `LoaderStatistics`.

        Args:
            memory: Say what memory the loader takes, too. Without, it costs about a millisecond.
        """
        return self._core.statistics(memory)

    def close(self) -> None:
        """End the workers and let go of all that belongs to them; a second call does nothing.

        Batches given out stay as they are. Iterators with workers that have not ended raise a
        LoaderError; one without workers goes on. The loader itself can be iterated anew.
        """
        self._core.close()

    def __enter__(self) -> DataLoader[T_co]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return self._core.describe()
