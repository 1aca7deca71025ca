"""`DatasetCopies`: copies of an iterable dataset, one for each shard that a process reads.

A shard that shared the dataset with others would find what they have done to it, and its data
would depend on which shards a process reads. So each has a copy, of the dataset as it was at first:
pickled once, and unpickled for each.

- *Copied*: all that can be changed, arrays and tensors too.
- *Shared*, as the same objects: modules, functions and classes; the process's global generators;
  what is made to be shared (locks, queues, tensors in shared memory, `SharedSequence` and whatever
  else copies itself by its ``__deepcopy__``); arrays that are read-only all the way down
  (``array.flags.writeable = False``, ``np.load(path, mmap_mode="r")``), however large; what an
  object's class says is the same for all shards (``shared_by_readers``: of a `CachedDataset` its
  samples). Not shared: a Hugging Face stream's epoch.
- *Refused*, by its place in the dataset: what can be neither, an open file or a generator.
"""

from __future__ import annotations

import copy
import io
import mmap
import pickle
import threading
import types
from multiprocessing import connection, queues, sharedctypes, synchronize
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from lit_loader.core.seeding.held_generators import GLOBAL_GENERATORS
from lit_loader.core.transport.dataset_pickle import refusal
from lit_loader.describe import find_failing_object
from lit_loader.streams.other_streams import shared_epoch

_LOCKS: Final = (type(threading.Lock()), type(threading.RLock()))

_SHARED: Final = (
    *(types.ModuleType, types.FunctionType, type, *_LOCKS),
    *(synchronize.SemLock, synchronize.Condition, synchronize.Event),
    *(queues.Queue, queues.SimpleQueue, connection.Connection),
    sharedctypes.SynchronizedBase,
)
"""What copies have in common, of whichever dataset."""

_GLOBALS: Final = frozenset(map(id, GLOBAL_GENERATORS))

_BY_CONTENT: Final = (np.ndarray, torch.Tensor, torch.TypedStorage, torch.UntypedStorage)
"""What is written down at once, though it can copy itself."""


class DatasetCopies:
    """Makes copies of a dataset, as it is now; refers to what copies share, and not to it.

    A TransportError, which names the place in it, if it cannot be copied.
    """

    def __init__(self, dataset: object) -> None:
        self._shared: list[object] = []
        file = io.BytesIO()
        try:
            _Pickler(file, self._shared).dump(dataset)
        except Exception as error:

            def attempt(value: object) -> None:
                _Pickler(io.BytesIO(), []).dump(value)

            raise refusal(
                find_failing_object(dataset, error, attempt, "dataset"),
                "cannot be copied, and with num_shards each shard has a copy",
                "make it in __iter__, or leave it out in __getstate__",
            ) from error
        self._pickled = file.getvalue()

    def make(self) -> Any:
        """Return another copy."""
        unpickler = _Unpickler(io.BytesIO(self._pickled))
        unpickler.shared = self._shared
        return unpickler.load()


class _Pickler(pickle.Pickler):
    """Writes down where copies are to have the same object."""

    def __init__(self, file: io.BytesIO, shared: list[object]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._shared = shared
        self._places: dict[int, int] = {}
        self._epochs: set[int] = set()

    def persistent_id(self, obj: object) -> int | None:
        if type(obj) is _Same:
            obj = obj.obj
        elif id(obj) in self._epochs or not _is_shared(obj):
            return None
        place = self._places.setdefault(id(obj), len(self._shared))
        if place == len(self._shared):
            self._shared.append(obj)
        return place

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        self._epochs.add(id(shared_epoch(obj)))
        if names := getattr(kind, "shared_by_readers", ()):
            same = {name: _Same(vars(obj)[name]) for name in names}
            return object.__new__, (kind,), {**obj.__getstate__(), **same}
        if not hasattr(kind, "__deepcopy__") or issubclass(kind, _BY_CONTENT):
            return NotImplemented
        return copy.deepcopy, (_Same(obj),)


class _Same(NamedTuple):
    """What :func:`copy.deepcopy` is called with for each copy: the object itself."""

    obj: object


class _Unpickler(pickle.Unpickler):
    shared: list[object]

    def persistent_load(self, pid: int) -> object:
        return self.shared[pid]


def _is_shared(value: object) -> bool:
    """Whether copies are to have the same object."""
    if isinstance(value, torch.Tensor):
        return value.device.type == "cpu" and bool(value.is_shared())  # type: ignore[no-untyped-call]
    return isinstance(value, _SHARED) or id(value) in _GLOBALS or _is_read_only(value)


def _is_read_only(value: object) -> bool:
    """Whether this is an array that nothing can be written to, nor to what it is a view of."""
    while isinstance(value, np.ndarray):
        if value.flags.writeable or value.dtype.hasobject:
            return False
        if value.base is None:
            return True
        value = value.base
    if isinstance(value, memoryview):
        return value.readonly
    return isinstance(value, (bytes, mmap.mmap))
