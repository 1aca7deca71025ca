"""`WorkerSet`: the processes of a pool: starts them, sees them come up, ends them, buries them.

Used by `workers/worker_pool.py`, which may change how many there are to be. No more workers are
starting at the same time than there are processors for it, as the first batch need not wait for the
last worker: one that is up says so, and the next one is started then. One that was forked and
stands still instead (it waits for a lock, most likely, that another thread held at the fork) is
ended and started again; the third time in a row it is an error.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from collections.abc import Sequence
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import BaseContext
from typing import Final

from lit_loader.batch.batch_spec import BatchSpec
from lit_loader.errors import LoaderError
from lit_loader.system.processors import usable_processors
from lit_loader.system.stack_dumps import DUMP_SIGNAL
from lit_loader.system.standstill import Standstill
from lit_loader.transport.arena import Arena
from lit_loader.transport.status_board import BoardRow, Stage, StatusBoard
from lit_loader.workers.launcher import ATTEMPTS, make_starter
from lit_loader.workers.outcome import WorkerDeath, unborn
from lit_loader.workers.payload import Descriptor, Links
from lit_loader.workers.pipes import Pipes
from lit_loader.workers.resources import PoolResources
from lit_loader.workers.starters import Remote, Starter, WorkerProcess

__all__ = ["WorkerSet", "explain_limit"]

_DUMP_TIME: Final = 1.0
"""Seconds that a hung worker has to write its stacks, before it is killed."""

_LOOK_SECONDS: Final = 0.5
"""Seconds between two looks at workers that start."""


class WorkerSet:
    """Worker processes by their numbers. Starts none before :meth:`start_more`.

    Args:
        own: Holds the processes, and ends them with the pool.
        pipes: The workers' pipes.
        board: Where they show what they are at.
        arena: Where they write batches.
        spec: What they make.
        num_workers: How many there are to be at first.
        context: How to start them.
        seed: Base seed of their own seeds.
        remote: What starts a worker besides these that stands for all elsewhere, or None.
        relay: The number of that one.

    Attributes:
        num_workers: How many there are to be.
        relay: The number of the worker that stands for those elsewhere; None: there is none.
        starting: The workers that are not up yet, each with how long it stands still.
        notices: For the consumer, of how workers were started.
    """

    def __init__(
        self,
        own: PoolResources,
        pipes: Pipes,
        board: StatusBoard,
        arena: Arena,
        spec: BatchSpec,
        num_workers: int,
        context: BaseContext,
        seed: int,
        remote: Remote | None = None,
        relay: int = 0,
    ) -> None:
        self._own = own
        self._pipes = pipes
        self._board = board
        self.num_workers = num_workers
        self._at_once = math.ceil(usable_processors())
        self._next_look = 0.0  # at those that are starting
        self.starting: dict[int, Standstill] = {}
        self._failures = 0  # in a row: workers that did not come up
        self._links = Links(
            worker=0,
            num_workers=num_workers,
            seed=seed,
            token=board.token,
            parent=os.getpid(),
            arena=Descriptor(arena.fd),
            mapped=arena.mapped,
            board_bytes=len(arena.board),
            control=Descriptor(-1),
            results=Descriptor(pipes.results_end),
            stacks=Descriptor(own.stacks.fd),
        )
        self.relay = None if remote is None else relay
        self._remote_workers = 0 if remote is None else spec.remote_workers
        starter: Starter = make_starter(context, self._links, spec)
        own.starter = starter
        if remote is not None:
            starter = own.starter = remote.starter(starter, self._links, relay, spec)
        self._starter = starter
        self.notices = self._starter.notices

    @property
    def started(self) -> list[int]:
        """The workers that have been started so far and have not left."""
        return sorted(self._own.processes)

    @property
    def forks(self) -> bool:
        """Whether they are forked."""
        return self._starter.forks

    @property
    def pids(self) -> list[int]:
        """Their process ids, by number; that of the relay is the last."""
        return [process.pid or 0 for _, process in sorted(self._own.processes.items())]

    @property
    def twins(self) -> list[WorkerProcess]:
        """Their processes, as others have them; without those that are just being let go of."""
        found = []
        for _, process in sorted(self._own.processes.items()):
            with contextlib.suppress(OSError):
                found.append(process.twin())
        return found

    @property
    def settled(self) -> bool:
        """Whether there are as many as there are to be, all of them up, but for the relay."""
        here = len(self._own.processes) - (self.relay in self._own.processes)
        return not self.starting and here == self.num_workers

    @property
    def shared_data(self) -> int:
        """Bytes of the dataset that they share."""
        return self._starter.shared_data

    def rows(self) -> dict[int, BoardRow]:
        """What each of them is doing."""
        return {worker: self._board.read(worker) for worker in self.started}

    def is_wanted(self, worker: int) -> bool:
        """Whether there is to be a worker with this number."""
        return worker < self.num_workers or worker == self.relay

    def start_more(self, token: int) -> Sequence[int]:
        """Start the workers that come next, as many as may be starting at the same time."""
        processes, room = self._own.processes, self._at_once - len(self.starting)
        missing = [worker for worker in range(self.num_workers) if worker not in processes]
        workers = missing[: max(0, room)]
        if len(workers) == len(missing) and self.relay is not None:  # which takes no processor
            workers += [self.relay] if self.relay not in processes else []
        if workers:
            try:
                self.launch(workers, token)
            except OSError as error:
                explain_limit(error, self.num_workers)
                raise
        return workers

    def launch(self, workers: Sequence[int], token: int) -> None:
        """Start processes for workers, and watch them."""
        links = []
        for worker in workers:
            self._pipes.open(worker)
            end = self._pipes.task_ends[worker]
            links.append(self._links.of(worker, self.num_workers, token, end))
        try:
            processes = self._starter.start_all(links)
        except BaseException:
            for worker in workers:
                self._pipes.close(worker)
            raise
        for worker, process in zip(workers, processes, strict=True):
            self._own.processes[worker] = process
            self._pipes.watch(process.sentinel)
            if worker != self.relay:
                self.starting[worker] = Standstill(process.pid or 0)
            self._board.launched(worker, process.pid or 0)

    def came_up(self, worker: int) -> None:
        """Note that a worker has come up, or has something to say."""
        self._failures = 0
        self.starting.pop(worker, None)
        self._starter.came_up()

    def until(self, deadline: float | None) -> float | None:
        """Until when to wait while workers are starting: the time is up early, to look at them."""
        if self._starter.up_deadline is None or not self.starting:
            return deadline
        look = time.monotonic() + _LOOK_SECONDS
        return look if deadline is None else min(look, deadline)

    def look_at_starting(self) -> None:
        """Look for a worker that does not come up.

        Raises:
            WorkerDeath: There is one, which has been ended.
            LoaderError: So it was with those before.
        """
        now, most = time.monotonic(), self._starter.up_deadline
        if most is None or now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        for worker, still in self.starting.items():
            if still.seconds() >= most:
                death = self.end(worker)
                death.unborn = True
                self._failures += 1
                if self._failures == ATTEMPTS:
                    raise LoaderError(
                        f"workers do not come up, for the {ATTEMPTS}rd time in a row: start the "
                        "loader before threads that hold locks, or set "
                        f"multiprocessing_context='forkserver'; {unborn(death)}"
                    )
                raise death

    def counts(self, row: BoardRow) -> bool:
        """Whether a worker is past the start of interpreter and torch, which counts for no hang."""
        return self._starter.forks or row.stage != Stage.STARTING

    def death_of(self, sentinel: int) -> WorkerDeath:
        """Say how the worker has died whose process has this sentinel."""
        processes = self._own.processes
        worker = next(w for w, process in processes.items() if process.sentinel == sentinel)
        process = processes[worker]
        process.join()
        death = WorkerDeath(
            worker,
            process.pid or 0,
            process.exitcode,
            self._board.read(worker),
            self._own.stacks.take(),
            getattr(process, "peak_memory", 0),
        )
        death.loss = getattr(process, "loss", None)
        return death

    def end(self, worker: int) -> WorkerDeath:
        """End a worker, having it write its stacks if it can."""
        process = self._own.processes[worker]
        self._own.stacks.take()
        row = self._board.read(worker)
        if process.is_alive():
            os.kill(process.pid or 0, DUMP_SIGNAL)
            if not wait_for([process.sentinel], _DUMP_TIME):
                process.kill()
        death = self.death_of(process.sentinel)
        death.row = row
        return death

    def bury(self, worker: int) -> None:
        """Clear away what is left of a worker that has ended."""
        process = self._own.processes.pop(worker)
        loss = getattr(process, "loss", None)
        if loss is not None:
            for row in range(worker - self._remote_workers, worker):
                self._board.is_elsewhere(row, "")
                self._board.enter(row, Stage.STARTING, -1)
            if not loss.again:
                self.relay = None
        self._pipes.unwatch(process.sentinel)
        process.close()
        self._pipes.close(worker)
        self._board.clear(worker)
        self.starting.pop(worker, None)


def explain_limit(error: BaseException, num_workers: int) -> None:
    """Name the limit that was met, if it is that of open files.

    Raises:
        LoaderError: It is.
    """
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        raise LoaderError(
            f"num_workers={num_workers} need more open files than may be had (3 a worker and "
            "some): raise the limit (ulimit -n), or use fewer workers"
        ) from error
