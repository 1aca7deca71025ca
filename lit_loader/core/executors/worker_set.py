"""`WorkerSet`: the processes of a pool: starts them, sees them come up, ends them.

Used by `core/executors/worker_pool.py`, which may change how many there are to be. No more workers
are starting at the same time than there are CPU cores for it, as the first batch need not wait for
the last worker: one that is up says so, and the next one is started then.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import BaseContext
from typing import Final, Protocol

from lit_loader.core.batch.batch_spec import BatchSpec, Changes, DatasetAttributes
from lit_loader.core.executors.executor import WorkerDeath
from lit_loader.core.executors.main import LEAVE_GRACE
from lit_loader.core.executors.pipes import Pipes
from lit_loader.core.executors.process_start import Links, Payload
from lit_loader.core.executors.worker_process import (
    Notice,
    WorkerProcess,
    await_ends,
    other_threads,
    start_worker,
)
from lit_loader.core.system import linux
from lit_loader.core.system.interrupts import HeldBack, take_all
from lit_loader.core.system.linux import usable_cores
from lit_loader.core.system.shared_file import Descriptor
from lit_loader.core.system.stack_dumps import DUMP_SIGNAL, StackFile
from lit_loader.core.transport.arena import Arena
from lit_loader.core.transport.status_board import BoardRow, Stage, StatusBoard
from lit_loader.errors import LoaderError

STOP_GRACE: Final = 2.0
"""Seconds that a worker has to finish the sample it is in, before it is killed."""

_DUMP_TIME: Final = 1.0
"""Seconds that a hung worker has to write its stacks, before it is killed."""


class Relays(Protocol):
    """Starts the process that stands for workers on other machines (`remote/starter.py`)."""

    count: int  # batches that these may be at
    num_workers: int  # how many of them there are to be

    def prepare(self, num_workers: int, seed: int, spec: BatchSpec, notices: deque[Notice]) -> None:
        """Get ready to start it; ``num_workers`` are here, and ``seed`` is that of the first."""

    def start(self, links: Links, board: StatusBoard, changes: Changes) -> WorkerProcess:
        """Start it, or another one; ``changes``: attributes of the dataset that have changed."""

    def hear(self) -> None:
        """Take in what it has to say."""

    def close(self) -> None:
        """Release what it was sent; it has ended."""


class WorkerSet:
    """Worker processes by their numbers, and all that is given back when they end.

    Knows nothing of the pool, so that it can be closed when that is gone. Starts none before
    :meth:`launch`.
    """

    def __init__(
        self,
        spec: BatchSpec,
        arena: Arena,
        board: StatusBoard,
        pipes: Pipes,
        at_end: Callable[[], object],
    ) -> None:
        self.pid = os.getpid()
        self.processes: dict[int, WorkerProcess] = {}  # the workers' by their numbers
        self.starting: set[int] = set()  # the workers that are not up yet
        self.closed = False  # whether closing has begun. From then on nothing here is used any more
        self.notices: deque[Notice] = deque()  # for the consumer
        self.forks = False  # whether workers are forks of this process
        self.other_threads: list[str] = []  # the threads that there were when one was forked
        self.payload = Payload(spec)
        self._arena, self.board, self._pipes, self._at_end = arena, board, pipes, at_end
        self._stacks = StackFile()
        self._remote: Relays | None = None
        self._at_once = math.ceil(usable_cores())

    def prepare(
        self,
        spec: BatchSpec,
        num_workers: int,
        context: BaseContext,
        seed: int,
        remote: Relays | None,
        relay: int,
    ) -> None:
        """Get ready to start them, by their base seed; and the relay, whose number is given."""
        self.num_workers = num_workers  # how many there are to be
        self._stacks.open()
        self._context, self._seed = context, seed
        self.forks = context.get_start_method() == "fork"
        self.relay = None if remote is None else relay  # who stands for those elsewhere
        self.num_remote_workers = 0 if remote is None else remote.num_workers
        if remote is not None:
            remote.prepare(num_workers, seed, spec, self.notices)
        self._remote = remote

    @property
    def pids(self) -> list[int]:
        """Their process ids, by number; that of the relay is the last."""
        return [process.pid for _, process in sorted(self.processes.items())]

    @property
    def settled(self) -> bool:
        """Whether there are as many as there are to be, all of them up, but for the relay."""
        here = len(self.processes) - (self.relay in self.processes)
        return not self.starting and here == self.num_workers

    @property
    def attributes(self) -> DatasetAttributes:
        """What the workers have for the dataset's plain attributes."""
        return self.payload.attributes

    def is_wanted(self, worker: int) -> bool:
        """Whether there is to be a worker with this number."""
        return worker < self.num_workers or worker == self.relay

    def due(self) -> list[int]:
        """The workers that come next, as many as may be starting at the same time."""
        processes, room = self.processes, self._at_once - len(self.starting)
        missing = [worker for worker in range(self.num_workers) if worker not in processes]
        if missing or self.relay is None or self.relay in processes:
            return missing[: max(0, room)]
        return [self.relay]  # which takes no CPU time

    def launch(self, worker: int, token: int) -> None:
        """Start a worker's process, or the relay's, and watch it; within `HeldBack`."""
        self._pipes.open(worker)
        links = Links(
            worker=worker,
            num_workers=self.num_workers,
            seed=self._seed + worker,
            token=token,
            parent=self.pid,
            arena=Descriptor(self._arena.fd),
            mapped=self._arena.mapped,
            board_bytes=len(self._arena.board),
            control=Descriptor(self._pipes.task_ends[worker]),
            results=Descriptor(self._pipes.results_end),
            stacks=Descriptor(self._stacks.fd),
        )
        try:
            if self._remote is not None and worker == self.relay:
                changes = self.attributes.changes
                process: WorkerProcess = self._remote.start(links, self.board, changes)
            else:
                if self.forks:
                    self.other_threads = other_threads()
                process = start_worker(self._context, links, self.payload)
                self.starting.add(worker)
        except BaseException as error:
            self._pipes.close(worker)
            explain_limit(error, self.num_workers, worker)
            raise
        self.processes[worker] = process
        self._pipes.watch(process.sentinel)
        self.board.launched(worker, process.pid)

    def came_up(self, worker: int) -> None:
        """Note that a worker has come up, or has something to say."""
        self.starting.discard(worker)
        if worker == self.relay and self._remote is not None:
            self._remote.hear()

    def counts(self, row: BoardRow) -> bool:
        """Whether a worker is past the start of interpreter and torch, which counts for no hang."""
        return self.forks or row.stage != Stage.STARTING

    def death_of(self, sentinel: int) -> WorkerDeath:
        """Say how the worker has died whose process has this sentinel."""
        worker, process = next(
            each for each in self.processes.items() if each[1].sentinel == sentinel
        )
        process.reap()
        how = process.exitcode, self.board.read(worker), self._stacks.take()
        return WorkerDeath(worker, process.pid, *how, process.peak_memory, process.relay_exit)

    def end(self, worker: int) -> WorkerDeath:
        """End a worker, having it write its stacks if it can."""
        process = self.processes[worker]
        self._stacks.take()
        row = self.board.read(worker)
        if process.is_alive():
            os.kill(process.pid, DUMP_SIGNAL)
            if not wait_for([process.sentinel], _DUMP_TIME):
                process.kill()
        death = self.death_of(process.sentinel)
        death.row = row
        return death

    def end_stopped_relay(self) -> None:
        """Kill the relay if somebody has stopped it: its end is noticed as any."""
        relay = self.processes.get(-1 if self.relay is None else self.relay)
        if relay is not None:
            with contextlib.suppress(OSError):  # it is gone, or the kernel does not say
                if linux.stat_fields(relay.pid)[:1] == ["T"]:
                    relay.kill()

    def clear_away(self, worker: int) -> None:
        """Clear away what is left of a worker that has ended."""
        process = self.processes.pop(worker)
        if process.relay_exit is not None and not process.relay_exit.again:
            self.relay = None
        self._pipes.unwatch(process.sentinel)
        process.reap()
        self._pipes.close(worker)
        self.board.clear(worker)
        self.starting.discard(worker)

    def close(self, unnoticed: bool = False) -> None:
        """End the processes, in steps of growing force; close the files. Every step is taken.

        ``unnoticed``: called by a finalizer, which can raise nothing.
        """
        if os.getpid() != self.pid:
            return  # a forked copy: everything here belongs to the process that made it
        with HeldBack(hurry=self._kill, unnoticed=unnoticed):
            if self.closed:
                return
            self.closed = True
            steps: list[Callable[[], object]] = [self._end]
            steps += [process.reap for process in self.processes.values()]
            steps.append(self.processes.clear)
            steps += [each.close for each in (self.payload, self._remote) if each is not None]
            steps += [self._stacks.close, self._pipes.close_all, self._at_end]
            take_all([*steps, self.board.release, self._arena.close])

    def _end(self) -> None:
        try:
            self.board.token += 1
            self.board.workers = 0
            self._pipes.stop_all()
            results = self._pipes.results
            alive = await_ends([*self.processes.values()], STOP_GRACE, results)
            leaving = [
                process
                for worker, process in self.processes.items()
                if process in alive and self.board.read(worker).stage == Stage.LEFT
            ]
            for process in alive:
                if process not in leaving:
                    process.terminate()
            for process in await_ends(leaving, LEAVE_GRACE - STOP_GRACE, results):
                process.terminate()
            await_ends(alive, None, results)
        except BaseException:
            self._kill()
            raise

    def _kill(self) -> None:
        """Kill what is left."""
        for process in [*self.processes.values()]:
            process.kill()


def explain_limit(error: BaseException, num_workers: int, worker: int | None = None) -> None:
    """Raise a LoaderError that names the limit that was met, if ``error`` is of such."""
    if not isinstance(error, OSError):
        return
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise LoaderError(
            f"num_workers={num_workers} needs more open files than are available (5 per worker "
            "and a few more). Raise the limit (ulimit -n), or use fewer workers"
        ) from error
    if worker is not None and error.errno in (errno.EAGAIN, errno.ENOMEM):
        raise LoaderError(
            f"Worker {worker} cannot be started ({error.strerror}). Raise the limit of processes "
            "(ulimit -u), free some memory, or use fewer workers [LL017]"
        ) from error
