"""``bytes`` objects whose contents lie in mapped memory, where Python itself would copy them.

A `bytes` object is a header of 32 bytes and its contents right behind. So a stretch of a file that
is mapped privately becomes one by writing a header in front of it: of all workers' memory, that
page alone is their own. Where a header looks otherwise than is known here (`can_be_mapped`),
contents are copied.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from typing import Any, Final

import numpy as np

__all__ = ["HEADER", "bytes_in", "can_be_mapped"]

HEADER: Final = 32
"""Bytes in front of the contents: references, type, length, hash (-1: not computed yet)."""

_FIELDS: Final = struct.Struct("=QQqq")

_OWN_REFERENCE: Final = 1
"""Never given back: so Python never frees what it has not allocated."""


@functools.cache
def can_be_mapped() -> bool:
    """Whether a `bytes` object is laid out here as is known."""
    if sys.implementation.name != "cpython" or bytes.__basicsize__ != HEADER + 1:
        return False
    example = bytes(bytearray(b"example"))
    references, *others = _header_of(example)
    more = [example] * 3
    counted = _header_of(example)[0] - references == len(more)  # Python 3.14 borrows some
    return counted and 0 < references < 8 and others == [id(bytes), 7, -1]


def _header_of(example: bytes) -> tuple[int, ...]:
    return _FIELDS.unpack(ctypes.string_at(id(example), HEADER))


def bytes_in(mapping: memoryview, offset: int, nbytes: int) -> bytes:
    """Make a `bytes` object of mapped memory.

    The mapping is kept for as long as the process lives.

    Args:
        mapping: Memory that is this process's alone, or becomes so when it is written to.
        offset: Where the contents lie, a multiple of 8; there is room for a header in front of
            them, and a zero behind.
        nbytes: Their length.
    """
    if not can_be_mapped():
        return bytes(mapping[offset : offset + nbytes])
    _FIELDS.pack_into(mapping, offset - HEADER, _OWN_REFERENCE, id(bytes), nbytes, -1)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(mapping))
    address = np.frombuffer(mapping, np.uint8).ctypes.data + offset - HEADER
    made: Any = ctypes.cast(address, ctypes.py_object).value
    assert isinstance(made, bytes)
    return made
