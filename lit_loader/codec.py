"""A batch as bytes in a slot, and back without a copy.

::

    slot  │ tensors and arrays, each on a 64-byte boundary │ descriptor                    │
          │ (those collated in place are there already)    │ length │ table │ small pickle │

`encode` lets `lit_loader.reductions` take the batch apart, lays the parts out in the slot and
writes the descriptor behind them: a table (one row a part: kind, dtype, place, shape, strides)
and the pickle of the structure. `decode` builds every part over the bytes where they lie and
lets the unpickler put them in their places. A descriptor stands for itself: any worker may have
written it, batches may be decoded in any order, in any thread.

What is promised:

* Values, dtypes, shapes and the order of the dimensions in memory (C, F, channels_last, expanded)
  stay. A view that spans more than twice its own bytes, and overlaps nothing, is packed.
* Tensors and arrays that overlap in memory do so again; overlapping tensors share one storage.
  Other storages have the size of their tensor, however large the one they were cut from.
* Decoded parts are writable, are normal tensors also under ``torch.inference_mode``, and keep
  ``memory`` alive: a weak reference to it dies with the last of them.
"""

from __future__ import annotations

import ctypes
import marshal
import pickle
import struct
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lit_loader.errors import TransportError
from lit_loader.places import find_failure, short_repr
from lit_loader.reductions import Part, Refusal, pickle_apart, unpickle_together
from lit_loader.slot import NUMPY_DTYPES, SlotFull, SlotWriter, align, storage_at, tensor_over

__all__ = ["SlotFull", "SlotWriter", "decode", "encode"]

_LENGTH = struct.Struct("<Q")

_DTYPE_NAMES = {
    dtype: name for name, dtype in vars(torch).items() if isinstance(dtype, torch.dtype)
}
_NUMPY_DTYPES = {_DTYPE_NAMES[dtype]: numpy_dtype for dtype, numpy_dtype in NUMPY_DTYPES.items()}

# The first item of a row of the table says what the others are.
_TENSOR = 0  # dtype name, byte, shape, strides in bytes or None: of a dtype that NumPy knows
_SHARING = 1  # dtype name, first byte and size of the storage, storage offset, shape, strides
_EMPTY = 2  # dtype name, shape, strides: no bytes
_ARRAY = 3  # dtype string, byte of the first element, shape, strides in bytes or None

_MAX_NUMPY_DIMENSIONS = 32  # of NumPy 1; torch and NumPy 2 go up to 64

# How much more than the bytes already laid out a part may need in another slot: padding, and a
# row whose numbers have grown.
_SLACK_PER_PART = 128

_Row = tuple[Any, ...]
_Copy = tuple[int, int, int]  # byte in the slot, address, size in bytes


def encode(batch: object, writer: SlotWriter) -> tuple[int, int]:
    """Write a batch into a slot, behind what ``writer`` has handed out.

    Tensors that ``writer`` handed out stay where they are; everything else is copied once. After
    `SlotFull` nothing has changed, and the same batch may be encoded again with another writer.

    Args:
        batch: Any picklable object.
        writer: Of the slot. Its position moves behind the batch.

    Returns:
        Place of the descriptor in the slot: first byte, size in bytes.

    Raises:
        SlotFull: The slot is too small; says how large a one would do.
        TransportError: Something in the batch cannot be carried; names it and its place.
    """
    try:
        file, parts = pickle_apart(batch)
    except MemoryError:
        raise
    except Exception as error:
        raise _cannot_carry(batch, error) from error
    rows, copies, position = _lay_out(parts, writer)
    table = marshal.dumps(rows)
    skeleton = file.getbuffer()
    offset = align(position)
    middle = offset + _LENGTH.size + len(table)
    end = middle + len(skeleton)
    if end > len(writer.view):
        raise SlotFull(end + _SLACK_PER_PART * (1 + len(parts)))
    for byte, address, nbytes in copies:
        # Bytes and not elements: whatever the strides, a part arrives as it lies in memory.
        ctypes.memmove(writer.base + byte, address, nbytes)
    _LENGTH.pack_into(writer.view, offset, len(table))
    writer.view[offset + _LENGTH.size : middle] = table
    writer.view[middle:end] = skeleton
    writer.position = end
    return offset, end - offset


