"""The worker process: takes tasks, makes batches, writes them into slots.

::

    own pipe ─Task─▶ indices ▶ fetch ▶ collate ▶ encode into the slot ─Reply─▶ pipe of all workers
             ─Attributes, Resume, Space, Stop─▶          ─Up, Need, Resumed─▶

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
import pickle
import sys
import threading
from collections import deque
from typing import Final

import numpy as np
import torch

from lit_loader.core.batch.batch_builder import make_batch
from lit_loader.core.batch.batch_spec import BatchSpec
from lit_loader.core.batch.fetch import EndOfData
from lit_loader.core.batch.progress import Cancelled, Progress
from lit_loader.core.executors.process_start import NO_ROOM, Links, Payload, follow_parent
from lit_loader.core.executors.worker_setup import WorkerSetup
from lit_loader.core.system.interrupts import reset_signals
from lit_loader.core.system.linux import ProcessorClock
from lit_loader.core.system.stack_dumps import show_stacks_when_asked, write_stacks_to
from lit_loader.core.transport.arena import ArenaMap
from lit_loader.core.transport.codec import SlotFull, SlotWriter, encode
from lit_loader.core.transport.messages import (
    ATTRIBUTES_PART,
    NOT_WANTED,
    POSITION,
    SIZE,
    Attributes,
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
    packed_reply,
    position_of,
    unpack,
    unpack_indices,
)
from lit_loader.core.transport.status_board import ROW_WORDS, Stage, StatusBoard
from lit_loader.errors import TransportError

_NOT_CLOCKED: Final = (0, 0)

CLOCKED_FROM: Final = 1_000_000
"""Nanoseconds that a batch takes from which on the next one's CPU time is measured, too."""

LEAVE_GRACE: Final = 5.0
"""Seconds that a worker which leaves has to end, as with torch's loader; then it ends at once."""


def worker_main(links: Links, payload: Payload) -> None:
    """Work until a message says to stop, or until the parent is gone."""
    reset_signals()
    write_stacks_to(links.stacks.fd)
    # What was forked is not looked through by the garbage collector, which would copy its pages: of
    # a large parent, in the middle of a sample, that takes seconds.
    gc.freeze()
    follow_parent(links.parent)
    torch.set_num_threads(1)
    # BlockingIOError: the parent has emptied this worker's pipe, to close it.
    with contextlib.ExitStack() as modes:
        worker = _Worker(links, payload, modes)
        try:
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                worker.run()
        finally:
            worker.leave()


