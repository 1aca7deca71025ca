"""What Linux has, and what is done where a kernel, a sandbox or a build of Python is without it.

====================  ====================================  =====================================
what                  what for                              without
====================  ====================================  =====================================
`memory_file`         the arena, datasets, stacks           an unlinked temporary file
`open_process`        a process's end; signals to it alone  multiprocessing's pipe; its number
``PROC``, ``ROOT``    memory, quota, CPU time, what         unknown: no limit, no advice; a caller
                      others of this user have open         keeps what it has for itself
`affinity`            CPU cores of this process             those of the machine
====================  ====================================  =====================================

Builds of Python for old kernels, such as some of conda's, have neither of the first two.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

ROOT: Final = Path("/")
"""Where ``proc`` and ``sys`` lie."""

PROC: Final = str(ROOT / "proc")


def memory_file(label: str, flags: int = 0) -> int:
    """Make a sparse file in memory, which ``/proc`` shows as ``label``; returns its descriptor.

    OSError: there are none here, or no descriptor is left.
    """
    if not hasattr(os, "memfd_create"):
        raise _missing()
    return os.memfd_create(label, os.MFD_CLOEXEC | flags)


def open_process(pid: int) -> int:
    """Open a pidfd: what can be read from when this very process has ended.

    ProcessLookupError: it is gone; OSError: there are none here.
    """
    if not hasattr(os, "pidfd_open"):
        raise _missing()
    return os.pidfd_open(pid)


def stat_fields(pid: int | str) -> list[str]:
    """What the kernel says of a process, from its state on (T: it was stopped); OSError: gone."""
    with open(f"{PROC}/{pid}/stat", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def affinity() -> float:
    """Processors that this process may run on."""
    with contextlib.suppress(OSError):  # refused in some sandboxes
        return float(len(os.sched_getaffinity(0)))
    return float(os.cpu_count() or 1)


def _missing() -> OSError:
    return OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
