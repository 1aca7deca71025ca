"""`Seams`: where add-ons hang on a loader. By itself the core has none of them.

::

    LoaderCore, LoaderIterator ── asks, where something may be added ──▶ Seams   gives nothing
                                                                           ▲
                                              `lit_loader/loader.py`: AddOns   imports what an
                                                                               option asks for

Each method says when it is called, and what it must return. What worker processes
need of an add-on is in the spec, and is pickled with it: ``tolerance``, ``table_of`` and
``streams`` of `BatchSpec`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lit_loader.core.state.position import PassPosition, Position

if TYPE_CHECKING:
    from lit_loader.accelerator.device_copy import DeviceCopy
    from lit_loader.accelerator.pin_memory import Pinning
    from lit_loader.core.epoch.loader_core import LoaderCore
    from lit_loader.core.epoch.pass_tasks import PassTasks
    from lit_loader.core.epoch.passes import Pass
    from lit_loader.core.executors.executor import (
        Executor,
        FewerWorkers,
        Task,
        WorkerDeath,
        Workers,
    )
    from lit_loader.core.executors.worker_pool import Stall, WorkerPool
    from lit_loader.core.executors.worker_set import Relays
    from lit_loader.core.seeding.loader_seeds import NameInJob
    from lit_loader.data.sample_errors import SampleErrorLog
    from lit_loader.profiling.auto_workers import AutoWorkers
    from lit_loader.streams.uneven_ranks import ShardTail


class Seams:
    """What may be added to a loader; knows no loader, and is called with its core."""

    def spec_parts(self, core: LoaderCore) -> dict[str, Any]:
        """Return parts of the `BatchSpec` by their names; asked whenever batches are to be made."""
        return {}

    def advice(self, core: LoaderCore) -> Iterable[str]:
        """Return what to report of data that is divided; asked before each epoch."""
        return ()

    def idle(self, core: LoaderCore) -> str | None:
        """Say that workers would have nothing to do; None: they have.

        Asked when an iterator over data with ``num_shards`` is made.
        """
        return None

    def position(self, core: LoaderCore, start: Position) -> PassPosition:
        """Return what an iterator that begins at ``start`` keeps its position in."""
        return PassPosition(start)

    def stream_tasks(self, core: LoaderCore, made: Pass, in_order: bool) -> PassTasks:
        """Return the `PassTasks` of an iterable dataset (`streams/stream_tasks.py`)."""
        raise NotImplementedError

    def end_policy(self, core: LoaderCore, made: Pass) -> ShardTail | None:
        """Return what decides on a stream's end.

        Asked when an iterator begins a `Pass` of one; None: each rank comes to its own.
        """
        return None

    def device_copy(self, core: LoaderCore) -> DeviceCopy | None:
        """Return what copies batches to a device; None: they stay where they are."""
        return None

    def pin_memory(self, core: LoaderCore) -> Pinning | None:
        """Return what copies batches into pinned memory, if the options say so; None: nothing."""
        return None

    def executor(self, core: LoaderCore, made: Pass) -> Executor | None:
        """Return an `Executor` of another kind than worker processes; None: these make batches."""
        return None

    def remote_workers(self, core: LoaderCore) -> Relays | None:
        """Return a pool's workers on other machines (`remote/starter.py`); None: there are none."""
        return None

    def auto(self, core: LoaderCore) -> AutoWorkers:
        """Return what sets the number of workers where that is ``"auto"``."""
        raise NotImplementedError

    def sample_errors(self, core: LoaderCore) -> SampleErrorLog:
        """Return a pass's log of bad samples."""
        raise NotImplementedError

    def statistics(self, core: LoaderCore, memory: bool) -> Any:
        """Return the loader's statistics."""
        raise NotImplementedError

    def figures(self, core: LoaderCore, epoch: int, now: int) -> dict[str, object]:
        """Return what viewers are shown of a loader that works on an epoch; asked once a second."""
        return {}

    def torch_habits(self) -> Any:
        """Return what answers programs that treat an iterator as torch's (`compat`); or None."""
        return None

    def shared_by_fork(self, core: LoaderCore, num_workers: int) -> Iterable[str]:
        """Return what to report of what workers would share; asked before a fork."""
        return ()

    def look_at_workers(self, core: LoaderCore, pool: Workers, now: float) -> None:
        """Look at the workers of a pool; done once a second (of ``now``), between two batches."""

    def stall(self, workers: object) -> Stall | None:
        """Return what tells of a wait in which no batch comes: ``tell(workers, seconds)``.

        Asked at half of ``stall_warning``. ``workers`` are a `WorkerPool`, or a list of threads.
        """
        return None

    def explain(
        self,
        pool: WorkerPool,
        death: WorkerDeath,
        task: Task | None,
        waited: tuple[float, float] | None = None,
    ) -> str:
        """Say how a worker came to its end (`WorkerDeath`), why, and what to do; here: the facts.

        ``task`` is the one in flight that it had, or None. ``waited``: it hung and was
        ended: the seconds for which it did, and the ``timeout``.
        """
        return f"Worker {death.worker} (pid {death.pid}) has ended, exit code {death.exitcode}."

    def fewer_workers(self, pool: WorkerPool, death: WorkerDeath) -> FewerWorkers | None:
        """Return a `FewerWorkers` if there are to be fewer, as a worker has died; else None."""
        return None

    def reader_states(self) -> Any:
        """Return what reads and writes the parts of readers in a state (`reader_states.py`)."""
        raise NotImplementedError

    def name_in_job(self, kind: str) -> NameInJob:
        """Return the name of a loader among the ranks that share its data.

        Asked when these are more than one, once for a loader.
        """
        raise NotImplementedError

    def words(self) -> Any:
        """Return the sentences on streams that do not keep what they promise (`advice.py`)."""
        raise NotImplementedError
