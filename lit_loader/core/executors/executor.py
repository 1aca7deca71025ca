"""`Executor`: makes batches, and knows no epoch. Who writes another one reads this file.

::

    LoaderIterator ── room, submit(task) ─▶ executor ─▶ receive() ── Outcome: a batch, an error
                                               │
   here: `Inline`, with `make` · worker processes: `PoolExecutor` · threads: `ThreadExecutor`

Where a loader has another executor than these comes by the seam `executor`
(`core/epoch/seams.py`). `tests/core/executors/test_toy_executor.py` has a small one, whole;
`lit_loader.testing.ExecutorContract` is what each must pass.

A pool returns an `Outcome`, raises a `WorkerDeath`, and has notices for the consumer.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from lit_loader.core.batch.batch_spec import BatchWithReport
from lit_loader.core.batch.progress import MEASURED, Timings
from lit_loader.core.seeding.seeds import PassSeeds
from lit_loader.core.transport.codec import decode
from lit_loader.core.transport.messages import Reply, position_of
from lit_loader.core.transport.status_board import BoardRow
from lit_loader.core.transport.viewer_page import ViewerPage
from lit_loader.core.transport.worker_exception import WorkerException
from lit_loader.describe import annotate
from lit_loader.errors import TransportError, WorkerError

if TYPE_CHECKING:  # a loader without workers imports nothing of theirs
    from lit_loader.core.executors.worker_process import RelayExit, WorkerProcess
    from lit_loader.core.transport.arena import Lease


Pin = Callable[[object], object]
"""Copies a batch into memory that is pinned."""


class Outcome:
    """What became of a task: batch, error, or a reader's end; with what it has cost."""

    # Whether its reader, of an iterable dataset, has nothing more to give.
    ended = False
    lost: bool  # whether the task, of a reader, has to be given again, with that reader's place
    reply: Reply | None = None  # the worker's message; None: there is none
    memory: Lease | None = None  # the batch's slot (uint8), until the batch is decoded
    failure: WorkerException | None = None  # what went wrong in the worker, or None
    error: BaseException | None = None  # what is raised in the batch's place, or None
    batch: Any = None  # the batch, when it is decoded; perhaps pinned, or on its device
    made: BatchWithReport | None = None  # what came with the batch, or None

    def __init__(self, number: int, timings: Timings | None = None, lost: bool = False) -> None:
        self.number, self.lost = number, lost  # the task's number
        if timings is None:
            timings = Timings()
            timings.arrived = time.monotonic_ns()
        self.timings = timings

    @classmethod
    def of_reply(cls, number: int, reply: Reply) -> Outcome:
        """Make the outcome that a worker's message reports."""
        timings = Timings(reply.worker, reply.at + reply.nbytes, reply[MEASURED:])
        timings.arrived = time.monotonic_ns()
        outcome = cls(number, timings)
        outcome.reply = reply
        return outcome

    def unpack(self) -> None:
        """Rebuild the batch, or the exception in its place.

        Its own arena learns that the consumer has it: the workers may be others by now.
        """
        memory, reply = self.memory, self.reply
        if memory is None or reply is None:
            if self.failure is not None and self.error is None:
                self.error = self.failure.error()
            return
        began = time.monotonic_ns()
        try:
            batch = decode(memory, reply.at, reply.nbytes, memory.arena.divide)
        except (TransportError, MemoryError) as error:  # any other one comes from outside
            self.error = TransportError(
                f"batch {position_of(self.number)} cannot be rebuilt in the training process: "
                f"{error}"
            )
            self.error.__cause__, self.memory = error, None
            return
        if type(batch) is BatchWithReport:
            self.made = batch._replace(batch=None)  # what is pinned is another object
            batch = batch.batch
        self.batch, self.memory = batch, None  # at last: a signal handler may raise before
        self.timings.decode = time.monotonic_ns() - began

    def pin(self, pin: Pin) -> None:
        """Pin the batch; what that raises is the outcome."""
        if self.error is not None or self.ended or self.lost or (self.made and self.made.omitted):
            return
        began = time.monotonic_ns()
        try:
            self.batch = pin(self.batch)
        except Exception as error:
            self.batch, self.error = None, error
        self.timings.pin = time.monotonic_ns() - began


