"""`Executor`: makes batches, and knows no epoch; `Inline` makes them in the consumer's own thread.

::

    LoaderIterator ── submit(task) ─▶ executor … inline, in processes, elsewhere … ─▶ receive()

The one by worker processes is in `core/executors/pool_executor.py`.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Collection, Iterable
from typing import Any, Final, NamedTuple

from lit_loader.context import reading
from lit_loader.core.batch.batch_builder import builder_of
from lit_loader.core.batch.batch_spec import BatchSpec, BatchWithReport
from lit_loader.core.batch.fetch import EndOfData
from lit_loader.core.batch.progress import Progress
from lit_loader.core.batch.timings import Timings
from lit_loader.core.batch.worker_info import show, shown
from lit_loader.core.executors.outcome import Outcome, Pin
from lit_loader.core.seeding.borrowed_rng import BorrowedRng, draws_of
from lit_loader.core.seeding.seeds import PassSeeds
from lit_loader.core.transport.messages import POSITION, listed
from lit_loader.core.transport.viewer_page import ViewerPage
from lit_loader.core.transport.worker_exception import describe_batch
from lit_loader.describe import annotate
from lit_loader.errors import WorkerError

__all__ = ["Executor", "Inline", "Task", "failure"]


class Task(NamedTuple):
    """A batch to be made: a pure function of what is here and of what the executor reads."""

    number: int  # of epoch and batch, see `task_number`; no two of an iterator have the same
    # The samples' indices; or a `ReadPoint`, where its reader is to begin; None: it goes on.
    indices: Any
    epoch: int
    seeds: PassSeeds
    own: bool = False  # whether the indices are of the loader's own order: an int64 array
    whose: Any = None  # for messages: the reader, where these have numbers of their own


class Executor:
    """Makes the batches of tasks, each once, in any order; for one iterator at a time.

    For whoever writes another one:

    - `submit` takes a task and returns at once. What it cannot begin yet waits in the executor.
      Tasks of one reader of a stream (``number % readers``) are done one after another, in order.
    - `receive` waits, ``timeout`` seconds at most, and gives one task's `Outcome`: batch, error,
      or the reader's end, and its `Timings`. An exception of the user's code is an outcome. What
      `receive` itself raises is the executor's own end: the iterator closes it, and sends all that
      is outstanding to another one.
    - A lost map-style task (a worker died) is sent again by the executor, unseen. The task of a
      reader whose place is lost comes back as an outcome that is ``lost``: it is submitted again,
      then with a place. A place that a reader has anyway is to be ignored.
    - An exception may come out of a signal handler at any instruction. If ``waiting`` was set then,
      nothing was broken into, and all goes on. Else the iterator calls `call_off` where
      ``recovers`` says that this brings the executor in order, and else `close`.
    - One thread submits while another one may receive. `resize` and `stop` come from any thread.

    Attributes:
        depth: How many tasks may be outstanding: submitted, and their batches not given out.
        budgeted: Whether `room` is to be asked before each of them.
        eager: Whether tasks are begun before they are received.
        recovers: Whether an exception at any instruction leaves it in use.
        draws: Whether it needs the process's own random generators, for which threads take turns.
        closed: Whether it makes no more batches.
        notices: What the user is to be told, as warnings.
        page: Where viewers in other processes look; None: nowhere.
        pool: Its worker processes; None: it has none.
        measured: What ``num_workers="auto"`` asks about its workers; None: nothing.
    """

    depth = 1
    budgeted = eager = recovers = draws = closed = elsewhere = False
    waiting = False
    notices: Collection[Any] = ()
    page: ViewerPage | None = None
    pool: Any = None
    measured: Any = None
    unread = 0

    def submit(self, task: Task) -> None:
        """Have a task done; does not wait."""
        raise NotImplementedError

    def receive(self, timeout: float | None = None) -> Outcome | None:
        """Wait for the next outcome; None: the time is up, or `stop` was called."""
        raise NotImplementedError

    def room(self, outstanding: int) -> int:
        """How many more tasks there is memory for, where so many are outstanding."""
        raise NotImplementedError

    def resize(self, num_workers: int, depth: int) -> None:
        """Have another number of workers, and of batches that may be outstanding."""

    def call_off(self) -> None:
        """Forget all tasks; no outcome of theirs comes out any more."""
        raise NotImplementedError

    def stop(self) -> None:
        """Let a `receive` in another thread end."""

    def close(self) -> None:
        """End it; a second call does nothing."""


_NOT_YET: Final = Timings()


class Inline(Executor):
    """``num_workers=0``: makes each batch in `receive`, in the thread that calls it.

    The global random generators are, after that, as they were before. Loaders in other threads wait
    meanwhile, unless they read tables: the generators are one resource of the process.
    """

    recovers = True

    def __init__(
        self, spec: BatchSpec, pin: Pin | None, found: Iterable[tuple[str, Any]] | None = None
    ) -> None:
        """``found``: the generators that the dataset holds."""
        self._pin, self._iterable = pin, spec.iterable
        self._tasks: deque[Task] = deque()
        self._progress = Progress()
        self._progress.each = False  # nobody looks at the time
        self._builder = builder_of(spec, found=found)
        self._draws = draws_of(spec.dataset, spec.collate_fn)
        self._always = spec.per_sample or spec.iterable or spec.reseed_fn is not None
        self.draws = not self._builder.reads_table
        # At once: the builder is in cycles.
        end = self._builder.begin_epoch if spec.iterable else self._builder.end
        weakref.finalize(self, end).atexit = False

    def submit(self, task: Task) -> None:
        """Keep the task until it is asked for."""
        self._tasks.append(task)

    def receive(self, timeout: float | None = None) -> Outcome | None:
        """Make a batch."""
        if not self._tasks:
            return None
        task, progress, builder = self._tasks.popleft(), self._progress, self._builder
        indices = listed(task.indices) if task.own else task.indices
        outcome = Outcome(task.number, _NOT_YET)
        progress.begin(-1)
        batch = builder.take(indices, progress) if builder.reads_table else None
        if batch is None:
            batch, error = self._load(task, indices)
            outcome.ended = isinstance(error, EndOfData)
            outcome.error = None if outcome.ended else error
            del error  # whose traceback is to hold no frame that holds it
        now = time.monotonic_ns()
        outcome.timings = timings = Timings(-1, 0, builder.samples, *progress.stages(now))
        timings.arrived = now
        if type(batch) is BatchWithReport:
            outcome.made, batch = batch, batch.batch
        outcome.batch = batch
        if self._pin is not None:
            outcome.pin(self._pin)
        return outcome

    def _load(self, task: Task, indices: Any) -> tuple[Any, BaseException | None]:
        """Make a batch by the user's code, with the generators lent; or return what it raised."""
        builder, number, context = self._builder, task.number & POSITION, reading()
        builder.enter(task.seeds, task.epoch)
        rng = BorrowedRng(self._draws, builder.held.tapes, self._always)
        builder.seed_globals = rng.seed
        place = context.leave(), shown()
        try:
            rng.begin()
            batch = builder.load(indices, number, task.epoch, task.seeds, self._progress)
        except EndOfData:  # which holds the frames that it came through, and they this executor
            return None, EndOfData()
        except Exception as error:
            # What an exception from a worker has in its message.
            read = builder.whose(number) if self._iterable else indices
            return None, failure(error, f"in {describe_batch(number, read, self._progress)}")
        finally:
            try:
                _return(rng, place)
            except BaseException:  # out of a signal handler, which has broken into it
                _return(rng, place)
                raise
        if rng.late is None:
            return batch, None
        made = batch if type(batch) is BatchWithReport else builder.with_report(batch)
        return made._replace(notes=(*made.notes, rng.late)), None

    def call_off(self) -> None:
        """Forget the task, and where readers are."""
        self._tasks.clear()
        if self._iterable:
            self._builder.begin_epoch()  # an iterator that was interrupted has often ended


def failure(error: BaseException, where: str) -> BaseException:
    """Give what is raised in a batch's place for what the user's code has raised here."""
    if isinstance(error, StopIteration):
        # As it is, it would end the consumer's loop as if the epoch were over.
        made = WorkerError(
            f"the dataset or collate_fn raised StopIteration({error}), which would end the "
            "loop over the loader: raise another exception there"
        )
        made.__cause__ = error
        return made
    if isinstance(error, Exception):
        annotate(error, where)
    return error


def _return(rng: BorrowedRng, place: tuple[Any, Any]) -> None:
    """Put back what was changed in this process to make a batch; may be called again."""
    reading().return_to(place[0])
    show(place[1])
    rng.end()
