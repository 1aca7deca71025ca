"""`Dispatcher`: sends tasks to workers, takes their results in, and sends again what was lost.

::

    submit ─indices─▶ slot, Task ─▶ pipe of tasks, or a worker's own
    complete ◀─ Result ── slot with the batch, leased to the consumer

Used by `pool/worker_pool.py`, which reads the messages. A slot in flight belongs to the pool until
its result is in, or until no worker can write into it any more: every worker has acknowledged a
newer generation (`pool/handshake.py`), or has done a task of a newer issue (`pool/in_flight.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from lit_loader.errors import LoaderError
from lit_loader.memory.arena import Arena
from lit_loader.pool.handshake import Handshake
from lit_loader.pool.in_flight import InFlightTask, InFlightTasks
from lit_loader.pool.outcome import Outcome
from lit_loader.pool.pipes import Pipes
from lit_loader.transport.loader_page import LoaderPage
from lit_loader.transport.messages import (
    Ack,
    Grant,
    Grow,
    Message,
    Result,
    Spare,
    Status,
    Task,
    Up,
    pack_indices,
    position_of,
)
from lit_loader.transport.remote_error import RemoteError
from lit_loader.transport.status_board import BoardRow, Stage, StatusBoard

__all__ = ["Dispatcher"]


class Dispatcher:
    """Keeps account of the tasks in flight, and talks to the workers about them.

    Args:
        arena: Where the slots come from.
        board: Shows the issue to the workers.
        page: Counts results, for viewers.
        pipes: Carry the messages.
        handshake: Has the generation of the tasks.
        assigned: Whether tasks are sent to a worker by number instead of being pulled.
        readers: Readers of an iterable dataset, to whom tasks belong in turn; 0: map-style.

    Attributes:
        lock: Held while the tasks in flight, or their issue, change.
        any_done: Whether a task has ever been done.
    """

    def __init__(
        self,
        arena: Arena,
        board: StatusBoard,
        page: LoaderPage,
        pipes: Pipes,
        handshake: Handshake,
        assigned: bool,
        readers: int = 0,
    ) -> None:
        self._readers = readers
        self._arena = arena
        self._board = board
        self._page = page
        self._pipes = pipes
        self._handshake = handshake
        self._in_flight = page.in_flight = InFlightTasks(arena, assigned)
        self._points: dict[int, Any] = {}  # where readers that were replaced are to begin
        self.lock = threading.RLock()
        self.any_done = False

    def begin(self, worker: int) -> None:
        """Note that a worker has been started."""
        self._in_flight.begin(worker)

    def leave(self, worker: int) -> None:
        """Note that a worker is gone, and no other in its place."""
        self._in_flight.leave(worker)

    def submit(self, number: int, indices: Any, epoch: int, seed: int, worker: int | None) -> None:
        """Send a task; see :meth:`lit_loader.pool.worker_pool.WorkerPool.submit`."""
        with self.lock:
            if self._points:
                point = self._points.pop(self._reader(number), None)
                indices = point if indices is None else indices
            packed = b"" if indices is None else pack_indices(indices)
            self._send(InFlightTask(number, packed, epoch, seed, worker))

    def _reader(self, number: int) -> int:
        return position_of(number) % self._readers

    def _send(self, task: InFlightTask) -> None:
        """Send a task with a fresh slot."""
        slot = self._in_flight.prepare(task)
        message = Task(
            self._handshake.generation,
            task.number,
            task.epoch,
            task.seed,
            slot.offset,
            slot.capacity,
            len(task.packed),
            task.issue,
        )
        self._pipes.send(message, task.worker)

    def complete(self, result: Result) -> Outcome | None:
        """Take a result in; None for one that does not count any more."""
        slot = None
        if result.generation == self._handshake.generation:
            slot = self._in_flight.complete(result)
        if slot is None:
            self._page.drop(1)
            return None
        self._page.received += 1
        self.any_done = True
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
        # It is not known how much of its slot a batch that failed late has filled.
        self._arena.release(slot, used=failure is None)
        return Outcome(result.number, None, 0, 0, failure)

    def grow(self, message: Grow) -> None:
        """Grant a worker the larger slot that its batch needs."""
        if message.generation != self._handshake.generation:
            return
        try:
            slot = self._in_flight.grow(message)
        except LoaderError:
            slot = None  # the worker says so
        offset, capacity = (0, 0) if slot is None else (slot.offset, slot.capacity)
        grant = Grant(message.generation, message.number, offset, capacity)
        self._pipes.send(grant, message.worker)

    def drop_void(self, worker: int) -> None:
        """Drop those messages that have come in and count no more now that a worker is gone.

        What it has asked for or acknowledged would be taken for its successor's; the result of an
        older copy of a task, whose slot may be used anew, for that of the same task.
        """
        while self._pipes.read():
            pass
        arrived = self._pipes.arrived
        void = [message for message in arrived if self._is_void(message, worker)]
        for message in void:
            arrived.remove(message)
        self._page.drop(sum(isinstance(message, Result) for message in void))

    def _is_void(self, message: Message, worker: int) -> bool:
        if isinstance(message, Result):
            return self._in_flight.slot_of(message) is None
        return isinstance(message, Ack | Grow | Spare | Up) and message.worker == worker

    def begin_issue(self) -> None:
        """Make void all tasks that no worker has announced; to be sent again."""
        if self._pipes.shared_queue:
            self._in_flight.issue += 1
            self._board.issue = self._in_flight.issue

    def send_again(
        self,
        worker: int,
        rows: Iterable[BoardRow],
        points: Mapping[int, Any] | None,
        succeeded: bool,
    ) -> None:
        """Send again what a worker that is gone may have had.

        Args:
            worker: Its number.
            rows: What all workers are doing, read after :meth:`begin_issue`: a worker that has not
                announced a task by then finds that it is void.
            points: Where its readers of an iterable dataset are to begin; None: map-style.
            succeeded: Whether there is a new process with its number.
        """
        lost = self._in_flight.take_lost(worker, rows, self._unhandled(), succeeded)
        if points is not None:
            self._points |= points
            for task in lost:  # each reader's first one
                point = self._points.pop(self._reader(task.number), None)
                if point is not None:
                    task.packed = pack_indices(point)
        for task in lost:
            self._send(task)

    def withdraw(self, number: int) -> None:
        """Give a task up; its error comes in the place of its batch."""
        self._in_flight.withdraw(number)
        self._page.drop(-1)

    def is_pending(self, number: int) -> bool:
        """Whether a task has no result yet."""
        while self._pipes.read():
            pass
        return any(task.number == number for task in self.pending())

    def pending(self) -> list[InFlightTask]:
        """The tasks that have no result yet."""
        with self.lock:
            return self._in_flight.pending(self._unhandled())

    def awaited(self, rows: dict[int, BoardRow]) -> dict[int, BoardRow]:
        """Choose, of what workers are doing, those that keep others waiting."""
        missing = self._handshake.missing
        if missing is not None:
            return {worker: row for worker, row in rows.items() if worker in missing}
        busy = {worker: row for worker, row in rows.items() if row.stage in Stage.BUSY}
        begun = {row.number for row in busy.values()}
        due = {task.worker for task in self.pending() if task.number not in begun}
        return {w: row for w, row in rows.items() if w in busy or w in due or None in due}

    def _unhandled(self) -> list[Result]:
        """Results that have been read and not been given out."""
        return [
            message
            for message in self._pipes.arrived
            if isinstance(message, Result) and message.generation == self._handshake.generation
        ]

    def clear(self) -> None:
        """Forget all tasks: every worker has."""
        self._in_flight.clear()
        self._page.settle()
        self._points.clear()
