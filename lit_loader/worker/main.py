"""The worker process: takes tasks, makes batches, writes them into slots.

::

    task pipe ─Task─▶ indices ▶ fetch ▶ collate ▶ encode into the slot ─Result─▶ result pipe
    control pipe ─Resume, Proceed, Grant, Stop─▶                       ─Ack, Grow─▶

- A worker of a map-style dataset pulls tasks from a pipe that all workers read; with an iterable
  dataset its tasks come through its own control pipe, for it alone holds that share of the data.
  Either way an idle worker is in a blocking read.
- Before each sample it compares the board's generation with its own, and leaves a batch that is
  no longer wanted.
- It holds no lock that another process could wait for. Killed at any instant, it leaves at most a
  half-written slot, which is not read without its Result.
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

from lit_loader.batch.batch_loader import BatchLoader
from lit_loader.batch.batch_spec import BatchSpec
from lit_loader.batch.collate import collate_privately
from lit_loader.batch.fetch import EndOfData
from lit_loader.batch.shard_loader import ShardLoader
from lit_loader.batch.worker_info import ProcessInfo, WorkerInfo, show
from lit_loader.checkpoint.position import ReadPoint
from lit_loader.context import reading
from lit_loader.errors import TransportError
from lit_loader.memory.arena import ArenaMap
from lit_loader.seeding.generator_lock import Turn
from lit_loader.seeding.seeds import seed_worker
from lit_loader.system.processors import ProcessorClock
from lit_loader.system.stack_dumps import show_stacks_when_asked, write_stacks_to
from lit_loader.transport.codec import SlotFull, SlotWriter, encode
from lit_loader.transport.messages import (
    SIZE,
    Ack,
    Attend,
    Grant,
    Grow,
    Message,
    Part,
    Result,
    Resume,
    Spare,
    Status,
    Stop,
    Task,
    Up,
    pack,
    position_of,
    unpack,
    unpack_indices,
)
from lit_loader.transport.remote_error import RemoteError, describe_batch
from lit_loader.transport.status_board import Cancelled, Stage, StatusBoard
from lit_loader.worker.parent import follow_parent, yield_to_parent
from lit_loader.worker.payload import NO_ROOM, Links, Payload
from lit_loader.worker.process_start import reset_signals

__all__ = ["worker_main"]


LEAVE_GRACE: Final = 2.0
"""Seconds that a worker which leaves has to end, before it ends at once."""

_IF_CANCELLED: Final = contextlib.suppress(Cancelled)


class _Stopped(Exception):
    """The parent asked this worker to end."""


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
        contextlib.suppress(BrokenPipeError, BlockingIOError, _Stopped),
    ):
        _Worker(links, payload).run()


class _Worker:
    """The loop and what it needs.

    Takes a Task, puts a Result; takes a Resume, puts an Ack; ends by Stop. Never writes outside
    the slot of the task at hand, and nowhere once the task's generation has passed.
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
        self._progress.generation = links.generation
        self._writers: dict[int, SlotWriter] = {}
        self._tasks = None if links.tasks is None else links.tasks.fd
        self._control, self._results = links.control.fd, links.results.fd
        self._inbox: deque[Message] = deque()
        self._control_poll = select.poll()
        self._control_poll.register(self._control, select.POLLIN)
        self._task: Task | None = None
        self._times: list[int] = []
        self._clock = ProcessorClock(on=False)
        self._loader: BatchLoader | ShardLoader | None = None
        self._shards: ShardLoader | None = None  # the same, where there are num_shards
        self._broken: RemoteError | None = None
        self._initialise(links, payload)

    def _initialise(self, links: Links, payload: Payload) -> None:
        """Unpack the user's objects, seed, call worker_init_fn; a failure answers every task."""
        self._board.enter(self._id, Stage.INITIALISING, -1)
        where = f"in DataLoader worker {self._id} (pid {os.getpid()}), "
        try:
            try:
                seed_worker(links.seed)
                where += "while its dataset was unpickled"
                spec = payload.open()
            finally:
                self._send(Up(self._id))
            _set_worker_info(links, spec)
            collate_privately()
            where = where.replace("while its dataset was unpickled", "in worker_init_fn")
            if spec.worker_init_fn is not None:
                spec.worker_init_fn(self._id)
            where = where.replace("in worker_init_fn", "while its dataset was copied")
            if spec.num_shards:
                reading.shard_asked = False  # by a worker, not by a reader
                watch = spec.watch(self._progress.beat)
                self._loader = self._shards = ShardLoader(spec, watch)
            else:
                self._loader = BatchLoader(spec, links.worker, links.num_workers)
            self._clock = ProcessorClock(on=spec.timed)
        except BaseException as error:
            self._broken = RemoteError.capture(error, where)

    def run(self) -> None:
        """Serve until Stop, or until there are to be fewer workers."""
        while self._board.rest(self._id) or self._is_owed():
            if self._shards is not None:
                self._begin_ahead(self._shards)
            message = self._receive()
            if isinstance(message, Task):
                # Looked at before the task is announced on the board: one that the parent has seen
                # neither there nor done, it issues again, and this one is void.
                if (message.generation, message.issue) == (
                    self._progress.generation,
                    self._board.issue,
                ):
                    with _IF_CANCELLED:
                        self._serve(message)
            elif isinstance(message, Attend):
                if self._control_poll.poll(0):
                    self._attend(self._receive_control())
                else:
                    self._send(Spare(self._id))
            else:
                self._attend(message)
        # What keeps the process from ending then (a thread of the dataset's) has so long for it.
        leaving = threading.Timer(LEAVE_GRACE, os._exit, (0,))
        leaving.daemon = True
        leaving.start()

    def _begin_ahead(self, loader: ShardLoader) -> None:
        """Begin the next epoch of readers that have ended, while nothing else is to be done."""
        while loader.may_begin_ahead and not self._is_owed():
            loader.begin_ahead(self._board.early_progress(self._id))

    def _is_owed(self) -> bool:
        """Whether a worker that is to leave has messages that no other one can take."""
        return self._tasks is None and bool(self._inbox or self._control_poll.poll(0))

    def _receive(self) -> Message:
        """Wait for the next message: kept ones first, then the pipe that tasks come through."""
        if self._inbox:
            return self._inbox.popleft()
        if self._tasks is None:
            return self._receive_control()
        return _message_or_stop(os.read(self._tasks, SIZE))

    def _receive_control(self) -> Message:
        return _message_or_stop(os.read(self._control, SIZE))

    def _attend(self, message: Message) -> None:
        """Do what a control message says; after a Resume, take no task before Proceed.

        Raises:
            _Stopped: It says to end.
        """
        while isinstance(message, Resume):
            self._progress.generation = message.generation
            if self._loader is not None:
                self._loader.begin_epoch()
            self._send(Ack(self._id, message.generation))
            message = self._receive_control()
        if isinstance(message, Stop):
            raise _Stopped
        if isinstance(message, Part) and self._shards is not None:
            self._shards.part_with(message.reader)

    def _serve(self, task: Task) -> None:
        """Make the task's batch, or write down why there is none."""
        self._task = task
        self._times = [self._enter(Stage.FETCHING)]
        self._clock.start()
        self._progress.begin()
        writer = self._writer(task.offset, task.capacity)
        indices = None
        if self._broken is not None:
            self._fail(task, self._broken)
            return
        try:
            if task.nbytes:
                indices = unpack_indices(writer.memory[: task.nbytes])
            writer.reset()
            batch = self._load(task, indices, writer)
            self._times.append(self._enter(Stage.ENCODING))
            offset, at, nbytes = self._encode(batch, task, writer)
        except (Cancelled, _Stopped):
            raise
        except EndOfData:
            self._send_result(task, Status.END, task.offset, 0, 0)
        except BaseException as error:
            number = position_of(task.number)
            shown = indices
            if indices is None or isinstance(indices, ReadPoint):
                shown = self._loader and self._loader.whose(number)
            where = (
                f"in DataLoader worker {self._id} (pid {os.getpid()}), "
                f"{describe_batch(number, shown, self._progress)}"
            )
            self._fail(task, RemoteError.capture(error, where))
        else:
            self._send_result(task, Status.BATCH, offset, at, nbytes)

    def _load(self, task: Task, indices: Any, writer: SlotWriter) -> Any:
        assert self._loader is not None
        batch = self._loader.take(indices, self._progress, self._on_collate, writer.empty)
        if batch is not None:
            return batch
        self._board.reads(self._id, task.number, task.offset, task.nbytes)
        turn = Turn()
        try:
            turn.take()  # a thread of the dataset's may iterate a loader
            return self._loader.load(
                indices,
                position_of(task.number),
                task.epoch,
                task.seed,
                self._progress,
                self._on_collate,
                writer.empty,
            )
        finally:
            turn.end()

    def _on_collate(self) -> None:
        now = self._enter(Stage.COLLATING)
        self._progress.finish(now)
        self._times.append(now)

    def _enter(self, stage: int) -> int:
        assert self._task is not None
        return self._board.enter(self._id, stage, self._task.number, self._task.issue)

    def _encode(self, batch: Any, task: Task, writer: SlotWriter) -> tuple[int, int, int]:
        """Write the batch into the task's slot, or into a larger one that the parent grants."""
        offset = task.offset
        while True:
            try:
                return (offset, *encode(batch, writer))
            except SlotFull as full:
                self._send(Grow(self._id, task.generation, task.number, task.offset, full.nbytes))
                grant = self._await_grant(task)
                offset = grant.offset
                writer = self._writer(grant.offset, grant.capacity)
                writer.reset()

    def _await_grant(self, task: Task) -> Grant:
        """Wait for the larger slot; what else comes is kept for later."""
        while True:
            message = self._receive_control()
            if isinstance(message, Grant):
                if (message.generation, message.number) == (task.generation, task.number):
                    if message.capacity == 0:
                        raise TransportError(
                            "the batch needs more shared memory than can be had: raise the "
                            "training process's limit (ulimit -v), or make batches smaller"
                        )
                    return message
            else:
                self._inbox.append(message)
                if isinstance(message, (Resume, Stop)):
                    raise Cancelled

    def _writer(self, offset: int, capacity: int) -> SlotWriter:
        writer = self._writers.get(offset)
        if writer is None:
            writer = self._writers[offset] = SlotWriter(self._arena.memory(offset, capacity))
        return writer

    def _fail(self, task: Task, error: RemoteError) -> None:
        memory = self._arena.memory(task.offset, task.capacity)
        packed = error.pack(task.capacity)
        memory[: len(packed)] = np.frombuffer(packed, np.uint8)
        self._send_result(task, Status.FAILURE, task.offset, 0, len(packed))

    def _send_result(self, task: Task, status: int, offset: int, at: int, nbytes: int) -> None:
        samples = 0 if self._loader is None else self._loader.samples
        times = [*self._times, time.monotonic_ns()]
        # A batch that failed, or was omitted, has not been through all stages.
        times += times[-1:] * (4 - len(times))
        began, fetched, collated, encoded = times
        self._send(
            Result(
                status,
                self._id,
                task.generation,
                task.number,
                offset,
                at,
                nbytes,
                samples,
                began,
                fetched - began,
                collated - fetched,
                encoded - collated,
                self._progress.slowest,
                self._progress.slowest_at,
                *self._clock.used(),
            )
        )
        self._board.count(self._id)

    def _send(self, message: Up | Result | Ack | Grow | Spare) -> None:
        os.write(self._results, pack(message))


def _message_or_stop(data: bytes) -> Message:
    """Read a message; the pipe's end (the parent is gone, or gave this worker up) means Stop."""
    return unpack(data) if data else Stop()


def _set_worker_info(links: Links, spec: BatchSpec) -> None:
    """Make ``torch.utils.data.get_worker_info()`` answer for this worker."""
    reading.shard_asked = False  # in the parent, perhaps, of which this process is a fork
    kind = ProcessInfo if spec.num_shards else WorkerInfo
    number, dataset = links.worker, spec.dataset
    show(kind(id=number, num_workers=links.num_workers, seed=links.seed, dataset=dataset))
