"""What a pool reports: `Outcome`, which it returns; `WorkerDeath`, raised; notices."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lit_loader.core.batch.batch_spec import BatchWithReport
from lit_loader.core.batch.timings import MEASURED, Timings
from lit_loader.core.transport.codec import decode
from lit_loader.core.transport.messages import Reply, Status, position_of
from lit_loader.core.transport.status_board import BoardRow
from lit_loader.core.transport.worker_exception import WorkerException
from lit_loader.describe import annotate
from lit_loader.errors import TransportError, WorkerError

if TYPE_CHECKING:
    from lit_loader.core.executors.worker_process import RelayExit
    from lit_loader.core.transport.arena import Lease

Pin = Callable[[Any], Any]
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
        self.timings = Timings(arrived=time.monotonic_ns()) if timings is None else timings

    @classmethod
    def of_reply(
        cls, number: int, reply: Reply, memory: Lease | None, failure: WorkerException | None
    ) -> Outcome:
        """Make the outcome that a worker's message reports."""
        timings = Timings(reply.worker, reply.at + reply.nbytes, *reply[MEASURED:])
        timings.arrived = time.monotonic_ns()
        outcome = cls(number, timings)
        outcome.ended = reply.status == Status.ENDED
        outcome.reply, outcome.memory, outcome.failure = reply, memory, failure
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
