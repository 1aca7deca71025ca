"""`BatchSpec`: what a process needs to make batches; `BatchWithReport`: a batch and what to note.

The loader makes one spec of its options. Every worker is sent it, with ``num_workers=0`` the
parent uses it itself; `core/batch/batch_builder.py` makes batches by it.

`DatasetAttributes`: what the workers' copies of a dataset have for plain attributes.

A program may set ``dataset.difficulty = 0.5`` between two passes. Workers that live on have copies
of the dataset, so what has changed when a pass begins is sent to them (`changed`, `apply`). A
worker that replaces another one later is given what the others have: a fork has the dataset as the
program has it by then, and sets it back (`restore`); all others get every change so far.

Plain are numbers, strings, booleans, None, and tuples of these. A change of anything else is only
reported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from torch.utils.data import default_collate as torch_default_collate

from lit_loader.core.batch.collate import default_collate
from lit_loader.core.state.position import Shards

if TYPE_CHECKING:  # add-ons, of which the core imports none
    from lit_loader.data.bad_samples import BadSamples
    from lit_loader.data.sample_errors import SampleError


class BatchWithReport(NamedTuple):
    """A batch, and what the parent needs to know beyond it.

    Every batch of an iterable dataset comes in one; a map-style dataset's only if some of its
    samples failed.
    """

    batch: object
    # Of an iterable dataset and its iterator before the batch, `pickled`; None: they have none;
    # NOT_TAKEN: it was not due.
    state: object
    # Among whom an iterable dataset has divided itself (`context.WORKERS`), if there are others
    # whom it gives the same; else None.
    divided: int | None
    errors: tuple[SampleError, ...] = ()  # of its bad samples
    omitted: bool = False  # they have left nothing: the next batch is given out in its stead
    retries: int = 0  # how often samples were retried after a transient error
    notes: tuple[str, ...] = ()  # what the user is to be warned of, once
    digest: int = 0  # of a stream's batch, by which it is known when it is replayed; 0: none


class TorchModes(NamedTuple):
    """What torch holds for a thread, and a dataset that uses a model or computes depends on.

    A process that makes batches has those of the thread that has it started, also where it takes
    another's place.
    """

    grad: bool = True
    inference: bool = False
    autocast: torch.dtype | None = None  # of the CPU

    @classmethod
    def now(cls) -> TorchModes:
        """Return those of this thread."""
        autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        return cls(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Set these within the context."""
        with (
            torch.inference_mode(self.inference),
            torch.set_grad_enabled(self.grad),
            torch.autocast("cpu", self.autocast, enabled=self.autocast is not None),
        ):
            yield


class BatchSpec(NamedTuple):
    """All that is needed to make batches; goes to every worker."""

    dataset: Any
    batch_size: int | None  # of an iterable dataset; None gives single samples
    drop_last: bool
    collate_fn: Callable[[Any], Any]
    worker_init_fn: Callable[[int], object] | None
    seeding: str
    reseed_fn: Callable[[Any, int], object] | None
    read_threads: int
    iterable: bool  # it is iterated rather than indexed
    batched: bool  # a task's indices are a batch's list (else one index, not collated)
    size: int | None  # samples of a whole batch; None: their number varies
    rank: int
    num_replicas: int
    own_order: bool  # the indices are the loader's own, and range over the whole dataset
    held: Mapping[str, int]  # what the generators that the dataset holds count from
    seeded: bool  # whether the loader's seed takes the place of those generators' own
    modes: TorchModes
    timed: bool = False  # workers measure their CPU time, batch by batch
    watched: bool = True  # each sample is announced, for somebody looks at how long it takes
    shards: Shards | None = None  # readers of an iterable dataset; None: each worker is one
    # Of a stream that no option divides: this process's rank, and how many there are in the job.
    # `get_shard` tells the stream its share among them.
    job: tuple[int, int] | None = None
    # In a worker thread: ids of the generators that all threads share. None: elsewhere.
    shared_generators: frozenset[int] | None = None
    # Add-ons, each None without:
    tolerance: BadSamples | None = None  # what copes with samples that cannot be read
    table_of: Any = None  # what finds the table that a dataset is, if it is one
    streams: Any = None  # what makes batches of an iterable dataset (`Readers`)

    @property
    def default_collation(self) -> bool:
        """Whether batches are collated by the default rules."""
        return self.collate_fn in (torch_default_collate, default_collate)

    @property
    def per_sample(self) -> bool:
        """Whether generators are seeded for each sample.

        Also where samples may fail: what a failed attempt has drawn must not count for the others.
        """
        return self.seeding == "sample" or self.tolerance is not None

    def table(self) -> Any:
        """Return the table that batches can be taken from at once; None: samples are read."""
        if self.table_of is not None and self.default_collation and self.batched:
            return self.table_of(self.dataset)
        return None


