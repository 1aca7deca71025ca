"""How many processors there are to be used."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["usable_processors"]


def usable_processors(root: Path = Path("/")) -> float:
    """Processors that this process and its children may use; a quota may be a fraction.

    Args:
        root: Where ``proc`` and ``sys`` lie.
    """
    cores = float(os.cpu_count() or 1)
    with contextlib.suppress(AttributeError, OSError):  # Linux only; refused in some sandboxes
        cores = float(len(os.sched_getaffinity(0)))
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            mounts = root / "sys/fs/cgroup"
            if controllers and "cpu" not in controllers.split(","):
                continue
            top = mounts / "cpu" if controllers else mounts
            parts = [part for part in path.split("/") if part not in ("", "..")]
            for depth in range(len(parts), -1, -1):  # a limit holds for all below
                quota = _quota(top.joinpath(*parts[:depth]))
                cores = cores if quota is None else min(cores, quota)
    return cores


def _quota(folder: Path) -> float | None:
    """Processors that a cgroup may use; None: no limit of its own."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        microseconds = int((folder / "cpu.cfs_quota_us").read_text())
        if microseconds > 0:
            return microseconds / int((folder / "cpu.cfs_period_us").read_text())
    return None
