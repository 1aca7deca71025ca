"""What Linux has and other systems do not, at one place, with what is done without it.

======================  ====================================  =====================================
on Linux                what for                              without
======================  ====================================  =====================================
`memory_file`           the arena, datasets, stacks           an unlinked temporary file
`open_process` (pidfd)  a process's end; signals to it alone  multiprocessing's pipe; its number
``PROC``, ``ROOT``      memory, quota, processor time, what   unknown: no limit, no advice; a caller
                        others of this user have open         keeps what it has for itself
`allocate`              room on a disk                        zeros are written
`affinity`              processors of this process            those of the machine
real-time signals       stacks of workers                     SIGUSR2
holes (MADV_REMOVE)     memory given back                     kept until the loader is closed
``lit-loader-top``      reads ``/proc``                       says so
======================  ====================================  =====================================

``LIT_LOADER_PORTABLE=1`` does without on Linux, too: to see that a program would run elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path
from typing import Final

HERE: Final[bool] = sys.platform == "linux" and os.environ.get("LIT_LOADER_PORTABLE") != "1"
"""Whether this is Linux, and its own ways are used."""

ROOT: Final = Path("/" if HERE else os.devnull)
"""Where ``proc`` and ``sys`` lie; elsewhere nothing does, and to read it is an OSError."""

PROC: Final = str(ROOT / "proc")


def memory_file(label: str, flags: int = 0) -> int:
    """Make a sparse file in memory, which ``/proc`` shows as ``label``; returns its descriptor.

    OSError: there are none here (a kernel or a sandbox without), or no descriptor is left.
    """
    if not (HERE and hasattr(os, "memfd_create")):
        raise _missing()
    return os.memfd_create(label, os.MFD_CLOEXEC | flags)


def open_process(pid: int) -> int:
    """Open a pidfd: what can be read from when this very process has ended.

    ProcessLookupError: it is gone; OSError: another system, an old kernel, or a sandbox.
    """
    if not (HERE and hasattr(os, "pidfd_open")):
        raise _missing()
    return os.pidfd_open(pid)


def stat_fields(pid: int | str) -> list[str]:
    """What the kernel says of a process, from its state on (T: it was stopped); OSError: gone."""
    with open(f"{PROC}/{pid}/stat", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def allocate(fd: int, offset: int, nbytes: int) -> None:
    """Give a part of an ordinary file real blocks, so that writing there cannot fail later."""
    if HERE and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, offset, nbytes)
        return
    zeros = bytes(1 << 20)
    for start in range(offset, offset + nbytes, len(zeros)):
        os.pwrite(fd, zeros[: offset + nbytes - start], start)


def affinity() -> float:
    """Processors that this process may run on."""
    with contextlib.suppress(AttributeError, OSError):  # refused in some sandboxes
        if HERE:
            return float(len(os.sched_getaffinity(0)))
    return float(os.cpu_count() or 1)


def _missing() -> OSError:
    return OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
