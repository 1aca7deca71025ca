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

__all__ = ["find", "is_supported", "new", "seal"]

_SEALS: Final = ("F_SEAL_SEAL", "F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_WRITE")


def is_supported() -> bool:
    """Whether files are found here (Linux, with ``/proc``)."""
    return hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")


def new(label: str) -> int:
    """Make one, and return its descriptor; others find it at once.

    Raises:
        OSError: No descriptor is to be had.
    """
    fd = os.memfd_create(label, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.fchmod(fd, 0o600)
    return fd


def seal(fd: int) -> None:
    """From now on nobody can change the file, not even its owner."""
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _all_seals())


def find(label: str, sealed: bool = True) -> int | None:
    """Open a file of this label that a process of this user holds.

    Args:
        label: What it was made as.
        sealed: Only one that is sealed, to be read; else one to be read and written.

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
                    fd = os.open(path, (os.O_RDONLY if sealed else os.O_RDWR) | os.O_CLOEXEC)
                    # Looked at again: its number may be another file's since.
                    if os.readlink(f"/proc/self/fd/{fd}") == wanted and _is_ours(fd, sealed):
                        return fd
                    os.close(fd)
    return None


def _is_ours(fd: int, sealed: bool) -> bool:
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode) or status.st_nlink:
        return False
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)  # refused by what is no file in memory
    except OSError:
        return False
    return not sealed or seals & _all_seals() == _all_seals()


def _all_seals() -> int:
    seals = 0
    for name in _SEALS:
        seals |= getattr(fcntl, name)
    return seals