def decode(memory: npt.NDArray[np.uint8], offset: int, nbytes: int) -> object:
    """Return the batch whose descriptor lies at ``memory[offset : offset + nbytes]``.

    Tensors and arrays look into ``memory``, in which they may be written, and keep it alive.

    Args:
        memory: The slot's bytes: uint8, one dimension, contiguous, writable. A weak reference to
            this very object dies with the last tensor, array or storage of the batch.
        offset: First byte of the descriptor.
        nbytes: Its size in bytes.

    Raises:
        TransportError: An object of the batch cannot be unpickled in this process.
    """
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):  # a batch is normal tensors, wherever it is asked for
            return _decode(memory, offset, nbytes)
    return _decode(memory, offset, nbytes)


def _decode(memory: npt.NDArray[np.uint8], offset: int, nbytes: int) -> object:
    view = memory.data[offset : offset + nbytes]
    middle = _LENGTH.size + _LENGTH.unpack_from(view)[0]
    rows = marshal.loads(view[_LENGTH.size : middle])
    try:
        return unpickle_together(view[middle:], _build(memory, rows))
    except MemoryError:
        raise
    except Exception as error:
        raise TransportError(
            f"the batch was pickled in the worker but cannot be unpickled here "
            f"({type(error).__name__}: {error}); make its classes importable and able to be "
            "copied with copy.deepcopy, or return plain containers"
        ) from error


def _build(memory: npt.NDArray[np.uint8], rows: list[_Row]) -> Iterator[Part]:
    """Build the parts of a batch over ``memory``, in the order of the table."""
    # NumPy replaces the base of an array by the base's base as long as those are arrays, so the
    # result would keep the mapping alive and not ``memory``. A PickleBuffer ends the chain.
    buffer: Any = pickle.PickleBuffer(memory.data)
    memory = np.frombuffer(buffer, np.uint8)
    storages: dict[tuple[int, int], torch.UntypedStorage] = {}
    for row in rows:
        kind = row[0]
        if kind == _TENSOR:
            _, name, byte, shape, strides = row
            # Through NumPy: torch's own frombuffer makes flat tensors, and shaping takes longer.
            yield torch.from_numpy(np.ndarray(shape, _NUMPY_DTYPES[name], memory, byte, strides))
        elif kind == _ARRAY:
            _, dtype, byte, shape, strides = row
            yield np.ndarray(shape, dtype, memory, byte, strides)
        elif kind == _EMPTY:
            _, name, shape, strides = row
            nothing = torch.empty(0, dtype=torch.uint8, device="cpu").untyped_storage()
            yield tensor_over(nothing, getattr(torch, name), shape, strides)
        else:
            _, name, byte, size, storage_offset, shape, strides = row
            storage = storages.get((byte, size))
            if storage is None:
                storage = storages[byte, size] = storage_at(memory, byte, size)
            yield tensor_over(storage, getattr(torch, name), shape, strides, storage_offset)


