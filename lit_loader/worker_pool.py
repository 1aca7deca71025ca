"""The parent's side of the workers: start, feed, watch, resume and stop them.

::

    submit ─Task─▶ task pipe ──────▶ worker 0..n-1 ─Result─▶ result pipe ─▶ receive
      └─ indices ─▶ slot                 │ batch ─▶ slot          │
    resume ─Resume─▶ control pipes ──────┘◀── sentinels ── poll ──┘

- :meth:`WorkerPool.submit` takes a slot, writes the indices into it and sends the task.
- :meth:`WorkerPool.receive` waits in one ``poll`` for results, for a worker's death and for
  :meth:`WorkerPool.wake`; nothing is looked at in intervals.
- One thread may submit while another receives. Everything else is for one thread at a time.
- A slot in flight belongs to the pool until its result is in, or until every worker has
  acknowledged a newer generation; only then can nobody write into it any more.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import threading
import time
import weakref
from collections import deque
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lit_loader.arena import Arena, Slot
from lit_loader.board import BoardRow, StatusBoard, board_bytes
from lit_loader.errors import LoaderError
from lit_loader.failure import Failure
from lit_loader.handover import Descriptor, Links
from lit_loader.loading import Recipe
from lit_loader.messages import (
    SIZE,
    Ack,
    Attend,
    Grant,
    Grow,
    Proceed,
    Result,
    Resume,
    Status,
    Stop,
    Task,
    pack_indices,
    unpack,
)
from lit_loader.outbox import Outbox
from lit_loader.processes import end_processes, start_worker

__all__ = ["Outcome", "WorkerDeath", "WorkerPool"]

_READ_AT_ONCE: Final = 64 * SIZE
_WAKE: Final = b"w"


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
    """

    number: int
    memory: NDArray[np.uint8] | None
    at: int
    nbytes: int
    failure: Failure | None
    samples: int = 0


class WorkerDeath(Exception):
    """A worker ended without being told to.

    Attributes:
        worker: Its number.
        pid: Its process id.
        exitcode: As in :attr:`multiprocessing.Process.exitcode`.
        row: Its last row of the status board.
    """

    def __init__(self, worker: int, pid: int, exitcode: int, row: BoardRow) -> None:
        super().__init__(worker, pid, exitcode, row)
        self.worker = worker
        self.pid = pid
        self.exitcode = exitcode
        self.row = row


