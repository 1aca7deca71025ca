"""`LoaderConfig`: every option of the loader, validated once, in one place.

The order and the defaults are those of the ``DataLoader`` constructor, which builds a
`LoaderConfig` to check what it was given; the data module and Hydra (``conf/lit_loader/loader``)
build the very same object. A test holds the constructor, this dataclass and the YAML files equal.

This module imports neither torch nor Hydra: Hydra loads its plugins, and through ours this file,
in every application of an environment, and shell completion must stay quick.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from lit_loader.config import checks
from lit_loader.config.combinations import check_sharding, check_workers
from lit_loader.config.ray_workers import RayWorkers, check_use, remote_from
from lit_loader.describe import public, short_repr
from lit_loader.errors import OptionError

__all__ = [
    *("LoaderConfig", "SHARD_TAILS", "SampleErrorPolicy", "Seeding", "ShardTailRule"),
    "check_option",
]

SampleErrorPolicy: TypeAlias = Literal["raise", "skip", "replace"]
Seeding: TypeAlias = Literal["batch", "sample", "worker"]
ShardTailRule: TypeAlias = Literal["pad", "drop", "keep"]
SHARD_TAILS = get_args(ShardTailRule)


@public
@dataclasses.dataclass(frozen=True)
class LoaderConfig:
    """Every option of ``lit_loader.DataLoader`` except the dataset, validated on construction.

    Immutable; `merged` makes a changed copy. Flags are normalised to ``bool`` (0 is False, other
    whole numbers are True) and whole numbers, NumPy's too, to ``int``.

    Attributes:
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
        generator: A torch.Generator: its initial seed takes the place of torch's where seed is
            None, and it may be shared with samplers.
        prefetch_factor: Batches in flight for each worker (8 workers × 2 = 16 batches); None: 2
            with workers, nothing ahead without; with ``num_workers="auto"`` 2 or more, as batches
            differ in what they take.
        persistent_workers: Keep the workers alive from epoch to epoch.
        pin_memory_device: Deprecated in torch, kept for old programs: the accelerator whose
            memory is pinned for; "": the current one.
        in_order: Give batches out in the sampler's order; False: as they are finished, but those of
            one reader of an iterable dataset in order.
        seed: Base of all randomness, 0 … 2**64 - 1; None: taken from a DistributedSampler, else
            from generator, else from ``torch.initial_seed()`` (with several replicas from
            PL_GLOBAL_SEED, else 0), drawing nothing.
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
            batches; "drop" ends the epoch before the first round that some reader has no batch for.
        max_worker_restarts: Workers that may be replaced in an epoch after they died or hung;
            0: their death is raised at once.
        on_sample_error: What becomes of a sample whose reading raises an exception: "raise" it;
            "skip" the sample (a map-style batch gets shorter, and one of which nothing is left is
            omitted: ``len(loader)`` is then an upper bound; an IterableDataset is asked for the
            next sample); "replace" it by another, the same for any number of workers (drawn from
            the whole dataset; under a sampler of the user's, from the rest of the batch).
        max_sample_errors: Bad samples that an epoch may have where they are skipped or replaced;
            more raise a SampleErrorsError that lists them. None: any number, if not all are bad.
        sample_retries: Times that a sample is read again after a transient error, before the error
            counts.
        retry_backoff: Seconds before the first of these, doubled for each further one up to 10 s
            (0.1 and 3 retries: 0.1 + 0.2 + 0.4 s).
        transient_errors: Exception classes, or their names ("OSError", "my.module.Error"), after
            which a sample is read again; None: OSError and TimeoutError.
        memory_budget: Shared memory that batches may take: bytes, or text such as "2 GB"; None:
            unlimited.
        prefetch_next_epoch: Let workers that have nothing left to do in an epoch begin the next
            one, where they are persistent and the order is the loader's own (no sampler or
            batch_sampler, no seeding="worker", of iterable datasets those with num_shards). What
            they made is dropped if that epoch, seed or position is not what comes next. False for
            datasets that are changed between epochs through memory shared with the workers.
        check_exactness: So many of the first batches are made again, after others and, where there
            are workers, in another process. One warning names the first difference: something in
            the samples is not a function of seed and index. The samples are read twice. 0: none.
            For a test run, or for the first of many.
        share: Let workers read the dataset's long lists and tuples (10,000 strings, numbers, or
            tuples, lists and dicts of such, and more) from memory that all of them share, instead
            of a copy in each. They and their records read as before, and raise if they are
            written to. The training process's own stay as they are.
        remote_workers: Workers on other machines, besides those of num_workers here; readers of an
            iterable dataset stay here. 0: none.
        remote: Where remote workers come from: a `RayWorkers`, or a mapping of its options; None:
            ``RayWorkers()``, the Ray cluster that this machine is a node of.

    Raises:
        OptionError: An option or a combination is refused; the message is one line.
    """

    batch_size: int | None = 1
    shuffle: bool | None = None
    sampler: Any = None
    batch_sampler: Any = None
    num_workers: int | Literal["auto"] = 0
    collate_fn: Callable[..., Any] | None = None
    pin_memory: bool = False
    drop_last: bool = False
    timeout: float = 0
    worker_init_fn: Callable[..., Any] | None = None
    multiprocessing_context: Any = None
    generator: Any = None
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    pin_memory_device: str = ""
    in_order: bool = True
    seed: int | None = None
    seeding: Seeding = "batch"
    reseed_fn: Callable[..., Any] | None = None
    num_replicas: int | None = None
    rank: int | None = None
    num_shards: int | None = None
    shard_tail: ShardTailRule = "pad"
    max_worker_restarts: int = 3
    on_sample_error: SampleErrorPolicy = "raise"
    max_sample_errors: int | None = None
    sample_retries: int = 0
    retry_backoff: float = 0.1
    transient_errors: Sequence[type[Exception] | str] | None = None
    memory_budget: int | str | None = None
    prefetch_next_epoch: bool = True
    check_exactness: int = 0
    share: bool = False
    remote_workers: int = 0
    remote: Any = None

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            # Frozen, so that a config handed around cannot lose its validity; normalising is the
            # one moment at which it is written to.
            object.__setattr__(self, name, check(name, getattr(self, name)))
        if self.remote_workers and self.remote is None:
            object.__setattr__(self, "remote", RayWorkers())
        self._check_batching()
        check_workers(self)
        check_sharding(self)
        self._check_sample_errors()

    def __repr__(self) -> str:
        """The options that differ from their defaults; there are too many to read all of them."""
        changed = []
        for name, value in self.as_kwargs().items():
            default = getattr(LoaderConfig, name)
            plain = isinstance(value, (int, float, str))  # an array would be compared by element
            if value is not default and not (plain and value == default):
                changed.append(f"{name}={short_repr(value)}")
        return f"{type(self).__name__}({', '.join(changed)})"

    def _check_batching(self) -> None:
        replaced = {
            "batch_size": self.batch_size != 1,
            "shuffle": bool(self.shuffle),
            "sampler": self.sampler is not None,
            "drop_last": self.drop_last,
        }
        for name, is_set in replaced.items():
            if is_set and self.batch_sampler is not None:
                default = getattr(LoaderConfig, name)
                raise OptionError(
                    f"batch_sampler takes the place of {name}: leave {name} at {default}, "
                    f"got {name}={short_repr(getattr(self, name))} beside a batch_sampler"
                )
        if self.sampler is not None and self.shuffle:
            raise OptionError(
                "sampler decides the order itself: leave shuffle at None, got shuffle=True and "
                f"sampler={short_repr(self.sampler)}"
            )
        if self.check_exactness and self.seeding == "worker":
            raise OptionError(
                "check_exactness needs batches that do not depend on who makes them: set seeding "
                f"to 'batch' or 'sample', got check_exactness={self.check_exactness} and "
                "seeding='worker'"
            )
        if self.batch_size is None and self.drop_last:
            raise OptionError(
                "drop_last needs batches: set batch_size to a number or drop_last to False, "
                "got drop_last=True and batch_size=None"
            )

    def _check_sample_errors(self) -> None:
        if self.max_sample_errors is not None and self.on_sample_error == "raise":
            raise OptionError(
                "max_sample_errors needs bad samples to be passed over: set on_sample_error to "
                "'skip' or 'replace' or leave max_sample_errors at None, "
                f"got max_sample_errors={self.max_sample_errors} and on_sample_error='raise'"
            )

    @property
    def replica(self) -> tuple[int, int] | None:
        """This process's number among those that share the data, and how many they are."""
        ours, all_of_them = self.rank, self.num_replicas
        return None if ours is None or all_of_them is None else (ours, all_of_them)

    def check_dataset_kind(self, iterable: bool) -> None:
        """Refuses what the dataset's kind, or a missing package, rules out; call it once known.

        Args:
            iterable: Whether the dataset is a ``torch.utils.data.IterableDataset``.

        Raises:
            OptionError: For an iterable-style dataset shuffle, sampler or batch_sampler is set, or
                bad samples are to be replaced; without num_shards there are remote workers, or
                num_workers is "auto". For a map-style one num_shards is set. Ray is missing.
        """
        if iterable and self.on_sample_error == "replace":
            raise OptionError(
                "on_sample_error='replace' does not apply to an IterableDataset, which has no "
                "indices to choose from: use 'skip' or 'raise', got on_sample_error='replace'"
            )
        if self.remote_workers:
            if iterable:
                check_use(self)
            self.remote.check_installed()
        if iterable and self.num_workers == "auto" and self.num_shards is None:
            raise OptionError(
                "num_workers='auto' does not apply to an IterableDataset without num_shards, whose "
                "data depends on the number of workers: pass num_shards, or set num_workers to a "
                "number, got num_workers='auto'"
            )
        if self.num_shards is not None and not iterable:
            raise OptionError(
                "num_shards applies to an IterableDataset; the batches of a map-style dataset "
                f"depend on no worker anyway: leave it at None, got num_shards={self.num_shards}"
            )
        for name in ("shuffle", "sampler", "batch_sampler") if iterable else ():
            value = getattr(self, name)
            if value is not None and value is not False:
                raise OptionError(
                    f"{name} does not apply to an IterableDataset, which decides its own order: "
                    f"leave {name} at None, got {name}={short_repr(value)}"
                )

    def with_samplers_for(self, dataset: object) -> LoaderConfig:
        """Returns this config with sampler factories replaced by the samplers they make.

        Args:
            dataset: What a callable ``sampler`` or ``batch_sampler`` is called with.

        Raises:
            OptionError: A factory returned something that cannot be iterated.
        """
        made = {
            name: getattr(self, name)(dataset)
            for name in ("sampler", "batch_sampler")
            if checks.is_factory(getattr(self, name))
        }
        for name, value in made.items():
            if not checks.is_iterable(value):
                raise OptionError(
                    f"{name} factory must return an iterable, got {short_repr(value)} "
                    f"from {short_repr(getattr(self, name))}"
                )
        return dataclasses.replace(self, **made) if made else self

    @classmethod
    def from_options(cls, **options: Any) -> LoaderConfig:
        """Builds a config from keyword options; the ``_target_`` of every loader node in Hydra.

        Raises:
            OptionError: An option is unknown (the message names the nearest known one) or refused.
        """
        checks.known_options(options, [field.name for field in dataclasses.fields(cls)])
        workers = options.get("num_workers")
        if isinstance(workers, str) and workers.isdecimal():
            # Of an environment variable, say: Hydra converts what is a number and nothing else.
            options["num_workers"] = int(workers)
        return cls(**options)

    def as_kwargs(self) -> dict[str, Any]:
        """Returns the options as keywords for ``DataLoader(dataset, **kwargs)``.

        Shallow: samplers, generators and callables are the same objects, never copies.
        """
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def merged(self, **overrides: Any) -> LoaderConfig:
        """Returns a new validated config in which `overrides` replace this one's options.

        Raises:
            OptionError: An override is unknown, or the result is refused.
        """
        return self.from_options(**{**self.as_kwargs(), **overrides})


