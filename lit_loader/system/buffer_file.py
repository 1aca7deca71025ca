"""`BufferFile`: the large buffers of a pickle in one nameless file, which any process can map.

What overlaps in memory is one stretch of the file, on pages of its own::

    memory    │ span ╎       │ span │
              ╎    │ span │
    file      │ stretch   │  │ stretch │

Mapped privately it is shared as long as it is only read; what a process writes there is seen by no
other. What lies in a file that other processes can map already (`known_mappings.py`), and is still
what that file has, is not written again: its place there is noted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from os import pwrite
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lit_loader.system.known_mappings import KnownMapping, keep_open, known_mappings
from lit_loader.system.mapped_bytes import HEADER, bytes_in
from lit_loader.system.out_of_band import Span, address_of, memory_at
from lit_loader.system.shared_file import map_part, nameless_file, round_up

__all__ = ["BufferFile", "Layout", "map_buffers", "write_stretches"]

_ALIGNED: Final = 16
"""What a stretch keeps of its address, so that each element is aligned as it was."""

_BEFORE: Final = 2 * HEADER
"""Bytes in front of each stretch, enough to make a `bytes` object of it; aligned for processors."""

_BEHIND: Final = 1
"""Bytes behind it: the zero at the end of a `bytes` object."""

_WRITABLE: Final = 0
_READONLY: Final = 1
_CONTENTS: Final = 2
"""What the buffer of a span is; the last: the contents of a `bytes` object."""

_AT_ONCE: Final = 1 << 20
"""Bytes that are compared at once."""


class Layout:
    """Where in files the bytes of spans lie.

    Args:
        spans: The spans.
        anew: All of them are to be in the new file, also those that lie in a known one.

    Attributes:
        places: Offset and bytes of each span, what its buffer is (one of the kinds below), and its
            file (0: the new one, n: that of ``mappings[n - 1]``): int64 of shape (spans, 4). Of a
            sparse span that lies in no other these are its elements alone.
        stretches: What the new file holds: offsets, and bytes as uint8.
        nbytes: Length of the new file, whole pages.
        mappings: The known files that spans lie in.
    """

    def __init__(self, spans: Sequence[Span], anew: bool = False) -> None:
        self.stretches: list[tuple[int, NDArray[np.uint8]]] = []
        self.mappings: list[KnownMapping] = []
        self.nbytes = 0
        self.places: NDArray[np.int64] = np.array(
            [(span.address, span.nbytes, _kind(span), 0) for span in spans], np.int64
        ).reshape(-1, 4)
        low, high = self.places[:, 0].copy(), self.places[:, :2].sum(axis=1)
        left = np.ones(len(spans), np.bool_)
        for mapping in () if anew else known_mappings():
            left &= ~self._find(mapping, low, high)
        sparse = np.array([span.sparse for span in spans], np.bool_)
        whole = left & ~sparse
        lows, highs = _merged(low[whole], high[whole])
        offsets = [
            self._add(memory_at(first, end - first, spans))
            for first, end in zip(lows.tolist(), highs.tolist(), strict=True)
        ]
        at = np.searchsorted(lows, low, side="right") - 1
        inside = left & (at >= 0) & (high <= np.append(highs, 0)[at])
        at = at[inside]
        self.places[inside, 0] = np.array(offsets, np.int64)[at] + low[inside] - lows[at]
        for number in np.flatnonzero(left & ~inside).tolist():
            elements = np.ascontiguousarray(spans[number].owner).reshape(-1).view(np.uint8)
            self.places[number, :2] = self._add(elements), elements.nbytes

    def _find(
        self, mapping: KnownMapping, low: NDArray[np.int64], high: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Note the places of spans that lie in a known file unchanged; returns which these are.

        What overlaps stays together: what was changed in one span counts for all of them.
        """
        found = (low >= mapping.address) & (high <= mapping.address + mapping.nbytes)
        if not found.any():
            return found
        lows, highs = _merged(low[found], high[found])
        same = np.array(
            [mapping.unchanged(*ends) for ends in zip(lows.tolist(), highs.tolist(), strict=True)]
        )
        found[found] = same[np.searchsorted(lows, low[found], side="right") - 1]
        if found.any():
            self.mappings.append(mapping)
            self.places[found, 0] -= mapping.address
            self.places[found, 3] = len(self.mappings)
        return found

    def _add(self, memory: NDArray[np.uint8]) -> int:
        """Give bytes a place, and return its offset."""
        offset = self.nbytes + _BEFORE + address_of(memory) % _ALIGNED
        self.stretches.append((offset, memory))
        self.nbytes = round_up(offset + memory.nbytes + _BEHIND)
        return offset


