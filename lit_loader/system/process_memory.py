"""How much memory a process has for itself."""

from __future__ import annotations

from pathlib import Path

__all__ = ["own_memory"]


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
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) * 1024
    return None
