"""The parent's side of the workers: start, feed, watch, replace, resume and stop them.

::

    submit ─Task─▶ task pipe ──────▶ worker 0..n-1 ─Result─▶ result pipe ─▶ receive
      └─ indices ─▶ slot                 │ batch ─▶ slot          │
    resume ─Resume─▶ control pipes ──────┘◀── sentinels ── poll ──┘

- **Starting.** No more workers are starting at the same time than there are processors for it: the
  first batch need not wait for the last worker. One that is up says so, and the next one is started
  by whoever receives that. One that was forked and does not come up is told by a watchdog.
- :meth:`WorkerPool.submit` takes a slot, writes the indices into it and sends the task.
- :meth:`WorkerPool.receive` waits in one ``poll`` for results, for a worker's death and for
  :meth:`WorkerPool.wake`; nothing is looked at in intervals once the workers are up.
- :meth:`WorkerPool.replace` puts a new process in the place of one that has ended, and issues again
  what that one may have had (`pool/in_flight.py`).
- One thread may submit while another receives. Everything else is for one thread at a time.
- A slot in flight belongs to the pool until its result is in, or until nobody can write into it any
  more: every worker has acknowledged a newer generation, or has done a task of a newer issue.
"""

from __future__ import annotations

import errno
import math
import multiprocessing
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import BaseContext
from typing import Any, Final

from lit_loader.batch.make import BatchSpec
from lit_loader.errors import LoaderError
from lit_loader.memory.arena import Arena
from lit_loader.pool.in_flight import InFlightTask, InFlightTasks
from lit_loader.pool.outcome import Outcome, WorkerDeath
from lit_loader.pool.pipes import Ended, Pipes
from lit_loader.pool.resources import PoolResources
from lit_loader.system.interrupts import HeldBack
from lit_loader.system.processors import usable_processors
from lit_loader.system.stack_dumps import DUMP_SIGNAL
from lit_loader.system.watchdog import LOOK_SECONDS, Watchdog
from lit_loader.transport.messages import (
    Ack,
    Grant,
    Grow,
    Message,
    Proceed,
    Result,
    Resume,
    Status,
    Task,
    Up,
    pack_indices,
)
from lit_loader.transport.remote_error import RemoteError
from lit_loader.transport.status_board import BoardRow, Stage, StatusBoard, board_bytes
from lit_loader.worker.payload import Descriptor, Links
from lit_loader.worker.start_fallback import make_starter
from lit_loader.worker.starters import WorkerProcess

__all__ = ["WorkerPool"]

_DUMP_TIME: Final = 1.0
"""Seconds that a hung worker has to write its stacks, before it is killed."""


