"""A batch as bytes in a slot, and back without a copy.

::

    slot  │ tensors and arrays, each on a 64-byte boundary │ descriptor                    │
          │ (those collated in place are there already)    │ length │ table │ small pickle │

`encode` takes the batch apart (`core/transport/reductions.py`), gives every part its place in the
slot (`core/transport/codec.py`) and writes the descriptor behind them: a table (the form of a
simple batch, and a row a part: kind, dtype, place, shape, strides) and the pickle of a structure
that is not simple. `decode` builds every part over the bytes where they lie and puts them in their
places. A descriptor stands for itself: any worker may have written it, batches may be decoded in
any order, in any thread.

What is promised:

* Values, dtypes, shapes and the order of the dimensions in memory (C, F, channels_last, expanded)
  stay. A view that spans more than twice its own bytes is packed.
* An object met twice is one object again. Different tensors and arrays that overlap in memory come
  apart. A storage has the size of its tensor, however large the one that was cut from.
* Decoded parts are writable, are normal tensors also under ``torch.inference_mode``, and keep
  ``memory`` alive: a weak reference to it dies with the last of them. The consumer's side may have
  them lie elsewhere, each in memory of its own, or small ones together (`core/transport/arena.py`).
"""

from __future__ import annotations

import ctypes  # reach: python: memmove of ctypes is the quickest copy of bytes by address
import marshal
import math
import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import countOf, itemgetter
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from lit_loader.core.transport.arena import Pieces, Stretch, over
from lit_loader.core.transport.reductions import (
    Part,
    Refusal,
    is_plain,
    is_plain_array,
    pickle_apart,
    unpickle_together,
)
from lit_loader.describe import find_failing_object, short_repr
from lit_loader.errors import TransportError

DTYPE_NAMES: Final = {
    dtype: name for name, dtype in vars(torch).items() if isinstance(dtype, torch.dtype)
}
"""The name of each of torch's dtypes, which is an attribute of ``torch``."""

_SHARED: Final = (
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
)

NUMPY_DTYPES: Final[dict[torch.dtype, np.dtype[np.generic]]] = {
    dtype: torch.empty(0, dtype=dtype, device="cpu").numpy().dtype for dtype in _SHARED
}
"""NumPy's dtype for torch's, where there is one: NumPy is torch's quickest way to a tensor."""

TORCH_DTYPES: Final = {numpy_dtype: dtype for dtype, numpy_dtype in NUMPY_DTYPES.items()}
"""The other way round."""


# --- the writer: one slot of shared memory as a bump allocator, and tensors over its bytes ---

# A worker hands out stretches of the slot from the front, each on a 64-byte boundary (a cache line,
# and the widest vector register): to collation, which stacks large tensors there, and to the codec
# for all else. It forgets all of them at once before the next batch.


Bytes = npt.NDArray[np.uint8]

ALIGNMENT = 64
"""Boundary, in bytes, on which every tensor, array and descriptor begins."""


class SlotFull(Exception):
    """The batch does not fit into its slot.

    Attributes:
        nbytes: Size in bytes of a slot that certainly holds the batch; encode it again in one.
    """

    def __init__(self, nbytes: int) -> None:
        super().__init__(f"the batch needs a slot of {nbytes} bytes")
        self.nbytes = nbytes


def align(position: int) -> int:
    """Return ``position`` (bytes) moved up to the next boundary."""
    return (position + ALIGNMENT - 1) & -ALIGNMENT


def storage_at(memory: Bytes, offset: int, nbytes: int) -> torch.UntypedStorage:
    """Return ``memory[offset : offset + nbytes]`` (at least one byte) as a storage of that size.

    The storage, and so whatever lies over it, keeps ``memory`` alive.
    """
    flat = torch.frombuffer(memory, dtype=torch.uint8, count=nbytes, offset=offset)
    return flat.untyped_storage()


def tensor_over(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    shape: Sequence[int],
    strides: Sequence[int],
) -> torch.Tensor:
    """Return a tensor over a storage; strides count elements.

    Takes every dtype, also those that NumPy does not know. `torch.Tensor.set_` and not a view of
    a flat tensor: autograd would take the result for a view, and refuse to detach it in place.
    """
    # From a buffer and not torch.empty, which warns of the dtypes it finds experimental.
    tensor = torch.frombuffer(_ONE_ELEMENT, dtype=dtype, count=1)
    return tensor.set_(storage, 0, tuple(shape), tuple(strides))


_ONE_ELEMENT = bytearray(16)