def _merged(
    low: NDArray[np.int64], high: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns where the stretches begin and end that these parts make up together, in order."""
    order = np.argsort(low, kind="stable")
    low, reach = low[order], np.maximum.accumulate(high[order])
    first = np.ones(len(low), np.bool_)
    first[1:] = low[1:] > reach[:-1]
    return low[first], np.append(reach[:-1][first[1:]], reach[-1:])


class BufferFile:
    """The file; it is written once.

    Args:
        layout: What it is to hold.
        on_disk: Do not take memory for it, but a temporary file.

    Attributes:
        fd: Its descriptor.
        nbytes: Its length, whole pages.

    Raises:
        OSError: There is no room for it; nothing of it is left.
    """

    def __init__(self, layout: Layout, on_disk: bool = False) -> None:
        self.nbytes = layout.nbytes
        self._offsets = _offsets(layout)
        self.fd, _ = nameless_file("lit_loader arrays", on_disk)
        try:
            os.ftruncate(self.fd, self.nbytes)
            write_stretches(self.fd, layout)
        except BaseException:
            self.close()
            raise

    def holds(self, layout: Layout) -> bool:
        """Whether these are the bytes in it."""
        if self._offsets != _offsets(layout):
            return False
        written = np.frombuffer(map_part(self.fd, 0, self.nbytes), np.uint8)
        return all(
            np.array_equal(written[offset + at : offset + at + _AT_ONCE][: len(part)], part)
            for offset, memory in layout.stretches
            for at in range(0, memory.nbytes, _AT_ONCE)
            for part in (memory[at : at + _AT_ONCE],)
        )

    def close(self) -> None:
        """Let go of it."""
        os.close(self.fd)


def write_stretches(fd: int, layout: Layout) -> None:
    """Write what the new file of a layout is to hold.

    Raises:
        OSError: There is no room for it.
    """
    for offset, memory in layout.stretches:
        _write_at(fd, memory.data, offset)


def map_buffers(
    fd: int,
    nbytes: int,
    places: NDArray[np.int64],
    known: Sequence[tuple[int, int]] = (),
    keep: bool = False,
) -> list[memoryview | bytes]:
    """Map files, and return the buffers in them, in the order of `Layout.places`.

    Args:
        fd: Descriptor of the new file, not needed any more when this returns.
        nbytes: Its length; 0: there is none.
        places: Where the buffers lie.
        known: The same of the known files, in the order of `Layout.mappings`.
        keep: The new file becomes a known one here.

    Raises:
        OSError: There is no room for it in the address space.
    """
    wholes = [
        memoryview(map_part(each, 0, size, private=True) if size else b"")
        for each, size in ((fd, nbytes), *known)
    ]
    if keep and nbytes:
        keep_open(wholes[0].obj, os.dup(fd))  # type: ignore[arg-type]
    return [_buffer(wholes[file], *place) for *place, file in places.tolist()]


def _buffer(whole: memoryview, offset: int, nbytes: int, kind: int) -> memoryview | bytes:
    if kind == _CONTENTS:
        return bytes_in(whole, offset, nbytes)
    buffer = whole[offset : offset + nbytes]
    return buffer.toreadonly() if kind == _READONLY else buffer


def _kind(span: Span) -> int:
    if span.contents:
        return _CONTENTS
    return _READONLY if span.readonly else _WRITABLE


def _offsets(layout: Layout) -> list[tuple[int, int]]:
    return [(offset, memory.nbytes) for offset, memory in layout.stretches]


def _write_at(fd: int, data: memoryview, offset: int) -> None:
    while data:
        written = pwrite(fd, data, offset)
        data, offset = data[written:], offset + written
