"""Locks in a forked process: free, whatever other threads did at the fork.

A fork copies the locks that other threads hold, and nobody in the copy gives them back. Python
makes those of logging new, and these are made new here:

- of standard streams, and of the files that logs go to: a thread holds one while it writes, and
  one that waits for input all the time;
- of accelerators: ``torch.manual_seed`` takes them, also where there is none.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["renew_locks"]


# reach: torch: the accelerators' locks, which a fork copies held; other versions keep theirs
def renew_locks() -> None:
    """Make the locks new, in a process just forked.

    What the buffers of streams hold is dropped: it is a copy, which the parent writes or reads.
    """
    for stream in _streams():
        buffer = getattr(stream, "buffer", stream)
        for kind in (io.BufferedWriter, io.BufferedReader):
            if type(buffer) is kind:
                with contextlib.suppress(ValueError, OSError):  # closed, or detached
                    kind.__init__(buffer, buffer.raw)  # gives it a new lock and an empty buffer
    accelerator: Any
    for accelerator in (torch.cuda, torch.xpu, torch.mtia):
        if hasattr(accelerator, "_initialization_lock"):
            accelerator._initialization_lock = threading.Lock()


def _streams() -> Iterator[Any]:
    yield from (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
    # A copy: in the parent, other threads may have been making loggers.
    for logger in (logging.root, *list(logging.root.manager.loggerDict.values())):
        for handler in getattr(logger, "handlers", ()):  # a placeholder has none
            yield getattr(handler, "stream", None)