class SlotWriter:
    """Hands out the memory of one slot (uint8, contiguous, writable) from front to back.

    From ``start`` on, up to ``position``, it is handed out.
    """

    def __init__(self, memory: Bytes) -> None:
        self.memory = memory
        self.view = memory.data  # the same bytes as a memoryview, the quicker way to write a few
        self.base: int = memory.__array_interface__["data"][0]  # address of its first byte
        self.start = self.position = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
        """Return an uninitialised contiguous tensor in the slot; None: no room, or no bytes."""
        nbytes = dtype.itemsize * math.prod(shape)
        offset = align(self.position)
        end = offset + nbytes
        if nbytes == 0 or end > self.memory.size:
            return None
        self.position = end
        numpy_dtype = NUMPY_DTYPES.get(dtype)
        if numpy_dtype is None:
            storage = storage_at(self.memory, offset, nbytes)
            strides = torch.empty(shape, device="meta").stride()
            return tensor_over(storage, dtype, shape, strides)
        return torch.from_numpy(np.ndarray(shape, numpy_dtype, self.memory, offset))


# --- the layout: the table of a batch's descriptor, written and read ---


_NUMPY_NAMES = {dtype: DTYPE_NAMES[dtype] for dtype in NUMPY_DTYPES}
_NUMPY_DTYPES = {DTYPE_NAMES[dtype]: numpy_dtype for dtype, numpy_dtype in NUMPY_DTYPES.items()}

# The first item of a row of the table says what the others are.
_TENSOR = 0  # dtype name, byte, shape, strides in bytes or None: of a dtype that NumPy knows
_OTHER = 1  # dtype name, byte, size in bytes, shape, strides: NumPy knows no such tensor
_EMPTY = 2  # dtype name, shape, strides: no bytes
_ARRAY = 3  # dtype string, byte of the first element, shape, strides in bytes or None

_MAX_NUMPY_DIMENSIONS = 32  # of NumPy 1; torch and NumPy 2 go up to 64

_Row = tuple[Any, ...]
_Copy = tuple[int, int, int]  # byte in the slot, address, size in bytes
_Span = tuple[int, int, int, bool]  # address, the one behind, which part, a contiguous tensor?


def lay_out(
    parts: list[Part], writer: SlotWriter
) -> tuple[list[_Row], list[Stretch], list[_Copy], int]:
    """Assign every part its place in the slot; what ``writer`` has placed stays there.

    A part with large gaps is replaced by a copy without. Returns the table (a row a part), the
    stretches of the slot that the parts lie in (sorted), the copies to be made, and the first byte
    behind them all.
    """
    rows: list[_Row] = [()] * len(parts)
    spans: list[_Span] = []
    stretches: list[Stretch] = []
    copies: list[_Copy] = []
    base, position = writer.base, writer.position
    in_slot, slot_end = base + writer.start, base + position
    # The loops here are most of what a batch of many small tensors costs: the usual contiguous
    # tensor goes through them without a call.
    for index, part in enumerate(parts):
        if type(part) is torch.Tensor and part.is_contiguous():
            start, nbytes = part.data_ptr(), part.nbytes
            if nbytes:
                spans.append((start, start + nbytes, index, True))
            else:
                rows[index] = _EMPTY, DTYPE_NAMES[part.dtype], tuple(part.shape), part.stride()
        else:
            spans.append((*_span(part), index, False))
    spans.sort()
    for start, end, index, contiguous in spans:
        if in_slot <= start and end <= slot_end:
            byte, in_slot = start - base, end  # the next one that lies there must not overlap it
        else:
            if not contiguous and end - start > 2 * parts[index].nbytes:
                parts[index] = _packed(parts[index])
                start, end = _span(parts[index])
            byte = (position + ALIGNMENT - 1) & -ALIGNMENT  # `align`, spelled out
            position = byte + end - start
            copies.append((byte, start, end - start))
        stretches.append((byte, byte + end - start))
        part = parts[index]
        if contiguous:
            name = _NUMPY_NAMES.get(part.dtype)  # type: ignore[arg-type]  # a tensor's
            if name is not None and len(shape := tuple(part.shape)) <= _MAX_NUMPY_DIMENSIONS:
                rows[index] = _TENSOR, name, byte, shape, None
                continue
        rows[index] = _row(part, byte, end - start)
    stretches.sort()  # those that lie in the slot already come anywhere
    return rows, stretches, copies, position


def _row(part: Part, byte: int, nbytes: int) -> _Row:
    if isinstance(part, np.ndarray):
        dtype = part.dtype
        # What is not builtin comes back as void of the same size; its pickle gives the dtype.
        name = dtype.str if dtype.isbuiltin and dtype.metadata is None else f"V{dtype.itemsize}"
        if part.flags.c_contiguous:
            return _ARRAY, name, byte, part.shape, None
        for size, step in zip(part.shape, part.strides, strict=True):
            byte -= min(0, (size - 1) * step)  # the first element of a reversed array is behind
        return _ARRAY, name, byte, part.shape, part.strides
    name = DTYPE_NAMES[part.dtype]
    shape, strides, itemsize = tuple(part.shape), part.stride(), part.element_size()
    if name in _NUMPY_DTYPES and len(shape) <= _MAX_NUMPY_DIMENSIONS:
        return _TENSOR, name, byte, shape, tuple([step * itemsize for step in strides])
    return _OTHER, name, byte, nbytes, shape, strides


