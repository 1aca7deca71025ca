"""`WorkerSet`: the processes of a pool: starts them, sees them come up, ends them, buries them.

Used by `workers/worker_pool.py`, which may change how many there are to be. No more workers are
starting at the same time than there are processors for it, as the first batch need not wait for the
last worker: one that is up says so, and the next one is started then.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Sequence
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import BaseContext
from typing import Final

from lit_loader.batch.batch_spec import BatchSpec
from lit_loader.errors import LoaderError
from lit_loader.system.processors import usable_processors
from lit_loader.system.stack_dumps import DUMP_SIGNAL
from lit_loader.transport.arena import Arena
from lit_loader.transport.status_board import BoardRow, Stage, StatusBoard
from lit_loader.workers.launcher import make_starter
from lit_loader.workers.outcome import WorkerDeath
from lit_loader.workers.parent import Descriptor, Links
from lit_loader.workers.pipes import Pipes
from lit_loader.workers.resources import PoolResources
from lit_loader.workers.starters import Remote, WorkerProcess

__all__ = ["WorkerSet", "explain_limit"]

_DUMP_TIME: Final = 1.0
"""Seconds that a hung worker has to write its stacks, before it is killed."""


class WorkerSet:
    """Worker processes by their numbers. Starts none before :meth:`launch`.

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
        starting: The workers that are not up yet.
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
        self.starting: set[int] = set()
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
        self._starter = own.starter = make_starter(context, self._links, spec)
        self.notices = self._starter.notices
        if remote is not None:
            remote.prepare(self._links, relay, spec, self.notices)
        self._remote = own.remote = remote

    @property
    def started(self) -> list[int]:
        """The workers that have been started so far and have not left."""
        return sorted(self._own.processes)

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

    def due(self) -> list[int]:
        """The workers that come next, as many as may be starting at the same time."""
        processes, room = self._own.processes, self._at_once - len(self.starting)
        missing = [worker for worker in range(self.num_workers) if worker not in processes]
        if missing or self.relay is None or self.relay in processes:
            return missing[: max(0, room)]
        return [self.relay]  # which takes no processor

    def launch(self, workers: Sequence[int], token: int) -> None:
        """Start processes for workers, and watch them: all or none; the relay only alone."""
        links = []
        for worker in workers:
            self._pipes.open(worker)
            end = self._pipes.task_ends[worker]
            links.append(self._links.of(worker, self.num_workers, token, end))
        try:
            processes: Sequence[WorkerProcess]
            if self._remote is not None and workers == [self.relay]:
                processes = [self._remote.start(links[0])]
            else:
                processes = self._starter.start_all(links)
        except BaseException as error:
            for worker in workers:
                self._pipes.close(worker)
            explain_limit(error, self.num_workers)
            raise
        for worker, process in zip(workers, processes, strict=True):
            self._own.processes[worker] = process
            self._pipes.watch(process.sentinel)
            if worker != self.relay:
                self.starting.add(worker)
            self._board.launched(worker, process.pid or 0)

    def came_up(self, worker: int) -> None:
        """Note that a worker has come up, or has something to say."""
        self.starting.discard(worker)
        if worker == self.relay and self._remote is not None:
            self._remote.hear()

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
            process.peak_memory,
        )
        death.loss = process.loss
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
        loss = process.loss
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
        self.starting.discard(worker)


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
