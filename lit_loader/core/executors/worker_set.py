"""`WorkerSet`: the processes of a pool: starts them, sees them come up, ends them.

Used by `core/executors/worker_pool.py`, which may change how many there are to be. No more workers
are starting at the same time than there are processors for it, as the first batch need not wait for
the last worker: one that is up says so, and the next one is started then.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import BaseContext
from typing import Any, Final

from lit_loader.core.batch.batch_spec import BatchSpec
from lit_loader.core.executors.launcher import FEW_BATCHES, make_starter, other_starter
from lit_loader.core.executors.outcome import WorkerDeath
from lit_loader.core.executors.payload import Links
from lit_loader.core.executors.pipes import Pipes
from lit_loader.core.executors.starters import Notice, Starter, WorkerProcess, end_processes
from lit_loader.core.system import linux
from lit_loader.core.system.interrupts import HeldBack
from lit_loader.core.system.processors import usable_processors
from lit_loader.core.system.shared_file import Descriptor
from lit_loader.core.system.stack_dumps import DUMP_SIGNAL, StackFile
from lit_loader.core.transport.arena import Arena
from lit_loader.core.transport.status_board import BoardRow, Stage, StatusBoard
from lit_loader.errors import LoaderError

_DUMP_TIME: Final = 1.0
"""Seconds that a hung worker has to write its stacks, before it is killed."""


class WorkerSet:
    """Worker processes by their numbers, and all that is given back when they end.

    Knows nothing of the pool, so that it can be closed when that is gone. Starts none before
    :meth:`launch`.
    """

    starter: Starter | None = None  # what starts those here
    notices: deque[Notice]  # for the consumer, of how workers were started
    origin = 0  # how often workers have come from elsewhere since
    source = ""  # from where they come, if that is not where the first ones came from

    def __init__(
        self, arena: Arena, board: StatusBoard, pipes: Pipes, at_end: Callable[[], object]
    ) -> None:
        self.pid = os.getpid()
        self.processes: dict[int, WorkerProcess] = {}  # the workers' by their numbers
        self.starting: set[int] = set()  # the workers that are not up yet
        self.closed = False  # whether closing has begun. From then on nothing here is used any more
        self._arena, self.board, self._pipes, self._at_end = arena, board, pipes, at_end
        self._stacks = StackFile()
        self._former: list[Starter] = []
        self._remote: Any = None
        self._at_once = math.ceil(usable_processors())

    def prepare(
        self,
        spec: BatchSpec,
        num_workers: int,
        context: BaseContext,
        seed: int,
        remote: Any,
        relay: int,
        batches: int | None = None,  # as in `WorkerPool`
    ) -> None:
        """Get ready to start them, by their base seed; and the relay, whose number is given."""
        self.num_workers = num_workers  # how many there are to be
        self._stacks.open()
        self._links = Links(
            worker=0,
            num_workers=num_workers,
            seed=seed,
            token=self.board.token,
            parent=self.pid,
            arena=Descriptor(self._arena.fd),
            mapped=self._arena.mapped,
            board_bytes=len(self._arena.board),
            control=Descriptor(-1),
            results=Descriptor(self._pipes.results_end),
            stacks=Descriptor(self._stacks.fd),
        )
        self.relay = None if remote is None else relay  # who stands for those elsewhere
        self.num_remote_workers = 0 if remote is None else remote.num_workers
        self._context = context
        brief = batches is not None and batches <= FEW_BATCHES and num_workers <= self._at_once
        self.starter = make_starter(context, self._links, spec, brief)
        self.notices = self.starter.notices
        if remote is not None:
            remote.prepare(self._links, spec, self.notices)
        self._remote = remote

    @property
    def started(self) -> list[int]:
        """The workers that have been started so far and have not left."""
        return sorted(self.processes)

    @property
    def pids(self) -> list[int]:
        """Their process ids, by number; that of the relay is the last."""
        return [process.pid or 0 for _, process in sorted(self.processes.items())]

    @property
    def twins(self) -> list[WorkerProcess]:
        """Their processes, as others have them; without those that are just being let go of."""
        found = []
        for _, process in sorted(self.processes.items()):
            with contextlib.suppress(OSError):
                found.append(process.twin())
        return found

    @property
    def settled(self) -> bool:
        """Whether there are as many as there are to be, all of them up, but for the relay."""
        here = len(self.processes) - (self.relay in self.processes)
        return not self.starting and here == self.num_workers

    @property
    def shared_data(self) -> int:
        """Bytes of the dataset in a file that all of them map; forked ones need none."""
        return 0 if self.starter is None else self.starter.payload.shared_bytes

    def is_wanted(self, worker: int) -> bool:
        """Whether there is to be a worker with this number."""
        return worker < self.num_workers or worker == self.relay

    def due(self) -> list[int]:
        """The workers that come next, as many as may be starting at the same time."""
        processes, room = self.processes, self._at_once - len(self.starting)
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
        assert self.starter is not None
        try:
            processes: Sequence[WorkerProcess]
            if self._remote is not None and workers == [self.relay]:
                processes = [self._remote.start(links[0], self.board)]
            else:
                processes = self.starter.start_all(links)
        except BaseException as error:
            for worker in workers:
                self._pipes.close(worker)
            explain_limit(error, self.num_workers)
            raise
        for worker, process in zip(workers, processes, strict=True):
            self.processes[worker] = process
            process.origin = self.origin
            self._pipes.watch(process.sentinel)
            if worker != self.relay:
                self.starting.add(worker)
            self.board.launched(worker, process.pid or 0)

    def came_up(self, worker: int) -> None:
        """Note that a worker has come up, or has something to say."""
        self.starting.discard(worker)
        if worker == self.relay and self._remote is not None:
            self._remote.hear()

    def counts(self, row: BoardRow) -> bool:
        """Whether a worker is past the start of interpreter and torch, which counts for no hang."""
        return self.forks or row.stage != Stage.STARTING

    @property
    def forks(self) -> bool:
        """Whether workers here are forks of this process."""
        return self.starter is None or self.starter.forks

    @property
    def beside(self) -> list[str]:
        """The names of threads beside which workers were forked."""
        return [] if self.starter is None else self.starter.beside

    def death_of(self, sentinel: int) -> WorkerDeath:
        """Say how the worker has died whose process has this sentinel."""
        worker, process = next(
            each for each in self.processes.items() if each[1].sentinel == sentinel
        )
        process.join()
        how = process.exitcode, self.board.read(worker), self._stacks.take()
        return WorkerDeath(worker, process.pid or 0, *how, process.peak_memory, process.relay_exit)

    def end(self, worker: int) -> WorkerDeath:
        """End a worker, having it write its stacks if it can."""
        process = self.processes[worker]
        self._stacks.take()
        row = self.board.read(worker)
        if process.is_alive():
            os.kill(process.pid or 0, DUMP_SIGNAL)
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
                if linux.stat_fields(relay.pid or 0)[:1] == ["T"]:
                    relay.kill()

    def change_origin(self) -> bool:
        """Have workers come from elsewhere from now on; False: there is nowhere else."""
        before = self.starter
        starter = before and other_starter(before, self._context, self._links)
        if before is None or starter is None:
            return False
        self._former.append(before)  # its workers are there still
        self.starter, self.origin = starter, self.origin + 1
        self.source = (
            "this program as it is now"
            if starter.forks
            else "Python's fork server (it imports modules again: what the program has set in them "
            "is not there)"
        )
        return True

    def clear_away(self, worker: int) -> None:
        """Clear away what is left of a worker that has ended."""
        process = self.processes.pop(worker)
        if process.relay_exit is not None and not process.relay_exit.again:
            self.relay = None
        self._pipes.unwatch(process.sentinel)
        process.close()
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
            with contextlib.ExitStack() as steps:
                # The last one first: each is taken whatever those before have raised.
                steps.callback(self._arena.close)
                steps.callback(self.board.release)
                steps.callback(self._at_end)
                steps.callback(self._pipes.close_all)
                steps.callback(self._stacks.close)
                if self._remote is not None:
                    steps.callback(self._remote.close)
                for starter in filter(None, (self.starter, *self._former)):
                    steps.callback(starter.close)
                steps.callback(self.processes.clear)
                for process in self.processes.values():
                    steps.callback(process.close)
                    steps.callback(process.join)
                steps.callback(self._end)

    def _end(self) -> None:
        try:
            self.board.token += 1
            self.board.workers = 0
            self._pipes.stop_all()
            end_processes([*self.processes.values()], self._pipes.results)
        except BaseException:
            self._kill()
            raise

    def _kill(self) -> None:
        """No more patience; for those that are there still."""
        for process in [*self.processes.values()]:
            with contextlib.suppress(ValueError, OSError):  # that one has been let go of
                process.kill()


def explain_limit(error: BaseException, num_workers: int) -> None:
    """Name the limit that was met in a LoaderError, if it is that of open files."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        raise LoaderError(
            f"num_workers={num_workers} need more open files than may be had (3 a worker and "
            "some): raise the limit (ulimit -n), or use fewer workers [LL106]"
        ) from error
