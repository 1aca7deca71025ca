"""What a worker does for its parent: it ends with it, and lets it run first."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import threading
from typing import NoReturn

__all__ = ["follow_parent", "yield_to_parent"]


def yield_to_parent() -> None:
    """Let the parent run as soon as it can, where there are more processes than processors.

    A batch process gets its share of processor time, but does not interrupt others when it wakes
    up; the consumer need not queue behind the workers: small batches took a tenth less time on two.
    """
    with contextlib.suppress(AttributeError, OSError):  # Linux only; refused in some sandboxes
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def follow_parent(parent: int) -> None:
    """End this process when the parent does, even from within user code.

    A pidfd sees the parent itself die; a pipe's end, as multiprocessing has it, may be held open
    by any process that was forked meanwhile. PR_SET_PDEATHSIG would follow the *thread* that
    started the worker.
    """
    sentinel: int | None
    try:
        sentinel = os.pidfd_open(parent)
    except ProcessLookupError:
        _leave()
    except (AttributeError, OSError):
        process = multiprocessing.parent_process()
        sentinel = None if process is None else int(process.sentinel)
    if sentinel is None:
        return

    def wait() -> None:
        poll = select.poll()
        poll.register(sentinel, select.POLLIN)
        poll.poll()
        _leave()

    threading.Thread(target=wait, name="lit_loader parent watch", daemon=True).start()


def _leave() -> NoReturn:
    os._exit(1)
