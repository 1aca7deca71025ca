"""The machine: what it is, for the report, and what is used of it, by psutil."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import os
import platform
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

import lit_loader
from lit_loader.core.system import linux
from lit_loader.core.system.linux import usable_cores


def describe(loaders: Iterable[str]) -> dict[str, Any]:
    """Machine and versions, as primitives."""
    versions: dict[str, str] = {}
    for name in (*loaders, "torch", "numpy", "pillow", "pyarrow"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            ours = name == "lit_loader"  # that of the code, whatever was installed
            versions[name] = lit_loader.__version__ if ours else importlib.metadata.version(name)
    return {
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "load": psutil.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"{linux.PROC}/cpuinfo").read_text().splitlines()
        name = next(line for line in lines if line.startswith("model name"))
        return name.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _tree() -> list[psutil.Process]:
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def cpu_seconds() -> float:
    """Processor time of this process and all below it, also of those that were waited for."""
    return sum(_cpu(process) for process in _tree())


def memory_and_descriptors() -> tuple[float, int]:
    """Megabytes of these processes, shared pages divided among them; the most descriptors of one.

    Shared memory that is open and that none of them has mapped counts, too: torch's batches lie in
    such, between the worker that has made one and the process that takes it. 0: not known here.
    """
    memory, most = 0.0, 0
    mapped: set[tuple[int, int]] = set()
    shared: dict[tuple[int, int], float] = {}
    for process in _tree():
        with contextlib.suppress(psutil.Error, OSError, AttributeError):  # ended; not Linux
            memory += process.memory_full_info().pss
            most = max(most, process.num_fds())
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
    memory += sum(size for which, size in shared.items() if which not in mapped)
    return memory / 1e6, most


def wait_until_idle(seconds: float = 5.0) -> None:
    """Wait until the processes below this one use the processor no more, for so long at most.

    There is nothing to wait for but that: other loaders' workers show what they still do in their
    processor clocks alone, which tick every 10 ms.
    """
    workers = psutil.Process().children(recursive=True)
    used, end = -1.0, time.monotonic() + seconds
    while time.monotonic() < end:
        now = sum(_cpu(worker) for worker in workers)
        if now == used:
            return
        used = now
        time.sleep(0.05)


def _cpu(process: psutil.Process) -> float:
    """Processor time of one process; 0: it has ended."""
    with contextlib.suppress(psutil.Error):
        return float(sum(process.cpu_times()[:4]))  # its own, and its children's that have ended
    return 0.0
