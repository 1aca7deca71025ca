"""Files in memory that this user's processes hold: found by a label, made by one at a time.

::

    lock(label) ─▶ find(label) ─┬─ a descriptor
                                ╰─ None ─▶ new(label) ─ written ─▶ seal

A memfd has no name that another process could open, and so leaves none. But the kernel
shows a process's open files to its own user, with their labels; so one is found by looking through
those of all of this user's processes::

    /proc/4711/fd/23 ──▶ "/memfd:<label> (deleted)"        opened like any other file

It is gone when the last process that holds or maps it has ended, however that ends. Processes of
other users cannot be looked into, and cannot look into ours.

The lock is a name in the kernel's own list of sockets (an abstract address): one process can have
it, and it is free the moment that process ends. Who waits tries again and again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import socket
import struct
import sys
import time
import weakref
from typing import Final

import numpy as np
import torch

from lit_loader import __version__
from lit_loader.core.system import linux

__all__ = ["find", "label_of", "lock", "new", "seal"]

_READABLE: Final = 0x0F  # F_SEAL_SEAL, _SHRINK, _GROW and _WRITE: nothing about it changes any more
_WRITABLE: Final = 0x02  # F_SEAL_SHRINK
_CREDENTIALS: Final = struct.Struct("3i")  # process, user, group

_PAUSE: Final = 0.01  # seconds between two attempts to take a lock

_held: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def label_of(kind: str, *parts: object) -> str:
    """Return the label of what processes share that run the same interpreter and libraries."""
    versions = sys.version, sys.prefix, __version__, torch.__version__, np.__version__
    digest = hashlib.blake2b(repr((versions, parts)).encode(), digest_size=16)
    return f"{kind} {digest.hexdigest()}"


# --- files ---


def new(label: str) -> int:
    """Make one, and return its descriptor; others find it once it is sealed."""
    fd = linux.memory_file(label, os.MFD_ALLOW_SEALING)
    os.fchmod(fd, 0o600)
    return fd


def seal(fd: int, writable: bool = False) -> None:
    """Publish a file: nobody can shorten it from now on, or change it unless ``writable``."""
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _WRITABLE if writable else _READABLE)


def find(label: str, writable: bool = False) -> int | None:
    """Open a file of this label that a process of this user holds; None: there is none."""
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
                    if os.readlink(f"/proc/self/fd/{fd}") == wanted and _is_ours(fd, writable):
                        return fd
                    os.close(fd)
    return None


def _is_ours(fd: int, writable: bool) -> bool:
    seals = _WRITABLE if writable else _READABLE
    try:
        sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & seals == seals
    except OSError:  # no file in memory
        return False
    return sealed and os.fstat(fd).st_uid == os.geteuid()


# --- the lock ---


def lock(label: str, seconds: float) -> socket.socket:
    """Take the lock of a label (80 characters at most) among this user's processes, or wait.

    For ``with``: at its end, or when it is closed, the lock is free. A process that is forked
    meanwhile does not have it.

    TimeoutError: another process has had it for so long; ``strerror`` names it. OSError: there are
    no such locks here (a sandbox).
    """
    address = f"\0lit_loader/{os.geteuid()}/{label}"
    deadline = time.monotonic() + seconds
    while True:
        taken = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            taken.bind(address)
            taken.listen()  # so that others can ask who it is
        except OSError as error:
            taken.close()
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            _held.add(taken)
            return taken
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, f"{_holder(address)} of this machine")
        time.sleep(_PAUSE)


def _holder(address: str) -> str:
    """Name the process that has a lock."""
    with (
        contextlib.suppress(OSError),  # it is free now
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking,
    ):
        asking.settimeout(_PAUSE)
        asking.connect(address)
        found = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return f"process {_CREDENTIALS.unpack(found)[0]}"
    return "another process"


def _in_child() -> None:
    for each in list(_held):
        each.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