class _Worker:
    """The loop and what it needs.

    Takes a Task, puts one Reply; takes a Resume, puts a Resumed; ends by Stop. Never writes outside
    the slot of the task at hand, and never into it after its Reply.
    """

    def __init__(self, links: Links, payload: Payload, modes: contextlib.ExitStack) -> None:
        self._id = links.worker
        try:
            self._arena = ArenaMap(links.arena.fd, links.mapped, links.board_bytes)
        except OSError:
            sys.exit(NO_ROOM)
        self._board = StatusBoard(self._arena.board)
        self._board.shows_stacks(self._id, show_stacks_when_asked())
        self._progress = Progress(self._board.words, (self._id + 1) * ROW_WORDS)
        self._progress.token = links.token
        self._writers: dict[int, SlotWriter] = {}
        self._tasks, self._results = links.control.fd, links.results.fd
        self._inbox: deque[Message] = deque()
        self._changes = b""  # parts of a pickle that is not complete
        self._clock = ProcessorClock()
        self._clocked, self._always_clocked = False, False  # this batch; every batch
        self._board.enter(self._id, Stage.INITIALISING, -1)

        def unpack() -> BatchSpec:
            try:
                spec = payload.open()
                modes.enter_context(spec.modes.held())
                return spec
            finally:  # what comes now may be the user's code: another worker may be started
                self._send(pack(Up(self._id)))

        self._maker = maker = WorkerSetup(
            f"in worker {self._id} (pid {os.getpid()})",
            links.worker,
            links.num_workers,
            links.seed,
            unpack,
        )
        self._loader = maker.loader
        if maker.spec is not None:
            self._always_clocked = maker.spec.timed
            self._progress.each = maker.spec.watched

    def run(self) -> None:
        """Serve until Stop."""
        self._progress.idle()
        while type(message := self._receive()) is not Stop:
            if type(message) is Task:
                self._make(message)
            elif type(message) is Attributes:
                self._set_attributes(message)
            elif type(message) is Resume:  # else Space, which came too late
                self._progress.token = message.token
                if self._loader is not None:
                    self._loader.begin_epoch()
                self._send(pack(Resumed(self._id, message.token)))

    def _set_attributes(self, message: Attributes) -> None:
        """Set attributes of the dataset, when the last part of them is here."""
        self._changes += message.part[: message.left]
        if message.left <= ATTRIBUTES_PART:
            changes, self._changes = pickle.loads(self._changes), b""
            if self._loader is not None:
                self._loader.set_attributes(changes)

    def leave(self) -> None:
        """Close the streams that are being read, so that their ``finally`` blocks run."""
        self._board.enter(self._id, Stage.LEFT, -1)
        # What keeps the process from ending then (a thread of the dataset) has so long for it.
        leaving = threading.Timer(LEAVE_GRACE, os._exit, (0,))
        leaving.daemon = True
        leaving.start()
        if self._loader is not None and self._maker.spec is not None and self._maker.spec.iterable:
            self._loader.begin_epoch()
            gc.collect()  # readers are in cycles

    def _receive(self) -> Message:
        """Wait for the next message; the pipe's end is a Stop: the parent has given this one up."""
        if self._inbox:
            return self._inbox.popleft()
        data = os.read(self._tasks, SIZE)
        return unpack(data) if data else Stop()

    def _make(self, task: Task) -> None:
        """Make the task's batch, or write down why there is none; and close its account."""
        token, number, epoch, *_, slot, capacity, nbytes, sequence = task
        progress, loader = self._progress, self._loader
        if not progress.begin(number, token, sequence, slot, nbytes):
            self._send(pack(Reply(Status.DROPPED, self._id, slot, 0, 0, 0, 0)))
            return
        if self._clocked or self._always_clocked:
            self._clocked = True
            self._clock.start()
        writer = self._writer(slot, capacity)
        offset, at, used, indices = slot, 0, 0, None
        try:
            if nbytes:
                indices = unpack_indices(writer.view[:nbytes])
            progress.empty = writer.empty
            batch = make_batch(loader, indices, number & POSITION, epoch, task.seeds, progress)
            progress.encoding()
            offset, at, used = self._encode(batch, task, writer)
            status = Status.DONE
        except Cancelled:
            status = Status.DROPPED
        except EndOfData:
            status = Status.ENDED
        except BaseException as error:
            status, offset = Status.FAILED, slot
            failure = self._maker.failure(error, position_of(number), indices, progress)
            packed = failure.pack(capacity)
            used = len(packed)
            self._arena.memory(slot, capacity)[:used] = np.frombuffer(packed, np.uint8)
        now = progress.idle(made=status != Status.DROPPED)
        clocked = self._clock.used() if self._clocked else _NOT_CLOCKED
        self._clocked = now - progress.began > CLOCKED_FROM
        samples = 0 if loader is None else loader.samples
        where = status, self._id, slot, offset, at, used
        self._send(packed_reply(*where, *progress.stages(samples, now, *clocked)))

    def _encode(self, batch: object, task: Task, writer: SlotWriter) -> tuple[int, int, int]:
        """Write the batch into its slot, or a larger one, which the parent grants."""
        offset = task.slot
        while True:
            try:
                return offset, *encode(batch, writer)
            except SlotFull as full:
                nbytes = full.nbytes
            self._send(pack(Need(self._id, task.slot, nbytes)))
            space = self._await_space(task)
            offset, writer = space.offset, self._writer(space.offset, space.capacity)

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
                        "the batch needs more shared memory than is available. Raise the "
                        "training process's limit (ulimit -v), or make batches smaller [LL102]"
                    )
                return message

    def _writer(self, offset: int, capacity: int) -> SlotWriter:
        writer = self._writers.get(offset)
        if writer is None:
            writer = self._writers[offset] = SlotWriter(self._arena.memory(offset, capacity))
        writer.start = writer.position = 0
        return writer

    def _send(self, message: bytes) -> None:
        os.write(self._results, message)
