"""`LoaderConfig`: every option of the loader, validated once, in one place; `Retry`, one's value.

The order and the defaults are those of the ``DataLoader`` constructor, which builds a
`LoaderConfig` to check what it was given; the data module and Hydra (``conf/lit_loader/loader``)
build the very same object. A test holds the constructor, this dataclass and the YAML files equal.

This module imports neither torch nor Hydra: Hydra loads its plugins, and through ours this file,
in every application of an environment, and shell completion must stay quick.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import os
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeAlias, get_args

from lit_loader.core.options import checks
from lit_loader.core.options.checks import checked, count, flag, or_none, positive, seconds
from lit_loader.describe import public, short_repr, warn
from lit_loader.errors import OptionError

_EXCEPTIONS: Final = (
    "a list of exception classes or of their names ('package.module.Class', or one of Python's own)"
)


def _exception_classes(name: str, value: object) -> tuple[type[Exception], ...]:
    """Check a list of exception classes, or of their names; returns the classes."""
    if not checks.is_list(value):
        checks.refuse(name, _EXCEPTIONS, value)
    return tuple(_exception(name, item) for item in value)


def _exception(name: str, value: object) -> type[Exception]:
    kind = value
    if isinstance(value, str):
        with contextlib.suppress(Exception):  # whatever importing a module of the user's raises
            kind = vars(builtins).get(value) or pkgutil.resolve_name(value)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        checks.refuse(name, _EXCEPTIONS, [value])
    return kind


def _one_of(kind: object) -> Callable[[str, object], str]:
    return partial(checks.one_of, choices=get_args(kind))


@public
@partial(checks.checks_options, prefix="sample_retries.")
@dataclasses.dataclass(frozen=True)
class Retry:
    """When to retry a sample: the value of ``sample_retries``.

    Args:
        times: How often to retry a sample before its error counts.
        backoff: Seconds before the first retry. They double with each further one, up to 10 s: 0.1
            and 3 retries wait 0.1 + 0.2 + 0.4 s.
        on: Exception classes, or their names ("OSError", "my.module.Error"), after which a sample
            is retried.

    Raises:
        OptionError: A value is refused.

    Examples:
        >>> from lit_loader import DataLoader, Retry
        >>> retry = Retry(5, backoff=0.5, on=["OSError", "http.client.HTTPException"])
        >>> loader = DataLoader(range(6), 2, sample_retries=retry)
    """

    times: int = checked(3, checks.count)
    backoff: float = checked(0.1, checks.seconds)
    on: Sequence[type[Exception] | str] = checked((OSError, TimeoutError), _exception_classes)

    @classmethod
    def check(cls, name: str, value: object) -> int | Retry:
        """Check the option ``sample_retries``: a number, one of this class, or its options."""
        if isinstance(value, Mapping):
            return cls(**value)
        return value if isinstance(value, cls) else checks.count(name, value)

    def __bool__(self) -> bool:
        """Whether samples are retried at all."""
        return self.times > 0


SampleErrorPolicy: TypeAlias = Literal["raise", "skip", "replace"]
Seeding: TypeAlias = Literal["batch", "sample"]
WorkerMethod: TypeAlias = Literal["multiprocessing", "thread"]
UnevenRanks: TypeAlias = Literal["pad", "drop", "keep"]

_PLAIN: Final = (int, float, str)

FIXED: Final = (
    *("dataset", "batch_size", "sampler", "batch_sampler", "drop_last", "persistent_workers"),
    *("remote", "worker_method"),
)
"""What cannot be changed once a loader is built."""

AT_FIRST: Final = ("num_replicas", "rank", "num_shards", "uneven_ranks")
"""The same, but a subclass may keep something of its own under these names."""

FOR_WORKERS: Final = (
    "persistent_workers", "prefetch_factor", "timeout", "multiprocessing_context"
)  # fmt: skip
"""Options that mean nothing without workers."""

FOR_PROCESSES: Final = ("multiprocessing_context", "max_worker_restarts", "remote", "reseed_fn")
"""Options that mean nothing for workers in threads."""


@public
@checks.checks_options
@dataclasses.dataclass(frozen=True)
class LoaderConfig:
    """Every option of ``lit_loader.DataLoader`` except the dataset, validated on construction.

    Each is an argument of `lit_loader.DataLoader`, whose docstring says what it means. Immutable;
    `merged` makes a changed copy. Flags are normalised to ``bool``: 0 is
    False, other whole numbers are True, None is False where torch takes it. Whole numbers, NumPy's
    too, are normalised to ``int``.

    Raises:
        OptionError: An option or a combination is refused; the message is one line.
    """

    batch_size: int | None = checked(1, or_none(positive))
    shuffle: bool | None = checked(None, or_none(flag))
    sampler: Any = checked(None, or_none(checks.indices))
    batch_sampler: Any = checked(None, or_none(checks.indices))
    num_workers: int | Literal["auto"] = checked(0, checks.or_auto(0, checks.MANY))
    collate_fn: Callable[..., Any] | None = checked(None, or_none(checks.function))
    pin_memory: bool = checked(False, checks.flag_or_none)
    drop_last: bool = checked(False, flag)
    timeout: float = checked(0, seconds)
    worker_init_fn: Callable[..., object] | None = checked(None, or_none(checks.function))
    multiprocessing_context: Any = checked(None, or_none(checks.start_method))
    generator: Any = checked(None, or_none(checks.generator))
    prefetch_factor: int | None = checked(None, or_none(partial(positive, below=checks.MANY)))
    persistent_workers: bool = checked(False, checks.flag_or_none)
    pin_memory_device: str = checked("", checks.text)
    in_order: bool = checked(True, flag)
    worker_method: WorkerMethod = checked("multiprocessing", _one_of(WorkerMethod))
    seed: int | None = checked(None, or_none(partial(count, below=2**64)))
    seeding: Seeding = checked("batch", _one_of(Seeding))
    reseed_fn: Callable[..., object] | None = checked(None, or_none(checks.function))
    num_replicas: int | Literal["auto"] | None = checked(None, or_none(checks.or_auto(1)))
    rank: int | None = checked(None, or_none(count))
    num_shards: int | None = checked(None, or_none(partial(positive, below=2**20)))
    uneven_ranks: UnevenRanks = checked("pad", _one_of(UnevenRanks))
    max_worker_restarts: int = checked(3, count)
    stall_warning: float = checked(60, seconds)
    on_sample_error: SampleErrorPolicy = checked("raise", _one_of(SampleErrorPolicy))
    max_sample_errors: int | None = checked(None, or_none(count))
    sample_retries: int | Retry = checked(0, Retry.check)
    read_threads: int = checked(0, partial(count, below=1024))
    remote: Any = checked(None, or_none(checks.remote_workers))

    def __post_init__(self) -> None:
        self._refuse(self._conflicts())

    def __repr__(self) -> str:
        """The options that differ from their defaults; there are too many to read all of them."""
        changed = [f"{name}={short_repr(getattr(self, name))}" for name in self._changed(DEFAULTS)]
        return f"{type(self).__name__}({', '.join(changed)})"

    def _changed(self, names: Iterable[str]) -> Iterator[str]:
        """Yield those of these options that differ from their defaults."""
        values = vars(self)
        for name in names:
            value, default = values[name], DEFAULTS[name]
            if value is default:
                continue
            if not (isinstance(value, _PLAIN) and value == default):  # not by element, of an array
                yield name

    def _refuse(self, conflicts: Iterator[tuple[str, ...]]) -> None:
        """Raise the first conflict: a text, and the options whose values it is to name.

        The text ends in what the first of these is to be, or ends with "at": at its default.
        """
        for text, *names in conflicts:
            if text.endswith(" at"):
                text += f" {DEFAULTS[names[0]]!r}"
            values = " and ".join(f"{name}={short_repr(getattr(self, name))}" for name in names)
            raise OptionError(f"{text}, got {values}")

    def _conflicts(self) -> Iterator[tuple[str, ...]]:
        """Yield which options rule one another out, for `_refuse`."""
        if self.batch_sampler is not None:
            for name in self._changed(("batch_size", "shuffle", "sampler", "drop_last")):
                if name != "shuffle" or self.shuffle:
                    text = f"batch_sampler takes the place of {name}: leave {name} at"
                    yield text, name, "batch_sampler"
        if self.sampler is not None and self.shuffle:
            yield "sampler decides the order itself: leave shuffle at", "shuffle", "sampler"
        if self.batch_size is None and self.drop_last:
            text = "drop_last needs batches: set batch_size to a number, or leave drop_last at"
            yield text, "drop_last", "batch_size"
        if not self.num_workers and self.remote is None:
            for name in self._changed(FOR_WORKERS):
                text = f"{name} needs worker processes: set num_workers, or leave {name} at"
                yield text, name, "num_workers"
        if self.worker_method == "thread":
            for name in self._changed(FOR_PROCESSES):
                text = f"{name} is for worker processes: use 'multiprocessing', or leave {name} at"
                yield text, name, "worker_method"
        if self.read_threads > 1 and self.reseed_fn is not None:
            text = "reseed_fn seeds generators for one sample after another: leave read_threads at"
            yield text, "read_threads", "reseed_fn"
        rank, replicas = self.rank, self.num_replicas
        if replicas == "auto":
            if rank is not None:
                text = "num_replicas='auto' takes the rank from torch.distributed: leave rank at"
                yield text, "rank", "num_replicas"
        elif rank is None or replicas is None:
            if rank is not replicas:
                text = "rank and num_replicas are given together or not at all"
                yield text, "rank", "num_replicas"
        elif rank >= replicas:
            yield "rank must be less than num_replicas", "rank", "num_replicas"
        if self.num_shards is not None:
            if self.replica and self.num_shards % self.replica[1]:
                text = "num_shards must be a multiple of num_replicas, so that ranks read equally "
                yield f"{text}many", "num_shards", "num_replicas"
            if self.uneven_ranks == "drop":
                text = "uneven_ranks='drop' is for map-style datasets, because nobody knows in "
                text += "advance which shard of a stream ends first: use 'pad', which repeats "
                yield f"{text}batches, or 'keep'", "num_shards", "uneven_ranks"
        if self.max_sample_errors is not None and self.on_sample_error == "raise":
            text = "max_sample_errors needs on_sample_error='skip' or 'replace'"
            yield text, "max_sample_errors", "on_sample_error"

    def check_kind(self, iterable: bool) -> None:
        """Refuse what a dataset rules out by being iterable, or by not being it.

        Raises:
            OptionError: An option does not go together with such a dataset.
        """
        if iterable:
            self._refuse(self._conflicts_of_streams())
        elif self.num_shards is not None:
            self._refuse(
                iter([("num_shards is for an IterableDataset: leave it at", "num_shards")])
            )

    def _conflicts_of_streams(self) -> Iterator[tuple[str, ...]]:
        order, no_indices = "which decides its own order", "which has no indices"
        refused = {
            **dict.fromkeys(("shuffle", "sampler", "batch_sampler"), order),
            "remote": "whose shards stay on this machine",
        }
        if self.read_threads > 1:
            refused["read_threads"] = f"{no_indices} (use threads in its __iter__)"
        for name, why in refused.items():
            if getattr(self, name):
                yield f"{name} does not apply to an IterableDataset, {why}: leave it at", name
        if self.on_sample_error == "replace":
            text = f"'replace' does not apply to an IterableDataset, {no_indices}: use 'skip'"
            yield f"on_sample_error={text}", "on_sample_error"
        if self.num_workers == "auto" and self.num_shards is None:
            text = "num_workers='auto' does not apply to an IterableDataset without num_shards, "
            yield f"{text}whose data depends on the number of workers: pass it", "num_workers"

    @property
    def replica(self) -> tuple[int, int] | None:
        """This process's number among those that share the data, and how many they are."""
        if self.rank is None or not isinstance(self.num_replicas, int):
            return None
        return self.rank, self.num_replicas

    def with_ranks(self) -> LoaderConfig:
        """Returns this config with ``num_replicas="auto"`` replaced by the ranks of the job.

        Raises:
            OptionError: There is a job of several processes, and nobody has joined it yet.
        """
        if self.num_replicas != "auto":
            return self
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            number, rank = distributed.get_world_size(), distributed.get_rank()
            if number > 1:
                return dataclasses.replace(self, num_replicas=number, rank=rank)
        elif os.environ.get("WORLD_SIZE", "1") != "1":
            raise OptionError(
                "num_replicas='auto' takes the ranks from torch.distributed, which is not "
                f"initialized, although WORLD_SIZE={os.environ['WORLD_SIZE']}. Call "
                "torch.distributed.init_process_group() before you make the loader"
            )
        return dataclasses.replace(self, num_replicas=None)

    def with_samplers_for(self, dataset: object) -> LoaderConfig:
        """Returns this config with sampler factories replaced by what they make of the dataset.

        Raises:
            OptionError: A factory returned something that cannot be iterated.
        """
        if self.sampler is None and self.batch_sampler is None:
            return self
        given = {"sampler": self.sampler, "batch_sampler": self.batch_sampler}
        made = {name: make(dataset) for name, make in given.items() if checks.is_factory(make)}
        return dataclasses.replace(self, **made) if made else self

    @classmethod
    def from_options(cls, **options: Any) -> LoaderConfig:
        """Builds a config from keyword options; the ``_target_`` of every loader node in Hydra.

        What a preset sets for workers gives way to ``num_workers=0``, so that a sweep may reach it:
        ``persistent_workers`` and ``prefetch_factor``, which mean nothing then, and ``timeout``,
        with a warning. ``shuffle`` gives way to a sampler or batch sampler. ``_names_`` are keys of
        the node ``loader``, of which the data module takes each option by its name.

        Raises:
            OptionError: An option is unknown (the message names the nearest known one) or refused.
        """
        names = [name for name in options.pop("_names_", None) or () if name[:1] != "_"]
        checks.known_options(names, DEFAULTS, place="loader.")
        if options.get("num_workers", 0) in (0, "0") and options.get("remote") is None:
            for name in ("persistent_workers", "prefetch_factor", "timeout"):
                value = check_option(name, options.pop(name, DEFAULTS[name]))
                if name == "timeout" and value:
                    warn(
                        f"timeout={value} has no effect: num_workers=0 reads samples in the "
                        "calling process, where one that hangs is not noticed"
                    )
        if options.get("sampler") is not None or options.get("batch_sampler") is not None:
            options.pop("shuffle", None)
        return cls(**options)

    def as_kwargs(self) -> dict[str, Any]:
        """Returns the options as keywords for ``DataLoader(dataset, **kwargs)``, not copied."""
        return dict(vars(self))

    def merged(self, **overrides: Any) -> LoaderConfig:
        """Returns a new validated config in which `overrides` replace this one's options.

        Raises:
            OptionError: An override is unknown, or the result is refused.
        """
        return type(self)(**{**vars(self), **overrides})


DEFAULTS: Final = {field.name: field.default for field in dataclasses.fields(LoaderConfig)}


def check_option(name: str, value: object) -> Any:
    """Returns an option's value, normalised; that of anything else as it is."""
    field = LoaderConfig.__dataclass_fields__.get(name)
    return value if field is None else field.metadata["check"](name, value)
