"""What ``/proc`` says of processes: only looked at, nothing of theirs is touched.

A process may end at any moment: what is asked of one that has raises `ProcessLookupError`, or
`FileNotFoundError`; of another user's, `PermissionError`.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterator
from typing import Final, NamedTuple

__all__ = [
    *("DOING", "Process", "caught", "command_of", "descendants", "environment_of", "files_of"),
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
    """A process at one moment.

    Attributes:
        pid: Its number.
        parent: That of its parent.
        name: Of its program, shortened.
        state: The kernel's letter: ``R``, ``S``, ``D``, ``T``, ``Z``.
        cpu: Seconds of processors that it has used.
        started: Ticks after the start of the machine.
    """

    pid: int
    parent: int
    name: str
    state: str
    cpu: float
    started: int

    @property
    def key(self) -> tuple[int, int]:
        """What no other process has: numbers are used again."""
        return self.pid, self.started


def read_process(pid: int) -> Process:
    """Look at a process."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        head, _, rest = file.read().rpartition(")")
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
                with open(f"/proc/{pid}/task/{task}/children") as file:
                    children = [int(child) for child in file.read().split()]
                for child in children:
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
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in file)}


def memory_of(pid: int) -> int:
    """Bytes of a process's own memory that are resident: neither files nor shared memory."""
    status = _status(pid)
    return int(status.get("RssAnon", status.get("VmRSS", "0")).split()[0]) * 1024


def inner_pid(pid: int) -> int:
    """The number by which a process knows itself: in a container, another one than here."""
    return int(_status(pid).get("NSpid", str(pid)).split()[-1])


def caught(pid: int, signal: int) -> bool:
    """Whether a process has a handler for a signal."""
    return bool(int(_status(pid)["SigCgt"], 16) >> (signal - 1) & 1)


def _words(pid: int, name: str) -> list[str]:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return [word.decode(errors="replace") for word in file.read().rstrip(b"\0").split(b"\0")]


def command_of(pid: int) -> str:
    """The command line of a process."""
    return " ".join(_words(pid, "cmdline"))


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with."""
    pairs = (entry.partition("=") for entry in _words(pid, "environ"))
    return {name: value for name, _, value in pairs}


def user_of(pid: int) -> str:
    """The name of the user whose process it is."""
    uid = os.stat(f"/proc/{pid}").st_uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
