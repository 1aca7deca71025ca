"""`LoaderTurn`: parks the workers of a loader that nobody iterates while another one is.

Used by `tuning/turns.py`, which says when. The thread that iterates the other loader is here, and
takes this one's lock if it is free: then no one is in its ``next()``. Only the number of workers
changes, as by `iteration/resizing.py`: what they were asked for stays outstanding.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lit_loader.errors import LoaderError
from lit_loader.pool.pipes import PoolClosed
from lit_loader.pool.worker_pool import WorkerPool
from lit_loader.system.interrupts import HeldBack
from lit_loader.tuning.turns import FORKED, STARTED, Turn

if TYPE_CHECKING:
    from lit_loader.iteration.internals import LoaderInternals

__all__ = ["LoaderTurn", "do_it_here"]

KEPT: Final = 1
"""Workers of a parked loader: one, which is at hand when it is iterated again."""

_LOG: Final = logging.getLogger("lit_loader.tuning")


class LoaderTurn(Turn):
    """One loader's turn. Parks it if it has ``num_workers="auto"``: then the number is our choice.

    Args:
        internals: The loader's, which holds this: no cycle is to delay the end of its workers.
    """

    def __init__(self, internals: LoaderInternals) -> None:
        super().__init__()
        self._internals = weakref.ref(internals)
        self._before = KEPT

    @property
    def usual(self) -> int:
        """See there, as below: longer where each worker starts an interpreter."""
        internals = self._internals()
        forked = internals is None or all(pool.forks for pool in internals.pools())
        return FORKED if forked else STARTED

    def park(self, now: int) -> bool:
        """Let all leave but those that are kept."""
        internals = self._internals()
        auto = None if internals is None else internals.auto
        if internals is None or auto is None or not internals.pools():
            return False

        def tell() -> None:
            self.parked, self._before = now, auto.setting.workers
            auto.unsettle()
            for pool in internals.pools():
                pool.resize(KEPT)

        if not do_it_here(internals, internals.lock, tell, wait=False):
            return False
        name = internals.role or "a loader"
        _LOG.info("%s: %d -> %d workers: another loader is iterated", name, self._before, KEPT)
        return True

    def settle(self) -> bool:
        """See to those that are leaving."""
        internals = self._internals()
        if internals is None:
            return True
        do_it_here(internals, internals.lock, wait=False)
        return not any(pool.leaving for pool in internals.pools())

    def unpark(self) -> None:
        """Want as many as before; the thread that comes to receive starts them."""
        internals = self._internals()
        if internals is None:
            return
        auto = internals.auto
        if auto is not None:
            auto.unsettle()
            self._before = auto.setting.workers
        for pool in internals.pools():
            pool.resize(self._before)

    def workers(self, usual: int) -> int:
        """How many workers there are to be now."""
        return min(usual, KEPT) if self.parked else usual

    def why(self, usual: str) -> str:
        """Why so many."""
        return "another loader is iterated" if self.parked else usual


def do_it_here(
    internals: LoaderInternals,
    lock: threading.RLock,
    tell: Callable[[], object] = int,
    wait: bool = True,
) -> bool:
    """Have the processes started and ended now that a resize asks for.

    Args:
        internals: The loader's.
        lock: The same loader's.
        tell: Called first.
        wait: Whether to see it through, for a moment.

    Returns:
        Whether no one was in ``next()``: this thread, further up (a signal's handler), or another.
    """
    if _is_held_here(lock) or not lock.acquire(blocking=False):
        return False
    try:
        # A signal's handler may close the loader. A worker's death is for who waits for its work.
        with HeldBack(), contextlib.suppress(PoolClosed, LoaderError, OSError):
            tell()
            for pool in _not_received_from(internals):
                pool.adapt(wait)
    finally:
        lock.release()
    return True


def _is_held_here(lock: threading.RLock) -> bool:
    """Whether this very thread holds a lock."""
    try:
        threading.Condition(lock).notify_all()
    except RuntimeError:
        return False
    return True


def _not_received_from(internals: LoaderInternals) -> list[WorkerPool]:
    """The pools that no thread of their own receives from."""
    pools = [each.unattended for each in internals.alive()]
    return [pool for pool in [*pools, internals.workers.idle] if pool is not None]
