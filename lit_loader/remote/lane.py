"""`Lane`: a remote worker's batch in flight, which looks like a worker to the pool.

::

    Task ─ take ─▶ Order … Made ─ finish ─▶ copied once into the slot ─▶ Result
      ╰─ give_back ─▶ Return: another worker is to have it        ╰─ too small ─▶ Grow … Grant

States: free ─ take ─▶ busy ─ finish ─▶ free; a busy one whose batch is too large waits for a larger
slot. Resume makes it held, whatever it was at, until Proceed: from then on nothing of it is written
anywhere, and what comes in for it belongs to nobody.

All lanes of a loader are in one process and one thread (`remote/relay.py`).
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np

from lit_loader.errors import TransportError
from lit_loader.memory.arena import ArenaMap
from lit_loader.remote.engine import Made, Order
from lit_loader.transport.messages import (
    SIZE,
    Ack,
    Grant,
    Grow,
    Message,
    Proceed,
    Result,
    Resume,
    Return,
    Status,
    Stop,
    Task,
    Up,
    pack,
    position_of,
    unpack,
)
from lit_loader.transport.remote_error import RemoteError
from lit_loader.transport.status_board import Stage, StatusBoard

__all__ = ["Desk", "Lane"]


class Desk(NamedTuple):
    """What all lanes share.

    Attributes:
        arena: Where the slots are.
        board: Where each shows what it is at.
        results: Write end of the result pipe.
    """

    arena: ArenaMap
    board: StatusBoard
    results: int

    def send(self, message: Message) -> None:
        """Send the pool a message."""
        os.write(self.results, pack(message))


class Lane:
    """One lane.

    Args:
        worker: Its number as a worker.
        control: Read end of its control pipe, which it closes.
        generation: The one it begins with.
        desk: What it shares with the others.

    Attributes:
        control: As given.
        task: What it is at, or None.
        worker: As given.
    """

    def __init__(self, worker: int, control: int, generation: int, desk: Desk) -> None:
        self.control = control
        self.task: Task | None = None
        self.worker = worker
        self._generation = generation
        self._desk = desk
        self._held = False
        self._made: Made | None = None  # waits for a larger slot
        self._began = 0
        self._rest = Stage.IDLE  # when it is at nothing
        desk.board.is_elsewhere(worker, "")
        self._begin()

    def _begin(self) -> None:
        """Say that it is there."""
        self._desk.board.enter(self.worker, self._rest, -1)
        self._desk.send(Up(self.worker))

    @property
    def free(self) -> bool:
        """Whether it may take a task."""
        return self.task is None and not self._held

    def serves(self, node: str) -> None:
        """Show which machine its remote worker is on."""
        self._desk.board.is_elsewhere(self.worker, node)

    def attend(self) -> bool:
        """Read one control message and do what it says; returns False when it is to stop."""
        data = os.read(self.control, SIZE)
        return self._hear(unpack(data) if data else Stop())

    def _hear(self, message: Message) -> bool:
        if isinstance(message, Stop):
            return False
        if isinstance(message, Resume):
            self._drop()
            self._held, self._generation = True, message.generation
            self._desk.send(Ack(self.worker, message.generation))
        elif isinstance(message, Proceed):
            self._held = False
        elif isinstance(message, Grant):
            self._granted(message)
        return True

    def take(self, task: Task) -> Order | None:
        """Take a task up; None: it is void."""
        board = self._desk.board
        # Looked at before it is announced on the board, as a worker does.
        if (task.generation, task.issue) != (self._generation, board.issue):
            return None
        self.task = task
        self._began = board.enter(self.worker, Stage.FETCHING, task.number, task.issue)
        packed = self._desk.arena.memory(task.offset, task.capacity)[: task.nbytes].tobytes()
        number = position_of(task.number)
        return Order(packed, number, task.epoch, task.seed, task.capacity, task.generation)

    def finish(self, made: Made) -> None:
        """Write what has been made into the slot, and report it."""
        task = self.task
        assert task is not None
        if self._desk.board.generation != task.generation:
            self._drop()
        elif made.content.size > task.capacity:
            self._made = made
            self._desk.send(
                Grow(self.worker, task.generation, task.number, task.offset, made.content.size)
            )
        else:
            self._write(task.offset, task.capacity, made)

    def _granted(self, grant: Grant) -> None:
        task, made = self.task, self._made
        if task is None or made is None:
            return
        if (grant.generation, grant.number) != (task.generation, task.number):
            return
        self._made = None
        if grant.capacity:
            self._write(grant.offset, grant.capacity, made)
        else:
            self.fail(
                TransportError(
                    "the batch needs more shared memory than can be had: raise the training "
                    "process's limit (ulimit -v), or make batches smaller"
                )
            )

    def _write(self, offset: int, capacity: int, made: Made) -> None:
        """Copy a batch or exception into a slot: the only copy on this side."""
        task = self.task
        assert task is not None
        self._desk.arena.memory(offset, capacity)[: made.content.size] = made.content
        self._desk.send(
            Result(
                made.status,
                self.worker,
                task.generation,
                task.number,
                offset,
                made.at,
                made.nbytes,
                made.samples,
                self._began,
                made.fetch,
                made.collate,
                made.encode,
                made.slowest,
                made.slowest_at,
            )
        )
        self._desk.board.count(self.worker)
        self._drop()

    def fail(self, error: Exception) -> None:
        """Report an exception of the relay's own in the batch's place."""
        task = self.task
        assert task is not None
        where = f"batch {position_of(task.number)}, in the process for remote workers"
        packed = RemoteError.capture(error, where).pack(task.capacity)
        content = np.frombuffer(packed, np.uint8)
        made = Made(Status.FAILURE, content, 0, len(packed), 0, 0, 0, 0, 0, 0)
        self._write(task.offset, task.capacity, made)

    def give_back(self) -> None:
        """Let another worker have the task."""
        task = self.task
        assert task is not None
        self._drop()
        self._desk.send(Return(self.worker, task.generation, task.number, task.offset))

    def _drop(self) -> None:
        self.task = self._made = None
        self._desk.board.enter(self.worker, self._rest, -1)