class WorkerPool:
    """A set of worker processes with their arena and pipes. Starts them at once.

    Args:
        spec: What the workers make.
        num_workers: How many, at least 1.
        context: How to start them.
        in_flight: Tasks that may be under way at the same time.
        seed: Base seed of the workers' own seeds.
        assigned: Tasks are sent to a worker by number instead of being pulled.
        slot_bytes: Bytes a slot, None for the arena's own choice.
        memory_budget: Bytes of shared memory to stay within, None for no limit.

    Raises:
        LoaderError: No worker can be started from here, or there is no memory.
    """

    def __init__(
        self,
        spec: BatchSpec,
        num_workers: int,
        context: BaseContext,
        in_flight: int,
        seed: int,
        assigned: bool,
        slot_bytes: int | None = None,
        memory_budget: int | None = None,
    ) -> None:
        if multiprocessing.current_process().daemon:
            raise LoaderError(
                f"num_workers={num_workers} inside a daemonic process, which may not start "
                "processes: use num_workers=0 there, or make the process non-daemonic"
            )
        self.num_workers = num_workers
        self._generation = 1
        self._cancelling = threading.RLock()  # the garbage collector may end up in there again
        self._sending = threading.RLock()  # what is under way, and its issue, change together
        self._at_once = math.ceil(usable_processors())
        self._starting: dict[int, Watchdog] = {}  # started, and not up yet
        self._next_look = 0.0  # at those
        self._proven = False  # something has come of what workers are started from
        self.notices: deque[str] = deque()  # for the consumer, of how workers were started
        self._missing: set[int] | None = None  # in a resume handshake: who has not acknowledged
        self._points: dict[int, Any] = {}  # where readers that were replaced are to begin
        size = board_bytes(num_workers)
        try:
            with HeldBack():
                self._arena = Arena(size, in_flight, slot_bytes=slot_bytes, budget=memory_budget)
                self.divide = self._arena.divide
                self._in_flight = InFlightTasks(self._arena, num_workers, assigned)
                self._keep = in_flight + 2
                self._board = StatusBoard(self._arena.board)
                self._board.generation = self._generation
                self._own = PoolResources(self._arena, self._board)
                self._finalizer = weakref.finalize(self, self._own.close, unnoticed=True)
                self._start(spec, context, seed, assigned)
        except BaseException as error:
            if hasattr(self, "_finalizer"):
                self.close()
            _explain(error, num_workers)
            raise

    def _start(self, spec: BatchSpec, context: BaseContext, seed: int, assigned: bool) -> None:
        own = self._own
        own.stacks.open()
        pipes = self._pipes = Pipes(own, self.num_workers, assigned)
        links = []
        for worker in range(self.num_workers):
            links.append(
                Links(
                    worker=worker,
                    num_workers=self.num_workers,
                    seed=seed + worker,
                    generation=self._generation,
                    parent=os.getpid(),
                    arena=Descriptor(self._arena.fd),
                    mapped=self._arena.mapped,
                    board_bytes=len(self._arena.board),
                    tasks=None if pipes.tasks_end is None else Descriptor(pipes.tasks_end),
                    control=Descriptor(pipes.control_ends[worker]),
                    results=Descriptor(pipes.results_end),
                    stacks=Descriptor(own.stacks.fd),
                )
            )
        own.starter = make_starter(context, links, spec)
        self.notices = own.starter.notices
        self._start_more()

    def _start_more(self) -> None:
        """Start the workers that come next, as many as may be starting at the same time."""
        with HeldBack(), self._sending:
            begin = len(self._own.processes)
            end = min(self.num_workers, begin + self._at_once - len(self._starting))
            if begin >= end or self._missing is not None:
                return
            workers = range(begin, end)
            try:
                self._own.processes.extend(self._launch(workers))
            except OSError as error:
                _explain(error, self.num_workers)
                raise
            for worker in workers:
                self._in_flight.begin(worker)

    def _launch(self, workers: Sequence[int]) -> Sequence[WorkerProcess]:
        """Start processes for workers, and watch them."""
        assert self._own.starter is not None
        processes = self._own.starter.start_all(workers, self._generation)
        for process in processes:
            self._pipes.watch(process.sentinel)
        for worker, process in zip(workers, processes, strict=True):
            self._starting[worker] = Watchdog(process.pid or 0)
        return processes

    @property
    def started(self) -> range:
        """The workers that have been started so far."""
        return range(len(self._own.processes))

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that have been started so far."""
        return [process.pid or 0 for process in self._own.processes]

    def rows(self) -> list[BoardRow]:
        """What every worker is doing that has been started."""
        return [self._board.read(worker) for worker in self.started]

    @property
    def unread(self) -> int:
        """Results that workers have sent and nobody has read yet."""
        return self._pipes.unread

    @property
    def shared_memory(self) -> int:
        """Bytes of real memory in the arena, at most."""
        return self._arena.resident

    def room(self, undelivered: int) -> int:
        """How many more tasks the memory budget allows, with so many not given out yet."""
        return self._arena.room(undelivered)

    def overrun(self) -> str | None:
        """Say, once, that the memory budget cannot be kept; None: nothing to say."""
        return self._arena.overrun()

    def submit(
        self, number: int, indices: Any, epoch: int, seed: int, worker: int | None = None
    ) -> None:
        """Send a task.

        Args:
            number: Position of the batch in the epoch.
            indices: Its indices, None for an iterable dataset.
            epoch: Its epoch.
            seed: Base seed of the epoch.
            worker: Who is to do it, where tasks are assigned.

        Raises:
            Exception: The indices cannot be pickled.
        """
        with self._sending:
            if indices is None and worker is not None and self._points:
                indices = self._points.pop(worker, None)
            packed = b"" if indices is None else pack_indices(indices)
            self._send(InFlightTask(number, packed, epoch, seed, worker))

    def _send(self, flight: InFlightTask) -> None:
        """Send a task with a fresh slot."""
        slot = self._in_flight.prepare(flight)
        task = Task(
            self._generation,
            flight.number,
            flight.epoch,
            flight.seed,
            slot.offset,
            slot.capacity,
            len(flight.packed),
            flight.issue,
        )
        self._pipes.send(task, flight.worker)

    def receive(self, timeout: float | None = None) -> Outcome | None:
        """Wait for the next task to be done.

        Args:
            timeout: Seconds to wait at most; None waits for ever.

        Returns:
            The outcome, or None when the time is up or :meth:`wake` was called.

        Raises:
            WorkerDeath: A worker is gone. What it and the others had finished came out before.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (event := self._next_event(deadline)) is not None:
            if isinstance(event, Grow):
                self._grow(event)
            elif isinstance(event, Result) and event.generation == self._generation:
                outcome = self._outcome(event)
                if outcome is not None:
                    return outcome
        return None

    def _next_event(self, deadline: float | None) -> Message | None:
        """Wait for the next message of a worker; None: the time is up, or :meth:`wake`."""
        while True:
            try:
                event = self._pipes.next(self._until(deadline) if self._starting else deadline)
            except Ended as ended:
                raise self._death(ended.sentinel) from None
            if type(event) is not Up:
                if event is None and self._starting:
                    self._look_at_starting()
                return event
            assert self._own.starter is not None
            self._starting.pop(event.worker, None)
            self._own.starter.came_up()
            self._start_more()

    def _until(self, deadline: float | None) -> float | None:
        """Until when to wait while workers are starting: the time is up early, to look at them."""
        assert self._own.starter is not None
        if not self._own.starter.forks:  # they import, which may be slow and is seldom stuck
            return deadline
        look = time.monotonic() + LOOK_SECONDS
        return look if deadline is None else min(look, deadline)

    def _look_at_starting(self) -> None:
        """Look for a worker that does not come up.

        Raises:
            WorkerDeath: There is one, which has been ended.
        """
        assert self._own.starter is not None
        now = time.monotonic()
        if not self._own.starter.forks or now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        for worker, watchdog in self._starting.items():
            if watchdog.stuck():
                death = self._end(worker)
                death.unborn = True
                self._own.starter.distrust(worker)
                raise death

    def _death(self, sentinel: int) -> WorkerDeath:
        processes = self._own.processes
        worker = next(w for w, process in enumerate(processes) if process.sentinel == sentinel)
        process = processes[worker]
        process.join()
        return WorkerDeath(
            worker,
            process.pid or 0,
            process.exitcode,
            self._board.read(worker),
            self._own.stacks.take(),
            getattr(process, "peak_memory", 0),
        )

    def _outcome(self, result: Result) -> Outcome | None:
        """Take a result in; None for one that does not count any more."""
        slot = self._in_flight.complete(result)
        if slot is None:
            return None
        self._proven = True
        end = result.at + result.nbytes
        if result.status == Status.BATCH:
            memory = self._arena.lease(slot, end)
            return Outcome(
                result.number,
                memory,
                result.at,
                result.nbytes,
                None,
                result.samples,
                None,
                result,
                time.monotonic_ns(),
            )
        failure = None
        if result.status == Status.FAILURE:
            failure = RemoteError.unpack(slot.memory[result.at : end].tobytes())
        # A batch that failed late has filled nobody knows how much of its slot.
        self._arena.release(slot, used=failure is None)
        return Outcome(result.number, None, 0, 0, failure)

    def _grow(self, message: Grow) -> None:
        """Grant a worker the larger slot that its batch needs."""
        if message.generation != self._generation:
            return
        try:
            slot = self._in_flight.grow(message)
        except LoaderError:
            slot = None  # the worker says so
        offset, capacity = (0, 0) if slot is None else (slot.offset, slot.capacity)
        grant = Grant(message.generation, message.number, offset, capacity)
        self._pipes.send(grant, message.worker)

    def replace(self, worker: int, point: Any = None, skip_task: int | None = None) -> None:
        """Put a new process in the place of a worker that has ended, and give it what that had.

        Args:
            worker: Its number.
            point: Where a reader of an iterable dataset is to begin.
            skip_task: Number of a task that is not to be done again.

        Raises:
            LoaderError: No process can be started.
        """
        own = self._own
        with HeldBack(), self._sending:
            while self._pipes.read():
                pass
            # What the one that is gone has asked for or acknowledged would be taken for another's;
            # the result of an older copy, whose slot may be used anew, for the same task's.
            arrived = self._pipes.arrived
            for event in [event for event in arrived if self._is_void(event, worker)]:
                arrived.remove(event)
            gone = own.processes[worker]
            self._pipes.unwatch(gone.sentinel)
            gone.close()
            self._pipes.empty(worker)
            self._board.clear(worker)
            # Before there is a new process: it may take messages at once.
            if self._missing is not None:
                # It knows of nothing older, but waits like all others: it would take from the task
                # pipe what is meant for those who are still in a sample.
                self._missing.add(worker)
                self._ask_to_resume([worker])
            elif self._pipes.shared_queue:
                self._in_flight.issue += 1
                self._board.issue = self._in_flight.issue
            try:
                [process] = self._launch([worker])
            except BaseException:
                del own.processes[worker]  # it is closed; the pool is going to be
                raise
            own.processes[worker] = process
            if self._missing is not None:
                return
            if skip_task is not None:
                self._in_flight.withdraw(skip_task)
            # Read after the issue: who has not announced a task yet finds that it is void.
            lost = self._in_flight.take_lost(worker, self.rows(), self._results_read())
            if lost and point is not None:
                lost[0].packed = pack_indices(point)
            elif point is not None:
                self._points[worker] = point  # for the next task
            for flight in lost:
                self._send(flight)

    def _is_void(self, event: Message, worker: int) -> bool:
        """Whether a message that has come in counts no more now that a worker is gone."""
        if isinstance(event, Result):
            return self._in_flight.slot_of(event) is None
        return isinstance(event, Ack | Grow | Up) and event.worker == worker

    def is_pending(self, number: int) -> bool:
        """Whether a task is under way and has no result yet."""
        while self._pipes.read():
            pass
        with self._sending:
            pending = self._in_flight.pending(self._results_read())
        return any(flight.number == number for flight in pending)

    def _results_read(self) -> list[Result]:
        """Results that have been read and not been given out."""
        return [
            event
            for event in self._pipes.arrived
            if isinstance(event, Result) and event.generation == self._generation
        ]

    def workers_with_pending_work(self) -> dict[int, BoardRow]:
        """Those workers from whom something is due, and what they are doing."""
        rows = dict(enumerate(self.rows()))
        assert self._own.starter is not None
        if not self._own.starter.forks:  # the interpreter and torch: not the user's time
            rows = {worker: row for worker, row in rows.items() if row.stage != Stage.STARTING}
        if self._missing is not None:
            return {worker: row for worker, row in rows.items() if worker in self._missing}
        busy = {worker: row for worker, row in rows.items() if row.stage in Stage.BUSY}
        begun = {row.number for row in busy.values()}
        with self._sending:
            pending = self._in_flight.pending(self._results_read())
        due = {flight.worker for flight in pending if flight.number not in begun}
        return {w: row for w, row in rows.items() if w in busy or w in due or None in due}

    def end_hung(self, worker: int) -> WorkerDeath:
        """End a worker that does not get on, having it write its stacks if it can."""
        death = self._end(worker)
        if not self._proven:  # it may have been forked with a lock that nobody will release
            assert self._own.starter is not None
            self._own.starter.distrust(worker)
        return death

    def _end(self, worker: int) -> WorkerDeath:
        process = self._own.processes[worker]
        self._own.stacks.take()
        row = self._board.read(worker)
        if process.is_alive():
            os.kill(process.pid or 0, DUMP_SIGNAL)
            if not wait_for([process.sentinel], _DUMP_TIME):
                process.kill()
        death = self._death(process.sentinel)
        death.row = row
        return death

    def wake(self) -> None:
        """Let a :meth:`receive` that waits in another thread return None."""
        self._pipes.wake()

    @property
    def generation(self) -> int:
        """Counts the epochs begun, and those cancelled."""
        return self._generation

    def cancel(self, generation: int | None = None) -> None:
        """Let the workers drop all tasks; they finish no more than the sample they are in.

        May be called from any thread, and in a forked copy of the pool, where it does nothing.

        Args:
            generation: Do nothing if another one has begun since: an iterator may be collected
                late, in another thread, when the workers are no longer its own.
        """
        if self.closed:
            return
        with self._cancelling:
            if generation not in (None, self._generation):
                return
            self._generation += 1
            self._board.generation = self._generation
            self._pipes.take_back()

    def resume(self) -> None:
        """Begin a new epoch: ask every worker to forget older tasks; see :meth:`resumed`."""
        self.cancel()
        self._missing = set(self.started)
        self._ask_to_resume(self.started)

    def _ask_to_resume(self, workers: Sequence[int]) -> None:
        for worker in workers:
            self._pipes.send(Resume(self._generation), worker)
        # Only now: whoever takes one must find what it announces.
        self._pipes.announce(len(workers))

    def resumed(self, timeout: float | None = None) -> bool | None:
        """Wait until every worker has acknowledged the new epoch.

        Args:
            timeout: Seconds to wait at most; None waits for ever.

        Returns:
            True when all have, None when the time is up or :meth:`wake` was called.

        Raises:
            WorkerDeath: A worker is gone.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        assert self._missing is not None, "resume() comes first"
        while self._missing:
            event = self._next_event(deadline)
            if event is None:
                return None
            if isinstance(event, Ack) and event.generation == self._generation:
                self._missing.discard(event.worker)
        self._missing = None
        for worker in self.started:
            self._pipes.send(Proceed(), worker)
        self._in_flight.clear()
        self._points.clear()
        self.trim()
        self._start_more()
        return True

    def trim(self) -> None:
        """Give the memory of slots back to the system that a new epoch will not need."""
        self._arena.trim(self._keep)

    @property
    def resuming(self) -> bool:
        """Whether a new epoch has been announced, and not everybody has acknowledged it."""
        return self._missing is not None

    @property
    def closed(self) -> bool:
        """Whether the workers are gone, or belong to another process than this one."""
        return self._own.closed or self.elsewhere

    @property
    def elsewhere(self) -> bool:
        """Whether this is a forked copy: everything belongs to another process."""
        return self._own.pid != os.getpid()

    def close(self) -> None:
        """Stop the workers and let go of everything; a second call does nothing."""
        self._own.close()
        self._finalizer.detach()


def _explain(error: BaseException, num_workers: int) -> None:
    """Name the limit that was met, if it is that of open files.

    Raises:
        LoaderError: It is.
    """
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        raise LoaderError(
            f"num_workers={num_workers} need more open files than may be had (3 a worker and "
            "some): raise the limit (ulimit -n), or use fewer workers"
        ) from error
