"""Processor time and memory of this process and all below it, by psutil.

Used by the cases that measure them, and by adapters to wait until a loader's workers are idle.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import psutil

__all__ = ["cpu_seconds", "machine_seconds", "pss_bytes", "wait_until_idle"]


def _family() -> Iterator[psutil.Process]:
    me = psutil.Process()
    yield me
    yield from me.children(recursive=True)


def cpu_seconds() -> float:
    """Processor time, user and system, that the processes alive now have used, in seconds."""
    return sum(_cpu(process) for process in _family())


def machine_seconds() -> float:
    """Processor time that all programs of the machine have used, in seconds."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def wait_until_idle(seconds: float = 5.0) -> None:
    """Wait until the processes below this one use the processor no more.

    There is nothing to wait for but that: other loaders' workers show what they still do in their
    processor clocks alone, which tick every 10 ms.

    Args:
        seconds: When to give up.
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


def pss_bytes() -> int:
    """Proportional set size, in bytes: a page that n processes share counts 1/n for each."""
    total = 0
    for process in _family():
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total