def check_option(name: str, value: Any) -> Any:
    """Returns an option's value, normalised; that of anything else as it is.

    Raises:
        OptionError: The value is refused.
    """
    check = _CHECKS.get(name)
    return value if check is None else check(name, value)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "batch_size": checks.or_none(partial(checks.whole_number, low=1)),
    "shuffle": checks.or_none(checks.flag),
    "sampler": checks.or_none(checks.indices),
    "batch_sampler": checks.or_none(checks.indices),
    "num_workers": checks.workers,
    "collate_fn": checks.or_none(checks.function),
    "pin_memory": checks.flag,
    "drop_last": checks.flag,
    "timeout": checks.seconds,
    "worker_init_fn": checks.or_none(checks.function),
    "multiprocessing_context": checks.or_none(checks.start_method),
    "generator": checks.or_none(checks.generator),
    "prefetch_factor": checks.or_none(partial(checks.whole_number, low=1, below=checks.MANY)),
    "persistent_workers": checks.flag,
    "pin_memory_device": checks.text,
    "in_order": checks.flag,
    "seed": checks.or_none(partial(checks.whole_number, low=0, below=2**64)),
    "seeding": partial(checks.one_of, choices=get_args(Seeding)),
    "reseed_fn": checks.or_none(checks.reseeding),
    "num_replicas": checks.or_none(partial(checks.whole_number, low=1)),
    "rank": checks.or_none(partial(checks.whole_number, low=0)),
    "num_shards": checks.or_none(partial(checks.whole_number, low=1, below=2**20)),
    "shard_tail": partial(checks.one_of, choices=SHARD_TAILS),
    "max_worker_restarts": partial(checks.whole_number, low=0),
    "on_sample_error": partial(checks.one_of, choices=get_args(SampleErrorPolicy)),
    "max_sample_errors": checks.or_none(partial(checks.whole_number, low=0)),
    "sample_retries": partial(checks.whole_number, low=0),
    "retry_backoff": checks.seconds,
    "transient_errors": checks.or_none(checks.exception_classes),
    "memory_budget": checks.or_none(partial(checks.memory_size, low=1, below=math.inf)),
    "prefetch_next_epoch": checks.flag,
    "check_exactness": partial(checks.whole_number, low=0),
    "share": checks.flag,
    "remote_workers": partial(checks.whole_number, low=0),
    "remote": checks.or_none(remote_from),
}
