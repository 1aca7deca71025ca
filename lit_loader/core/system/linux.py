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

Below: how many CPU cores may be used (affinity, cgroups), and the CPU time of a process.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import os
import time
from collections.abc import Iterator
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
    with contextlib.suppress(OSError, AttributeError):  # refused in some sandboxes, or not built in
        return float(len(os.sched_getaffinity(0)))
    return float(os.cpu_count() or 1)


def _missing() -> OSError:
    return OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def usable_cores(root: Path = ROOT) -> float:
    """Processors that this process and its children may use; a quota may be a fraction."""
    return min(affinity(), _least_quota(root))


@functools.cache  # each loader asks, and it takes a quarter of a millisecond
def _least_quota(root: Path) -> float:
    """CPU cores that this process's cgroups allow; infinite if nothing limits them."""
    quotas = [_quota(folder) for folder, _ in cgroup_folders("cpu", root)]
    return min((quota for quota in quotas if quota is not None), default=math.inf)


def cgroup_folders(controller: str, root: Path) -> Iterator[tuple[Path, int]]:
    """The folders of this process's cgroup, and of those around it, innermost first.

    Limits hold for all below, and in a container the path that the kernel gives may begin outside
    of what is mounted: so every level is tried, down to where the controller ("memory", "cpu") is
    mounted. The folders need not exist; each comes with the version of cgroups, 1 or 2.
    """
    mounts, groups = root / "sys" / "fs" / "cgroup", ""
    with contextlib.suppress(OSError, ValueError):  # not there, forbidden, or not as expected
        groups = (root / "proc" / "self" / "cgroup").read_text()
    for line in groups.splitlines():
        _, _, controllers_and_path = line.partition(":")
        controllers, separator, path = controllers_and_path.partition(":")
        if not separator:
            continue
        if controllers == "":
            # Mounted alone, or next to version 1, where it rarely has a controller.
            top = mounts / "unified" if (mounts / "unified").is_dir() else mounts
            version = 2
        elif controller in controllers.split(","):
            top, version = mounts / controller, 1
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:depth]), version


def advice_if_too_many(num_workers: int) -> str | None:
    """Return a warning if there are more workers than CPU cores; None: there are not."""
    if num_workers <= 1:  # so nothing need be asked of the system
        return None
    cores = math.ceil(usable_cores())
    if num_workers <= cores:
        return None
    return (
        # It begins as torch's does, by which programs filter it.
        f"This DataLoader will create {num_workers} worker processes, but this process may use "
        f"{cores} CPU cores. More workers than cores take time from each other and from "
        f"training. Set num_workers={cores}, unless samples wait for storage [LL031]"
    )


def _quota(folder: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        microseconds = int((folder / "cpu.cfs_quota_us").read_text())
        if microseconds > 0:
            return microseconds / int((folder / "cpu.cfs_period_us").read_text())
    return None


class ProcessorClock:
    """CPU time of this process from a start on; to be made in its main thread.

    With ``thread`` it is what the thread has that makes it. Measuring takes some microseconds.
    """

    def __init__(self, thread: bool = False) -> None:
        self._time = time.thread_time_ns if thread else time.process_time_ns
        self._schedstat: int | None = None
        self._began = (0, 0)
        with contextlib.suppress(OSError, ValueError):  # not in every kernel
            path = f"{PROC}/{'thread-self' if thread else 'self'}/schedstat"
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            _queued(fd)
            self._schedstat = fd

    def start(self) -> None:
        """Begin to measure."""
        self._began = self._read()

    def used(self) -> tuple[int, int]:
        """Nanoseconds of CPU time, and those that the main thread waited for it (or 0)."""
        used, queued = self._read()
        return used - self._began[0], queued - self._began[1]

    def close(self) -> None:
        """Close the file that is read."""
        if self._schedstat is not None:
            os.close(self._schedstat)
            self._schedstat = None

    def _read(self) -> tuple[int, int]:
        queued = 0 if self._schedstat is None else _queued(self._schedstat)
        return self._time(), queued


def _queued(schedstat: int) -> int:
    _, queued, _ = os.pread(schedstat, 64, 0).split()
    return int(queued)
