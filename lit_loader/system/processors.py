"""How many processors may be used: of the machine's, those that affinity and cgroups leave."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

from lit_loader.system.cgroups import cgroup_folders

__all__ = ["advice_if_too_many", "usable_processors"]


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


def advice_if_too_many(num_workers: int) -> str | None:
    """Say that there are more workers than processors for them; None: there are not."""
    processors = math.ceil(usable_processors())
    if num_workers <= processors:
        return None
    begins = "This DataLoader will create"  # as torch's, by which programs filter it
    return (
        f"{begins} {num_workers} worker processes, but this process may use {processors} "
        "processors: for work that computes, more workers only take time from each other and from "
        f"training; num_workers={processors} is enough, unless samples wait for storage"
    )


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
