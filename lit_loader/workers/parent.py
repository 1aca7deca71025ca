"""A worker ends with its parent."""

from __future__ import annotations

import multiprocessing
import os
import select
import threading
from typing import NoReturn

from lit_loader.system.linux import open_process

__all__ = ["follow_parent", "sentinel_of"]


def follow_parent(parent: int) -> None:
    """End this process when the parent does, even from within user code.

    A pidfd sees the parent itself die; a pipe's end, as multiprocessing has it, may be held open
    by any process that was forked meanwhile. PR_SET_PDEATHSIG would follow the *thread* that
    started the worker.
    """
    sentinel = sentinel_of(parent)
    if sentinel is None:
        return

    def wait() -> None:
        poll = select.poll()
        poll.register(sentinel, select.POLLIN)
        poll.poll()
        _leave()

    threading.Thread(target=wait, name="lit_loader parent watch", daemon=True).start()


def sentinel_of(parent: int) -> int | None:
    """What can be read from when the parent has ended; None: not known.

    Where the parent is gone already, so is this process.
    """
    try:
        return open_process(parent)
    except ProcessLookupError:
        _leave()
    except OSError:
        process = multiprocessing.parent_process()
        return None if process is None else int(process.sentinel)


def _leave() -> NoReturn:
    os._exit(1)
