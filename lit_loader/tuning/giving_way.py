"""`LoaderTurn`: parks the workers of a loader that nobody iterates while another one is.

`tuning/turns.py` says when. The thread that iterates the other loader is here, and takes this one's
lock if it is free: then no one is in its ``next()``. Only the number of workers changes, as by
`iteration/resizing.py`: what they were asked for stays outstanding.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Callable, Collection
from typing import Final, Protocol

from lit_loader.errors import LoaderError
from lit_loader.system.interrupts import HeldBack
from lit_loader.tuning.auto_workers import AutoWorkers
from lit_loader.tuning.turns import FORKED, STARTED, Turn

__all__ = ["LoaderTurn", "do_it_here"]

KEPT: Final = 1
"""Workers of a parked loader: one, which is at hand when it is iterated again."""

_LOG: Final = logging.getLogger("lit_loader.tuning")


class Pool(Protocol):
    """What is asked of a loader's workers (`pool/worker_pool.py`)."""

    def resize(self, num_workers: int) -> None:
        """Change the number of workers."""

    @property
    def leaving(self) -> bool:
        """Whether more live than there are to be."""

    @property
    def forks(self) -> bool:
        """Whether they are forked."""


class Loader(Protocol):
    """What is asked of a loader (`iteration/internals.py`)."""

    lock: threading.RLock
    auto: AutoWorkers | None
    role: str

    def pools(self) -> Collection[Pool]:
        """All of its workers."""

    def adapt(self, wait: bool) -> None:
        """Do what a resize asks for, with the workers that no thread receives from."""


class LoaderTurn(Turn):
    """One loader's turn. Parks it if it has ``num_workers="auto"``: then the number is our choice.

    Not a stream whose readers, when they move, read again what they have given.

    Args:
        loader: The loader, which holds this: no cycle is to delay the end of its workers.
    """

    def __init__(self, loader: Loader) -> None:
        super().__init__()
        self._loader = weakref.ref(loader)
        self._before = KEPT

    @property
    def usual(self) -> int:
        """See there, as below: longer where each worker starts an interpreter."""
        loader = self._loader()
        forked = loader is None or all(pool.forks for pool in loader.pools())
        return FORKED if forked else STARTED

    def park(self, now: int) -> bool:
        """Let all leave but those that are kept."""
        loader = self._loader()
        auto = None if loader is None else loader.auto
        if loader is None or auto is None or auto.reads_again or not loader.pools():
            return False

        def tell() -> None:
            self.parked, self._before = now, auto.setting.workers
            auto.unsettle()
            for pool in loader.pools():
                pool.resize(KEPT)

        if not self._now(loader, tell):
            return False
        name = loader.role or "a loader"
        _LOG.info("%s: %d -> %d workers: another loader is iterated", name, self._before, KEPT)
        return True

    def settle(self) -> bool:
        """See to those that are leaving."""
        loader = self._loader()
        if loader is None:
            return True
        self._now(loader)
        return not any(pool.leaving for pool in loader.pools())

    @staticmethod
    def _now(loader: Loader, tell: Callable[[], object] = int) -> bool:
        """Do so without waiting. What goes wrong is for who waits for these workers' batches."""
        with contextlib.suppress(LoaderError, OSError):
            return do_it_here(loader, loader.lock, tell, wait=False)
        return True

    def unpark(self) -> None:
        """Want as many as before; the thread that comes to receive starts them."""
        loader = self._loader()
        if loader is None:
            return
        if loader.auto is not None:
            loader.auto.unsettle()
            self._before = loader.auto.setting.workers
        for pool in loader.pools():
            pool.resize(self._before)

    def claim(self, begun: bool) -> None:
        """Hear that an iterator asks for workers: they come back, if there is nothing ready.

        Else they do when the first batch is out, which need not wait for a fork.

        Args:
            begun: Whether its first batches have been begun.
        """
        if not begun:
            self.come_back(time.monotonic_ns())

    def workers(self, usual: int) -> int:
        """How many workers there are to be now."""
        return min(usual, KEPT) if self.parked else usual

    def why(self, usual: str) -> str:
        """Why so many."""
        return "another loader is iterated" if self.parked else usual


def do_it_here(
    loader: Loader,
    lock: threading.RLock,
    tell: Callable[[], object] = int,
    wait: bool = True,
) -> bool:
    """Have the processes started and ended now that a resize asks for.

    Args:
        loader: The loader.
        lock: The same loader's.
        tell: Called first.
        wait: Whether to see it through, for a moment.

    Returns:
        Whether no one was in ``next()``: this thread, further up (a signal's handler), or another.
    """
    if _is_held_here(lock) or not lock.acquire(blocking=False):
        return False
    try:
        with HeldBack():
            tell()
            loader.adapt(wait)
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
