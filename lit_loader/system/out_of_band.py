"""`OutOfBand`: large buffers of what is being pickled are noted, and not copied into the pickle.

NumPy arrays and torch storages are described by where their bytes lie; objects that know pickle's
protocol 5 (those of pyarrow, say) hand over their buffers themselves. All of them appear in the
pickle as buffers that it does not contain, in the order of `spans`::

    array, view of it ──▶ two spans that overlap ──▶ one stretch of a `BufferFile`
    torch storage     ──▶ a span

What overlaps in memory overlaps in the file, so views of one array, and a tensor and the array that
it was made of, are still that when they are unpickled. What is small, and has no part in anything
large, stays in the pickle: so do arrays of objects. Storages in shared memory are left to torch,
which has them stay shared.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["LARGE", "PROTOCOL", "OutOfBand", "Reducer", "Span", "memory_at"]

Reducer: TypeAlias = "Callable[[Any], Any]"

LARGE: Final = 1 << 16
"""Bytes from which on a buffer is kept out of the pickle."""

_PLAIN_KINDS: Final = frozenset("biufcmMSUV?")
"""Kinds of elements that are their bytes; others hold pointers."""

PROTOCOL: Final = 5
"""Of pickle: the first one that knows buffers out of band."""


class Span(NamedTuple):
    """A stretch of memory that something being pickled looks into.

    Attributes:
        memory: Its bytes, uint8; keeps them alive.
        sparse: The array, if it uses so little of its span that only what it uses is worth
            carrying, unless all of the span is carried anyway.
        readonly: Whether what looks into it may not be written to, and asks its buffer.
    """

    memory: NDArray[np.uint8]
    sparse: NDArray[Any] | None = None
    readonly: bool = False


class OutOfBand:
    """Notes the large buffers of one pickle.

    Args:
        reducers: How objects are pickled otherwise, by type.

    Attributes:
        spans: The buffers, in the order in which the pickle asks for them.
    """

    def __init__(self, reducers: Mapping[type, Reducer]) -> None:
        self.spans: list[Span] = []
        self._noted: dict[int, pickle.PickleBuffer] = {}
        self._others = reducers

    def reducers(self) -> dict[type, Reducer]:
        """Returns how objects of some types are pickled, by type."""
        found: dict[type, Reducer] = {np.ndarray: self._reduce_array}
        torch = sys.modules.get("torch")
        if torch is not None and torch.UntypedStorage in self._others:
            found[torch.UntypedStorage] = self._reduce_storage
        return found

    def stays_inside(self, buffer: pickle.PickleBuffer) -> bool:
        """Take over a buffer, unless it is to stay in the pickle; the pickler's callback."""
        if id(buffer) in self._noted:
            return False
        raw = buffer.raw()
        if raw.nbytes < LARGE:
            return True
        self.spans.append(Span(np.frombuffer(raw, np.uint8), readonly=raw.readonly))
        return False

    def _note(self, span: Span) -> pickle.PickleBuffer:
        """Returns what stands for a span in the pickle."""
        buffer = pickle.PickleBuffer(span.memory)
        self._noted[id(buffer)] = buffer
        self.spans.append(span)
        return buffer

    def _reduce_array(self, array: NDArray[Any]) -> Any:
        dtype = array.dtype
        if dtype.kind not in _PLAIN_KINDS or dtype.hasobject or not array.nbytes:
            return array.__reduce_ex__(PROTOCOL)
        if array.base is None:
            if array.nbytes < LARGE:
                return array.__reduce_ex__(PROTOCOL)
        elif _whole(array).nbytes < LARGE:
            return array.__reduce_ex__(PROTOCOL)
        start, nbytes = _extent(array)
        memory = memory_at(array.__array_interface__["data"][0] - start, nbytes, array)
        sparse = array if 4 * array.nbytes < 3 * nbytes else None
        look = (dtype, array.shape, array.strides, start, nbytes, array.flags.writeable)
        return _array_of, (self._note(Span(memory, sparse)), *look)

    def _reduce_storage(self, storage: Any) -> Any:
        nbytes = storage.nbytes()
        if storage.device.type != "cpu" or storage.is_shared() or not nbytes:
            return self._others[type(storage)](storage)
        memory = memory_at(storage.data_ptr(), nbytes, storage)
        if nbytes < LARGE:
            return _storage_of, (bytearray(memory),)
        return _storage_of, (self._note(Span(memory)),)


class _Memory:
    """Memory of another object, for NumPy to look into."""

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


def memory_at(address: int, nbytes: int, owner: object) -> NDArray[np.uint8]:
    """Returns ``nbytes`` of memory as an array, uint8, that keeps its ``owner`` alive."""
    return np.asarray(_Memory(address, nbytes, owner))


def _whole(array: NDArray[Any]) -> NDArray[Any]:
    """Returns the array that this one is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _extent(array: NDArray[Any]) -> tuple[int, int]:
    """Returns how far the first element lies behind the lowest byte, and the bytes in between."""
    reach = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    below = -sum(min(0, step) for step in reach)
    return below, below + sum(max(0, step) for step in reach) + array.itemsize


def _array_of(
    buffer: Any,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    start: int,
    nbytes: int,
    writeable: bool,
) -> NDArray[Any]:
    """Make the array whose span, or whose elements alone in C order, the buffer holds."""
    if memoryview(buffer).nbytes < nbytes:
        strides, start = None, 0
    array: NDArray[Any] = np.ndarray(shape, dtype, buffer, start, strides)
    array.flags.writeable = writeable
    return array


def _storage_of(buffer: Any) -> Any:
    import torch

    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()
