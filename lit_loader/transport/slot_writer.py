"""One slot of shared memory as a bump allocator, and tensors over its bytes.

A slot is a one-dimensional uint8 array. A worker hands out stretches of it from the front, each on
a 64-byte boundary (a cache line, and the widest vector register): to collation, which stacks large
tensors there, and to the codec for all else. It forgets all of them at once before the next batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from lit_loader.transport.dtypes import NUMPY_DTYPES

__all__ = [
    "ALIGNMENT",
    "SlotFull",
    "SlotWriter",
    "align",
    "storage_at",
    "tensor_over",
]

Bytes = npt.NDArray[np.uint8]

ALIGNMENT = 64
"""Boundary, in bytes, on which every tensor, array and descriptor begins."""


class SlotFull(Exception):
    """The batch does not fit into its slot.

    Attributes:
        nbytes: Size in bytes of a slot that certainly holds the batch; encode it again in one.
    """

    def __init__(self, nbytes: int) -> None:
        super().__init__(f"the batch needs a slot of {nbytes} bytes")
        self.nbytes = nbytes


def align(position: int) -> int:
    """Return ``position`` (bytes) moved up to the next boundary."""
    return (position + ALIGNMENT - 1) & -ALIGNMENT


def storage_at(memory: Bytes, offset: int, nbytes: int) -> torch.UntypedStorage:
    """Return ``memory[offset : offset + nbytes]`` (at least one byte) as a storage of that size.

    The storage, and so whatever lies over it, keeps ``memory`` alive.
    """
    flat = torch.frombuffer(memory, dtype=torch.uint8, count=nbytes, offset=offset)
    return flat.untyped_storage()


def tensor_over(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    shape: Sequence[int],
    strides: Sequence[int],
    storage_offset: int = 0,
) -> torch.Tensor:
    """Return a tensor over a storage; strides and ``storage_offset`` count elements.

    Takes every dtype, also those that NumPy does not know. `torch.Tensor.set_` and not a view of
    a flat tensor: autograd would take the result for a view, and refuse to detach it in place.
    """
    # From a buffer and not torch.empty, which warns of the dtypes it finds experimental.
    tensor = torch.frombuffer(_ONE_ELEMENT, dtype=dtype, count=1)
    return tensor.set_(storage, storage_offset, tuple(shape), tuple(strides))


_ONE_ELEMENT = bytearray(16)


class SlotWriter:
    """Hands out the memory of one slot from front to back.

    Args:
        memory: The slot, uint8, of one dimension, contiguous and writable.

    Attributes:
        memory: The slot.
        view: The same bytes as a memoryview, the quicker way to write a few.
        base: Address of its first byte.
        start: First byte handed out since `reset`.
        position: First byte not yet handed out.
    """

    def __init__(self, memory: Bytes) -> None:
        self.memory = memory
        self.view = memory.data
        self.base: int = memory.__array_interface__["data"][0]
        self.reset()

    def reset(self, start: int = 0) -> None:
        """Forget everything handed out and begin again at byte ``start``."""
        self.start = self.position = start

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
        """Return an uninitialised contiguous tensor in the slot.

        Args:
            shape: Its sizes.
            dtype: Any dtype of a strided tensor.

        Returns:
            The tensor; None where the slot has no room left or the tensor would hold no bytes.
        """
        nbytes = dtype.itemsize
        for size in shape:
            nbytes *= size
        offset = align(self.position)
        end = offset + nbytes
        if nbytes == 0 or end > self.memory.size:
            return None
        self.position = end
        numpy_dtype = NUMPY_DTYPES.get(dtype)
        if numpy_dtype is None:
            storage = storage_at(self.memory, offset, nbytes)
            return tensor_over(storage, dtype, shape, _contiguous(shape))
        return torch.from_numpy(np.ndarray(shape, numpy_dtype, self.memory, offset))


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