def _span(part: Part) -> tuple[int, int]:
    """Return the addresses of a part's first byte and of the one behind its last."""
    if isinstance(part, np.ndarray):
        low = part.__array_interface__["data"][0]
        if part.flags.c_contiguous:
            return low, low + part.nbytes
        high = low + part.itemsize
        for size, step in zip(part.shape, part.strides, strict=True):
            if step < 0:
                low += (size - 1) * step
            else:
                high += (size - 1) * step
        return low, high
    start = part.data_ptr()
    if part.is_contiguous():
        return start, start + part.nbytes
    last = 0
    for size, step in zip(part.shape, part.stride(), strict=True):
        last += (size - 1) * step
    return start, start + (last + 1) * part.element_size()


def _packed(part: Part) -> Part:
    """Return a copy without gaps, the dimensions in the same order of memory."""
    return part.copy(order="K") if isinstance(part, np.ndarray) else part.clone()


def build(
    memory: npt.NDArray[np.uint8], rows: list[_Row], pieces: Pieces | None = None
) -> list[Part]:
    """Build the parts of a batch over what they lie in, in the order of the table."""
    if type(memory) is np.ndarray:  # a lease is seen by what looks into it
        memory = over(memory)
    first = 0
    parts: list[Part] = []
    for row in rows:
        kind = row[0]
        if pieces is not None and kind != _EMPTY:
            _, memory, first = pieces[bisect_right(pieces, row[2], key=itemgetter(0)) - 1]
        if kind == _TENSOR:
            _, name, byte, shape, strides = row
            # Through NumPy: torch's own frombuffer makes flat tensors, and shaping takes longer.
            array = np.ndarray(shape, _NUMPY_DTYPES[name], memory, byte - first, strides)
            parts.append(torch.from_numpy(array))
        elif kind == _ARRAY:
            _, dtype, byte, shape, strides = row
            parts.append(np.ndarray(shape, dtype, memory, byte - first, strides))
        elif kind == _EMPTY:
            _, name, shape, strides = row
            nothing = torch.empty(0, dtype=torch.uint8, device="cpu").untyped_storage()
            parts.append(tensor_over(nothing, getattr(torch, name), shape, strides))
        else:
            _, name, byte, nbytes, shape, strides = row
            storage = storage_at(memory, byte - first, nbytes)
            parts.append(tensor_over(storage, getattr(torch, name), shape, strides))
    return parts


Divide: TypeAlias = Callable[[Any, list[Stretch]], Pieces | None]
"""Given a slot's bytes and the stretches in use, says where these are to lie; None: as they do."""

_LENGTH = struct.Struct("<Q")


# --- encode and decode ---

# How much more than the bytes already laid out a part may need in another slot: padding, and a
# row whose numbers have grown.
_SLACK_PER_PART = 128


def encode(batch: object, writer: SlotWriter) -> tuple[int, int]:
    """Write a batch into a slot, behind what ``writer`` has handed out.

    Tensors that ``writer`` handed out stay where they are; everything else is copied once. After
    `SlotFull` nothing has changed, and the same batch may be encoded again with another writer.

    Args:
        batch: Any picklable object.
        writer: Of the slot. Its position moves after the batch.

    Returns:
        Place of the descriptor in the slot: first byte, size in bytes.

    Raises:
        SlotFull: The slot is too small; says how large a one would do.
        TransportError: Something in the batch cannot be carried; names it and its place.
    """
    form, others, parts = _flat(batch)
    skeleton = b""
    if form is None:
        try:
            skeleton, parts = pickle_apart(batch)
        except MemoryError:
            raise
        except Exception as error:
            raise _cannot_carry(batch, error) from error
    rows, stretches, copies, position = lay_out(parts, writer)
    table = marshal.dumps((form, others, rows, stretches))
    offset = (position + ALIGNMENT - 1) & -ALIGNMENT
    end = offset + _LENGTH.size + len(table) + len(skeleton)
    if end > len(writer.view):
        raise SlotFull(end + _SLACK_PER_PART * (1 + len(parts)))
    for byte, address, nbytes in copies:
        # Bytes and not elements: whatever the strides, a part arrives as it lies in memory.
        ctypes.memmove(writer.base + byte, address, nbytes)
    writer.view[offset:end] = _LENGTH.pack(len(table)) + table + skeleton
    writer.position = end
    return offset, end - offset