_MOST_PARTS: Final = 100
"""Datasets within datasets whose attributes are looked at."""

Changes = dict[tuple[str, str], object]
"""Values of attributes, by the path of the dataset that has them and their names."""


class DatasetAttributes:
    """The attributes of a dataset, and of what it wraps in ``dataset`` or ``datasets``."""

    def __init__(self, dataset: object) -> None:
        self._dataset = dataset
        self.changes: Changes = {}
        """All changes so far."""
        self._plain, self._others = _attributes(dataset)

    def changed(self) -> Changes:
        """Return the plain attributes that have changed since the last call."""
        known = self._plain
        self._plain, self._others = _attributes(self._dataset)
        found = {
            key: value
            for key, value in self._plain.items()
            if key not in known or not _is_same(value, known[key])
        }
        self.changes.update(found)
        return found

    def restore(self) -> None:
        """Set the plain attributes of this process's dataset to what the workers have."""
        apply(self._plain, self._dataset)

    def replaced(self) -> list[str]:
        """Return the paths of other attributes that were replaced since the last `changed`."""
        plain, now = _attributes(self._dataset)
        if plain != self._plain:  # which are sent, and may have changed its length
            del now["len(dataset)"]
        return sorted(path for path, value in now.items() if self._others.get(path, value) != value)


def apply(changes: Changes, dataset: object) -> None:
    """Set a dataset's attributes."""
    parts = dict(_parts(dataset))
    for (path, name), value in changes.items():
        if path in parts:
            parts[path][name] = value


def _attributes(dataset: object) -> tuple[Changes, dict[str, int]]:
    """Return plain attributes, and the ids of the others by their paths; that keeps none alive.

    Also the dataset's length: a list of its may have grown.
    """
    plain: Changes = {}
    others: dict[str, int] = {}
    for path, attributes in _parts(dataset):
        for name, value in attributes.items():
            if _is_plain(value):
                plain[path, name] = value
            else:
                others[f"{path}.{name}"] = id(value)
    others["len(dataset)"] = 0
    with contextlib.suppress(Exception):  # the user's __len__, if there is one
        others["len(dataset)"] = len(dataset)  # type: ignore[arg-type]
    return plain, others


def _parts(dataset: object) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the path and the attributes of a dataset, and of each that it wraps."""
    found: list[tuple[str, object]] = [("dataset", dataset)]
    seen: set[int] = set()
    while found and len(seen) < _MOST_PARTS:
        path, part = found.pop()
        attributes = getattr(part, "__dict__", None)
        if type(attributes) is not dict or id(part) in seen:
            continue
        seen.add(id(part))
        found.append((f"{path}.dataset", attributes.get("dataset")))
        several = attributes.get("datasets")
        if isinstance(several, list | tuple):
            found += ((f"{path}.datasets[{number}]", each) for number, each in enumerate(several))
        yield path, attributes


def _is_plain(value: object) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return value is None or type(value) in _PLAIN or isinstance(value, (np.number, np.bool_))


_PLAIN: Final = (bool, int, float, complex, str, bytes)


def _is_same(value: object, known: object) -> bool:
    return value is known or (type(value) is type(known) and bool(value == known))
