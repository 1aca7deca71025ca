"""`Session`: the workers that an iterator has for a while, until it gives them back.

Begun by `iteration/multi_process.py` with what it was given (`iteration/claims.py`). It ends when
the epoch does, when the iterator is closed or collected, when another iterator gets the workers, or
when something goes wrong with them. What they were asked for and what has come of it
(`iteration/outstanding.py`) is the iterator's, which may begin another session with it.
"""

from __future__ import annotations

import threading
import weakref

from lit_loader.iteration.claims import Release
from lit_loader.iteration.delivery import DeliveryPipeline
from lit_loader.iteration.outstanding import OutstandingTasks
from lit_loader.pool.worker_pool import WorkerPool
from lit_loader.system.interrupts import HeldBack

__all__ = ["Session", "end_with_the_program"]


class Session:
    """One iterator's use of workers. Does not refer to the iterator, which can be collected.

    Args:
        iterator: The session ends with it.
        pool: The workers.
        pipeline: The way of their batches to the iterator.
        release: Gives the workers back.
        outstanding: What they are asked for.
        epoch: The iterator's.

    Attributes:
        page: Where viewers in other processes see what becomes of it.
        new: Whether it has just been begun, and nothing else has happened.
    """

    def __init__(
        self,
        iterator: object,
        pool: WorkerPool,
        pipeline: DeliveryPipeline,
        release: Release,
        outstanding: OutstandingTasks,
        epoch: int,
    ) -> None:
        self.pool = pool
        self.pipeline = pipeline
        self.page = pool.page
        self.new = False
        self._release = release
        self._outstanding = outstanding
        self._epoch = epoch
        self._finalizer = weakref.finalize(iterator, self._end, reusable=True, unnoticed=True)

    def start(self) -> None:
        """Begin to deliver; what is outstanding has been sent."""
        self.pipeline.start()

    def hold(self, wait: bool) -> bool | None:
        """Take the next outcome ahead of its turn: see `Hold` in `ranks/shard_tail.py`."""
        following = self.pipeline.take() if wait else self.pipeline.take_at_once()
        if following is None:
            return None
        self._outstanding.ready.append(following)
        return not following.ended

    def end(self, reusable: bool) -> None:
        """Give the workers back, keeping what has come in; a second call does nothing.

        Args:
            reusable: Whether the workers may be used again.
        """
        if self._finalizer.detach() is not None:  # else it has run: the program exits
            self._end(reusable)

    def _end(self, reusable: bool, unnoticed: bool = False) -> None:
        outstanding, following = self._outstanding, None
        with HeldBack(unnoticed=unnoticed):
            outstanding.settle()
            try:
                outstanding.ready.extend(self.pipeline.stop())
            finally:
                if outstanding.owed or not reusable:
                    outstanding.keep_only(self._epoch)
                else:
                    following = outstanding.hand_on()
                if not self.pool.elsewhere:
                    self.page.rest()
                self._release(reusable, following)


def end_with_the_program() -> None:
    """End a daemon's thread, quietly, when the program exits: the workers are gone, or going."""
    if not threading.main_thread().is_alive() and threading.current_thread().daemon:
        raise SystemExit
