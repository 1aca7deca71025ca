"""How a batch is handed to the consumer: large tensors stay in the slot, a few small are copied.

::

    slot    │ labels │ images ............................ │ masks ........... │ descriptor │
              copied   watched                               watched

A batch that is given out looks into its slot, and holds all of it as long as anything of it lives.
Where that is much memory, its large parts are watched each for itself: when one is dropped and
others are kept, its memory can go. A few small parts are copied: a consumer that collects the
labels of an epoch holds no slot at all. Where a batch may hold no slot, all of its parts are
copied, each for itself.

A part is a *stretch* of the slot: what one tensor or array lies in, or several that overlap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["DIVIDED", "Pieces", "Stretch", "copied", "divided", "over"]

Bytes = npt.NDArray[np.uint8]

Stretch = tuple[int, int]
"""First byte in the slot, and the byte behind the last."""

Watch = Callable[[Bytes, int, int], object]
"""Called with an array that nothing but the batch refers to, and the stretch that it is over."""

DIVIDED: Final = 256 << 10
"""Bytes; a smaller batch is held as a whole, which costs less than to look at its parts."""

_WATCHED: Final = 64 << 10
"""Bytes of the smallest part that is watched; smaller neighbours are, together."""

_COPIES: Final = 16
"""Small parts that are copied, at most."""

_SHARE: Final = 16
"""What is copied is at most one part in so many of the batch."""


class Pieces:
    """Where the parts of a batch lie for its consumer."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._pieces: list[tuple[Bytes, int]] = []

    def add(self, start: int, memory: Bytes, first: int) -> None:
        """Note where a part lies; in the order of the slot.

        Args:
            start: Its first byte in the slot.
            memory: What it lies in.
            first: The byte of the slot with which ``memory`` begins.
        """
        self._starts.append(start)
        self._pieces.append((memory, first))

    def at(self, byte: int) -> tuple[Bytes, int]:
        """Return what holds this byte of the slot, and the byte with which that begins."""
        return self._pieces[bisect_right(self._starts, byte) - 1]


def over(memory: Bytes | memoryview) -> Bytes:
    """Return an array over all of ``memory`` that views of it refer to.

    NumPy replaces the base of an array by the base's base as long as those are arrays, so that a
    view would keep the mapping alive and not ``memory``. A memoryview as the base ends the chain.

    Nothing here may export the memoryview's buffer for longer than a call (a PickleBuffer would):
    an exception at any moment may leave both in a cycle, of which CPython's collector would tear
    the memoryview down first and the process with it. NumPy exports a memoryview only to look at
    it, and keeps another one on the same memory.
    """
    return np.frombuffer(memory if isinstance(memory, memoryview) else memory.data, np.uint8)


def copied(memory: Bytes, stretches: Iterable[Stretch]) -> Pieces:
    """Copy every part into memory of its own.

    Args:
        memory: The slot.
        stretches: Of the batch, in the order of the slot.
    """
    pieces = Pieces()
    for start, end in stretches:
        pieces.add(start, np.array(memory[start:end]), start)
    return pieces


def divided(memory: Bytes, stretches: Iterable[Stretch], watch: Watch) -> Pieces:
    """Leave the large parts where they are, each watched for itself; copy a few small ones.

    Args:
        memory: The slot.
        stretches: Of the batch, in the order of the slot.
        watch: Called for every part, or row of small ones, that is left in the slot.
    """
    pieces = Pieces()
    view = memory.data
    copies, spare = _COPIES, memory.size // _SHARE
    row: list[Stretch] = []  # small neighbours

    def leave(parts: list[Stretch]) -> None:
        if parts:
            start, end = parts[0][0], parts[-1][1]
            piece = over(view[start:end])
            pieces.add(start, piece, start)
            if end - start >= _WATCHED:
                watch(piece, start, end)

    for start, end in stretches:
        nbytes = end - start
        if nbytes >= _WATCHED:
            leave(row)
            leave([(start, end)])
            row = []
        elif copies and nbytes <= spare and not row:
            pieces.add(start, np.array(memory[start:end]), start)
            copies, spare = copies - 1, spare - nbytes
        else:
            row.append((start, end))
            if end - row[0][0] >= _WATCHED:
                leave(row)
                row = []
    leave(row)
    return pieces
