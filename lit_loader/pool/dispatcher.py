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
from collections.abc import Callable, Collection, Iterable
from typing import Any

from lit_loader.errors import LoaderError
from lit_loader.memory.arena import Arena
from lit_loader.pool.handshake import Handshake
from lit_loader.pool.in_flight import InFlightTask, InFlightTasks
from lit_loader.pool.outcome import Outcome
from lit_loader.pool.pipes import Pipes
from lit_loader.pool.reader_homes import ReaderHomes
from lit_loader.transport.loader_page import LoaderPage
from lit_loader.transport.messages import (
    Ack,
    Grant,
    Grow,
    Message,
    Part,
    Result,
    Return,
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
        homes: Which worker each task is for; None: tasks are pulled.

    Attributes:
        lock: Held while the tasks in flight, or their issue, change.
        any_done: Whether a task has ever been done.
        point: Gives where a reader of an iterable dataset is; None: map-style.
    """

    def __init__(
        self,
        arena: Arena,
        board: StatusBoard,
        page: LoaderPage,
        pipes: Pipes,
        handshake: Handshake,
        homes: ReaderHomes | None,
    ) -> None:
        self._homes = homes
        self._arena = arena
        self._board = board
        self._page = page
        self._pipes = pipes
        self._handshake = handshake
        self._in_flight = page.in_flight = InFlightTasks(arena, homes is not None)
        self.point: Callable[[int], Any] | None = None
        self.lock = threading.RLock()
        self.any_done = False

    def begin(self, worker: int) -> None:
        """Note that a worker has been started."""
        self._in_flight.begin(worker)

    def leave(self, worker: int) -> None:
        """Note that a worker is gone, and no other in its place."""
        self._in_flight.leave(worker)

    def submit(self, number: int, indices: Any, epoch: int, seed: int) -> None:
        """Send a task; see :meth:`lit_loader.pool.worker_pool.WorkerPool.submit`."""
        with self.lock:
            worker = None
            if self._homes is not None:
                turn = position_of(number)
                worker, astray = self._homes.send(turn)
                if astray and indices is None and self.point is not None:
                    indices = self.point(self._homes.whose(turn))
            packed = b"" if indices is None else pack_indices(indices)
            self._send(InFlightTask(number, packed, epoch, seed, worker))

    def settle(self, workers: Collection[int], wanted: int) -> None:
        """Divide readers among the workers that can take tasks; see :class:`ReaderHomes`."""
        if self._homes is not None:
            with self.lock:
                for reader, worker in self._homes.settle(workers, wanted):
                    self._pipes.send(Part(reader), worker)

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

    def send_back(self, message: Return) -> None:
        """Send a task again that a worker has given back."""
        if message.generation != self._handshake.generation:
            return
        with self.lock:
            task = self._in_flight.returned(message)
            if task is not None:
                self._send(task)

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
        return isinstance(message, Ack | Grow | Return | Spare | Up) and message.worker == worker

    def begin_issue(self) -> None:
        """Make void all tasks that no worker has announced; to be sent again."""
        if self._pipes.shared_queue:
            self._in_flight.issue += 1
            self._board.issue = self._in_flight.issue

    def send_again(self, worker: int, rows: Iterable[BoardRow], succeeded: bool) -> None:
        """Send again what a worker that is gone may have had.

        Args:
            worker: Its number.
            rows: What all workers are doing, read after :meth:`begin_issue`: a worker that has not
                announced a task by then finds that it is void.
            succeeded: Whether there is a new process with its number.
        """
        lost = self._in_flight.take_lost(worker, rows, self._unhandled(), succeeded)
        if self._homes is not None:
            self._homes.lose(worker)
            turns = [position_of(task.number) for task in lost]
            for task, turn, (home, astray) in zip(
                lost, turns, self._homes.send_again(turns), strict=True
            ):
                task.worker = home
                if astray and self.point is not None:
                    task.packed = pack_indices(self.point(self._homes.whose(turn)))
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

    def awaited(self, rows: dict[int, BoardRow], lanes: range) -> dict[int, BoardRow]:
        """Choose, of what workers are doing, those that keep others waiting.

        A lane, which waits for another machine, does so only if it does not acknowledge an epoch.
        """
        missing = self._handshake.missing
        if missing is not None:
            return {worker: row for worker, row in rows.items() if worker in missing}
        rows = {worker: row for worker, row in rows.items() if worker not in lanes}
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
        if self._homes is not None:
            self._homes.forget_places()