@dataclasses.dataclass(eq=False)
class WorkerDeath(Exception):
    """A worker has ended that was not asked to."""

    worker: int
    pid: int
    exitcode: int | None  # as in :attr:`multiprocessing.Process.exitcode`; None: not known
    row: BoardRow  # its last row of the status board
    stack: str = ""  # the Python stacks it wrote, or ""
    peak_memory: int = 0  # bytes that were resident at most; 0: not known
    relay_exit: RelayExit | None = None  # what the relay says of its end; None: another worker's
    stuck: bool = False  # whether it was ended, for it was forked and did not come up


class FewerWorkers(str):
    """A notice that more workers were wanted than can be started.

    Attributes:
        workers: How many there are to be instead.
    """

    workers: int

    def __new__(cls, text: str, workers: int) -> FewerWorkers:
        """Make one of this text."""
        notice = super().__new__(cls, text)
        notice.workers = workers
        return notice


def failure(error: BaseException, where: str) -> BaseException:
    """Return what is raised in a batch's place for what the user's code has raised here."""
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


MOST_WORKERS: Final = 1024
"""Workers that a pool may grow to, if it was not begun with more: rows of its status board."""


class PoolClosed(Exception):
    """The pipes are closed: by a signal handler, or by the end of the program."""


class Task(NamedTuple):
    """A batch to be made: a pure function of what is here and of what the executor reads."""

    number: int  # of epoch and batch, see `task_number`; no two of an iterator have the same
    # The samples' indices; or a `ReadPoint`, where its reader is to begin; None: it continues.
    indices: Any
    epoch: int
    seeds: PassSeeds
    own: bool = False  # whether the indices are of the loader's own order: an int64 array
    whose: object = None  # for messages: the reader, where these have numbers of their own


class Workers(Protocol):
    """Those who make an executor's batches, for whoever looks at them from outside."""

    @property
    def num_workers(self) -> int:
        """How many there are to be."""

    @property
    def settled(self) -> bool:
        """Whether there are that many, and all of them are up."""

    @property
    def processes(self) -> list[WorkerProcess]:
        """Their processes; none if they are threads, or were closed."""

    @property
    def unread(self) -> int:
        """Outcomes that are there and were not received yet, about."""

    @property
    def memory(self) -> tuple[int, int]:
        """Bytes of shared memory that batches take, and the dataset."""


class Executor:
    """Makes the batches of tasks, each once, in any order; for one iterator at a time.

    The iterator submits a task if nothing is outstanding, and more as far as there is `room`. It
    receives until it has each outcome.

    - Tasks of one reader of a stream (``number % readers``) are done one after another, in order.
    - An exception of the user's code is an `Outcome`. What a method itself raises is the
      executor's end, and so is an exception that comes out of a signal handler meanwhile: the
      iterator closes the executor, and sends all that is outstanding to another one.
    - A lost map-style task (a worker died) is sent again by the executor, unseen. The task of a
      reader whose place is lost comes back as an outcome that is ``lost``: it is submitted again,
      then with a place. A place that a reader has anyway is to be ignored.
    - One thread submits while another one may receive. `resize` and `wake` come from any thread.
    - In a forked copy of the process `close` leaves alone what belongs to the parent.

    Attributes:
        workers: Who makes the batches; None: there is nobody to be looked at.
        page: Where viewers in other processes look; None: nowhere.
    """

    workers: Workers | None = None
    page: ViewerPage | None = None

    def submit(self, task: Task) -> None:
        """Accept a task. Returns at once; what cannot begin yet waits in the executor."""
        raise NotImplementedError

    def receive(self, timeout: float | None = None) -> Outcome | None:
        """Wait for the next outcome; None: the time is up, or `wake` was called.

        Raises:
            PoolClosed: It was closed meanwhile.
        """
        raise NotImplementedError

    def room(self, outstanding: int) -> int:
        """Return how many more tasks may be submitted ahead of what is waited for.

        ``outstanding`` were submitted and not received. Here none.
        """
        return 0

    def resize(self, num_workers: int, depth: int) -> None:
        """Change the number of workers, and of tasks that may be outstanding."""

    def wake(self) -> None:
        """End a `receive` in another thread, and all that come after it."""

    def close(self, keep_workers: bool = False) -> None:
        """End it; a second call does nothing.

        With ``keep_workers`` those that are persistent live on, and drop its tasks.
        """
