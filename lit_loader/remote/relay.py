"""The relay: the process that is one worker to the pool, and has remote workers do its tasks.

::

    own pipe ─Task─▶ Job ─ a remote worker has room ─▶ Crew ─▶ RayEngine ─▶ remote workers
                      ╰─ none has: Dropped                                      │ futures
    pipe of all ◀─Reply─ slot ◀─ (Need, Space) ◀─ answer: Reply, batch ◀────────╯
    starter ◀─ messages for the consumer ─

Nothing waits in here: a task is with a remote worker, or it goes back at once, and the pool has it
made elsewhere. So that seldom happens, the relay says how many tasks it can be at (Up), again
whenever that changes; jobs that nobody waits for any more, of an epoch that was left, say, take
room until they are done. A task whose remote worker is gone goes to another one, or back.

Started clean (spawn), so that the engine's threads, signal handlers and trouble with forks stay out
of the training process. One thread does everything, and waits in one ``poll``; the engine has a
second one, from joining to leaving.

It ends when a message says so, and when the training process is gone; either way it ends its
remote workers before. Killed, it leaves them to the engine, which ends what belonged to it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lit_loader.core.batch.batch_spec import Changes
from lit_loader.core.executors.process_start import Links, sentinel_of
from lit_loader.core.system.interrupts import reset_signals
from lit_loader.core.system.shared_file import Descriptor
from lit_loader.core.system.stack_dumps import write_stacks_to
from lit_loader.core.transport.arena import ArenaMap
from lit_loader.core.transport.messages import (
    ATTRIBUTES_PART,
    NOT_WANTED,
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
    position_of,
    unpack,
)
from lit_loader.core.transport.status_board import (
    NUM_DONE,
    RELAY,
    REMOTE,
    ROW_WORDS,
    STACKS,
    Stage,
    StatusBoard,
)
from lit_loader.core.transport.worker_exception import WorkerException
from lit_loader.errors import ExactnessWarning, LoaderError, TransportError, WorkerDiedError
from lit_loader.remote.crew import Crew, Job
from lit_loader.remote.engine import Engine, Hello, RemoteConfig, Role, UnreachableError, versions

_LEAVING: Final = 8.0
"""Seconds that the engine has to end its workers."""

_REPORT_MISSING: Final = 3
"""Times ``patience`` after which a warning says that workers have not come up."""

_ALONE: Final = 24
"""Times ``patience`` that no worker may be up where there are none on this machine either."""

_BLAMED: Final = 2
"""Remote workers that a batch may end in a row before it is given up."""

_LONGEST_PAUSE: Final = 60.0
"""Seconds between two attempts to reach a cluster."""

_ASK_FOR_LESS: Final = (
    "see what the cluster has (ray status), and ask for less (remote.cpus_per_worker, "
    "remote.resources, remote.label_selector)"
)


class RelayLinks(NamedTuple):
    """What a relay is started with."""

    links: Links
    payload: Descriptor  # the dataset and functions, pickled
    starter: Connection  # a text or warning for the consumer; an error: there are no workers at all
    config: RemoteConfig
    roles: list[Role]  # of the remote workers, whose rows stand before the relay's on the board
    changes: Changes  # attributes of the dataset that have changed


def relay_main(start: RelayLinks) -> None:
    """Run the relay until a message says to stop, or the parent is gone."""
    # Of the parent's, a new interpreter has no handlers, only what was held back meanwhile.
    reset_signals()
    write_stacks_to(start.links.stacks.fd)
    code = Relay(start).run()
    os._exit(code)  # the engine's threads have nothing more to say


class Relay:
    """The loop and what it needs."""

    def __init__(self, start: RelayLinks) -> None:
        links, payload, starter, config, roles, changes = start
        self._results, self._tasks = links.results.fd, links.control.fd
        self._arena = ArenaMap(links.arena.fd, links.mapped, links.board_bytes)
        self._board = StatusBoard(self._arena.board)
        self._worker, self._rows = links.worker, links.worker - len(roles)
        self._parent = sentinel_of(links.parent)
        self._starter = starter
        self._woken, self._wake = os.pipe()
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)
        self._poll = select.poll()
        for fd in (self._tasks, starter.fileno(), self._parent, self._woken):
            if fd is not None:
                self._poll.register(fd, select.POLLIN)
        mapped = mmap.mmap(payload.fd, 0, access=mmap.ACCESS_READ)
        self._payload = np.frombuffer(mapped, np.uint8)
        self._calls: deque[Callable[[], None]] = deque()
        self._jobs: dict[int, Job] = {}  # not over, by the slot of their task
        self._blamed: dict[int, int] = {}
        self._credit = -1
        self._code: int | None = None
        self._leave, self._left = threading.Event(), threading.Event()
        self._engine = _engine(config)
        self._patience: float = config.patience
        self._crew = Crew(self, self._engine, config, roles, changes)
        self._changes = b""  # the parts of a pickle that have come so far
        self._known: set[str] = set()  # nodes of which a worker has come up
        self._joined = self._reported_missing = False
        self._unreachable = ""
        self._since = time.monotonic()  # when all were up last
        self._board.enter(self._worker, Stage.IDLE, -1)
        for worker in range(self._rows, self._worker):
            self._board.words[(worker + 1) * ROW_WORDS + STACKS] = REMOTE
        self._board.words[(self._worker + 1) * ROW_WORDS + STACKS] = RELAY
        self._show()
        # Lives until it has left: what Ray starts ends with the thread that started it.
        threading.Thread(target=self._run_engine, daemon=True).start()

    def _send(self, message: Message) -> None:
        os.write(self._results, pack(message))

    def say(self, what: str | Warning | LoaderError) -> None:
        """Send a text to the consumer."""
        with contextlib.suppress(OSError):
            self._starter.send(what)
            self._send(Up(self._worker, self._credit))

    def _show(self) -> None:
        """Say how many tasks it can be at, and show where the remote workers are."""
        credit = self._crew.credit
        if credit != self._credit:
            self._credit = credit
            self._send(Up(self._worker, credit))
        for member in self._crew.members:
            stage, number = Stage.IDLE if member.up else Stage.STARTING, -1
            if member.jobs:  # the oldest one is that which it is at
                stage, number = Stage.FETCHING, member.jobs[0].task.number
            shown = self._board.read(self._rows + member.position)
            if (shown.stage, shown.number) != (stage, number):
                self._board.enter(self._rows + member.position, stage, number)

    # --- the engine's thread ---

    def _run_engine(self) -> None:
        """Join, wait until all is over, and leave."""
        pause = self._patience
        try:
            while not self._leave.is_set():
                try:
                    self._engine.join(self._payload.data)
                except Exception as error:
                    text = str(error) if isinstance(error, UnreachableError) else repr(error)
                    self.queue(partial(self._on_unreachable, text))
                    self._leave.wait(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
                else:
                    self.queue(self._on_joined)
                    self._leave.wait()
            self._engine.leave()
        finally:
            self._left.set()

    def queue(self, call: Callable[[], None]) -> None:
        """Queue a call for the loop; from any thread."""
        self._calls.append(call)
        with contextlib.suppress(BlockingIOError):  # it has been woken very often
            os.write(self._wake, b"w")

    # --- the loop ---

    def run(self) -> int:
        """Serve; returns the exit code."""
        try:
            while self._code is None:
                self._look()
                self._attend()
                while self._calls:
                    self._calls.popleft()()
                self._show()
        finally:
            self._leave.set()
            self._left.wait(_LEAVING)
        return self._code

    def _attend(self) -> None:
        """Wait until something is to be done, and hear what the pool says."""
        for fd, _ in self._poll.poll(1000 * self._patience / 4):
            if fd == self._parent or fd == self._starter.fileno():  # it is gone, or has let go
                self._code = 0
            elif fd == self._woken:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
            elif fd == self._tasks:
                data = os.read(self._tasks, SIZE)
                self._hear(unpack(data) if data else Stop())

    def _hear(self, message: Message) -> None:
        if isinstance(message, Task):
            indices = self._arena.memory(message.slot, message.capacity)[: message.nbytes]
            self._give(Job(message, pack(message) + indices.tobytes()))
        elif isinstance(message, Attributes):
            self._changes += message.part[: message.left]
            if message.left <= ATTRIBUTES_PART:
                changes, self._changes = pickle.loads(self._changes), b""
                self._crew.set_attributes(changes)
        elif isinstance(message, Resume):
            for job in list(self._jobs.values()):
                self._drop(job)
            self._blamed.clear()
            self._show()
            self._send(Resumed(self._worker, message.token))
        elif isinstance(message, Space):
            self._granted(message)
        elif isinstance(message, Stop):
            self._code = 0

    def _give(self, job: Job) -> None:
        """Send a task to a remote worker, or return it to the pool."""
        self._jobs[job.task.slot] = job
        task, member = job.task, self._crew.with_room()
        if member is None or not self._board.wants(self._worker, task.token, task.sequence):
            self._show()  # first: the pool is not to send it here again
            self._drop(job)
            return
        self._crew.give(member, job)

    # --- what becomes of a task ---

    def job_done(self, job: Job, answer: NDArray[np.uint8]) -> None:
        """A job is done: write it into its slot, unless nobody waits for it any more."""
        if job.over:
            return
        self._blamed.pop(job.task.number, None)
        nbytes = answer.size - SIZE
        if nbytes > job.task.capacity:
            job.answer = answer.copy()  # what it lies in is let go of; a Space may take its time
            self._send(Need(self._worker, job.task.slot, nbytes))
        else:
            self._write(job, answer, job.task.slot, job.task.capacity)

    def _granted(self, space: Space) -> None:
        job = self._jobs.get(space.slot)
        if job is None or job.answer is None:  # it has had its reply: an epoch has begun meanwhile
            return
        if space.capacity == NOT_WANTED:
            self._drop(job)
        elif space.capacity > 0:
            self._write(job, job.answer, space.offset, space.capacity)
        else:
            self._fail(
                job,
                TransportError(
                    "the batch needs more shared memory than is available. Raise the training "
                    "process's limit (ulimit -v), or make batches smaller [LL102]"
                ),
            )

    def _write(self, job: Job, answer: NDArray[np.uint8], offset: int, capacity: int) -> None:
        """Copy a batch or exception into a slot: the only copy on this side."""
        reply: Any = unpack(answer[:SIZE].tobytes())
        self._arena.memory(offset, capacity)[: answer.size - SIZE] = answer[SIZE:]
        worker = self._worker if job.member is None else self._rows + job.member.position
        self._board.words[(worker + 1) * ROW_WORDS + NUM_DONE] += 1
        slot = job.task.slot
        self._reply(job, reply._replace(worker=worker, slot=slot, offset=offset, began=job.began))

    def _fail(self, job: Job, error: Exception) -> None:
        where = f"batch {position_of(job.task.number)}, in the process for remote workers"
        packed = WorkerException.capture(error, where).pack(job.task.capacity)
        answer = pack(Reply(Status.FAILED, 0, 0, 0, 0, len(packed), 0)) + packed
        self._write(job, np.frombuffer(answer, np.uint8), job.task.slot, job.task.capacity)

    def _drop(self, job: Job) -> None:
        slot = job.task.slot
        self._reply(job, Reply(Status.DROPPED, self._worker, slot, slot, 0, 0, 0))

    def _reply(self, job: Job, reply: Reply) -> None:
        """Close the account of a task: its slot is the parent's again."""
        del self._jobs[job.task.slot]
        job.over = True
        self._send(reply)

    def job_lost(self, job: Job, reason: str, to_blame: bool) -> None:
        """A job will not be done there: another worker is to have it, unless it has ended several.

        It may have been the reason (``to_blame``).
        """
        if job.over:
            return
        number = job.task.number
        if to_blame:
            self._blamed[number] = self._blamed.get(number, 0) + 1
        if to_blame and self._blamed[number] >= _BLAMED:
            self._fail(
                job,
                WorkerDiedError(
                    f"{reason}. Batch {position_of(number)} has ended {_BLAMED} remote workers in "
                    "a row and is not tried again. num_workers=0, remote=None shows "
                    "errors in place. [LL013]"
                ),
            )
        else:
            job.member = None
            self._give(job)

    def worker_up(self, hello: Hello) -> None:
        """A remote worker has come up: see whether it has other versions than this machine."""
        if hello.node in self._known:
            return
        self._known.add(hello.node)
        other = [
            f"{name} {hello.versions.get(name, 'none')} there, {version} here"
            for name, version in versions().items()
            if hello.versions.get(name, "none") != version
        ]
        if other:
            text = (
                f"node {hello.node} has other versions than this machine: {'; '.join(other)}. Its "
                "batches may differ. Install the same versions there (remote.runtime_env) [LL410]"
            )
            self.say(ExactnessWarning(text))

    # --- having none ---

    @property
    def _alone(self) -> bool:
        """Whether there are no workers on this machine."""
        return self._board.workers == 0

    def _give_up(self, why: str) -> None:
        self.say(LoaderError(why))
        self._code = os.EX_UNAVAILABLE

    def _on_joined(self) -> None:
        self._joined, self._since = True, time.monotonic()

    def _on_unreachable(self, text: str) -> None:
        if self._alone:
            self._give_up(f"remote workers: {text}")
        elif text != self._unreachable:
            self._unreachable = text
            self.say(
                f"remote workers: {text}. The workers of this machine continue alone, and "
                "joining is tried again."
            )

    def _look(self) -> None:
        """Look after the workers; report those that do not come up."""
        crew, now = self._crew, time.monotonic()
        if self._joined:
            crew.look()
        there = len(crew.members)
        if crew.up == there:
            self._since = now
        missing = now - self._since
        if self._alone and not crew.up and missing >= _ALONE * self._patience:
            why = f" (the last one: {crew.trouble})" if crew.trouble else ""
            self._give_up(
                f"of {there} remote workers none has come up for {missing:.0f} s{why}, and there "
                f"are no workers on this machine (num_workers=0): {_ASK_FOR_LESS}, or set "
                "num_workers"
            )
        elif (
            self._joined
            and not self._reported_missing
            and missing >= _REPORT_MISSING * self._patience
        ):
            self._reported_missing = True
            self.say(
                f"{crew.up} of {there} remote workers are up: {_ASK_FOR_LESS}. The others come up "
                "when there is room for them. [LL502]"
            )


def _engine(config: Any) -> Engine:
    make = getattr(config, "engine", None)
    if make is not None:
        return make()  # type: ignore[no-any-return]
    from lit_loader.remote.ray_engine import RayEngine

    return RayEngine(config)