class WorkerPool:
    """A set of worker processes with their arena and pipes. Starts them at once.

    Args:
        recipe: What the workers make.
        num_workers: How many, at least 1.
        context: How to start them.
        in_flight: Tasks that may be under way at the same time.
        seed: Base seed of the workers' own seeds.
        dealt: Tasks are sent to a worker by number instead of being pulled.
        slot_bytes: Bytes a slot, None for the arena's own choice.

    Raises:
        LoaderError: No worker can be started from here, or there is no memory.
    """

    def __init__(
        self,
        recipe: Recipe,
        num_workers: int,
        context: BaseContext,
        in_flight: int,
        seed: int,
        dealt: bool,
        slot_bytes: int | None = None,
    ) -> None:
        if multiprocessing.current_process().daemon:
            raise LoaderError(
                f"num_workers={num_workers} inside a daemonic process, which may not start "
                "processes: use num_workers=0 there, or make the process non-daemonic"
            )
        self.num_workers = num_workers
        self._generation = 1
        self._cancelling = threading.RLock()  # the garbage collector may end up in there again
        self._outbox = Outbox()
        self._in_flight: dict[int, list[Slot]] = {}
        self._events: deque[Result | Ack | Grow] = deque()
        size = board_bytes(num_workers)
        self._arena = Arena(size, in_flight, slot_bytes=slot_bytes)
        self._keep = in_flight + 2
        self._board = StatusBoard(self._arena.board)
        self._board.generation = self._generation
        self._own = _Resources(self._arena, self._board)
        self._finalizer = weakref.finalize(self, self._own.close)
        try:
            self._start(recipe, context, seed, dealt)
        except BaseException:
            self.close()
            raise

    def _start(self, recipe: Recipe, context: BaseContext, seed: int, dealt: bool) -> None:
        own = self._own
        # Dealt tasks have no pipe of their own: nobody would ever read it empty.
        tasks, own.tasks = (None, None) if dealt else own.pipe()
        self._results, results = own.pipe()
        own.results = self._results
        os.set_blocking(results, True)  # a worker with a result waits until there is room
        if tasks is not None:
            os.set_blocking(tasks, True)
        self._woken, self._wake = own.pipe()
        self._poll = select.poll()
        self._poll.register(self._results, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)
        self._control: list[int] = []
        self._workers_by_sentinel: dict[int, int] = {}
        for worker in range(self.num_workers):
            control, to_control = own.pipe()
            os.set_blocking(control, True)
            self._control.append(to_control)
            own.controls.append(to_control)
            links = Links(
                worker=worker,
                num_workers=self.num_workers,
                seed=seed + worker,
                generation=self._generation,
                parent=os.getpid(),
                arena=Descriptor(self._arena.fd),
                mapped=self._arena.mapped,
                board_bytes=len(self._arena.board),
                tasks=None if tasks is None else Descriptor(tasks),
                control=Descriptor(control),
                results=Descriptor(results),
            )
            process = start_worker(context, links, recipe)
            own.processes.append(process)
            self._workers_by_sentinel[process.sentinel] = worker
            self._poll.register(process.sentinel, select.POLLIN)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [process.pid or 0 for process in self._own.processes]

    def rows(self) -> list[BoardRow]:
        """What every worker is doing."""
        return [self._board.read(worker) for worker in range(self.num_workers)]

    def submit(
        self, number: int, indices: Any, epoch: int, seed: int, worker: int | None = None
    ) -> None:
        """Send a task.

        Args:
            number: Position of the batch in the epoch.
            indices: Its indices, None for an iterable dataset.
            epoch: Its epoch.
            seed: Base seed of the epoch.
            worker: Who is to do it, where tasks are dealt.

        Raises:
            Exception: The indices cannot be pickled.
        """
        packed = b"" if indices is None else pack_indices(indices)
        slot = self._arena.acquire(len(packed))
        if packed:
            slot.view[: len(packed)] = packed
        self._in_flight[number] = [slot]
        task = Task(self._generation, number, epoch, seed, slot.offset, slot.capacity, len(packed))
        pipe = self._own.tasks if worker is None else self._control[worker]
        assert pipe is not None, "a task is dealt to a worker, or pulled from the task pipe"
        self._outbox.send(pipe, task.pack())

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
        while True:
            if not self._events and not self._read_results():
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not self._wait(left):
                    return None
                continue
            event = self._events.popleft()
            if isinstance(event, Grow):
                self._grow(event)
            elif isinstance(event, Result) and event.generation == self._generation:
                return self._outcome(event)

    def _read_results(self) -> bool:
        """Take in what workers have sent; returns whether there was anything."""
        try:
            data = os.read(self._results, _READ_AT_ONCE)
        except BlockingIOError:
            return False
        self._outbox.flush()
        for start in range(0, len(data), SIZE):
            self._events.append(unpack(data, start))  # type: ignore[arg-type]
        return True

    def _wait(self, timeout: float | None) -> bool:
        """Wait for something to happen; returns False on timeout or wake-up."""
        blocked = self._outbox.blocked
        if blocked is not None:
            self._poll.register(blocked, select.POLLOUT)
        ready = self._poll.poll(None if timeout is None else timeout * 1000)
        if blocked is not None:
            self._poll.unregister(blocked)
        if not ready:
            return False
        fds = {fd for fd, _ in ready}
        if self._results in fds:
            return True
        if blocked in fds:
            self._outbox.flush()  # workers that drop what was cancelled send no results
            return True
        if self._woken in fds:
            os.read(self._woken, 1)
            return False
        # A result may have come in between the poll and now: it goes first.
        if self._read_results():
            return True
        raise self._death(min(fds))

    def _death(self, sentinel: int) -> WorkerDeath:
        worker = self._workers_by_sentinel[sentinel]
        process = self._own.processes[worker]
        process.join()
        row = self._board.read(worker)
        return WorkerDeath(worker, process.pid or 0, process.exitcode or 0, row)

    def _outcome(self, result: Result) -> Outcome:
        slots = self._in_flight.pop(result.number)
        slot = next(slot for slot in slots if slot.offset == result.offset)
        for other in slots:
            if other is not slot:
                self._arena.release(other, used=False)
        end = result.at + result.nbytes
        if result.status == Status.BATCH:
            memory = self._arena.lease(slot, end)
            return Outcome(result.number, memory, result.at, result.nbytes, None, result.samples)
        failure = None
        if result.status == Status.FAILURE:
            failure = Failure.unpack(slot.memory[result.at : end].tobytes())
        self._arena.release(slot)
        return Outcome(result.number, None, 0, 0, failure)

    def _grow(self, message: Grow) -> None:
        """Grant a worker the larger slot that its batch needs."""
        if message.generation != self._generation:
            return
        try:
            slot = self._arena.acquire(message.nbytes)
        except LoaderError:
            grant = Grant(message.generation, message.number, 0, 0)
        else:
            self._in_flight[message.number].append(slot)
            grant = Grant(message.generation, message.number, slot.offset, slot.capacity)
        self._outbox.send(self._control[message.worker], grant.pack())

    def wake(self) -> None:
        """Let a :meth:`receive` that waits in another thread return None."""
        os.write(self._wake, _WAKE)

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
            self._outbox.clear()

    def resume(self, timeout: float | None = None) -> bool:
        """Begin a new epoch: every worker forgets older tasks and acknowledges.

        Args:
            timeout: Seconds to wait at most; None waits for ever.

        Returns:
            Whether all have acknowledged in time.

        Raises:
            WorkerDeath: A worker is gone.
        """
        self.cancel()
        message = Resume(self._generation).pack()
        for control in self._control:
            self._outbox.send(control, message)
        if self._own.tasks is not None:
            for _ in self._control:
                self._outbox.send(self._own.tasks, Attend().pack())
        missing = set(range(self.num_workers))
        deadline = None if timeout is None else time.monotonic() + timeout
        while missing:
            if not self._events and not self._read_results():
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not self._wait(left) and left == 0.0:
                    return False
                continue
            event = self._events.popleft()
            if isinstance(event, Ack) and event.generation == self._generation:
                missing.discard(event.worker)
        for control in self._control:
            self._outbox.send(control, Proceed().pack())
        for slots in self._in_flight.values():
            for slot in slots:
                self._arena.release(slot, used=False)
        self._in_flight.clear()
        self._arena.trim(self._keep)
        return True

    @property
    def closed(self) -> bool:
        """Whether the workers are gone, or belong to another process than this one."""
        return not self._finalizer.alive or self._own.pid != os.getpid()

    def kill(self) -> None:
        """End the workers without asking; :meth:`close` is still to be called."""
        for process in self._own.processes:
            process.kill()

    def close(self) -> None:
        """Stop the workers and let go of everything; a second call does nothing."""
        self._finalizer()


