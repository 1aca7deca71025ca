"""`ends_with_starter`: a process that may be stuck is not left behind when its parent is killed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator
from typing import Any, Final

__all__ = ["ends_with_starter"]

# Found before any fork: another thread may hold the dynamic linker's lock at that moment.
_prctl: Final[Any] = getattr(ctypes.CDLL(None), "prctl", None)
_PR_SET_PDEATHSIG: Final = 1


@contextlib.contextmanager
def ends_with_starter(parent: int) -> Iterator[None]:
    """Have the kernel end this process when the thread that has started it ends; Linux only.

    The kernel alone can: a process that waits for a lock that nobody gives back runs no code, and
    no other thread of it can have been started before. To be used only as long as that very thread
    waits for this process.

    Args:
        parent: The parent's process id.
    """
    if _prctl is None:
        yield
        return
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)
    try:
        yield
    finally:
        _prctl(_PR_SET_PDEATHSIG, 0)
