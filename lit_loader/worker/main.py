"""The worker process: takes tasks, makes batches, writes them into slots.

::

    own pipe ─Task─▶ indices ▶ fetch ▶ collate ▶ encode into the slot ─Reply─▶ pipe of all workers
             ─Resume, Space, Stop─▶                      ─Up, Need, Resumed─▶

- An idle worker is in a blocking read of its own pipe. What it is sent it does in that order.
- Before each task and each sample it compares the board's token with its own, and leaves a batch
  that is no longer wanted; it answers Dropped then.
- It holds no lock that another process could wait for. Killed at any instant, it leaves at most a
  half-written slot, which is not read without its Reply.
- A thread waits for the parent's death and then ends the process, whatever it is doing.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import sys
import threading
import time
from collections import deque
from typing import Any, Final

import numpy as np
import torch

from lit_loader.batch.batch_spec import BatchSpec
from lit_loader.batch.fetch import EndOfData
from lit_loader.batch.shard_loader import ShardLoader
from lit_loader.errors import TransportError
from lit_loader.memory.arena import ArenaMap
from lit_loader.system.processors import ProcessorClock
from lit_loader.system.stack_dumps import show_stacks_when_asked, write_stacks_to
from lit_loader.transport.codec import SlotFull, SlotWriter, encode
from lit_loader.transport.messages import (
    NOT_WANTED,
    SIZE,
    Message,
    Need,
    Reply,
    Resume,
    Resumed,
    Space,
    Status,
    Stop,
    Task,
    Up,
    pack,
    position_of,
    unpack,
    unpack_indices,
)
from lit_loader.transport.remote_error import RemoteError
from lit_loader.transport.status_board import Cancelled, Stage, StatusBoard
from lit_loader.worker.making import BatchMaker
from lit_loader.worker.parent import follow_parent, yield_to_parent
from lit_loader.worker.payload import NO_ROOM, Links, Payload
from lit_loader.worker.process_start import reset_signals

__all__ = ["worker_main"]


LEAVE_GRACE: Final = 2.0
"""Seconds that a worker which leaves has to end, before it ends at once."""


def worker_main(links: Links, payload: Payload) -> None:
    """Be a worker until a message says to stop, or until the parent is gone."""
    reset_signals()
    write_stacks_to(links.stacks.fd)
    # What was forked is not looked through by the garbage collector, which would copy its pages: of
    # a large parent, in the midst of a sample, that takes seconds.
    gc.freeze()
    follow_parent(links.parent)
    yield_to_parent()
    torch.set_num_threads(1)
    # A forked worker would inherit what the thread that started it happened to be in.
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        # BlockingIOError: the parent has emptied this worker's pipe, to close it.
        contextlib.suppress(BrokenPipeError, BlockingIOError),
    ):
        _Worker(links, payload).run()


class _Worker:
    """The loop and what it needs.

    Takes a Task, puts one Reply; takes a Resume, puts a Resumed; ends by Stop. Never writes outside
    the slot of the task at hand, and never into it after its Reply.
    """

    def __init__(self, links: Links, payload: Payload) -> None:
        self._id = links.worker
        try:
            self._arena = ArenaMap(links.arena.fd, links.mapped, links.board_bytes)
        except OSError:
            sys.exit(NO_ROOM)
        self._board = StatusBoard(self._arena.board)
        self._board.shows_stacks(self._id, show_stacks_when_asked())
        self._progress = self._board.progress(self._id)
        self._progress.token = links.token
        self._writers: dict[int, SlotWriter] = {}
        self._tasks, self._results = links.control.fd, links.results.fd
        self._inbox: deque[Message] = deque()
        self._waiting = select.poll()
        self._waiting.register(self._tasks, select.POLLIN)
        self._task: Task | None = None
        self._times: list[int] = []
        self._clock = ProcessorClock(on=False)
        self._board.enter(self._id, Stage.INITIALISING, -1)

        def unpack() -> BatchSpec:
            try:
                return payload.open()
            finally:  # what comes now may be the user's code: another worker may be started
                self._send(Up(self._id))

        self._maker = maker = BatchMaker(
            f"in DataLoader worker {self._id} (pid {os.getpid()})",
            links.worker,
            links.num_workers,
            links.seed,
            unpack,
            self._progress.beat,
        )
        self._loader, self._shards, self._broken = maker.loader, maker.shards, maker.broken
        if maker.spec is not None:
            self._clock = ProcessorClock(on=maker.spec.timed)
            self._progress.each = maker.spec.watched

    def run(self) -> None:
        """Serve until Stop."""
        while True:
            self._board.rest(self._id)
            if self._shards is not None:
                self._begin_ahead(self._shards)
            message = self._receive()
            if type(message) is Task:
                try:
                    self._serve(message)
                except Cancelled:
                    begun = self._times[0] if self._task is message else 0
                    self._send(Reply(Status.DROPPED, self._id, message.slot, 0, 0, 0, 0, begun))
            elif type(message) is Resume:
                self._progress.token = message.token
                if self._loader is not None:
                    self._loader.begin_epoch()
                self._send(Resumed(self._id, message.token))
            elif type(message) is Stop:
                break
        self._board.leave(self._id)
        # What keeps the process from ending then (a thread of the dataset's) has so long for it.
        leaving = threading.Timer(LEAVE_GRACE, os._exit, (0,))
        leaving.daemon = True
        leaving.start()

    def _begin_ahead(self, loader: ShardLoader) -> None:
        """Begin the next epoch of readers that have ended, while nothing else is to be done."""
        while loader.may_begin_ahead and not self._inbox and not self._waiting.poll(0):
            loader.begin_ahead(self._board.early_progress(self._id))

    def _receive(self) -> Message:
        """Wait for the next message; the pipe's end is a Stop: the parent has given this one up."""
        if self._inbox:
            return self._inbox.popleft()
        data = os.read(self._tasks, SIZE)
        return unpack(data) if data else Stop()

    def _serve(self, task: Task) -> None:
        """Make the task's batch, or write down why there is none.

        Raises:
            Cancelled: It is not wanted any more.
        """
        if self._board.is_called_off(self._id, task.place) or task.token != self._board.token:
            raise Cancelled
        self._task, loader = task, self._loader
        self._times = [self._enter(Stage.FETCHING)]
        self._clock.start()
        self._progress.begin()
        writer = self._writer(task.slot, task.capacity)
        indices = None
        if self._broken is not None:
            self._fail(task, self._broken)
            return
        assert loader is not None
        try:
            if task.nbytes:
                indices = unpack_indices(writer.memory[: task.nbytes])
            writer.reset()
            batch = loader.take(indices, self._progress, self._on_collate, writer.empty)
            if batch is None:
                self._board.reads(self._id, task.number, task.slot, task.nbytes)
                batch = self._maker.load(
                    indices,
                    position_of(task.number),
                    task.epoch,
                    task.seed,
                    self._progress,
                    self._on_collate,
                    writer.empty,
                )
            self._times.append(self._enter(Stage.ENCODING))
            offset, at, nbytes = self._encode(batch, task, writer)
        except Cancelled:
            raise
        except EndOfData:
            self._reply(task, Status.ENDED, task.slot, 0, 0)
        except BaseException as error:
            number = position_of(task.number)
            self._fail(task, self._maker.failure(error, number, indices, self._progress))
        else:
            self._reply(task, Status.DONE, offset, at, nbytes)

    def _on_collate(self) -> None:
        now = self._enter(Stage.COLLATING)
        self._progress.finish(now)
        self._times.append(now)

    def _enter(self, stage: int) -> int:
        assert self._task is not None
        return self._board.enter(self._id, stage, self._task.number)

    def _encode(self, batch: Any, task: Task, writer: SlotWriter) -> tuple[int, int, int]:
        """Write the batch into the task's slot, or into a larger one that the parent grants."""
        offset = task.slot
        while True:
            try:
                return (offset, *encode(batch, writer))
            except SlotFull as full:
                self._send(Need(self._id, task.slot, full.nbytes))
                space = self._await_space(task)
                offset = space.offset
                writer = self._writer(space.offset, space.capacity)
                writer.reset()

    def _await_space(self, task: Task) -> Space:
        """Wait for the larger slot; what else comes is kept for later."""
        while True:
            data = os.read(self._tasks, SIZE)
            message = unpack(data) if data else Stop()
            if type(message) is not Space:
                self._inbox.append(message)
                if type(message) is Resume or not data:
                    raise Cancelled
            elif message.slot == task.slot:
                if message.capacity == NOT_WANTED:
                    raise Cancelled
                if message.capacity < 0:
                    raise TransportError(
                        "the batch needs more shared memory than can be had: raise the "
                        "training process's limit (ulimit -v), or make batches smaller"
                    )
                return message

    def _writer(self, offset: int, capacity: int) -> SlotWriter:
        writer = self._writers.get(offset)
        if writer is None:
            writer = self._writers[offset] = SlotWriter(self._arena.memory(offset, capacity))
        return writer

    def _fail(self, task: Task, error: RemoteError) -> None:
        memory = self._arena.memory(task.slot, task.capacity)
        packed = error.pack(task.capacity)
        memory[: len(packed)] = np.frombuffer(packed, np.uint8)
        self._reply(task, Status.FAILED, task.slot, 0, len(packed))

    def _reply(self, task: Task, status: int, offset: int, at: int, nbytes: int) -> None:
        """Close the account of a task: its slot is the parent's again."""
        times = [*self._times, time.monotonic_ns()]
        # A batch that failed, or was omitted, has not been through all stages.
        times += times[-1:] * (4 - len(times))
        began, fetched, collated, encoded = times
        self._board.count(self._id)
        self._send(
            Reply(
                status,
                self._id,
                task.slot,
                offset,
                at,
                nbytes,
                0 if self._loader is None else self._loader.samples,
                began,
                fetched - began,
                collated - fetched,
                encoded - collated,
                self._progress.slowest,
                self._progress.slowest_at,
                *self._clock.used(),
            )
        )

    def _send(self, message: Message) -> None:
        os.write(self._results, pack(message))
