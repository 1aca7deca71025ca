"""`BatchMemory`: memory for the large tensors of batches, used again when the program drops them.

The C library keeps an arena for each thread, and in it much of what has been freed: two threads
held 60 to 100 MB for batches of 5 MB. So large tensors have mappings of their own.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import weakref
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

_LARGE: Final = 2**17
"""Bytes of the smallest tensor that has a mapping."""


class BatchMemory:
    """Lends mappings. It has no lock, for they come back wherever the garbage collector runs."""

    def __init__(self) -> None:
        self._idle: list[mmap.mmap] = []  # at most as many as are lent
        self._lent: set[int] = set()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
        """Give a tensor of memory that is the caller's until nothing refers to it; None: malloc."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < _LARGE:
            return None
        mapping = self._take(nbytes)
        self._lent.add(id(mapping))
        array = np.frombuffer(mapping, np.uint8, nbytes)  # which each view of the tensor holds
        weakref.finalize(array, self._take_back, mapping).atexit = False
        return torch.from_numpy(array).view(dtype).reshape(shape)

    def _take(self, nbytes: int) -> mmap.mmap:
        for mapping in [*self._idle]:
            if nbytes <= len(mapping) <= 2 * nbytes:
                with contextlib.suppress(ValueError):  # another thread has it
                    self._idle.remove(mapping)
                    return mapping
        # Private: a forked child has copies.
        return mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def _take_back(self, mapping: mmap.mmap) -> None:
        self._lent.discard(id(mapping))
        self._idle.append(mapping)
        with contextlib.suppress(IndexError):
            while len(self._idle) > len(self._lent):
                del self._idle[0]
