"""`OutOfBand`: large buffers of what is being pickled are noted, and not copied into the pickle.

NumPy arrays and torch storages are described by where their bytes lie; objects that know pickle's
protocol 5 (those of pyarrow, say) hand over their buffers themselves. All of them appear in the
pickle as buffers that it does not contain, in the order of `spans`::

    array, view of it ──▶ two spans that overlap ──▶ one stretch of a `BufferFile`
    torch storage     ──▶ a span
    bytes             ──▶ a span, taken out of the stream as it is written (`PickleFile`)

What overlaps in memory overlaps in the file, so views of one array, and a tensor and the array that
it was made of, are still that when they are unpickled. What is small, and has no part in anything
large, stays in the pickle: so do arrays of objects. Storages in shared memory are left to torch,
which has them stay shared.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lit_loader.system.mapped_files import MappedFile, mapping_behind

__all__ = [
    "LARGE",
    "PROTOCOL",
    "OutOfBand",
    "Reducer",
    "PickleFile",
    "Span",
    "address_of",
    "memory_at",
]

Reducer: TypeAlias = "Callable[[Any], Any]"

LARGE: Final = 1 << 16
"""Bytes from which on a buffer is kept out of the pickle."""

PROTOCOL: Final = 5
"""Of pickle: the first one that knows buffers out of band."""

_PLAIN_KINDS: Final = frozenset("biufcmMSUV?")
"""Kinds of elements that are their bytes; others hold pointers."""

_NEXT_BUFFER: Final = b"\x97"
"""Opcode: the next buffer out of band."""

_FRAME: Final = b"\x95"
"""Opcode that most of what a pickler writes at a time begins with; 8 bytes of length follow."""

_MARKER: Final = pickle.PickleBuffer(bytearray(1))
"""Stands for the next span in the pickle."""


class Span(NamedTuple):
    """A stretch of memory that something being pickled looks into.

    Attributes:
        address: Its first byte.
        nbytes: Its length.
        owner: Keeps it alive.
        sparse: Whether the owner, an array, uses so little of it that its elements alone are worth
            carrying, unless all of the stretch is carried anyway.
        readonly: Whether it must not be written to, and only its buffer says so.
        contents: Whether it is the contents of a `bytes` object.
    """

    address: int
    nbytes: int
    owner: Any
    sparse: bool = False
    readonly: bool = False
    contents: bool = False


class OutOfBand:
    """Notes the large buffers of one pickle.

    Args:
        reducers: How objects are pickled otherwise, by type.

    Attributes:
        spans: The buffers, in the order in which the pickle asks for them.
    """

    def __init__(self, reducers: Mapping[type, Reducer]) -> None:
        self.spans: list[Span] = []
        self._others = reducers
        self._files: dict[int, tuple[NDArray[Any], MappedFile | None]] = {}

    def reducers(self) -> dict[type, Reducer]:
        """Returns how objects of some types are pickled, by type."""
        found: dict[type, Reducer] = {
            np.ndarray: self._reduce_array,
            np.memmap: self._reduce_array,
        }
        torch = sys.modules.get("torch")
        if torch is not None and torch.UntypedStorage in self._others:
            found[torch.UntypedStorage] = self._reduce_storage
            found |= dict.fromkeys((torch.Tensor, torch.nn.Parameter), self._reduce_tensor)
        return found

    def stays_inside(self, buffer: pickle.PickleBuffer) -> bool:
        """Take over a buffer, unless it is to stay in the pickle; the pickler's callback."""
        if buffer is _MARKER:
            return False
        raw = buffer.raw()
        if raw.nbytes < LARGE:
            return True
        memory = np.frombuffer(raw, np.uint8)
        self.spans.append(Span(address_of(memory), raw.nbytes, memory, readonly=raw.readonly))
        return False

    def take_bytes(self, data: bytes) -> bytes:
        """Take over a large `bytes` object, and return what stands for it in the pickle."""
        address = address_of(np.frombuffer(data, np.uint8))
        self.spans.append(Span(address, len(data), data, contents=True))
        return _NEXT_BUFFER

    def _reduce_array(self, array: NDArray[Any]) -> Any:
        if array.nbytes < LARGE and (array.base is None or _whole(array).nbytes < LARGE):
            # Its elements are copied, in either way; the other one keeps it read-only.
            return array.__reduce__() if array.flags.writeable else array.__reduce_ex__(PROTOCOL)
        dtype = array.dtype
        if dtype.kind not in _PLAIN_KINDS or dtype.hasobject or not array.nbytes:
            return array.__reduce_ex__(PROTOCOL)
        if array.flags.c_contiguous:
            start, nbytes = 0, array.nbytes
        else:
            start, nbytes = _extent(array)
        low = address_of(array) - start
        look = (type(array), dtype, array.shape, array.strides, nbytes, array.flags.writeable)
        file = None if array.base is None else self._file_behind(array)
        if file is not None:
            return _array_of, (file, file.offset(low) + start, *look)
        self.spans.append(Span(low, nbytes, array, sparse=4 * array.nbytes < 3 * nbytes))
        return _array_of, (_MARKER, start, *look)

    def _file_behind(self, array: NDArray[Any]) -> MappedFile | None:
        """Returns the file that an array looks into: one object, whatever array of it asks."""
        whole = _whole(array)
        if not isinstance(whole, np.memmap):
            return None
        if id(whole) not in self._files:
            self._files[id(whole)] = whole, mapping_behind(whole)
        return self._files[id(whole)][1]

    def _reduce_tensor(self, tensor: Any) -> Any:
        """As torch does, which forgets that a view is the conjugate or negative of its bytes."""
        if not tensor.is_leaf or not (tensor.is_conj() or tensor.is_neg()):
            return self._others[type(tensor)](tensor)
        plain = tensor.detach().resolve_conj().resolve_neg()
        return _tensor_of, (type(tensor), plain, tensor.requires_grad)

    def _reduce_storage(self, storage: Any) -> Any:
        nbytes = storage.nbytes()
        if storage.device.type != "cpu" or storage.is_shared() or not nbytes:
            return self._others[type(storage)](storage)
        if nbytes < LARGE:
            return _storage_of, (bytearray(memory_at(storage.data_ptr(), nbytes, storage)),)
        self.spans.append(Span(storage.data_ptr(), nbytes, storage))
        return _storage_of, (_MARKER,)


