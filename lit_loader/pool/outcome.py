"""What a pool reports: `Outcome`, which it returns; `WorkerDeath`, raised; `FewerWorkers`, told."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lit_loader.transport.messages import Reply
from lit_loader.transport.remote_error import RemoteError
from lit_loader.transport.status_board import BoardRow
from lit_loader.worker.starters import Loss

__all__ = ["FewerWorkers", "Outcome", "WorkerDeath", "unborn"]


class Outcome(NamedTuple):
    """What became of a task.

    Attributes:
        number: The task's.
        memory: The batch's slot (uint8, to be kept while the batch is in use), or None.
        at: Offset of the batch's descriptor in ``memory``.
        nbytes: Bytes of the descriptor.
        failure: What went wrong in the worker, or None. Neither memory nor failure: the worker's
            share of an iterable dataset has ended.
        samples: Samples of the batch.
        error: What the parent itself raises in the batch's place, or None.
        result: The worker's message, or None.
        arrived: ``time.monotonic_ns()`` when it was read.
    """

    number: int
    memory: NDArray[np.uint8] | None
    at: int
    nbytes: int
    failure: RemoteError | None
    samples: int = 0
    error: BaseException | None = None
    result: Reply | None = None
    arrived: int = 0


class WorkerDeath(Exception):
    """A worker has ended that was not asked to.

    Attributes:
        worker: Its number.
        pid: Its process id.
        exitcode: As in :attr:`multiprocessing.Process.exitcode`; None: not known.
        row: Its last row of the status board.
        stack: The Python stacks it wrote, or "".
        peak_memory: Bytes that were resident at most; 0: not known.
        unborn: It was ended because it did not come up, through no fault of its own.
        loss: What the relay of remote workers says of its end; None: it is another worker's.
    """

    unborn = False
    loss: Loss | None = None

    def __init__(
        self,
        worker: int,
        pid: int,
        exitcode: int | None,
        row: BoardRow,
        stack: str = "",
        peak_memory: int = 0,
    ) -> None:
        super().__init__(worker, pid, exitcode, row)
        self.worker = worker
        self.pid = pid
        self.exitcode = exitcode
        self.row = row
        self.stack = stack
        self.peak_memory = peak_memory


class FewerWorkers(str):
    """What the consumer is told where more workers were wanted than can be started.

    Attributes:
        workers: How many there are to be instead.
    """

    workers: int

    @classmethod
    def of(cls, text: str, workers: int) -> FewerWorkers:
        """Make one of this text."""
        notice = cls(text)
        notice.workers = workers
        return notice


def unborn(death: WorkerDeath) -> str:
    """Say that a forked worker did not come up."""
    stack = f"; its stacks:\n{death.stack}" if death.stack else ""
    return (
        f"DataLoader worker {death.worker} (pid {death.pid}) did not come up: it waited, most "
        f"likely for a lock that another thread held while it was forked, and was ended{stack}"
    )
