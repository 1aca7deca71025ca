"""The workers that outlive an iterator, and which iterator has them at the moment."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

from lit_loader.iteration.multi_process import Claim, MultiProcessIterator
from lit_loader.iteration.outstanding import OutstandingTasks
from lit_loader.pool.recovery import Recovery
from lit_loader.pool.worker_pool import WorkerPool
from lit_loader.sampling.epochs import EpochStart

__all__ = ["PersistentWorkers", "temporary"]


def temporary(pool: WorkerPool) -> Claim:
    """Give workers to an iterator that end with its use of them."""
    return Claim(pool, lambda reusable, outstanding: pool.close())


class PersistentWorkers:
    """At most one pool, lent to one iterator at a time.

    Attributes:
        pool: The workers, or None before the first use and after :meth:`close`.
        dataset: Where batches are made in their stead: the dataset as it was when they would have
            been started; else None.
    """

    def __init__(self) -> None:
        self.pool: WorkerPool | None = None
        self.dataset: Any = None
        self._kept: OutstandingTasks | None = None  # what the workers were asked for the next epoch
        self._owner: Callable[[], MultiProcessIterator[Any] | None] = lambda: None

    def claim(
        self,
        iterator: MultiProcessIterator[Any],
        recovery: Recovery,
        epoch: EpochStart,
        start: Callable[[], WorkerPool],
        num_workers: int,
    ) -> Claim:
        """Give the workers to an iterator, ready for a new epoch, or well into it.

        They go to the iterator that was begun last. One that they were taken from, and that is used
        again nevertheless, gets workers of its own.

        Args:
            iterator: Who asks.
            recovery: Sees to workers that have died, or do not leave the epoch before.
            epoch: The iterator's.
            start: Starts new workers.
            num_workers: How many there should be now.

        Raises:
            WorkerDiedError: A worker has died and may not be replaced.
            WorkerTimeoutError: A worker does not leave its sample and may not be replaced.
        """
        owner = self._owner()
        if owner is not None and owner is not iterator and owner.connected:
            if iterator.superseded:
                return temporary(start())
            owner.superseded = True
            owner.disconnect(reusable=True)
        begun = self._begun(iterator, epoch, num_workers)
        if begun is None:
            pool = self._resumed(num_workers, recovery) or start()
        else:
            assert self.pool is not None
            pool = self.pool
            pool.trim()
        self.pool = pool
        self._owner = weakref.ref(iterator)
        generation = pool.generation

        def release(reusable: bool, outstanding: OutstandingTasks | None) -> None:
            if not reusable:
                pool.close()
            elif outstanding is not None and outstanding.tasks:
                self._kept = outstanding
            else:
                pool.cancel(generation)

        return Claim(pool, release, begun)

    def _begun(
        self, iterator: MultiProcessIterator[Any], epoch: EpochStart, num_workers: int
    ) -> OutstandingTasks | None:
        """What the workers have begun for this epoch already; None if that is of no use to it."""
        kept, self._kept = self._kept, None
        pool = self.pool
        if kept is None or pool is None or pool.closed or pool.num_workers != num_workers:
            return None
        # A forgotten iterator is collected at any time, also when others have used the workers.
        if kept.generation != pool.generation or not iterator.matches(kept, epoch):
            return None
        return kept

    def _resumed(self, num_workers: int, recovery: Recovery) -> WorkerPool | None:
        """The workers, ready for a new epoch; None if new ones are to be started."""
        pool = self.pool
        if pool is None or pool.closed:
            return None
        if pool.num_workers != num_workers:
            pool.close()
            return None
        began = time.monotonic()
        try:
            pool.resume()
            while not recovery.wait(pool, pool.resumed, began):
                pass
        except BaseException:
            pool.close()
            raise
        return pool

    def close(self) -> None:
        """End the workers."""
        self._kept = self.dataset = None
        if self.pool is not None:
            try:
                self.pool.close()
            finally:
                self.pool = None