def _tensor_of(kind: type, plain: Any, requires_grad: bool) -> Any:
    return plain.as_subclass(kind).requires_grad_(requires_grad)


class PickleFile(io.BytesIO):
    """Where a pickler writes to; large `bytes` objects are taken out on their way.

    A pickler writes these without copying: opcode and length end what it writes first, and next
    comes the object itself. (`persistent_id` would be called for every number and string.)

    Args:
        apart: Takes them over.
    """

    def __init__(self, apart: OutOfBand) -> None:
        super().__init__()
        self._apart = apart
        self._end = b""

    def write(self, data: Any) -> int:
        """Write a part of the pickle, or what stands for it."""
        if type(data) is bytes and len(data) >= LARGE and not _is_frame(data):
            opcode = _opcode_of(data)
            if self._end.endswith(opcode):
                self.seek(-len(opcode), io.SEEK_END)
                self.truncate()
                data = self._apart.take_bytes(data)
        self._end = bytes(data[-9:])
        return super().write(data)


def _opcode_of(data: bytes) -> bytes:
    """Returns what comes before a `bytes` object in a pickle."""
    if len(data) < 1 << 32:
        return b"B" + len(data).to_bytes(4, "little")
    return b"\x8e" + len(data).to_bytes(8, "little")


def _is_frame(data: bytes) -> bool:
    """Whether this looks like opcodes that a pickler has gathered, and perhaps is."""
    return data[:1] == _FRAME and int.from_bytes(data[1:9], "little") + 9 <= len(data)


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


def address_of(array: NDArray[Any]) -> int:
    """Returns where an array's first element lies."""
    address: int = array.__array_interface__["data"][0]
    return address


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
    buffer: memoryview | NDArray[np.uint8],
    start: int,
    kind: type[NDArray[Any]],
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    nbytes: int,
    writeable: bool,
) -> NDArray[Any]:
    """Make the array that looks into a buffer, or whose elements alone, in C order, it holds."""
    if buffer.nbytes < nbytes:
        strides, start = None, 0
    array: NDArray[Any] = np.ndarray.__new__(kind, shape, dtype, buffer, start, strides)
    if isinstance(array, np.memmap) and isinstance(buffer, np.memmap):
        array.filename, array.mode, array.offset = buffer.filename, buffer.mode, start
    if not writeable:
        array.flags.writeable = False
    return array


def _storage_of(buffer: memoryview | bytearray) -> Any:
    import torch

    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()
