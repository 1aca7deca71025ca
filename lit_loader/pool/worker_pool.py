"""`WorkerPool`: worker processes that make batches, as the training process uses them.

Used by `iteration/delivery.py`, `iteration/multi_process.py` and `pool/recovery.py`. Tasks go in;
outcomes (a batch in shared memory, or an error) and the deaths of workers come out::

    submit ─Task─▶ task pipe ──────▶ worker 0..n-1 ─Result─▶ result pipe ─▶ receive
      └─ indices ─▶ slot                 │ batch ─▶ slot          │
    resume ─Resume─▶ control pipes ──────┘◀── sentinels ── poll ──┘

`pool/worker_set.py` has the processes, `pool/dispatcher.py` the tasks, `pool/handshake.py` the
beginning of an epoch, `pool/resources.py` all that is given back. :meth:`WorkerPool.receive` waits
in one ``poll`` for all there is; nothing is looked at in intervals once the workers are up.

The number of workers may change at any time (`pool/resizer.py`). One thread may submit while
another receives; any may call :meth:`WorkerPool.resize` and :meth:`WorkerPool.wake`. Everything
else is for one thread at a time.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.context import BaseContext
from typing import Any, Final

from lit_loader.batch.batch_spec import BatchSpec
from lit_loader.errors import LoaderError
from lit_loader.memory.arena import Arena
from lit_loader.pool.dispatcher import Dispatcher
from lit_loader.pool.handshake import Handshake
from lit_loader.pool.outcome import Outcome, WorkerDeath
from lit_loader.pool.pipes import Ended, Pipes
from lit_loader.pool.reader_homes import ReaderHomes
from lit_loader.pool.resizer import Resizer
from lit_loader.pool.resources import PoolResources
from lit_loader.pool.worker_set import WorkerSet, explain_limit
from lit_loader.system.interrupts import HeldBack
from lit_loader.transport.loader_page import PAGE_BYTES, LoaderPage
from lit_loader.transport.messages import Ack, Grow, Message, Result, Return, Spare, Up
from lit_loader.transport.status_board import BoardRow, Stage, StatusBoard, board_bytes
from lit_loader.worker.starters import Lanes

__all__ = ["MOST_WORKERS", "WorkerPool"]

MOST_WORKERS: Final = 1024
"""Workers that a pool may grow to, if it was not begun with more: rows of its status board."""

_MOMENT: Final = 0.5
"""Seconds that :meth:`WorkerPool.adapt` takes at most for workers that are at nothing."""


class WorkerPool:
    """A set of worker processes with their arena and pipes. Starts them at once.

    Args:
        spec: What the workers make.
        num_workers: How many in processes of their own; at least 1, or there are lanes.
        context: How to start them.
        in_flight: Tasks that may be in flight at the same time.
        seed: Base seed of the workers' own seeds.
        turns: Batch ``n`` is for reader ``n % turns`` of an iterable dataset, or for the worker of
            that number; 0: for whichever worker is free.
        slot_bytes: Bytes a slot, None for the arena's own choice.
        memory_budget: Bytes of shared memory to stay within, None for no limit.
        lanes: Workers besides these, with higher numbers, that stand for some elsewhere; or None.

    Attributes:
        notices: For the consumer, of how workers were started.
        page: What viewers in other processes are shown of the loader.

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
        turns: int,
        slot_bytes: int | None = None,
        memory_budget: int | None = None,
        lanes: Lanes | None = None,
    ) -> None:
        if multiprocessing.current_process().daemon:
            raise LoaderError(
                f"num_workers={num_workers} inside a daemonic process, which may not start "
                "processes: use num_workers=0 there, or make the process non-daemonic"
            )
        rows = max(num_workers, MOST_WORKERS)
        size = board_bytes(rows + (0 if lanes is None else lanes.count)) + PAGE_BYTES
        try:
            with HeldBack():
                arena = Arena(size, in_flight, slot_bytes=slot_bytes, budget=memory_budget)
                self._arena, self.divide = arena, arena.divide
                self._keep = in_flight + 2
                board, self.page = StatusBoard(arena.board), LoaderPage(arena.board)
                own = self._own = PoolResources(arena, board, self.page)
                self._finalizer = weakref.finalize(self, own.close, unnoticed=True)
                own.stacks.open()
                pipes = self._pipes = Pipes(own, assigned=turns > 0)
                handshake = self._handshake = Handshake(board, pipes)
                homes = ReaderHomes(turns, num_workers) if turns else None
                tasks = Dispatcher(arena, board, self.page, pipes, handshake, homes)
                workers = WorkerSet(
                    own, pipes, board, arena, spec, num_workers, context, seed, lanes, rows
                )
                self._dispatcher, self._workers = tasks, workers
                self.notices = workers.notices
                self._resizer = Resizer(board, pipes, workers, tasks, handshake)
                self._resizer.start_more()
        except BaseException as error:
            if hasattr(self, "_finalizer"):
                self.close()
            explain_limit(error, num_workers)
            raise

    def resize(self, num_workers: int, in_flight: int | None = None) -> None:
        """Change the number of workers; any thread may, at any time, and does not wait for it.

        Those with the highest numbers leave: each finishes what it has in hand, and takes no more.
        Readers of an iterable dataset are served by others then, from their next batch on.

        Args:
            num_workers: How many there are to be, from 1 to :data:`MOST_WORKERS`.
            in_flight: Tasks that may be in flight at the same time; None: as before.
        """
        if in_flight is not None:
            self._keep = in_flight + 2
            self.page.depth(in_flight)
        self._resizer.wanted = num_workers
        self._resizer.due = True
        if not self.closed:
            self.wake()

    def adapt(self, wait: bool = True) -> None:
        """Bring a :meth:`resize` about where no thread receives; or what need not be waited for."""
        if self.closed:
            return
        self._resizer.adapt()
        kept: list[Message] = []
        deadline = time.monotonic() + (_MOMENT if wait else 0)
        while self._resizer.waited_for:
            try:
                message = self._pipes.next(deadline)
            except Ended:
                self._pipes.arrived.extendleft(reversed(kept))  # some is its, who is gone
                kept.clear()
                if self._resizer.adapt():
                    continue
                break  # a death is left to the next receive, as is all that is kept
            if type(message) is Spare:
                self._resizer.not_needed()
            elif message is not None:
                kept.append(message)
            elif time.monotonic() >= deadline:
                break
        self._pipes.arrived.extendleft(reversed(kept))

    @property
    def num_workers(self) -> int:
        """How many there are to be; while that is coming about, a few more or fewer live."""
        return self._resizer.wanted

    @property
    def settled(self) -> bool:
        """Whether there are just as many as there are to be, all of them up; lanes do not count."""
        return self._workers.settled and self._workers.num_workers == self.num_workers

    @property
    def leaving(self) -> bool:
        """Whether more live than there are to be."""
        return bool(self._workers.leaving) or self.num_workers < self._workers.num_workers

    @property
    def forks(self) -> bool:
        """Whether they are forked, which takes milliseconds."""
        return self._workers.forks

    @property
    def started(self) -> list[int]:
        """The workers that have been started so far and have not left."""
        return self._workers.started

    @property
    def pids(self) -> list[int]:
        """Their process ids, by number; that which has all lanes is the last."""
        return self._workers.pids

    def rows(self) -> dict[int, BoardRow]:
        """What each of them is doing."""
        return self._workers.rows()

    @property
    def unread(self) -> int:
        """Results that workers have sent and that were not read yet."""
        return self._pipes.unread

    @property
    def shared_memory(self) -> int:
        """Bytes of real memory in the arena, at most."""
        return self._arena.resident

    @property
    def shared_data(self) -> int:
        """Bytes of the dataset that the workers share."""
        return self._workers.shared_data

    def room(self, undelivered: int) -> int:
        """How many more tasks the memory budget allows, with so many not given out yet."""
        return self._arena.room(undelivered)

    def overrun(self) -> str | None:
        """Say, once, that the memory budget cannot be kept; None: nothing to say."""
        return self._arena.overrun()

    def read_from(self, point: Callable[[int], Any]) -> None:
        """Say where readers of an iterable dataset are, that begin in another process.

        Args:
            point: Gives it for a reader: a place at its next task, or before.
        """
        self._dispatcher.point = point

    def submit(self, number: int, indices: Any, epoch: int, seed: int) -> None:
        """Send a task.

        Args:
            number: Position of the batch in the epoch.
            indices: Its indices; for an iterable dataset where its reader is to begin, or None.
            epoch: Its epoch.
            seed: Base seed of the epoch.
        """
        self._dispatcher.submit(number, indices, epoch, seed)

    def receive(self, timeout: float | None = None) -> Outcome | None:
        """Wait for the next task to be done, ``timeout`` seconds at most.

        Returns:
            The outcome, or None when the time is up or :meth:`wake` was called.

        Raises:
            WorkerDeath: A worker is gone. What it and the others had finished came out before.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (message := self._next_message(deadline)) is not None:
            if isinstance(message, Result):
                outcome = self._dispatcher.complete(message)
                if outcome is not None:
                    return outcome
            elif isinstance(message, Grow):
                self._dispatcher.grow(message)
            elif isinstance(message, Return):
                self._dispatcher.send_back(message)
        return None

    def _next_message(self, deadline: float | None) -> Message | None:
        """Wait for the next message of a worker; None: to be asked again, or the time is up."""
        workers = self._workers
        while True:
            if self._resizer.due and self._resizer.adapt():
                return None
            try:
                until = workers.until(deadline) if workers.starting else deadline
                message = self._pipes.next(until)
            except Ended as ended:
                death = workers.death_of(ended.sentinel)
                if death.row.stage != Stage.LEFT:
                    raise death from None
                self._resizer.part_with(death.worker)
                return None
            if (kind := type(message)) is Up:
                self._resizer.came_up(message.worker)  # type: ignore[union-attr]
            elif kind is Spare:
                self._resizer.not_needed()
            elif kind is Return and not self._pipes.shared_queue:
                self._resizer.gave_up(message.worker)  # type: ignore[union-attr]
            else:
                if message is None and workers.starting:
                    workers.look_at_starting()
                return message

    def replace(
        self,
        worker: int,
        skip_task: int | None = None,
        others: Sequence[int] = (),
    ) -> None:
        """Put a new process in the place of a worker that has ended, and give it what that had.

        One that was to leave has no successor: what it had is sent again for the others.

        Args:
            worker: Its number.
            skip_task: Number of a task that is not to be done again.
            others: Workers that were in the same process.

        Raises:
            LoaderError: No process can be started.
        """
        self._resizer.replace([worker, *others], skip_task)

    def is_pending(self, number: int) -> bool:
        """Whether a task is in flight and has no result yet."""
        return self._dispatcher.is_pending(number)

    def awaited_workers(self) -> dict[int, BoardRow]:
        """The workers that keep others waiting, and what each is doing.

        They have a task, or it must be one of them that takes the next one; or they have not
        acknowledged a new epoch.
        """
        rows = self.rows().items()
        counted = {w: r for w, r in rows if self._workers.counts(r)}
        return self._dispatcher.awaited(counted, self._workers.lanes)

    def end_hung(self, worker: int) -> WorkerDeath:
        """End a worker that does not get on, having it write its stacks if it can."""
        return self._workers.end(worker)

    def wake(self) -> None:
        """Let a :meth:`receive` that waits in another thread return None."""
        self._pipes.wake()

    @property
    def generation(self) -> int:
        """Counts the epochs begun, and those cancelled."""
        return self._handshake.generation

    def cancel(self, generation: int | None = None) -> None:
        """Let the workers drop all tasks; they finish no more than the sample they are in.

        May be called from any thread, and in a forked copy of the pool, where it does nothing.

        Args:
            generation: Do nothing if another one has begun since: an iterator may be collected
                late, in another thread, when the workers are no longer its own.
        """
        if not self.closed:
            self._handshake.cancel(generation)

    def resume(self) -> None:
        """Begin a new epoch: ask every worker to forget older tasks; see :meth:`resumed`."""
        self.cancel()
        self._handshake.begin(self.started)

    def resumed(self, timeout: float | None = None) -> bool | None:
        """Wait until every worker has acknowledged the new epoch, ``timeout`` seconds at most.

        Returns:
            True when all have, None when the time is up or :meth:`wake` was called.

        Raises:
            WorkerDeath: A worker is gone.
        """
        assert self._handshake.missing is not None, "resume() comes first"
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._handshake.missing:
            message = self._next_message(deadline)
            if message is None:
                return None
            if isinstance(message, Ack):
                self._handshake.acknowledged(message)
        self._handshake.finish(self.started)
        self._dispatcher.clear()
        self.trim()
        self._resizer.start_more()
        return True

    def trim(self) -> None:
        """Give the memory of slots back to the system that a new epoch will not need."""
        self._arena.trim(self._keep)

    @property
    def resuming(self) -> bool:
        """Whether a new epoch has been announced, and not every worker has acknowledged it."""
        return self._handshake.missing is not None

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
