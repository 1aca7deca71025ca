"""Memory that is a process's own, and how much of the machine's is left for more of them."""

from __future__ import annotations

import contextlib
from pathlib import Path

from lit_loader.system.cgroups import memory_limits

__all__ = ["memory_left", "own_memory"]


def own_memory(pid: int, root: Path = Path("/")) -> int | None:
    """Bytes that no other process has a part in; of a fork, what it has written to.

    Args:
        pid: The process.
        root: Where ``proc`` lies.

    Returns:
        None where the kernel does not say, or the process has ended.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (root / "proc" / str(pid) / "smaps_rollup").read_text().splitlines()
        private = [int(line.split()[1]) for line in lines if line.startswith("Private_")]
        return sum(private) << 10 if private else None
    return None


def memory_left(root: Path = Path("/")) -> int | None:
    """Bytes that this process's cgroup and the machine have left; None: not known.

    Args:
        root: Where ``proc`` and ``sys`` lie.
    """
    limits = memory_limits(root=root)
    left = [] if limits.available is None else [limits.available]
    if limits.limit is not None and limits.used is not None:
        left.append(max(0, limits.limit - limits.used))
    return min(left, default=None)
