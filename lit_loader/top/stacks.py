"""A worker's Python stacks: asked for by a signal, read from the worker's own file.

::

    viewer ─ SHOW_SIGNAL ─▶ worker: faulthandler writes ─▶ its file ◀─ /proc/PID/fd/N ─ viewer

The worker goes on where it was; the pool has another signal and another file for its own purposes
(`system/stack_dumps.py`). A process that is not prepared would die of the signal. So it is sent
through a pidfd, and only after what that process has open and handles was looked at: a number that
was given to another process meanwhile is never hit.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path
from typing import Final

from lit_loader.system.stack_dumps import SHOW_SIGNAL, SHOWN
from lit_loader.top import processes
from lit_loader.top.snapshot import Frame

__all__ = ["NoStacks", "ask", "parse"]

_PATIENCE: Final = 1.0  # seconds that a worker has to write

_PAUSE: Final = 0.02
"""Seconds in which nothing more has come, after which all has: it is written in one go."""

_LONGEST: Final = 50_000  # bytes of stacks that are read

_FRAME: Final = re.compile(r'  File "(.*)", line (\d+|\?+) in (.*)')
_INSTALLED: Final = re.compile(r"/(site|dist)-packages/|/lib/python3\.\d+/|^<")


class NoStacks(Exception):
    """They are not to be had; says why."""


def ask(pid: int, fd: int) -> str:
    """Have a worker write its stacks to its descriptor ``fd``, and return them; or NoStacks."""
    with contextlib.ExitStack() as ends:
        try:
            pidfd = os.pidfd_open(pid)
            ends.callback(os.close, pidfd)
            path = f"/proc/{pid}/fd/{fd}"
            prepared = fd >= 0 and os.readlink(path) == f"/memfd:{SHOWN} (deleted)"
            if not (prepared and processes.caught(pid, SHOW_SIGNAL)):
                raise NoStacks("this process writes no stacks when it is asked")
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            ends.callback(os.close, file)
            begin = os.fstat(file).st_size
            signal.pidfd_send_signal(pidfd, SHOW_SIGNAL)
            return _written(pid, file, begin)
        except (ProcessLookupError, FileNotFoundError):
            raise NoStacks("it has just ended") from None
        except OSError as error:
            raise NoStacks(f"it cannot be asked ({error})") from None


def _written(pid: int, file: int, begin: int) -> str:
    deadline = time.monotonic() + _PATIENCE
    size = begin
    while time.monotonic() < deadline:
        time.sleep(_PAUSE)
        size, before = os.fstat(file).st_size, size
        if size > begin and size == before:
            return os.pread(file, min(size - begin, _LONGEST), begin).decode(errors="replace")
    if processes.read_process(pid).state in "TtD":
        raise NoStacks(
            "it did not answer: it is stopped, or in a system call that cannot be interrupted"
        )
    raise NoStacks(f"it did not answer within {_PATIENCE:g} s")


def parse(text: str, pid: int) -> list[Frame]:
    """Find the user's part of what a worker has written, and the line to look at.

    That is the thread that makes batches, from its innermost line to where the loader calls the
    user's code; all of it, if it is at the loader's own. ``text`` is faulthandler's, of all
    threads; paths are those that this process sees.
    """
    parts = re.split(r"\n(?=(?:Current thread|Thread) )", text)
    threads = [[_frame(match, pid) for match in _FRAME.finditer(part)] for part in parts]
    threads = [thread for thread in threads if thread]
    if not threads:
        return []
    thread = next((thread for thread in threads if _loader_of(thread)), threads[0])
    own = _loader_of(thread)
    theirs = [n for n, frame in enumerate(thread) if own and frame.file.startswith(own)]
    shown = thread[: theirs[0]] if theirs and theirs[0] else thread
    at = next((n for n, frame in enumerate(shown) if not _INSTALLED.search(frame.file)), None)
    if theirs and theirs[0]:
        # What the loader has called, if all of it is a library's.
        shown[len(shown) - 1 if at is None else at].user = True
    elif not theirs and at is not None:
        shown[at].user = True
    return shown


def _loader_of(thread: list[Frame]) -> str:
    """The folder of the package that this worker runs, with a slash; "": it is another thread."""
    mains = (frame.file for frame in thread if frame.function == "worker_main")
    return next(mains, "").removesuffix("workers/main.py")


def _frame(match: re.Match[str], pid: int) -> Frame:
    """A line of a stack, with the text of its source as the worker sees it, if it can be read."""
    file, number, function = match.groups()
    frame = Frame(file, int(number) if number.isdigit() else 0, function)
    path = Path(f"/proc/{pid}/root{file}" if file.startswith("/") else f"/proc/{pid}/cwd/{file}")
    with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="replace") as source:
        frame.code = next((text.strip() for n, text in enumerate(source, 1) if n == frame.line), "")
    return frame
