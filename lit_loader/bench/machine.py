"""What is used of the machine, by psutil: CPU time, memory, the load of other programs."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil

from lit_loader.core.system import linux

__all__ = ["cpu_seconds", "load_now", "megabytes"]


def load_now() -> float:
    """CPU cores that programs keep busy, over a minute and now; takes half a second.

    The load average alone would count a program for minutes after its end.
    """
    busy: float = psutil.cpu_percent(interval=0.5) / 100 * (psutil.cpu_count() or 1)
    return min(busy, float(psutil.getloadavg()[0]))


def cpu_seconds() -> float:
    """CPU time of this process and all below it, also of those that have ended."""
    found = 0.0
    for process in _tree():
        with contextlib.suppress(psutil.Error):
            found += float(sum(process.cpu_times()[:4]))
    return found


def megabytes() -> float:
    """Megabytes of these processes, shared pages divided among them.

    Shared memory that is open and that none of them has mapped counts, too: torch's batches lie in
    such, between the worker that has made one and the process that takes it.
    """
    memory = 0.0
    mapped: set[tuple[int, int]] = set()
    shared: dict[tuple[int, int], float] = {}
    for process in _tree():
        with contextlib.suppress(psutil.Error, OSError, AttributeError):  # ended; not Linux
            memory += process.memory_full_info().pss
            proc = Path(linux.PROC) / str(process.pid)
            for line in (proc / "maps").read_text().splitlines():
                device, inode = line.split(maxsplit=5)[3:5]
                major, minor = (int(part, 16) for part in device.split(":"))
                mapped.add((os.makedev(major, minor), int(inode)))
            for descriptor in (proc / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(descriptor).startswith(("/memfd:", "/dev/shm/")):
                        found = descriptor.stat()
                        shared[found.st_dev, found.st_ino] = 512 * found.st_blocks
    return (memory + sum(size for which, size in shared.items() if which not in mapped)) / 1e6


def _tree() -> list[psutil.Process]:
    me = psutil.Process()
    return [me, *me.children(recursive=True)]
