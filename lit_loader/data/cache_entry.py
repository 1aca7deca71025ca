"""One sample as bytes, in memory and in a file, and back as a sample of the reader's own.

::

    entry  │ header │ tensors and arrays, each on a 64-byte boundary │ descriptor │
             64 bytes                                                   up to a multiple of 64

The transport's encoder (`core/transport/codec.py`) writes them, as it does for a batch.

Whoever reads has a copy of the entry, into which the sample looks: what is written into a sample in
place never changes the cache.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import numpy as np
import numpy.typing as npt

from lit_loader.core.transport.codec import ALIGNMENT, SlotFull, SlotWriter, align, decode, encode
from lit_loader.errors import TransportError

__all__ = ["MISSING", "UNIT", "pack", "seal", "unpack", "whole"]

Bytes = npt.NDArray[np.uint8]

MISSING: Final = object()  # what is read where there is no entry, or one that cannot be read
UNIT: Final = ALIGNMENT  # entries begin at, and take, whole multiples of it, in bytes

_HEADER: Final = struct.Struct("<8sQQQQ20xI")  # magic, index, size, place and size of descriptor …
_MAGIC: Final = b"litcach3"  # … checksum; the last character is the format's version
_CHECKED: Final = _HEADER.size - 4

_FIRST_TRY: Final = 1 << 16


def pack(index: int, sample: object) -> Bytes:
    """Write a sample as an entry: uint8, a multiple of `UNIT` bytes, without a checksum (`seal`).

    TransportError: it holds something that cannot be kept; says what.
    """
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
        _HEADER.pack_into(entry.data, 0, _MAGIC, index, size, offset, length, 0)
        packed: Bytes = entry[:size].copy()
        return packed


def unpack(index: int, entry: Bytes) -> object:
    """Make a sample of its entry, which nobody else has: tensors and arrays look into it.

    `MISSING` if this is not its entry, or what it holds cannot be rebuilt in this process.
    """
    magic, number, _, offset, length, _ = _HEADER.unpack_from(entry.data)
    if magic != _MAGIC or number != index:
        return MISSING
    try:
        return decode(entry[UNIT:], offset, length)
    except TransportError:
        return MISSING


def seal(entry: Bytes) -> None:
    """Write an entry's checksum into it, for where it may be torn or damaged."""
    struct.pack_into("<I", entry.data, _CHECKED, _checksum(entry))


def whole(entry: Bytes) -> bool:
    """Whether an entry is all there, and as it was sealed."""
    if len(entry) < UNIT:
        return False
    magic, _, size, _, _, checksum = _HEADER.unpack_from(entry.data)
    return bool(magic == _MAGIC and size == len(entry) and checksum == _checksum(entry))


def _checksum(entry: Bytes) -> int:
    return zlib.crc32(entry[UNIT:].data, zlib.crc32(entry[:_CHECKED].data))
