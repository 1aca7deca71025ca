"""How much memory a process has for itself, and how much is left for more of them."""

from __future__ import annotations

from pathlib import Path

from lit_loader.system import linux
from lit_loader.system.cgroups import memory_limits

__all__ = ["memory_left", "own_memory"]


def own_memory(pid: int | str = "self") -> int | None:
    """Bytes of a process that are not a file's.

    Pages that forked processes have in common with the one they come from are divided among them,
    so that the sum over all processes is what the machine has given. The kernel looks through the
    page tables for it: some milliseconds for each gigabyte.

    Args:
        pid: Process id, or "self".

    Returns:
        Bytes, or None if the kernel does not say (not Linux, another user's process, or gone).
    """
    try:
        text = Path(f"{linux.PROC}/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) * 1024
    return None


def memory_left(root: Path = linux.ROOT) -> int | None:
    """Bytes that this process's cgroup and the machine have left; None: not known.

    Args:
        root: Where ``proc`` and ``sys`` lie.
    """
    limits = memory_limits(root=root)
    left = [] if limits.available is None else [limits.available]
    if limits.limit is not None and limits.used is not None:
        left.append(max(0, limits.limit - limits.used))
    return min(left, default=None)