def decode(
    memory: npt.NDArray[np.uint8], offset: int, nbytes: int, divide: Divide | None = None
) -> object:
    """Return the batch whose descriptor lies at ``memory[offset : offset + nbytes]``.

    Tensors and arrays look into ``memory``, in which they may be written, and keep it alive.

    Args:
        memory: The slot's bytes: uint8, one dimension, contiguous, writable. A weak reference to
            this very object dies with the last tensor, array or storage of the batch.
        offset: First byte of the descriptor.
        nbytes: Its size in bytes.
        divide: Says whether the parts are to lie elsewhere than in ``memory``; None: they are not.

    Raises:
        TransportError: An object of the batch cannot be unpickled in this process.
    """
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):  # a batch is normal tensors, wherever it is decoded
            return decode(memory, offset, nbytes, divide)
    view, begin = memory.data, offset + _LENGTH.size
    middle = begin + _LENGTH.unpack_from(view, offset)[0]
    form, others, rows, stretches = marshal.loads(view[begin:middle])
    parts: list[Part] = []
    if rows:  # else nothing looks into the slot, and nobody has to be told how it is held
        parts = build(memory, rows, None if divide is None else divide(memory, stretches))
    if form is not None:  # of which `_flat` says what it means
        if others is not None:
            parts = _with_others(parts, others)
        if form == _LIST:  # as nearly always
            return parts
        if form == _LONE:
            return parts[0]
        return tuple(parts) if form == _TUPLE else dict(zip(form, parts, strict=True))
    try:
        return unpickle_together(view[middle : offset + nbytes], parts)
    except MemoryError:
        raise
    except Exception as error:
        raise TransportError(
            f"the batch was pickled in the worker but cannot be unpickled here "
            f"({type(error).__name__}: {error}). Define its classes at the top level of a module "
            "so that copy.deepcopy can copy them, or return plain containers [LL115]"
        ) from error


_Form = int | tuple[str, ...]
_LONE, _LIST, _TUPLE = range(3)
_SCALARS = frozenset({int, float, complex, bool, str, bytes, type(None)})
_STRINGS = frozenset({str})


_Others = list[object] | dict[int, object]
"""Numbers and strings: all that the batch holds, or by their places."""


def _flat(batch: object) -> tuple[_Form | None, _Others | None, list[Part]]:
    """Return the form, the scalars and the tensors of a batch that has no other structure.

    One tensor, or a list, a tuple or a dict (of str) of different plain tensors, arrays, numbers
    and strings: what collation makes nearly always, and a cache's samples are. They need no
    pickler, which would cost as much as all the rest. Otherwise the form is None.
    """
    form: _Form
    values: Any = batch
    kind = type(batch)
    if kind is list or kind is tuple:
        form = _LIST if kind is list else _TUPLE
    elif kind is dict:
        form, values = tuple(batch), [*batch.values()]  # type: ignore[arg-type, attr-defined]
        if not _STRINGS.issuperset(map(type, form)):
            return None, None, []
    elif kind is torch.Tensor or kind is np.ndarray or kind in _SCALARS:
        form, values = _LONE, [batch]
    else:
        return None, None, []
    # A column of strings, say: nothing else tells so quickly that all are of one type.
    first = type(values[0]) if values else None
    if first in _SCALARS and countOf(map(type, values), first) == len(values):
        return form, values if kind is list else [*values], []
    others: dict[int, object] = {}
    parts: list[Part] = []
    for place, value in enumerate(values):
        if type(value) is torch.Tensor:
            if not is_plain(value):
                return None, None, []
            parts.append(value)
        elif type(value) in _SCALARS:
            others[place] = value
        elif type(value) is np.ndarray and is_plain_array(value):
            parts.append(value)
        else:
            return None, None, []
    if len(parts) > 1 and len(set(map(id, parts))) < len(parts):
        return None, None, []  # pickle's memo keeps one object met twice one object
    return form, others or None, parts


def _with_others(parts: list[Part], others: _Others) -> list[Any]:
    if type(others) is list:
        return others
    rest, count = iter(parts), len(parts) + len(others)
    return [others[place] if place in others else next(rest) for place in range(count)]


def _cannot_carry(batch: object, error: Exception) -> TransportError:
    path, value, error = find_failing_object(batch, error, pickle_apart)
    if isinstance(error, Refusal):
        return TransportError(f"{path}: {error}")
    return TransportError(
        f"{path}: {short_repr(value)} of type {type(value).__module__}.{type(value).__qualname__} "
        f"cannot be pickled ({type(error).__name__}: {error}). Leave it out of the "
        "batch, or return the data that it is built from [LL115]"
    )
