"""How a batch is handed to the consumer: as it lies in its slot, or each tensor in its own memory.

::

    the first batches held   slot │ labels │ images ............................ │ descriptor │
                                    copied   as they lie
    those beyond             each tensor copied, and the slot is free at once

A batch that is given out looks into its slot, and holds all of it as long as anything of it lives.
So its few small parts are copied: a consumer that collects the labels of an epoch holds no slot.
Large parts are not copied, until so many batches are held (`memory/arena.py`) that it is plain that
the consumer collects: from then on all are, each for itself, and what it drops of one is free.

A part is a *stretch* of the slot: what one tensor or array lies in, or several that overlap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["DIVIDED", "Pieces", "Stretch", "copied", "divided", "over"]

Bytes = npt.NDArray[np.uint8]

Stretch = tuple[int, int]
"""First byte in the slot, and the byte behind the last."""

DIVIDED: Final = 64 << 10
"""Bytes; the labels of a smaller batch lie in its slot, as a copy costs more than such slots."""

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


def divided(memory: Bytes, stretches: Iterable[Stretch]) -> Pieces | None:
    """Copy a few small parts, and leave the rest where it is.

    Args:
        memory: The slot.
        stretches: Of the batch, in the order of the slot.

    Returns:
        Where the parts lie; None: all where they are.
    """
    if memory.size < DIVIDED:
        return None
    pieces, whole = Pieces(), over(memory)
    copies, spare = _COPIES, memory.size // _SHARE
    for start, end in stretches:
        nbytes = end - start
        if copies and nbytes <= spare:
            pieces.add(start, np.array(memory[start:end]), start)
            copies, spare = copies - 1, spare - nbytes
        else:
            pieces.add(start, whole, 0)
    return None if copies == _COPIES else pieces
