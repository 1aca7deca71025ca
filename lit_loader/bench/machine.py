"""The machine: what it is, for the report, and the processor time that is used on it, by psutil."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import platform
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

import lit_loader
from lit_loader.bench.settings import OURS
from lit_loader.system import linux
from lit_loader.system.processors import usable_processors

__all__ = ["cpu_seconds", "describe", "machine_seconds", "wait_until_idle"]


def describe(loaders: Iterable[str]) -> dict[str, Any]:
    """Machine and versions, as primitives."""
    versions: dict[str, str] = {}
    for name in (*loaders, "torch", "numpy", "pillow", "pyarrow"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            ours = name == OURS  # that of the code, whatever was installed
            versions[name] = lit_loader.__version__ if ours else importlib.metadata.version(name)
    return {
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": usable_processors(),
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


def cpu_seconds() -> float:
    """Processor time of this process and all below it that are alive now, in seconds."""
    me = psutil.Process()
    return sum(_cpu(process) for process in (me, *me.children(recursive=True)))


def machine_seconds() -> float:
    """Processor time that all programs of the machine have used, in seconds."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


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
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0
