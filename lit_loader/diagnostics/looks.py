"""Looks at another process: its Python stacks, what it sleeps at, what CPU time it has had.

::

    looker ─ SHOW_SIGNAL ─▶ worker: faulthandler writes ─▶ its file ◀─ /proc/PID/fd/N ─ looker

For viewers and for what tells of a stall; a run in which all goes well does not load this. The
worker continues where it was; the pool has another signal and another file for its own purposes
(`core/system/stack_dumps.py`). A process that is not prepared would die of the signal. So it is
sent through a pidfd, and only after what that process has open and handles was looked at: a number
that was given to another process meanwhile is never hit.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import time
from pathlib import Path
from typing import Final, NamedTuple

from lit_loader.core.system import linux
from lit_loader.core.system.stack_dumps import SHOW_SIGNAL, SHOWN

_PATIENCE: Final = 1.0  # seconds that a worker has to write

_PAUSE: Final = 0.02
"""Seconds in which nothing more has come, after which all has: it is written in one go."""

_LONGEST: Final = 50_000  # bytes of stacks that are read

_TICK: Final = 1 / os.sysconf("SC_CLK_TCK")

LOCK: Final = "a lock (futex)"

_CALLS: Final = {  # by the numbers of x86-64 and of the others (include/uapi/asm-generic/unistd.h)
    LOCK: (202, 98),
    "a read of": (0, 63),
    "a read of (pread)": (17, 67),
    "a read of (readv)": (19, 65),
    "a write to": (1, 64),
    "a receive from": (45, 207),
    "a connect to": (42, 203),
    "an accept on": (43, 202),
    "a lock of the file": (73, 32),
    "a wait for files (poll)": (7, 73),
    "a wait for files (ppoll)": (271, 73),
    "a wait for files (select)": (270, 72),
    "a wait for files (epoll)": (232, 22),
    "a sleep": (230, 115),
    "a wait for a process": (61, 260),
}
_NAMES: Final = {numbers[platform.machine() != "x86_64"]: name for name, numbers in _CALLS.items()}


class NoStacks(Exception):
    """There are none; says why."""


class Use(NamedTuple):
    """What a process is at, as the kernel has it."""

    state: str  # the kernel's letter: R runs, S sleeps, D sleeps at a disk, T is stopped
    cpu: float  # seconds of CPU time so far
    started: str  # when, in the kernel's ticks: process ids are used again


def use_of(pid: int | str) -> Use:
    """Look at a process, or at a thread (``self/task/7``); OSError: it is gone, or nobody may."""
    fields = linux.stat_fields(pid)
    return Use(fields[0], (int(fields[11]) + int(fields[12])) * _TICK, fields[19])


def sleeps_at(pid: int | str) -> str:
    """Say what a thread, or a process's first one, sleeps at: ``a read of /data/a.bin``; or "".

    ``pid`` may be that of a process, or ``self/task/7``.
    """
    try:
        number, *arguments = Path(f"{linux.PROC}/{pid}/syscall").read_text().split()
        name = _NAMES.get(int(number), f"system call {number}")
        if name.partition(" (")[0].endswith((" of", " to", " from", " on", " file")):
            path = os.readlink(f"{linux.PROC}/{pid}/fd/{int(arguments[0], 16)}")
            verb, _, call = name.partition(" (")
            name = f"{verb} {path}" + (f" ({call}" if call else "")
        return name
    except (OSError, ValueError, IndexError):  # it runs; or the kernel does not say
        return ""


def threads_of(pid: int | str) -> list[str]:
    """The names of a process's threads, but for the first, as the kernel has them."""
    found = []
    with contextlib.suppress(OSError):
        for task in sorted(os.listdir(f"{linux.PROC}/{pid}/task"), key=int)[1:]:
            with contextlib.suppress(OSError):
                found.append(Path(f"{linux.PROC}/{pid}/task/{task}/comm").read_text().strip())
    return found


def ask(pid: int, fd: int) -> str:
    """Make a worker write its stacks to its descriptor ``fd``, and return them; or NoStacks."""
    with contextlib.ExitStack() as ends:
        try:
            pidfd = os.pidfd_open(pid)
            ends.callback(os.close, pidfd)
            path = f"/proc/{pid}/fd/{fd}"
            prepared = fd >= 0 and os.readlink(path) == f"/memfd:{SHOWN} (deleted)"
            if not (prepared and _catches(pid, SHOW_SIGNAL)):
                raise NoStacks("this process writes no stacks on request")
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            ends.callback(os.close, file)
            begin = os.fstat(file).st_size
            signal.pidfd_send_signal(pidfd, SHOW_SIGNAL)
            return _written(pid, file, begin)
        except (ProcessLookupError, FileNotFoundError):
            raise NoStacks("it has just ended") from None
        except OSError as error:
            raise NoStacks(f"it cannot be asked ({error})") from None


def _catches(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    return bool(int(status.partition("\nSigCgt:")[2].split()[0], 16) >> (number - 1) & 1)


def _written(pid: int, file: int, begin: int) -> str:
    deadline = time.monotonic() + _PATIENCE
    size = begin
    while time.monotonic() < deadline:
        time.sleep(_PAUSE)
        size, before = os.fstat(file).st_size, size
        if size > begin and size == before:
            return os.pread(file, min(size - begin, _LONGEST), begin).decode(errors="replace")
    if use_of(pid).state in "TtD":
        raise NoStacks(
            "it did not answer: it is stopped, or in a system call that cannot be interrupted"
        )
    raise NoStacks(f"it did not answer within {_PATIENCE:g} s")
