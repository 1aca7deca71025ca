"""How many processors may be used: of the machine's, those that affinity and cgroups leave."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from lit_loader.system.cgroups import cgroup_folders

__all__ = ["usable_processors"]


def usable_processors(root: Path = Path("/")) -> float:
    """Processors that this process and its children may use; a quota may be a fraction.

    Args:
        root: Where ``proc`` and ``sys`` lie.
    """
    cores = float(os.cpu_count() or 1)
    with contextlib.suppress(AttributeError, OSError):  # Linux only; refused in some sandboxes
        cores = float(len(os.sched_getaffinity(0)))
    for folder, _ in cgroup_folders("cpu", root / "proc" / "self", root):
        quota = _quota(folder)
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
