"""One sample as bytes, in memory and in a file, and back as a sample of the reader's own.

::

    entry  │ header │ tensors and arrays, each on a 64-byte boundary │ descriptor │
             64 bytes                                                   up to a multiple of 64

Most samples are a tensor, or a tuple, list or dict of tensors, arrays, numbers and strings, and
nothing else: their descriptor is a small `marshal`, read in a microsecond. Of any other sample the
transport's encoder (`transport/codec.py`) writes both, as it does for a batch.

Whoever reads has a copy of the entry, into which the sample looks: what is written into a sample in
place never changes the cache.
"""

from __future__ import annotations

import ctypes  # reach: python: memmove of ctypes is the quickest copy of bytes by address
import itertools
import marshal
import struct
import zlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from lit_loader.errors import TransportError
from lit_loader.transport.codec import SlotFull, SlotWriter, decode, encode
from lit_loader.transport.dtypes import NUMPY_DTYPES
from lit_loader.transport.reductions import is_plain
from lit_loader.transport.slot_writer import ALIGNMENT, align

__all__ = ["MISSING", "UNIT", "pack", "seal", "unpack", "whole"]

Bytes = npt.NDArray[np.uint8]

MISSING: Final = object()
"""What is read where there is no entry, or one that cannot be read."""

UNIT: Final = ALIGNMENT
"""Entries begin at, and take, whole multiples of so many bytes."""

_HEADER: Final = struct.Struct("<8sQQQQII")  # magic, index, size, place and size of descriptor, …
_MAGIC: Final = b"litcach1"  # … form, checksum; the last character is the format's version
_CHECKED: Final = _HEADER.size - 4
_FLAT, _ENCODED = range(2)

_LONE, _LIST, _TUPLE = range(3)
_SCALARS: Final = frozenset({int, float, complex, bool, str, bytes, type(None)})
_NUMBERS: Final = "biufc"
_DTYPES: Final = {dtype: np.dtype(name) for dtype, name in NUMPY_DTYPES.items()}
_MAX_DIMENSIONS: Final = 32
_FIRST_TRY: Final = 1 << 16


def pack(index: int, sample: object) -> Bytes:
    """Write a sample as an entry.

    Args:
        index: The sample's.
        sample: Any object that a batch may hold.

    Returns:
        uint8, a multiple of `UNIT` bytes; without a checksum, see `seal`.

    Raises:
        TransportError: It holds something that cannot be kept; says what.
    """
    flat = _flat(sample)
    if flat is None:
        return _encoded(index, sample)
    described, parts, position = flat
    descriptor = marshal.dumps(described)
    entry = np.zeros(align(position + len(descriptor)), np.uint8)
    base = entry.ctypes.data
    for byte, address, nbytes in parts:
        ctypes.memmove(base + byte, address, nbytes)
    entry[position : position + len(descriptor)] = np.frombuffer(descriptor, np.uint8)
    _HEADER.pack_into(entry.data, 0, _MAGIC, index, len(entry), position, len(descriptor), _FLAT, 0)
    return entry


def _flat(sample: Any) -> tuple[Any, list[tuple[int, int, int]], int] | None:
    """Describe a sample of the common kind: what it is, what to copy where, and the byte behind.

    None: it is another, or parts of it share memory, which only the encoder keeps.
    """
    kind = type(sample)
    if kind is tuple or kind is list:
        form: Any = _TUPLE if kind is tuple else _LIST
        values = sample
    elif kind is dict:
        form, values = tuple(sample), sample.values()
        if not all([type(key) is str for key in form]):
            return None
    else:
        form, values = _LONE, (sample,)
    items: list[Any] = []
    parts: list[tuple[int, int, int]] = []
    position = UNIT
    for value in values:
        kind = type(value)
        if kind in _SCALARS:
            items.append(value)
            continue
        if kind is torch.Tensor:
            if not (is_plain(value) and value.is_contiguous() and value.dtype in _DTYPES):
                return None
            dtype, address = _DTYPES[value.dtype].str, value.data_ptr()
        elif kind is np.ndarray:
            known = value.dtype.isbuiltin == 1 and value.dtype.metadata is None
            if not (known and value.dtype.kind in _NUMBERS and value.flags.c_contiguous):
                return None
            dtype, address = value.dtype.str, value.ctypes.data
        else:
            return None
        if not value.nbytes or value.ndim > _MAX_DIMENSIONS:
            return None
        items.append((kind is torch.Tensor, dtype, position, tuple(value.shape)))
        parts.append((position, address, value.nbytes))
        position = align(position + value.nbytes)
    if len(parts) > 1:
        spans = sorted((address, address + nbytes) for _, address, nbytes in parts)
        if any(after[0] < before[1] for before, after in itertools.pairwise(spans)):
            return None
    return (form, items), parts, position


def _encoded(index: int, sample: object) -> Bytes:
    nbytes = _FIRST_TRY
    while True:
        entry = np.zeros(align(nbytes), np.uint8)
        writer = SlotWriter(entry[UNIT:])
        try:
            offset, length = encode(sample, writer)
        except SlotFull as full:
            nbytes = full.nbytes + UNIT
            continue
        size = align(UNIT + writer.position)
        _HEADER.pack_into(entry.data, 0, _MAGIC, index, size, offset, length, _ENCODED, 0)
        return entry[:size].copy() if size < len(entry) else entry


def unpack(index: int, entry: Bytes) -> Any:
    """Make a sample of its entry.

    Args:
        index: The sample's.
        entry: Uint8, which nobody else has: tensors and arrays look into it.

    Returns:
        The sample; `MISSING` if this is not its entry, or what it holds cannot be rebuilt in this
        process.
    """
    magic, number, _, offset, length, form, _ = _HEADER.unpack_from(entry.data)
    if magic != _MAGIC or number != index:
        return MISSING
    if form == _ENCODED:
        try:
            return decode(entry[UNIT:], offset, length)
        except TransportError:
            return MISSING
    form, items = marshal.loads(entry.data[offset : offset + length])
    values = []
    for item in items:
        if type(item) is tuple:
            tensor, dtype, byte, shape = item
            array: Any = np.ndarray(shape, dtype, entry, byte)
            values.append(torch.from_numpy(array) if tensor else array)
        else:
            values.append(item)
    if form == _TUPLE:
        return tuple(values)
    if form == _LONE:
        return values[0]
    return values if form == _LIST else dict(zip(form, values, strict=True))


def seal(entry: Bytes) -> None:
    """Write an entry's checksum into it, for where it may be torn or damaged."""
    struct.pack_into("<I", entry.data, _CHECKED, _checksum(entry))


def whole(entry: Bytes) -> bool:
    """Whether an entry is all there, and as it was sealed."""
    if len(entry) < UNIT:
        return False
    magic, _, size, _, _, _, checksum = _HEADER.unpack_from(entry.data)
    return bool(magic == _MAGIC and size == len(entry) and checksum == _checksum(entry))


def _checksum(entry: Bytes) -> int:
    return zlib.crc32(entry[UNIT:].data, zlib.crc32(entry[:_CHECKED].data))
