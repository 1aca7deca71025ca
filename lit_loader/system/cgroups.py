"""Control groups (cgroups): where they lie, and how much memory they, process and machine have.

The memory is for the message about a worker that was killed, most often by the kernel for want of
it; where a process's cgroups lie is asked for processors too (`system/processors.py`). Files
are read under a root directory, ``/`` on Linux; what cannot be read is None.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from lit_loader.system import linux

__all__ = ["MemoryLimits", "cgroup_folders", "memory_limits"]

_Found = TypeVar("_Found")

_UNLIMITED: Final = 1 << 60
"""Bytes; version 1 writes "no limit" as a number near 2**63."""


@dataclass(frozen=True)
class MemoryLimits:
    """Memory in bytes, at one moment.

    Attributes:
        process: Resident in the process.
        used: In use by the cgroup that is nearest to its limit, without file caches that the kernel
            would drop first.
        limit: That cgroup's limit; None also where there is none.
        available: What the machine has left, as the kernel estimates it.
        oom_kills: Processes of the cgroup that the kernel has killed for want of memory, ever.
    """

    process: int | None = None
    used: int | None = None
    limit: int | None = None
    available: int | None = None
    oom_kills: int | None = None

    def ample(self, nbytes: int) -> bool:
        """Whether a process that has just been killed was not killed for want of memory.

        Args:
            nbytes: What it had at most, which may be part of what is left now.
        """
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


def memory_limits(pid: int | None = None, root: Path = linux.ROOT) -> MemoryLimits:
    """Read the memory of a process, of its cgroup (version 2 or 1) and of the machine.

    Args:
        pid: The process, None for this one. Of one that has ended (and been waited for) nothing is
            known but the machine's memory: ask with the pid of its parent, which shares its cgroup.
        root: Where ``proc`` and ``sys`` lie.
    """
    process = root / "proc" / ("self" if pid is None else str(pid))
    levels = [level for level in _levels(process, root) if level.used is not None]
    limited = [level for level in levels if level.limit is not None]
    nearest = min(limited, key=lambda level: level.left, default=None)
    return MemoryLimits(
        process=_read(process / "statm", lambda text: int(text.split()[1]) * _PAGE),
        used=nearest.used if nearest else (levels[0].used if levels else None),
        limit=nearest.limit if nearest else None,
        available=_kibibytes(root / "proc" / "meminfo", "MemAvailable:"),
        # Of its own cgroup: those above count kills that are no concern of this process.
        oom_kills=levels[0].oom_kills if levels else None,
    )


_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class _Level:
    """A cgroup, as far as it can be read."""

    used: int | None
    limit: int | None
    oom_kills: int | None

    @property
    def left(self) -> int:
        return (self.limit or 0) - (self.used or 0)


def _levels(process: Path, root: Path) -> Iterator[_Level]:
    for folder, version in cgroup_folders("memory", process, root):
        yield _version_2(folder) if version == 2 else _version_1(folder)


def cgroup_folders(controller: str, process: Path, root: Path) -> Iterator[tuple[Path, int]]:
    """The folders of the cgroup of a process, and of those around it, innermost first.

    Limits hold for all below, and in a container the path that the kernel gives may begin outside
    of what is mounted: so every level is tried, down to where the controller is mounted.

    Args:
        controller: ``"memory"`` or ``"cpu"``.
        process: The process's folder in ``proc``.
        root: Where ``sys`` lies.

    Returns:
        Folders, which need not exist, each with the version of cgroups, 1 or 2.
    """
    mounts = root / "sys" / "fs" / "cgroup"
    for line in _read(process / "cgroup", str.splitlines) or ():
        _, _, controllers_and_path = line.partition(":")
        controllers, separator, path = controllers_and_path.partition(":")
        if not separator:
            continue
        if controllers == "":
            # Mounted alone, or beside version 1, where it rarely has a controller.
            top = mounts / "unified" if (mounts / "unified").is_dir() else mounts
            version = 2
        elif controller in controllers.split(","):
            top, version = mounts / controller, 1
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:depth]), version


def _version_2(folder: Path) -> _Level:
    return _Level(
        _without_cache(folder / "memory.current", folder / "memory.stat", "inactive_file"),
        _read(folder / "memory.max", _limit),
        _field(folder / "memory.events", "oom_kill"),
    )


def _version_1(folder: Path) -> _Level:
    stat = folder / "memory.stat"
    return _Level(
        _without_cache(folder / "memory.usage_in_bytes", stat, "total_inactive_file"),
        _read(folder / "memory.limit_in_bytes", _limit),
        _field(folder / "memory.oom_control", "oom_kill"),
    )


def _without_cache(usage: Path, stat: Path, field: str) -> int | None:
    used = _read(usage, int)
    return None if used is None else max(0, used - (_field(stat, field) or 0))


def _limit(text: str) -> int | None:
    return None if text.strip() == "max" or int(text) >= _UNLIMITED else int(text)


def _field(path: Path, name: str) -> int | None:
    """The number behind ``name`` in a file of lines ``name number``."""

    def find(text: str) -> int | None:
        rows = [line.split() for line in text.splitlines()]
        return next((int(row[1]) for row in rows if len(row) > 1 and row[0] == name), None)

    return _read(path, find)


def _kibibytes(path: Path, name: str) -> int | None:
    number = _field(path, name)
    return None if number is None else number << 10


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
