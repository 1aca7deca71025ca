"""`memory_use`: what memory a loader takes, in its own process and in its workers."""

from __future__ import annotations

from collections.abc import Iterable

from lit_loader.pool.worker_pool import WorkerPool
from lit_loader.statistics.records import MemoryUse
from lit_loader.system.process_memory import own_memory

__all__ = ["memory_use"]


def memory_use(pools: Iterable[WorkerPool | None]) -> MemoryUse:
    """Measure it now; used by `iteration/host.py`.

    Args:
        pools: The workers of the loader, as far as there are any.
    """
    running = [pool for pool in pools if pool is not None and not pool.closed]
    return MemoryUse(
        parent=own_memory(),
        arena=sum(pool.shared_memory for pool in running),
        shared_data=sum(pool.shared_data for pool in running),
        workers=tuple(own_memory(pid) for pool in running for pid in pool.pids),
    )
