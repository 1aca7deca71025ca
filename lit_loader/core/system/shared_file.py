"""The nameless file behind an arena, and how its parts are mapped.

It is a memfd: sparse, without a name that could be left behind, without a share of
``/dev/shm``. Where there are none an unlinked temporary file takes its
place, every block of which is allocated before it is mapped, because writing into a hole of it on a
full disk would end the process with SIGBUS.
"""

from __future__ import annotations

import contextlib
import ctypes  # reach: python: mmap(MAP_FIXED), which no module has
import errno
import mmap
import os
import resource
import tempfile
import weakref
from typing import Any, Final

from lit_loader.core.system import linux

_MAP_FIXED: Final = 0x10  # the mmap module does not name it
_MAP_NORESERVE: Final = 0x4000  # which it names from Python 3.13 on

_REMEDIES: Final = {
    errno.EMFILE: "Raise the limit of open files (ulimit -n)",
    errno.ENFILE: "Raise the machine's limit of open files (sysctl fs.file-max)",
    errno.EFBIG: "Raise the limit of file sizes (ulimit -f)",
    errno.ENOSPC: "Free space in the temporary directory, or set TMPDIR to another",
    errno.EDQUOT: "Free space in the temporary directory, or set TMPDIR to another",
    errno.ENOENT: "Set TMPDIR to a directory in which files can be made",
}


def round_up(nbytes: int) -> int:
    """Return ``nbytes`` as whole pages."""
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


def address_space_left() -> int | None:
    """Bytes that ``RLIMIT_AS`` still allows to be mapped, or None where nothing limits it."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        with open(f"{linux.PROC}/self/statm") as statm:
            return max(0, limit - int(statm.read().split()[0]) * mmap.PAGESIZE)
    except OSError:
        return limit // 2


def remedy(error: Exception) -> str:
    """Name the limit that was met, and what to do about it."""
    number = error.errno if isinstance(error, OSError) else None
    return _REMEDIES.get(number or 0, "Raise the limit (ulimit -v)")


def map_part(fd: int, offset: int, nbytes: int, private: bool = False) -> mmap.mmap:
    """Map a part of a file, whole pages of it, without a descriptor of its own.

    A mapping that `mmap.mmap` makes of a file keeps a copy of its descriptor (until Python 3.13,
    where ``trackfd`` came): with a hundred parts there would be none left under ``ulimit -n 256``.
    So nameless memory is mapped, which needs none, and the file's part is put in its place. What
    is written to a ``private`` one is seen by this process alone. Where the system lets nobody
    reserve more memory than there is (``vm.overcommit_memory=2``), a shared mapping has a
    descriptor after all. OSError: no room for it.
    """
    kind = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
    unaccounted = kind | _MAP_NORESERVE
    try:
        mapping = mmap.mmap(-1, nbytes, flags=unaccounted)
    except OSError:
        if private:
            raise
        return mmap.mmap(fd, nbytes, offset=offset)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_longlong]
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    flags = (unaccounted if private else kind) | _MAP_FIXED
    if libc.mmap(address, nbytes, protection, flags, fd, offset) != address:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return mapping


class SharedFile:
    """The file: grows at its end, and takes memory for what is written into it.

    It is mapped up to ``end``; ``sparse``: it costs nothing until touched, and can be given back.
    """

    def __init__(self) -> None:
        self.fd, self.sparse = nameless_file("lit_loader")
        self.end = 0

    def extend(self, nbytes: int) -> int:
        """Make the file longer by whole pages; returns the first byte of the new part.

        OSError: no room on the disk, or beyond a limit; `cut` takes back what there is of it.
        """
        offset = self.end
        if self.sparse:
            os.ftruncate(self.fd, offset + nbytes)
        else:
            os.posix_fallocate(self.fd, offset, nbytes)
        self.end = offset + nbytes
        return offset

    def cut(self, end: int) -> None:
        """Take back what lies behind byte ``end`` and is not mapped."""
        with contextlib.suppress(OSError):  # what remains is not in the way
            os.ftruncate(self.fd, end)
        self.end = end

    def close(self) -> None:
        """Close the descriptor; what is mapped stays."""
        os.close(self.fd)


class Descriptor:
    """A file descriptor that goes along when a process is started, by any start method."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[object, ...]:
        from multiprocessing import reduction  # which lit-loader-top has no use for

        return _arrived, (type(self), reduction.DupFd(self.fd))


def _arrived(kind: type[Descriptor], duplicate: Any) -> Descriptor:
    return kind(duplicate.detach())


class HeldFile(Descriptor):
    """One that is closed with this object."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        weakref.finalize(self, os.close, fd).atexit = False  # a process that ends closes it itself


def nameless_file(label: str) -> tuple[int, bool]:
    """Open a file that no directory knows; ``/proc`` shows it as ``label``.

    Returns its descriptor, and whether it is sparse memory. OSError: no descriptor is available.
    """
    try:
        return linux.memory_file(label), True
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise  # else there are none here
    with tempfile.TemporaryFile(prefix="lit_loader-") as file:
        return os.dup(file.fileno()), False


def write_all(fd: int, data: bytes | memoryview) -> int:
    """Write all of it, and return how much that is; a single call writes 2 GiB at most."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
    return len(data)
