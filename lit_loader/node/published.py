"""A dataset that one process has built, in a sealed file in memory, for this user's others.

::

    file   │ large buffers, each on pages of its own │ where they lie │ pickle │ lengths │
             mapped privately by every process          read once
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import struct
import weakref
from collections.abc import Callable, Mapping
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

from lit_loader.describe import find_failing_object, short_repr
from lit_loader.errors import TransportError
from lit_loader.system.buffer_file import Layout, map_buffers
from lit_loader.system.out_of_band import PROTOCOL, OutOfBand
from lit_loader.system.shared_file import write_all

__all__ = ["Parcel", "read"]

_END: Final = struct.Struct("<QQQQ")  # buffers, their places, pickle; magic
_MAGIC: Final = int.from_bytes(b"litnode1", "little")


class Parcel:
    """A dataset, pickled: it and its buffers are held until the parcel is written.

    Args:
        dataset: The dataset.

    Raises:
        TransportError: It cannot be pickled; says what in it.
    """

    def __init__(self, dataset: Any) -> None:
        try:
            self._stream, buffers = _dump(dataset)
        except Exception as error:
            found = find_failing_object(dataset, error, _dump, "dataset")
            raise TransportError(
                f"{found.path}: {short_repr(found.value)} cannot be pickled, as shared_dataset "
                f"needs ({type(found.error).__name__}: {found.error}); leave it out in "
                "__getstate__ and make it on first use"
            ) from error
        self._layout = Layout(buffers)
        self._places = pickle.dumps(self._layout.places, PROTOCOL)
        self.nbytes = self._layout.nbytes + len(self._places) + len(self._stream) + _END.size
        """Bytes of the file."""

    def write(self, fd: int) -> None:
        """Write the file.

        Raises:
            OSError: There is no room for it.
        """
        buffers = self._layout.nbytes
        os.ftruncate(fd, buffers)
        self._layout.write(fd)
        os.lseek(fd, buffers, os.SEEK_SET)
        write_all(fd, self._places)
        write_all(fd, self._stream)
        write_all(fd, _END.pack(buffers, len(self._places), len(self._stream), _MAGIC))


def read(fd: int) -> Any:
    """Return the dataset of a file, whose buffers are mapped: not a byte of them is copied.

    Args:
        fd: Its descriptor, not needed any more when this returns.

    Raises:
        Exception: Whatever unpickling it raises.
    """
    size = os.fstat(fd).st_size
    buffers, places, stream, magic = _END.unpack(os.pread(fd, _END.size, size - _END.size))
    if magic != _MAGIC or buffers + places + stream + _END.size != size:
        raise ValueError("no file of a shared_dataset")
    with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as whole, memoryview(whole) as view:
        with view[buffers : buffers + places] as part:
            known = pickle.loads(part)
        with view[buffers + places : size - _END.size] as part:
            mapped = map_buffers(fd, buffers, known)
            if mapped:  # others find the file as long as it is in use here
                weakref.finalize(mapped[0].obj, os.close, os.dup(fd)).atexit = False
            return pickle.loads(part, buffers=mapped)


def _dump(value: object) -> tuple[bytes, list[Any]]:
    """Pickle an object for any process, its large buffers apart; returns both."""
    others = ForkingPickler(io.BytesIO()).dispatch_table
    # Of these, torch's alone: the others have locks and sockets go along with a process's start.
    reducers: Mapping[type, Callable[[Any], Any]] = {
        kind: reducer for kind, reducer in others.items() if kind.__module__.startswith("torch")
    }
    apart = OutOfBand({**reducers, **dict.fromkeys(_storages(reducers), _refuse)})
    file = io.BytesIO()
    pickler = pickle.Pickler(file, PROTOCOL, buffer_callback=apart.stays_inside)
    pickler.dispatch_table = {**reducers, **apart.reducers()}
    pickler.dump(value)
    return file.getvalue(), apart.buffers


def _storages(reducers: Mapping[type, Any]) -> list[type]:
    return [kind for kind in reducers if kind.__name__ == "UntypedStorage"]


def _refuse(storage: Any) -> Any:
    if storage.nbytes() == 0:
        return type(storage), (0,)
    if storage.device.type != "cpu":
        raise TypeError(f"its memory is that of {storage.device}; keep data on the CPU")
    raise TypeError(
        "a tensor in shared memory would be shared by the workers of one rank or of all; leave "
        "share_memory_() out, for shared_dataset does what it is for"
    )
