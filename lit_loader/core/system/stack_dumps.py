"""Python stacks of workers, written by a process that crashes, or hangs and is ended by a signal.

All workers of a pool share one nameless file. A crash in native code (SIGSEGV, SIGBUS, SIGABRT, …)
writes the stacks of the worker's threads there on its own. A worker that hangs is sent
:data:`DUMP_SIGNAL`: it writes its stacks and then dies of the signal, both without a single step of
Python code, so that an endless loop or a blocking call in C cannot prevent it. That it is dead says
that the file is complete: nothing is waited for otherwise.

A worker that gets :data:`SHOW_SIGNAL` writes them into a file of its own and continues; that
is for viewers (`top/stacks.py`), who find the file in ``/proc``, and leaves the pool's file alone.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from typing import Final

from lit_loader.core.system.shared_file import nameless_file
from lit_loader.describe import PACKAGE

DUMP_SIGNAL: Final[int] = signal.SIGRTMAX - 3
"""Ends a worker after it has written its stacks; a real-time signal, which is hardly ever used."""

SHOW_SIGNAL: Final = DUMP_SIGNAL - 1
"""Has a worker write its stacks and go on, for a viewer; it would end another process."""

SHOWN: Final = "lit_loader shown stacks"
"""What ``/proc`` shows the file as that these are written to."""

_OWN: Final = f'File "{PACKAGE}'

_LONGEST: Final = 20_000
"""Bytes of stacks that are read; the first are those of the thread that crashed."""


class StackFile:
    """The file for workers' stacks, from the parent's side.

    Its descriptor goes to the workers, which share its place in the file; -1: not open.
    """

    def __init__(self, fd: int = -1) -> None:
        self.fd = fd

    def open(self) -> None:
        """Make the file; OSError: there is no room for its descriptor."""
        self.fd, _ = nameless_file("lit_loader stacks")

    def take(self) -> str:
        """Return what has been written since the last call, and forget it."""
        data = os.pread(self.fd, _LONGEST, 0)
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)
        return shortened(data.decode(errors="replace"))

    def close(self) -> None:
        """Close the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)


def shortened(text: str) -> str:
    """Leave out what is the loader's own: the thread that watches the parent, the worker's loop."""
    threads = []
    for thread in text.split("\n\n"):
        lines = thread.strip().splitlines()
        ours = [n for n, line in enumerate(lines) if _OWN in line]
        if not lines or lines[0].startswith("Extension modules"):
            continue
        if 1 in ours and lines[1].endswith(" in wait"):
            continue  # the thread that watches the parent
        threads.append("\n".join(lines[: max(ours[0], 2)] if ours else lines))
    return "\n".join(threads)


def write_stacks_to(fd: int) -> None:
    """Make this process write its stacks to ``fd`` when it crashes, or is sent the signal."""
    faulthandler.unregister(DUMP_SIGNAL)  # of the process that this one was forked from
    signal.signal(DUMP_SIGNAL, signal.SIG_DFL)
    with contextlib.suppress(RuntimeError, OSError):  # a descriptor that is no longer open
        # Disabled first: one that was enabled before the fork would not set its handlers again, and
        # the program may have reset them since. (Lightning does, for all signals, after each fit.)
        faulthandler.disable()
        faulthandler.enable(file=fd, all_threads=True)
        # Chained to the default action, which is to end the process.
        faulthandler.register(DUMP_SIGNAL, file=fd, all_threads=True, chain=True)


def show_stacks_when_asked() -> int:
    """Make this process write its stacks when it is sent the signal for that, and go on.

    System calls that the signal interrupts are taken up again, by the system or by Python. Returns
    the descriptor of the file that they are written to; -1: there is none.
    """
    faulthandler.unregister(SHOW_SIGNAL)  # of the process that this one was forked from
    signal.signal(SHOW_SIGNAL, signal.SIG_IGN)
    fd = -1
    with contextlib.suppress(RuntimeError, OSError):  # no descriptor is left
        fd, _ = nameless_file(SHOWN)
        faulthandler.register(SHOW_SIGNAL, file=fd, all_threads=True, chain=False)
    return fd
