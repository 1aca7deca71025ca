"""The large buffers of a pickle in one file, which any process can map.

Mapped privately it is shared as long as it is only read; what a process writes there is seen by no
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import pwrite
from typing import Final

import numpy as np

from lit_loader.system.shared_file import map_part, round_up

__all__ = ["Layout", "Place", "map_buffers"]

Place = tuple[int, int, bool]
"""Offset and bytes of a buffer, and whether it must not be written to."""

_ALIGNED: Final = 64
"""Bytes that offsets are multiples of."""

_AT_ONCE: Final = 1 << 20
"""Bytes that are compared at once."""


class Layout:
    """Where in a file the bytes of buffers lie. The same memory lies there once.

    Args:
        buffers: The buffers: contiguous bytes.

    Attributes:
        places: Where each is.
        nbytes: Length of the file, whole pages.
    """

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        self.places: list[Place] = []
        self._once: dict[tuple[int, int], tuple[int, memoryview]] = {}
        end = 0
        for buffer in buffers:
            memory = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0], buffer.nbytes
            if memory not in self._once:
                self._once[memory] = end, buffer
                end += -(-buffer.nbytes // _ALIGNED) * _ALIGNED
            self.places.append((self._once[memory][0], buffer.nbytes, buffer.readonly))
        self.nbytes = round_up(end)

    def write(self, fd: int) -> None:
        """Write the buffers into a file.

        Raises:
            OSError: There is no room for them.
        """
        for offset, buffer in self._once.values():
            while buffer:
                written = pwrite(fd, buffer, offset)
                buffer, offset = buffer[written:], offset + written

    def is_in(self, fd: int, nbytes: int, places: Sequence[Place]) -> bool:
        """Whether a file has been written of the same buffers, and the bytes have not changed."""
        if (nbytes, places) != (self.nbytes, self.places):
            return False
        written = np.frombuffer(map_part(fd, 0, nbytes), np.uint8)
        return all(
            np.array_equal(written[offset + at : offset + at + len(part)], part)
            for offset, buffer in self._once.values()
            for at in range(0, buffer.nbytes, _AT_ONCE)
            for part in (np.frombuffer(buffer, np.uint8)[at : at + _AT_ONCE],)
        )


def map_buffers(fd: int, nbytes: int, places: Sequence[Place]) -> list[memoryview]:
    """Map a file, and return the buffers in it.

    Args:
        fd: Its descriptor, not needed any more when this returns.
        nbytes: Its length; 0: there is none.
        places: Where the buffers lie.

    Raises:
        OSError: There is no room for it in the address space.
    """
    whole = memoryview(map_part(fd, 0, nbytes, private=True) if nbytes else b"")
    buffers = []
    for offset, size, readonly in places:
        buffer = whole[offset : offset + size]
        buffers.append(buffer.toreadonly() if readonly else buffer)
    return buffers