class _Resources:
    """What must be given back when a pool ends; knows nothing of the pool, so that it can."""

    def __init__(self, arena: Arena, board: StatusBoard) -> None:
        self.pid = os.getpid()
        self.processes: list[BaseProcess] = []
        self._arena = arena
        self._board = board
        self._fds: list[int] = []
        self.tasks: int | None = None
        self.results = -1
        self.controls: list[int] = []

    def pipe(self) -> tuple[int, int]:
        """Open a pipe that blocks at neither end; returns (read end, write end)."""
        ends = os.pipe()
        self._fds += ends
        for end in ends:
            os.set_blocking(end, False)
        return ends

    def close(self) -> None:
        """End the processes, in steps of growing force; close the files."""
        if os.getpid() != self.pid:
            return  # a forked copy: everything here belongs to the process that made it
        try:
            self._ask_to_stop()
            end_processes(self.processes, self.results)
        except BaseException:
            # Ctrl-C while waiting: no more patience, but nothing is left behind.
            for process in self.processes:
                with contextlib.suppress(ValueError):  # that one has ended and is let go of
                    process.kill()
                    process.join()
            raise
        finally:
            self.processes.clear()
            while self._fds:
                os.close(self._fds.pop())
            self._board.release()
            self._arena.close()

    def _ask_to_stop(self) -> None:
        self._board.generation += 1
        # Empty the pipes: full ones have no room for a Stop. A worker that finds its pipe empty
        # ends, too.
        for end in self._fds[::2]:
            os.set_blocking(end, False)
            with contextlib.suppress(BlockingIOError):
                while os.read(end, _READ_AT_ONCE):
                    pass
        for control in self.controls:
            with contextlib.suppress(OSError):
                os.write(control, Stop().pack())
        if self.tasks is not None:
            for _ in self.controls:
                with contextlib.suppress(OSError):
                    os.write(self.tasks, Attend().pack())
