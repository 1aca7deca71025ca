"""`OutOfBand`: large buffers of what is being pickled are noted, and not copied into the pickle.

Pickle's protocol 5 has buffers that a pickle does not contain. NumPy arrays use it (and pyarrow's
tables); here torch's storages are told to, and the arrays that NumPy itself copies: those that are
not contiguous, and those of times. An array of a mapped file (``numpy.memmap``) goes as the file's
name. What is small stays in the pickle, and so do arrays of objects. Storages in shared memory are
left to torch, which has them stay shared.
"""

from __future__ import annotations

import mmap
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["LARGE", "PROTOCOL", "OutOfBand", "Reducer"]

Reducer: TypeAlias = "Callable[[Any], Any]"

LARGE: Final = 1 << 16
"""Bytes from which on a buffer is kept out of the pickle."""

PROTOCOL: Final = 5
"""Of pickle: the first one that knows buffers out of band."""

_PLAIN_KINDS: Final = frozenset("biufcmMSUV?")
"""Kinds of elements that are their bytes; others hold pointers."""


class OutOfBand:
    """Notes the large buffers of one pickle.

    Args:
        reducers: How objects are pickled otherwise, by type.

    Attributes:
        buffers: The buffers, in the order in which the pickle asks for them.
    """

    def __init__(self, reducers: Mapping[type, Reducer]) -> None:
        self.buffers: list[memoryview] = []
        self._others = reducers

    def reducers(self) -> dict[type, Reducer]:
        """Returns how objects of some types are pickled, by type."""
        found: dict[type, Reducer] = {np.ndarray: _reduce_array, np.memmap: _reduce_array}
        torch = sys.modules.get("torch")
        if torch is not None and torch.UntypedStorage in self._others:
            found[torch.UntypedStorage] = self._reduce_storage
            found |= dict.fromkeys((torch.Tensor, torch.nn.Parameter), self._reduce_tensor)
        return found

    def stays_inside(self, buffer: pickle.PickleBuffer) -> bool:
        """Take over a buffer, unless it is to stay in the pickle; the pickler's callback."""
        raw = buffer.raw()
        if raw.nbytes < LARGE:
            return True
        self.buffers.append(raw)
        return False

    def _reduce_tensor(self, tensor: Any) -> Any:
        """As torch does, which forgets that a view is the conjugate or negative of its bytes."""
        if not tensor.is_leaf or not (tensor.is_conj() or tensor.is_neg()):
            return self._others[type(tensor)](tensor)
        plain = tensor.detach().resolve_conj().resolve_neg()
        return _tensor_of, (type(tensor), plain, tensor.requires_grad)

    def _reduce_storage(self, storage: Any) -> Any:
        nbytes = storage.nbytes()
        if storage.device.type != "cpu" or storage.is_shared() or not nbytes:
            return self._others[type(storage)](storage)
        memory = np.asarray(_Memory(storage.data_ptr(), nbytes, storage))
        return _storage_of, (pickle.PickleBuffer(memory.data),)


class _Memory:
    """Memory of another object, for NumPy to look into."""

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


def _tensor_of(kind: type, plain: Any, requires_grad: bool) -> Any:
    return plain.as_subclass(kind).requires_grad_(requires_grad)


def _storage_of(buffer: memoryview | bytearray) -> Any:
    import torch

    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def _reduce_array(array: NDArray[Any]) -> Any:
    flags, kind = array.flags, array.dtype.kind
    if array.nbytes < LARGE or kind not in _PLAIN_KINDS or array.dtype.hasobject:
        return array.__reduce_ex__(PROTOCOL)
    by_name = None if array.base is None else _reduce_mapped(array)
    if by_name is not None:
        return by_name
    array = np.asarray(array)
    if (flags.c_contiguous or flags.f_contiguous) and kind not in "mM":
        return array.__reduce_ex__(PROTOCOL)
    elements = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    look = (array.dtype, array.shape, flags.writeable)
    return _array_of, (pickle.PickleBuffer(elements.data), *look)


def _array_of(
    buffer: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...], writeable: bool
) -> NDArray[Any]:
    array = np.frombuffer(buffer, np.uint8).view(dtype).reshape(shape)
    if not writeable:
        array.flags.writeable = False
    return array


# Mapped files ------------------------------------------------------------------------------------


def _reduce_mapped(array: Any) -> Any:
    """Name the file that an array looks into.

    None: there is none, or it is another one by now, or it was written to privately (mode "c").
    """
    whole = array
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    if not isinstance(whole, np.memmap) or not isinstance(whole.base, mmap.mmap):
        return None
    if whole.mode == "c" or not isinstance(whole.filename, (str, os.PathLike)):
        return None
    first: int = whole.__array_interface__["data"][0]
    path = os.fspath(whole.filename)
    file = _file_at(first, path)
    if file is None:
        return None
    start = array.__array_interface__["data"][0] - first + whole.offset
    look = (type(array), array.dtype, array.shape, array.strides, array.flags.writeable)
    return _map_again, (path, file, start, *look)


def _file_at(address: int, path: str) -> tuple[int, int] | None:
    """Returns device and inode of the file of a name, if it is mapped at an address."""
    try:
        stat = os.stat(path)
        with open("/proc/self/maps") as maps:
            lines = maps.readlines()
    except OSError:  # gone, or not Linux
        return None
    for line in lines:
        bounds, _, _, device, inode = line.split()[:5]
        low, high = (int(bound, 16) for bound in bounds.split("-"))
        if low <= address < high:
            found = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}", str(stat.st_ino)
            return (stat.st_dev, stat.st_ino) if found == (device, inode) else None
    return None


def _map_again(
    path: str,
    file: tuple[int, int],
    start: int,
    kind: type[NDArray[Any]],
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    writeable: bool,
) -> Any:
    """Map a file once more; what is written there stays this process's own."""
    with open(path, "rb") as opened:
        stat = os.fstat(opened.fileno())
        if (stat.st_dev, stat.st_ino) != file:
            raise FileNotFoundError(
                f"{path}, which a numpy.memmap of the dataset maps, has been replaced by another "
                "file since the workers were started; keep it as long as they run"
            )
        whole = np.memmap(opened, np.uint8, "c" if writeable else "r")
    array: Any = np.ndarray.__new__(kind, shape, dtype, whole, start, strides)
    if isinstance(array, np.memmap):
        array.filename, array.mode, array.offset = whole.filename, whole.mode, start
    return array
