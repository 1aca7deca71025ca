"""Standard streams and logs in a forked process: usable, whatever other threads did at the fork.

A buffered file has a lock, and a thread that prints or logs holds it while it writes; one that
waits for input, all the time. If a fork falls into that, the copy's lock is held for good, by a
thread that the copy has not got; the next ``print``, log message or flush there never returns, nor
does the closing of ``sys.stdin``, with which ``multiprocessing`` begins every process that it
forks. Python makes logging's own locks new in a forked process, but not those of the files that
loggers write to.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections.abc import Iterator
from typing import Any

__all__ = ["renew_stream_locks"]


def renew_stream_locks() -> None:
    """Make new the locks of standard streams, and of what logs go to, in a process just forked.

    What the buffers hold is dropped: it is a copy, and the parent reads and writes the original.
    """
    for stream in _streams():
        buffer = getattr(stream, "buffer", stream)
        for kind in (io.BufferedWriter, io.BufferedReader):
            if type(buffer) is kind:
                with contextlib.suppress(ValueError, OSError):  # closed, or detached
                    # Initialising it once more gives it a new lock and an empty buffer.
                    kind.__init__(buffer, buffer.raw)


def _streams() -> Iterator[Any]:
    yield from (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
    # A copy: in the parent, other threads may have been making loggers.
    for logger in (logging.root, *list(logging.root.manager.loggerDict.values())):
        for handler in getattr(logger, "handlers", ()):  # a placeholder has none
            yield getattr(handler, "stream", None)
