"""Where the parts of a batch lie in a slot: the table of a batch's descriptor, written and read."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lit_loader.memory.held_tensors import Pieces, Stretch, over
from lit_loader.transport.dtypes import DTYPE_NAMES, NUMPY_DTYPES
from lit_loader.transport.reductions import Part
from lit_loader.transport.slot_writer import (
    SlotWriter,
    align,
    storage_at,
    tensor_over,
)

__all__ = ["build", "lay_out"]

_NUMPY_NAMES = {dtype: DTYPE_NAMES[dtype] for dtype in NUMPY_DTYPES}
_NUMPY_DTYPES = {DTYPE_NAMES[dtype]: numpy_dtype for dtype, numpy_dtype in NUMPY_DTYPES.items()}

# The first item of a row of the table says what the others are.
_TENSOR = 0  # dtype name, byte, shape, strides in bytes or None: of a dtype that NumPy knows
_SHARING = 1  # dtype name, first byte and size of the storage, storage offset, shape, strides
_EMPTY = 2  # dtype name, shape, strides: no bytes
_ARRAY = 3  # dtype string, byte of the first element, shape, strides in bytes or None

_MAX_NUMPY_DIMENSIONS = 32  # of NumPy 1; torch and NumPy 2 go up to 64

_Row = tuple[Any, ...]
_Copy = tuple[int, int, int]  # byte in the slot, address, size in bytes
_Span = tuple[int, int, int, bool]  # address, the one behind, which part, a contiguous tensor?


def lay_out(
    parts: list[Part], writer: SlotWriter
) -> tuple[list[_Row], list[Stretch], list[_Copy], int]:
    """Give every part its place in the slot.

    Args:
        parts: The batch's; one with large gaps is replaced by a copy without.
        writer: Of the slot. What lies between its ``start`` and its ``position`` stays there.

    Returns:
        The table (a row a part), the stretches of the slot that the parts lie in (sorted; what
        overlaps lies in one), the copies to be made, and the first byte behind them all.
    """
    rows: list[_Row] = [()] * len(parts)
    stretches: list[Stretch] = []
    copies: list[_Copy] = []
    base, position = writer.base, writer.position
    in_slot, slot_end = base + writer.start, base + position
    overlapping = False
    # This loop and the one in `_spans` are most of what a batch of many small tensors costs: the
    # usual contiguous tensor goes through them without a call.
    for group in _merge_overlaps(_spans(parts, rows)):
        start, end, index, contiguous = group[0]
        alone = len(group) == 1
        if not alone:
            end = max([high for _, high, _, _ in group])
        here = in_slot <= start and end <= slot_end
        if not alone:
            overlapping = True
            start -= _lead([parts[member] for _, _, member, _ in group], start)
        elif not (contiguous or here) and end - start > 2 * parts[index].nbytes:
            parts[index] = _packed(parts[index])
            start, end = _span(parts[index])
            group = ((start, end, index, False),)
        if here:
            byte = start - base
        else:
            byte = align(position)
            position = byte + end - start
            copies.append((byte, start, end - start))
        stretches.append((byte, byte + end - start))
        if alone and contiguous:
            part = parts[index]
            name = _NUMPY_NAMES.get(part.dtype)  # type: ignore[arg-type]  # a tensor's
            if name is not None and len(shape := tuple(part.shape)) <= _MAX_NUMPY_DIMENSIONS:
                rows[index] = _TENSOR, name, byte, shape, None
                continue
        for low, high, member, _ in group:
            rows[member] = _row(parts[member], alone, low, high, byte, start, end)
    stretches.sort()  # those that lie in the slot already come anywhere
    return rows, _joined(stretches) if overlapping else stretches, copies, position


def _spans(parts: list[Part], rows: list[_Row]) -> list[_Span]:
    """Return where in memory the parts lie, sorted; one without bytes gets its row at once."""
    spans: list[_Span] = []
    for index, part in enumerate(parts):
        if type(part) is torch.Tensor and part.is_contiguous():
            start = part.data_ptr()
            end = start + part.nbytes
            if start < end:
                spans.append((start, end, index, True))
            else:
                rows[index] = _EMPTY, DTYPE_NAMES[part.dtype], tuple(part.shape), part.stride()
        else:
            spans.append((*_span(part), index, False))
    spans.sort()
    return spans


def _merge_overlaps(spans: list[_Span]) -> Iterable[Sequence[_Span]]:
    """Return groups of sorted spans: those that overlap in one, in nearly all batches none do."""
    if len(spans) < 2 or not [1 for one, other in itertools.pairwise(spans) if other[0] < one[1]]:
        return zip(spans)
    groups: list[list[_Span]] = []
    reach = -1  # the byte behind the last of the group
    for span in spans:
        if span[0] < reach:
            groups[-1].append(span)
        else:
            groups.append([span])
        reach = max(reach, span[1])
    return groups


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
    name = DTYPE_NAMES[part.dtype]
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
    they do in the storage they come from. Arrays alone stay aligned as they are.
    """
    for part in parts:
        if isinstance(part, torch.Tensor):
            root = part.untyped_storage().data_ptr()
            if root <= start:
                return (start - root) % 16  # bytes of the largest element, a complex128
    return start % 16


def _joined(stretches: list[Stretch]) -> list[Stretch]:
    """Join those that have come to overlap by their lead."""
    joined = stretches[:1]
    for start, end in stretches[1:]:
        if start < joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def _packed(part: Part) -> Part:
    """Return a copy without gaps, the dimensions in the same order of memory."""
    return part.copy(order="K") if isinstance(part, np.ndarray) else part.clone()


def build(
    memory: npt.NDArray[np.uint8], rows: list[_Row], pieces: Pieces | None = None
) -> list[Part]:
    """Build the parts of a batch, in the order of the table.

    Args:
        memory: What they lie in.
        rows: The table.
        pieces: What each lies in instead; None: nothing.
    """
    memory, first = over(memory), 0
    parts: list[Part] = []
    storages: dict[tuple[int, int], torch.UntypedStorage] = {}
    for row in rows:
        kind = row[0]
        if pieces is not None and kind != _EMPTY:
            memory, first = pieces.at(row[2])
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
            _, name, byte, size, storage_offset, shape, strides = row
            storage = storages.get((byte, size))
            if storage is None:
                storage = storages[byte, size] = storage_at(memory, byte - first, size)
            dtype = getattr(torch, name)
            parts.append(tensor_over(storage, dtype, shape, strides, storage_offset))
    return parts
