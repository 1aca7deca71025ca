"""Files in memory that this user's processes hold: made under a label, and found by it.

A memfd has no name that another process could open, and so none that is left behind. But the kernel
shows a process's open files to its own user, with their labels; so one is found by looking through
those of all of this user's processes::

    /proc/4711/fd/23 ──▶ "/memfd:<label> (deleted)"        opened like any other file

It is gone when the last process that holds or maps it has ended, however that ends. Processes of
other users cannot be looked into, and cannot look into ours.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from typing import Final

from lit_loader.system import linux

__all__ = ["find", "is_supported", "new", "seal"]

_READABLE: Final = 0x0F
"""F_SEAL_SEAL, _SHRINK, _GROW and _WRITE: nothing about it changes any more."""

_WRITABLE: Final = 0x02
"""F_SEAL_SHRINK."""


def is_supported() -> bool:
    """Whether files are found here (Linux, with ``/proc``)."""
    return hasattr(os, "memfd_create") and os.path.isdir(f"{linux.PROC}/self/fd")


def new(label: str) -> int:
    """Make one, and return its descriptor; others find it once it is sealed.

    Raises:
        OSError: No descriptor is to be had.
    """
    fd = linux.memory_file(label, os.MFD_ALLOW_SEALING)
    os.fchmod(fd, 0o600)
    return fd


def seal(fd: int, writable: bool = False) -> None:
    """Let others find the file. From now on nobody can shorten it, not even its owner.

    Args:
        fd: Its descriptor.
        writable: It may be written to; else nobody can change it at all.
    """
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _WRITABLE if writable else _READABLE)


def find(label: str, writable: bool = False) -> int | None:
    """Open a file of this label that a process of this user holds.

    Args:
        label: What it was made as.
        writable: One to be read and written; else one to be read.

    Returns:
        A descriptor of one's own; None: there is none.
    """
    wanted, user = f"/memfd:{label} (deleted)", os.geteuid()
    for process in filter(str.isdigit, os.listdir("/proc")):
        folder = f"/proc/{process}/fd"
        try:
            if os.stat(folder).st_uid != user:
                continue
            numbers = os.listdir(folder)
        except OSError:  # ended, or not ours
            continue
        for number in numbers:
            path = f"{folder}/{number}"
            with contextlib.suppress(OSError):
                if os.readlink(path) == wanted:
                    fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
                    # Looked at again: its number may be another file's since.
                    if os.readlink(f"/proc/self/fd/{fd}") == wanted and _is_ours(
                        fd, _WRITABLE if writable else _READABLE
                    ):
                        return fd
                    os.close(fd)
    return None


def _is_ours(fd: int, seals: int) -> bool:
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode) or status.st_nlink:
        return False
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & seals == seals
    except OSError:  # no file in memory
        return False
