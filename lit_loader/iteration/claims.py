"""How an iterator gets workers: what it asks its loader for, and what it is given.

::

    iterator ─ WorkerRequest ─▶ PoolHost.claim ─ Claim ─▶ iterator … ─▶ Claim.release

The loader answers with new workers, or with its persistent ones
(`iteration/persistent_workers.py`); the iterator has them for a session (`iteration/session.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from lit_loader.checkpoint.reader_states import Shards
from lit_loader.iteration.base import Host
from lit_loader.iteration.outstanding import OutstandingTasks
from lit_loader.pool.worker_pool import WorkerPool
from lit_loader.sampling.epoch_batches import UpcomingBatch
from lit_loader.statistics.records import BatchRecord
from lit_loader.transport.loader_page import LoaderPage

__all__ = ["Claim", "PoolHost", "Release", "WorkerRequest"]


class WorkerRequest(NamedTuple):
    """What an iterator says when it asks for workers.

    Attributes:
        epoch: Its epoch.
        seed: Base seed of the epoch.
        from_start: Whether it has sent no task and begins with the epoch's first batch, so that it
            can adopt what the workers have begun of that.
        superseded: Whether another iterator has got its workers once.
        revoke: A method, of which a weak reference is kept, that ends the iterator's session when
            another one is to get the workers.
    """

    epoch: int
    seed: int
    from_start: bool
    superseded: bool
    revoke: Callable[[], object]


Release = Callable[[bool, OutstandingTasks | None], object]
"""Gives workers back; called with whether they may be used again, and what they are at for the next
epoch (None: nothing)."""


class Claim(NamedTuple):
    """Workers at the disposal of one iterator.

    Attributes:
        pool: The workers.
        release: Gives them back.
        begun: What they are at already, for this iterator's epoch; None: nothing.
    """

    pool: WorkerPool
    release: Release
    begun: OutstandingTasks | None = None


class PoolHost(Host, Protocol):
    """What an iterator that uses workers needs of its loader."""

    def note(self, record: BatchRecord, workers: WorkerPool | None, again: bool) -> None:
        """Record a batch that is given out.

        Args:
            record: What it has cost.
            workers: Who makes batches; None: they are gone.
            again: Whether a reader that moves reads again what it has given.
        """

    @property
    def shards(self) -> Shards | None:
        """Which readers are this rank's; None: there are no ``num_shards``."""

    @property
    def resizes(self) -> int:
        """Counts how often the number of workers was changed."""

    @property
    def size(self) -> tuple[int, int]:
        """How many workers there are to be, and how many batches may be outstanding."""

    def show(self, page: LoaderPage, iterator: Any) -> None:
        """Write down, for viewers in other processes, what the loader is at."""

    def make_do(self, workers: int) -> None:
        """Have no more workers than these, in the epochs to come too: no more can be started."""

    def claim(self, request: WorkerRequest) -> Claim:
        """Give workers that have begun the epoch to an iterator, for it alone."""

    def lookahead(self, epoch: int) -> Iterator[UpcomingBatch] | None:
        """Give the batches of the epochs after this one; None: nothing is made ahead."""
