"""Output streams in a forked process: usable, whatever other threads were writing at the fork.

A buffered file has a lock, and a thread that prints or logs holds it while it writes. If a fork
falls into that moment, the copy's lock is held for good, by a thread that the copy has not got; the
next ``print``, log message or flush there never returns. Python makes logging's own locks new in a
forked process, but not those of the files that loggers write to.
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
    """Make new the locks of what ``print`` and ``logging`` write to, in a process just forked.

    What the buffers hold is dropped: it is a copy, and the parent writes the original.
    """
    for stream in _streams():
        buffer = getattr(stream, "buffer", stream)
        if type(buffer) is io.BufferedWriter:
            with contextlib.suppress(ValueError, OSError):  # closed or detached: nothing to write
                # Initialising it once more gives it a new lock and an empty buffer.
                io.BufferedWriter.__init__(buffer, buffer.raw)


def _streams() -> Iterator[Any]:
    yield from (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    # A copy: in the parent, other threads may have been making loggers.
    for logger in (logging.root, *list(logging.root.manager.loggerDict.values())):
        for handler in getattr(logger, "handlers", ()):  # a placeholder has none
            yield getattr(handler, "stream", None)
