"""Memory: how much a process, its cgroups and the machine have, and have left.

Asked for by what fills memory, and by what says who has run short of it. Files are read under a
root directory, ``/`` on Linux; what cannot be read is None.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from lit_loader.core.system import linux
from lit_loader.core.system.linux import cgroup_folders

__all__ = ["PAGE", "MemoryLimits", "memory_left", "memory_limits"]

_Found = TypeVar("_Found")

_UNLIMITED: Final = 1 << 60
"""Bytes; version 1 writes "no limit" as a number near 2**63."""

PAGE: Final = os.sysconf("SC_PAGE_SIZE")

_FILES: Final = {
    1: ("memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file"),
    2: ("memory.current", "memory.max", "inactive_file"),
}
"""By the version of cgroups: where the use and the limit stand, and which of the use is cache."""

_KILLS: Final = {1: "memory.oom_control", 2: "memory.events"}


@dataclass(frozen=True)
class MemoryLimits:
    """Memory in bytes, at one moment.

    ``process`` is resident in this one. The cgroup nearest to its limit has ``used``, without file
    caches that the kernel would drop first; the machine has ``available`` left, as the kernel
    estimates it. ``oom_kills``: processes of the cgroup that the OOM killer has ended, ever.
    """

    process: int | None = None
    used: int | None = None
    limit: int | None = None
    available: int | None = None
    oom_kills: int | None = None

    def ample(self, nbytes: int) -> bool:
        """Whether a process that had so much was not killed, just now, by the OOM killer."""
        spare = nbytes + (1 << 30)
        free = self.limit is None or self.limit - (self.used or 0) > spare
        return self.oom_kills == 0 and free and (self.available or 0) > spare

    def describe(self) -> str:
        """Say what is known, as in ``this process has 1.0 GiB, 2 OOM kills``."""
        parts = []
        if self.process is not None:
            parts.append(f"this process has {_size(self.process)}")
        if self.used is not None and self.limit is not None:
            parts.append(f"cgroup memory {_share(self.used, self.limit)}")
        if self.available is not None:
            parts.append(f"the machine {_size(self.available)} available")
        if self.oom_kills:
            parts.append(f"{self.oom_kills} OOM kill{'s' if self.oom_kills > 1 else ''}")
        return ", ".join(parts) or "memory unknown"


def memory_limits(root: Path = linux.ROOT) -> MemoryLimits:
    """Read the memory of this process, of its cgroup (version 2 or 1) and of the machine."""
    process = root / "proc" / "self"
    # Of its own cgroup: those above count kills that are no concern of this process.
    own: tuple[int | None, int | None] | None = None
    nearest: tuple[int, int] | None = None
    for folder, version in cgroup_folders("memory", root):
        usage, limit_file, cache = _FILES[version]
        used, limit = _read(folder / usage, int), _read(folder / limit_file, _limit)
        if used is None:
            continue
        used = max(0, used - (_field(folder / "memory.stat", cache) or 0))
        own = own or (used, _field(folder / _KILLS[version], "oom_kill"))
        if limit is not None and (nearest is None or limit - used < nearest[1] - nearest[0]):
            nearest = used, limit
    used, kills = own or (None, None)
    available = _field(root / "proc" / "meminfo", "MemAvailable:")
    return MemoryLimits(
        process=_read(process / "statm", lambda text: int(text.split()[1]) * PAGE),
        used=nearest[0] if nearest else used,
        limit=nearest[1] if nearest else None,
        available=None if available is None else available << 10,
        oom_kills=kills,
    )


def memory_left() -> int | None:
    """Bytes that this process's cgroup and the machine have left; None: not known."""
    limits = memory_limits()
    left = [] if limits.available is None else [limits.available]
    if limits.limit is not None and limits.used is not None:
        left.append(max(0, limits.limit - limits.used))
    return min(left, default=None)


def _limit(text: str) -> int | None:
    return None if text.strip() == "max" or int(text) >= _UNLIMITED else int(text)


def _field(path: Path, name: str) -> int | None:
    """Return the number after ``name`` in a file of lines ``name number``."""

    def find(text: str) -> int | None:
        rows = [line.split() for line in text.splitlines()]
        return next((int(row[1]) for row in rows if len(row) > 1 and row[0] == name), None)

    return _read(path, find)


def _read(path: Path, parse: Callable[[str], _Found]) -> _Found | None:
    try:
        return parse(path.read_text())
    except (OSError, ValueError, IndexError):  # not there, forbidden, or not as expected
        return None


def _size(nbytes: int) -> str:
    unit, name = _unit(nbytes)
    return f"{nbytes / unit:.1f} {name}"


def _share(used: int, limit: int) -> str:
    unit, name = _unit(limit)
    return f"{used / unit:.1f} of {limit / unit:.1f} {name}"


def _unit(nbytes: int) -> tuple[int, str]:
    return (1 << 30, "GiB") if nbytes >= 1 << 30 else (1 << 20, "MiB")
