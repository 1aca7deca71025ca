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

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from lit_loader.core.state.position import PassPosition, Position

if TYPE_CHECKING:
    from lit_loader.core.batch.batch_spec import BatchWithReport
    from lit_loader.core.batch.progress import Timings
    from lit_loader.core.epoch.loader_core import LoaderCore
    from lit_loader.core.epoch.pass_tasks import PassTasks
    from lit_loader.core.epoch.passes import Pass
    from lit_loader.core.executors.executor import (
        Executor,
        FewerWorkers,
        Outcome,
        Task,
        WorkerDeath,
        Workers,
    )
    from lit_loader.core.executors.worker_pool import Stall, WorkerPool
    from lit_loader.core.executors.worker_set import Relays
    from lit_loader.core.seeding.loader_seeds import NameInJob


class EndPolicy(Protocol):
    """Decides, with the other ranks, where a stream ends. ``place`` is this rank's position."""

    def admits(self, place: Any, /) -> bool:
        """Whether the rank may yield its next batch."""

    def given(self, place: Any, /) -> None:
        """Note that a batch is given out."""

    def begins_again(self, place: Any, /) -> bool:
        """Whether a rank that has nothing left repeats its data."""

    def end(self) -> None:
        """Note that the pass is over."""


class DeviceCopier(Protocol):
    """Copies batches to a device ahead of their use."""

    def stage(self, batch: object, /) -> object:
        """Begin to copy a batch, unless that has begun; return what `take` wants."""

    def take(self, staged: Any, /) -> object:
        """Return the batch on the device."""


class PinThread(Protocol):
    """Receives, and pins, in a thread of its own."""

    @property
    def pinned(self) -> int:
        """Outcomes that nobody has taken yet."""

    def take(self) -> Outcome | None:
        """Wait for the next outcome."""

    def take_at_once(self) -> Outcome | None:
        """Return the next outcome, if it is there."""

    def left(self) -> list[Outcome]:
        """End the thread; return what nobody has taken."""


class Pinner(Protocol):
    """Copies batches into pinned memory."""

    def __call__(self, batch: object, /) -> object:
        """Return a batch in pinned memory."""

    def thread(
        self, receive: Callable[[], Outcome | None], pinned: Callable[[Outcome], Outcome], /
    ) -> PinThread:
        """Start a thread which yields ``pinned(receive())``."""


class SampleLog(Protocol):
    """The samples of one pass that could not be read; ``count`` is their number."""

    count: int

    def note(self, number: int, made: BatchWithReport, /) -> None:
        """Note those of a batch; raise an exception if they are too many."""

    def end(self, epoch: int, delivered: int, /) -> Exception | None:
        """Return what is to be raised at the end of the pass, if something is."""


class AutoNumber(Protocol):
    """Finds the number of workers; ``setting`` has ``workers`` and ``prefetch``."""

    @property
    def setting(self) -> Any:
        """What is set now."""

    def cap_workers(self, workers: int, /) -> None:
        """Set no more workers than this."""

    def add(self, record: Timings, again: bool, /) -> bool:
        """Note a batch; return whether it is time to decide."""

    def decide(self, workers: Workers, name: str, tasks: int, /) -> object:
        """Return another setting; None: it stays as it is."""


class Seams:
    """What may be added to a loader; knows no loader, and is called with its core."""

    def spec_parts(self, core: LoaderCore) -> dict[str, Any]:
        """Return parts of the `BatchSpec` by their names; asked whenever batches are to be made."""
        return {}

    def advice(self, core: LoaderCore) -> Iterable[str]:
        """Return what to report of data that is divided; asked before each epoch."""
        return ()

    def idle(self, core: LoaderCore) -> str | None:
        """Say, when an iterator is made, that workers would have nothing to do; None: they have."""
        return None

    def position(self, core: LoaderCore, start: Position) -> PassPosition:
        """Return what an iterator that begins at ``start`` keeps its position in."""
        return PassPosition(start)

    def stream_tasks(self, core: LoaderCore, made: Pass, in_order: bool) -> PassTasks:
        """Return the `PassTasks` of an iterable dataset (`streams/stream_tasks.py`)."""
        raise NotImplementedError

    def end_policy(self, core: LoaderCore, made: Pass) -> EndPolicy | None:
        """Return what decides on a stream's end.

        Asked when an iterator begins a `Pass`; None: each rank comes to its own.
        """
        return None

    def device_copy(self, core: LoaderCore) -> DeviceCopier | None:
        """Return what copies batches to a device; None: they stay where they are."""
        return None

    def pin_memory(self, core: LoaderCore) -> Pinner | None:
        """Return what copies batches into pinned memory; None: nothing does."""
        return None

    def executor(self, core: LoaderCore, made: Pass) -> Executor | None:
        """Return an `Executor` of another kind than worker processes; None: these make batches."""
        return None

    def remote_workers(self, core: LoaderCore) -> Relays | None:
        """Return a pool's workers on other machines (`remote/starter.py`); None: there are none."""
        return None

    def auto(self, core: LoaderCore) -> AutoNumber:
        """Return what sets the number of workers where that is ``"auto"``."""
        raise NotImplementedError

    def sample_errors(self, core: LoaderCore) -> SampleLog:
        """Return a pass's log of bad samples."""
        raise NotImplementedError

    def sum_up(self, core: LoaderCore) -> None:
        """Take in the records of a `BatchLog` that is full."""
        core.log.records.clear()

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
