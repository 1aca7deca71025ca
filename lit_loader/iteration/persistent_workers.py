"""`PersistentWorkers`: the workers that outlive an iterator, lent to one iterator at a time.

Used by the loader, which has one such object. A request comes in, a claim goes out
(`iteration/claims.py`); :func:`temporary` makes one of workers that end with the iterator.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from lit_loader.iteration.claims import Claim, WorkerRequest
from lit_loader.iteration.outstanding import OutstandingTasks
from lit_loader.pool.worker_pool import WorkerPool

__all__ = ["PersistentWorkers", "temporary"]

Revoke = Callable[[], object]


def temporary(pool: WorkerPool) -> Claim:
    """Give workers to an iterator that end with its use of them."""
    return Claim(pool, lambda reusable, following: pool.close())


def _none() -> Revoke | None:
    return None


class PersistentWorkers:
    """At most one pool, lent to one iterator at a time.

    Attributes:
        pool: The workers, or None before the first use and after :meth:`close`.
        begun: What the workers are at for the next epoch, or None.
        dataset: Where batches are made in their stead: the dataset as it was when they would have
            been started; else None.
    """

    def __init__(self) -> None:
        self.pool: WorkerPool | None = None
        self.dataset: Any = None
        self.begun: OutstandingTasks | None = None
        self._lent: Callable[[], Revoke | None] = _none  # a weak reference to the way to revoke it

    def claim(
        self,
        request: WorkerRequest,
        start: Callable[[], WorkerPool],
        num_workers: int,
        expected_batches: Callable[[int], Iterator[Any]],
    ) -> Claim:
        """Give the workers to an iterator, ready for a new epoch, or well into it.

        They go to the iterator that was begun last. One that they were taken from, and that is used
        again nevertheless, gets workers of its own.

        Args:
            request: What the iterator asks for.
            start: Starts new workers.
            num_workers: How many there should be now.
            expected_batches: Gives the indices of an epoch's batches, as they would be drawn now.
        """
        revoke = self._lent()
        if revoke is not None:
            if request.superseded:
                return temporary(start())
            revoke()
        begun = self._take_begun(request, num_workers, expected_batches)
        if begun is None:
            pool = self._resumed(num_workers) or start()
        else:
            assert self.pool is not None
            pool = self.pool
            pool.trim()
        self.pool = pool
        lent = self._lent = weakref.WeakMethod(request.revoke)
        token = pool.token

        def release(reusable: bool, following: OutstandingTasks | None) -> None:
            if self._lent is lent:
                self._lent = _none
            if not reusable:
                pool.close()
            elif following is not None and following.tasks:
                self.begun = following
            else:
                pool.cancel(token)

        return Claim(pool, release, begun)

    def _take_begun(
        self,
        request: WorkerRequest,
        num_workers: int,
        expected_batches: Callable[[int], Iterator[Any]],
    ) -> OutstandingTasks | None:
        """What the workers have begun of an epoch already; None if that is of no use to it."""
        begun, self.begun = self.begun, None
        pool = self.pool
        if begun is None or pool is None or pool.closed or pool.num_workers != num_workers:
            return None
        # A forgotten iterator is collected at any time, also when others have used the workers.
        if begun.token != pool.token:
            return None
        if not request.from_start or begun.seed != request.seed:
            return None
        return begun if begun.begins(request.epoch, expected_batches(request.epoch)) else None

    def _resumed(self, num_workers: int) -> WorkerPool | None:
        """The workers, ready for a new epoch; None if new ones are to be started."""
        pool = self.pool
        if pool is None or pool.closed:
            return None
        if pool.num_workers != num_workers:
            pool.close()
            return None
        pool.resume()
        return pool

    def resize(self, num_workers: int, depth: int) -> None:
        """Change the number of workers; from any thread."""
        pool = self.pool
        if pool is not None:
            pool.resize(num_workers, depth)

    @property
    def idle(self) -> WorkerPool | None:
        """The workers, if there are some that no iterator has."""
        return self.pool if self._lent() is None else None

    def close(self) -> None:
        """End the workers."""
        self.begun = self.dataset = None
        if self.pool is not None:
            try:
                self.pool.close()
            finally:
                self.pool = None
