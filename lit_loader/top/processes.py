"""What ``/proc`` says of processes: only looked at, nothing of theirs is touched.

A process may end at any moment: what is asked of one that has raises `ProcessLookupError`, or
`FileNotFoundError`; of another user's, `PermissionError`.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

__all__ = [
    *("DOING", "Process", "command_of", "descendants", "environment_of", "files_of"),
    *("inner_pid", "memory_of", "own_pids", "read_process", "user_of"),
]

_TICK: Final = 1 / os.sysconf("SC_CLK_TCK")

_FILE: Final = "/memfd:lit_loader (deleted)"
"""What ``/proc`` shows a loader's shared file as."""

DOING: Final = {
    "R": "computing",
    "S": "waiting",
    "D": "waiting for a disk or the network, not to be interrupted",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
}
"""What the kernel's letters for a process's state mean."""


class Process(NamedTuple):
    """A process at one moment."""

    pid: int
    parent: int
    name: str
    state: str  # the kernel's letter
    cpu: float  # seconds of processors
    started: int  # so many ticks after the machine

    @property
    def key(self) -> tuple[int, int]:
        """What no other process has: numbers are used again."""
        return self.pid, self.started


def _text(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")


def read_process(pid: int) -> Process:
    """Look at a process."""
    head, _, rest = _text(pid, "stat").rpartition(")")
    fields = rest.split()
    cpu = (int(fields[11]) + int(fields[12])) * _TICK
    return Process(pid, int(fields[1]), head.partition("(")[2], fields[0], cpu, int(fields[19]))


def own_pids() -> Iterator[int]:
    """The processes of this user; root has those of all."""
    me = os.geteuid()
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if me in (0, entry.stat().st_uid):
                    yield int(entry.name)


def descendants(pid: int) -> Iterator[int]:
    """The processes below one."""
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                for child in map(int, _text(pid, f"task/{task}/children").split()):
                    yield child
                    yield from descendants(child)


def files_of(pid: int) -> dict[tuple[int, int], str]:
    """The loaders' files that a process has open: (device, inode), and a path to open it by."""
    found: dict[tuple[int, int], str] = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        with contextlib.suppress(OSError):
            if os.readlink(path) == _FILE:
                status = os.stat(path)
                found.setdefault((status.st_dev, status.st_ino), path)
    return found


def _status(pid: int) -> dict[str, str]:
    lines = (line.partition(":") for line in _text(pid, "status").splitlines())
    return {name: value.strip() for name, _, value in lines}


def memory_of(pid: int) -> int:
    """Bytes of a process's own memory that are resident: neither files nor shared memory."""
    status = _status(pid)
    return int(status.get("RssAnon", status.get("VmRSS", "0")).split()[0]) * 1024


def inner_pid(pid: int) -> int:
    """The number by which a process knows itself: in a container, another one than here."""
    return int(_status(pid).get("NSpid", str(pid)).split()[-1])


def command_of(pid: int) -> str:
    """The command line of a process."""
    return _text(pid, "cmdline").rstrip("\0").replace("\0", " ")


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with."""
    pairs = (entry.partition("=") for entry in _text(pid, "environ").split("\0"))
    return {name: value for name, _, value in pairs}


def user_of(pid: int) -> str:
    """The name of the user whose process it is."""
    uid = os.stat(f"/proc/{pid}").st_uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