def _lay_out(parts: list[Part], writer: SlotWriter) -> tuple[list[_Row], list[_Copy], int]:
    """Give every part its place in the slot.

    Returns:
        The table (a row a part), the copies to be made, and the first byte behind them all.
    """
    # This loop and the next are most of what a batch of many small tensors costs: the usual
    # contiguous tensor is dealt with in place, without a call.
    rows: list[_Row] = [()] * len(parts)
    spans: list[tuple[int, int, int]] = []  # first byte, byte behind the last, which part
    strided: set[int] = set()
    for index, part in enumerate(parts):
        if type(part) is torch.Tensor and part.is_contiguous():
            start = part.data_ptr()
            end = start + part.nbytes
            if start == end:
                rows[index] = _EMPTY, _DTYPE_NAMES[part.dtype], tuple(part.shape), part.stride()
                continue
        else:
            start, end = _span(part)
            strided.add(index)
        spans.append((start, end, index))
    spans.sort()  # what overlaps is neighbours now
    copies: list[_Copy] = []
    base = writer.base
    in_slot, slot_end = base + writer.start, base + writer.position
    position = writer.position
    after, count = 0, len(spans)
    while after < count:
        start, end, index = spans[after]
        first = after
        after += 1
        while after < count and spans[after][0] < end:
            end = max(end, spans[after][1])
            after += 1
        alone = after == first + 1
        here = in_slot <= start and end <= slot_end
        if not alone:
            start -= _lead([parts[member] for _, _, member in spans[first:after]], start)
        elif index in strided and not here and end - start > 2 * parts[index].nbytes:
            parts[index] = _packed(parts[index])
            start, end = _span(parts[index])
            spans[first] = start, end, index
        if here:
            byte = start - base
        else:
            byte = align(position)
            position = byte + end - start
            copies.append((byte, start, end - start))
        if alone and index not in strided:
            part = parts[index]
            name = _DTYPE_NAMES[part.dtype]  # type: ignore[index]  # a tensor: arrays are strided
            if name in _NUMPY_DTYPES and len(shape := tuple(part.shape)) <= _MAX_NUMPY_DIMENSIONS:
                rows[index] = _TENSOR, name, byte, shape, None
                continue
        for low, high, member in spans[first:after]:
            rows[member] = _row(parts[member], alone, low, high, byte, start, end)
    return rows, copies, position


def _row(part: Part, alone: bool, low: int, high: int, byte: int, start: int, end: int) -> _Row:
    """Return the row of a part from ``low`` to ``high`` (addresses).

    It belongs to the stretch from ``start`` to ``end``, which lies at ``byte`` in the slot.
    """
    if isinstance(part, np.ndarray):
        dtype = part.dtype
        # What is not builtin comes back as void of the same size; its pickle gives the dtype.
        name = dtype.str if dtype.isbuiltin and dtype.metadata is None else f"V{dtype.itemsize}"
        byte += low - start
        if part.flags.c_contiguous:
            return _ARRAY, name, byte, part.shape, None
        for size, step in zip(part.shape, part.strides, strict=True):
            byte -= min(0, (size - 1) * step)  # the first element of a reversed array is behind
        return _ARRAY, name, byte, part.shape, part.strides
    name = _DTYPE_NAMES[part.dtype]
    shape, strides, itemsize = tuple(part.shape), part.stride(), part.element_size()
    if alone and name in _NUMPY_DTYPES and len(shape) <= _MAX_NUMPY_DIMENSIONS:
        return _TENSOR, name, byte, shape, tuple([step * itemsize for step in strides])
    storage_offset, odd = divmod(low - start, itemsize)
    if odd:  # only where storages overlap that torch itself does not take for one
        return _SHARING, name, byte + low - start, high - low, 0, shape, strides
    return _SHARING, name, byte, end - start, storage_offset, shape, strides


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


def _lead(parts: Iterable[Part], start: int) -> int:
    """Return how many bytes before ``start`` overlapping parts' storage is to begin.

    Its tensors, of whatever dtype, then begin a whole number of elements behind its beginning, as
    they do in the storage they come from.
    """
    for part in parts:
        if isinstance(part, torch.Tensor):
            root = part.untyped_storage().data_ptr()
            if root <= start:
                return (start - root) % 16  # bytes of the largest element, a complex128
    return 0


def _packed(part: Part) -> Part:
    """Return a copy without gaps, the dimensions in the same order of memory."""
    return part.copy(order="K") if isinstance(part, np.ndarray) else part.clone()


def _cannot_carry(batch: object, error: Exception) -> TransportError:
    path, value, error = find_failure(batch, error, pickle_apart)
    if isinstance(error, Refusal):
        return TransportError(f"{path}: {error}")
    return TransportError(
        f"{path}: {short_repr(value)} of type {type(value).__module__}.{type(value).__qualname__} "
        f"cannot be pickled ({type(error).__name__}: {error}); leave it out of the "
        "batch, or return what it is made from"
    )
