"""Files in memory that this process has mapped privately and keeps open for others to map.

What is pickled for a worker and lies in such a file, unchanged, is carried as a place in it: the
worker maps the file as well, and nothing is copied.
"""

from __future__ import annotations

import mmap
import os
import weakref
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lit_loader.system.shared_file import map_part

__all__ = ["KnownMapping", "keep_open", "known_mappings"]

_AT_ONCE = 1 << 20
"""Bytes that are compared at once."""

_known: dict[int, tuple[weakref.ref[mmap.mmap], int, int]] = {}
"""First byte of each to what it is: the mapping, descriptor and length."""


class KnownMapping(NamedTuple):
    """One of them.

    Attributes:
        address: Its first byte in this process.
        nbytes: Its length, whole pages from the beginning of the file.
        fd: The file's descriptor, open as long as this object is kept.
        mapping: What keeps it.
    """

    address: int
    nbytes: int
    fd: int
    mapping: mmap.mmap

    def unchanged(self, low: int, high: int) -> bool:
        """Whether this process still has there what the file has.

        Args:
            low: Address of the first byte.
            high: Address behind the last one.
        """
        here = np.frombuffer(self.mapping, np.uint8)
        # Privately as well: what is sealed cannot be mapped in any other way.
        file = np.frombuffer(map_part(self.fd, 0, self.nbytes, private=True), np.uint8)
        low, high = low - self.address, high - self.address
        return all(
            np.array_equal(_part(here, at, high), _part(file, at, high))
            for at in range(low, high, _AT_ONCE)
        )


def _part(memory: NDArray[np.uint8], at: int, end: int) -> NDArray[np.uint8]:
    return memory[at : min(at + _AT_ONCE, end)]


def keep_open(mapping: mmap.mmap, fd: int) -> None:
    """Keep a file open for as long as its mapping is in use.

    Args:
        mapping: A private one, from the beginning of the file.
        fd: The file's descriptor, which is taken over.
    """
    address = np.frombuffer(mapping, np.uint8).__array_interface__["data"][0]
    _known[address] = weakref.ref(mapping), fd, len(mapping)
    weakref.finalize(mapping, _let_go, address, fd).atexit = False


def _let_go(address: int, fd: int) -> None:
    del _known[address]
    os.close(fd)


def known_mappings() -> list[KnownMapping]:
    """Return those that are in use."""
    found = []
    for address, (reference, fd, nbytes) in list(_known.items()):
        mapping = reference()
        if mapping is not None:
            found.append(KnownMapping(address, nbytes, fd, mapping))
    return found
