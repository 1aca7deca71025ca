"""`resize`: another number of workers at any moment, also in the midst of an epoch.

::

    loader.resize(n) ─▶ the options ─▶ every pool of the loader: "n workers"
                                         │ a thread is in next(), or pins: it brings that about
                                         ╰ none is: it is done here

Used by the loader. A batch does not depend on who makes it, so nothing else changes: what workers
were asked for stays outstanding, and comes in its turn. No thread waits for another: an iterator
that is being given workers just then compares the count of resizes (`iteration/multi_process.py`).
"""

from __future__ import annotations

import threading
from typing import Any

from lit_loader.errors import OptionError
from lit_loader.iteration.host import LoaderHost
from lit_loader.iteration.internals import DEFAULT_PREFETCH, LoaderInternals
from lit_loader.pool.worker_pool import MOST_WORKERS
from lit_loader.system.interrupts import HeldBack

__all__ = ["resize"]


def resize(
    loader: Any, internals: LoaderInternals, num_workers: int, prefetch_factor: int | None
) -> None:
    """Change the number of a loader's workers; see ``DataLoader.resize``.

    Args:
        loader: The loader; its options are set.
        internals: The same loader's.
        num_workers: How many there are to be.
        prefetch_factor: Batches in flight for each; None: as before.

    Raises:
        OptionError: The number is part of the data, or cannot be had now.
    """
    host = LoaderHost(loader, internals)
    running = internals.alive()
    refused = _refused(num_workers, host, any(each.connected for each in running))
    if refused is not None:
        raise OptionError(refused)
    if prefetch_factor is None and num_workers and loader.prefetch_factor is None:
        prefetch_factor = DEFAULT_PREFETCH
    if prefetch_factor is not None:
        loader.prefetch_factor = prefetch_factor
    loader.num_workers = num_workers
    if num_workers == 0:
        host.end_idle_workers()
        return
    internals.resize(*host.size)
    _do_it_here(internals, host.lock)
    host.make_do(min((pool.num_workers for pool in internals.pools()), default=num_workers))


def _refused(num_workers: Any, host: LoaderHost, running: bool) -> str | None:
    """Say why a loader cannot be resized to so many workers; None: it can be."""
    reason, later = host.why_not_resized(), "which counts from the next epoch on"
    if num_workers == "auto":
        return (
            "a loader is resized to a number of workers, got resize('auto'): set "
            f"loader.num_workers = 'auto', {later}"
        )
    if reason is not None:
        return (
            f"{reason}, so it cannot be resized, got resize({num_workers}): set "
            f"loader.num_workers = {num_workers}, {later}"
        )
    if num_workers > MOST_WORKERS:
        return (
            f"a loader is resized to at most {MOST_WORKERS} workers, got resize({num_workers}): "
            "make a new loader if there are to be so many"
        )
    if num_workers == 0 and running:
        return (
            "there is an iterator whose batches workers make, and which needs one of them, got "
            f"resize(0): resize to 1, or set loader.num_workers = 0, {later}"
        )
    return None


def _do_it_here(internals: LoaderInternals, lock: threading.RLock) -> None:
    """Have the processes started and ended now, if no one is in ``next()``."""
    # Not this thread either, further up: a signal's handler may resize.
    if _is_held_here(lock) or not lock.acquire(blocking=False):
        return
    try:
        with HeldBack():
            internals.adapt()
    finally:
        lock.release()


def _is_held_here(lock: threading.RLock) -> bool:
    """Whether this very thread holds a lock."""
    try:
        threading.Condition(lock).notify_all()
    except RuntimeError:
        return False
    return True
