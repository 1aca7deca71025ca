"""`WorkerPool`: worker processes that make batches, and the account of who has what.

::

    submit ─▶ task ─▶ unassigned ─ a worker has credit ─▶ copy: slot, worker ──Task──▶ worker k
                          ▲                                 │  its own pipe, in order   │
                          │ no copy is left, and no batch   │                           │
                          ╰── Dropped, or worker k's death ─┤◀──────── Reply ───────────╯
    receive ◀─ outcome ◀── the first Reply with a batch ────╯  (the slot goes with the batch,
                                                                or is free again)

    consumer ── submit, receive, resume        one thread may submit while another receives
    any thread ─ resize, wake, cancel          noted; the thread that receives brings it about

- **One task copy, one owner, one reply.** Each copy has a slot of its own, by which its Reply names
  it. The slot comes back with that Reply, or with the owner's death; by nothing else.
- **Credit.** A worker has at most as many tasks in its pipe as there are in flight for each. What
  is more waits here. The tasks of a reader of an iterable dataset go to its home alone.
- **Stragglers.** When the consumer has waited for a millisecond and a worker is idle, a task that
  is queued behind another one gets a second copy there. The first reply counts; a copy that nobody
  has begun, and whose batch is there, is called off by a bit on the board.
- **Calling off** (`break`, a new epoch): the token on the board moves on. Workers answer what they
  still have with Dropped. Nobody waits for that: new tasks come after the old ones.
- **Resume** goes into each pipe; Resumed comes after the replies to all older tasks.
- **Death**: what it sent is read first; then its slots come back and its tasks are assigned again.
- **Resize**: more are started, and get tasks at once. The highest get no more, and a Stop.

`core/executors/worker_set.py` has the processes, and gives back all there is at the end.
:meth:`WorkerPool.receive` waits in one ``poll`` for all there is; nothing is looked at in
intervals, but for a stall, once a second while nothing comes.

`StallWatch` adds up how long the consumer waits while no worker answers.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Final, Protocol

from lit_loader.core.batch.batch_spec import BatchSpec
from lit_loader.core.batch.progress import MEASURED, WorkerWaits
from lit_loader.core.executors.executor import MOST_WORKERS, FewerWorkers, Outcome, Task
from lit_loader.core.executors.pipes import Ended, Pipes
from lit_loader.core.executors.worker_process import WorkerProcess
from lit_loader.core.executors.worker_set import Relays, WorkerSet, explain_limit
from lit_loader.core.system.interrupts import HeldBack
from lit_loader.core.transport.arena import Arena, Slot
from lit_loader.core.transport.messages import (
    NOT_TO_BE_HAD,
    NOT_WANTED,
    POSITION,
    Message,
    Need,
    Reply,
    Resume,
    Resumed,
    Space,
    Status,
    Stop,
    Up,
    pack,
    pack_indices,
    packed_attributes,
    packed_task,
    position_of,
)
from lit_loader.core.transport.status_board import (
    VOIDABLE,
    BoardRow,
    Stage,
    StatusBoard,
    board_bytes,
)
from lit_loader.core.transport.viewer_page import PAGE_BYTES, ViewerPage
from lit_loader.core.transport.worker_exception import WorkerException
from lit_loader.errors import LoaderError

if TYPE_CHECKING:  # map-style datasets need none
    from lit_loader.core.executors.reader_assignment import ReaderHomes

LONGEST_LOOK: Final = 1.0
"""Seconds between two looks while nothing comes; one that comes later was held up itself."""

_SECOND: Final = 10
"""Times ``stall_warning`` after which a stall is reported once more."""


class Stall(Protocol):
    """A wait in which nothing has come so far (`diagnostics/stall.py`)."""

    def tell(self, workers: Any, seconds: float) -> None:
        """Warn; ``seconds`` is how long nothing has come."""


class StallWatch:
    """Adds up the seconds of a wait without an answer.

    ``begin`` is called with the workers at half of ``limit`` seconds, and what it returns reports
    the stall: at the limit, and once more later. A limit of 0: nothing is reported. What is longer
    than ``longest_look`` seconds between two looks does not count: all processes were stopped.
    """

    def __init__(
        self,
        limit: float,
        begin: Callable[[Any], Stall | None] | None,
        longest_look: float = LONGEST_LOOK,
    ) -> None:
        self.seconds = self._looked = 0.0
        self._longest_look = longest_look
        self._limits = [limit, _SECOND * limit] if limit and begin is not None else []
        self._stall_of = begin
        self._stall: Stall | None = None
        self._answered = -1

    def begin(self) -> None:
        """Begin a wait."""
        self.seconds, self._stall, self._looked = 0.0, None, time.monotonic()

    def look(self, workers: object, answered: int) -> None:
        """Note that nothing has come for a while, and how many answers there were before."""
        now = time.monotonic()
        if answered != self._answered:
            self._answered, self.seconds, self._stall = answered, 0.0, None
        self.seconds += min(now - self._looked, self._longest_look)  # not the time of a Ctrl-Z
        self._looked = now
        limit = self._limits[0] if self._limits else float("inf")
        if self.seconds >= limit / 2 and self._stall_of is not None:
            self._stall = self._stall or self._stall_of(workers)
            if self.seconds >= limit:
                del self._limits[0]
                if self._stall is not None:
                    self._stall.tell(workers, self.seconds)


_DROPPED_SOON: Final = 3
"""Times its credit that a worker may have tasks, if nearly all of them are called off."""

_STRAGGLING: Final = 0.001
"""Seconds that the consumer waits before idle workers copy what is queued behind others' tasks."""

_FOR_EVER: Final = float("inf")

_STUCK: Final = 20.0
"""Seconds without a batch after which a forked worker that is not up is stuck; it takes
milliseconds."""

_MOMENT: Final = 0.5
"""Seconds in which idle workers leave before an epoch begins without them."""


class _Task:
    """A batch that is wanted, until it is there."""

    __slots__ = ("copies", "number", "packed", "submitted")

    def __init__(self, submitted: Task, packed: bytes) -> None:
        self.submitted = submitted
        self.number = submitted.number
        self.packed = packed
        self.copies: list[int] = []  # by their slots; not the objects, which refer to this one


class _Copy:
    """A task that was sent to one worker, which owes one reply."""

    __slots__ = ("off", "place", "slot", "space", "task", "worker")

    def __init__(self, task: _Task, worker: int, slot: Slot, place: int) -> None:
        self.task = task
        self.worker = worker  # its number; not the object, which refers to this one
        self.slot = slot
        self.space: Slot | None = None  # a larger one that was granted
        self.place = place
        self.off = False


class _Worker:
    """What is known of one worker, from its start to its end."""

    __slots__ = ("awaited", "credit", "first", "leaving", "number", "owed", "places", "queue")

    def __init__(self, number: int, places: int, relays: bool) -> None:
        self.number = number
        # What it has been sent and has not replied to, the earliest first.
        self.queue: deque[_Copy] = deque()
        self.owed = 0  # how many of these are not called off
        # Tasks that it may have; None: as many as are in flight for each. A relay says it itself.
        self.credit = 0 if relays else None
        # Tasks that it was sent so far; continues from the worker before: its bits on the board do.
        self.places = self.first = places
        self.awaited = False  # whether it has not begun the epoch of this token
        self.leaving = False  # whether it is sent no more tasks


class WorkerPool:
    """A set of worker processes with their arena and pipes. Starts them at once.

    Args:
        spec: What the workers make.
        num_workers: How many on this machine; at least 1, or there is ``remote``.
        context: How to start them.
        in_flight: Tasks that may be in flight at the same time.
        seed: Base seed of the workers' own seeds.
        turns: Batch ``n`` is for reader ``n % turns`` of an iterable dataset, or for the worker of
            that number; 0: for any worker.
        remote: Starts the process that stands for workers elsewhere; None: there are none. It gets
            no reader's tasks.
        stall_warning: Seconds of waiting without a batch after which that is reported; 0: never.
        stall: Called with the pool at half of that; returns what reports it, see `Seams.stall`.

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
        remote: Relays | None = None,
        stall_warning: float = 0.0,
        stall: Callable[[WorkerPool], Stall | None] | None = None,
    ) -> None:
        if multiprocessing.current_process().daemon:
            raise LoaderError(
                f"num_workers={num_workers} inside a daemonic process, which may not start "
                "processes: use worker_method='thread' or num_workers=0 there, or make the process "
                "non-daemonic"
            )
        # Behind the rows of workers here are those of workers elsewhere, and the relay's.
        relay = max(num_workers, MOST_WORKERS) + (0 if remote is None else remote.num_workers)
        size = board_bytes(relay + (remote is not None)) + PAGE_BYTES
        self._lock = threading.RLock()
        self._tasks: dict[int, _Task] = {}
        self._unassigned: deque[_Task] = deque()
        self._copies: dict[int, _Copy] = {}  # by the offset of their slot
        self._by_number: dict[int, _Worker] = {}  # the workers that there are
        self._places: dict[int, int] = {}  # tasks that the one before with this number was sent
        self._remote_tasks = 0 if remote is None else remote.count
        self._ready: deque[Outcome] = deque()  # not received yet
        self._awaited = 0  # how many workers have not begun the epoch of this token
        self._begun = 1  # the token that the tasks are of; another one is shown when they are not
        # Whether those who take turns are readers of a stream, whose tasks may say where they are.
        self.of_readers = False
        self._due = self._resized = False
        self._idle = False  # whether a worker may have nothing to do
        self._dead: int | None = None  # the sentinel of a worker that is gone
        self._stall = StallWatch(stall_warning, stall)
        # What looks at the workers' memory (`Seams.look_at_workers`), and since when there are any.
        self.oom_kills: int | None = None
        self.began = time.monotonic()
        # How many there are to be; while that comes about, a few more or fewer live.
        self.num_workers = num_workers
        self.token = 1  # that of the epoch whose tasks are wanted
        # Whether the first batch of an epoch waits until all workers have left the one
        # before: then one that hangs there is found.
        self.patient, self.waits = False, WorkerWaits()
        try:
            with HeldBack():
                arena = Arena(size, in_flight)
                self.arena = arena
                self._in_flight = in_flight
                self._set_credit()
                board = self._board = StatusBoard(arena.board)
                # What viewers in other processes are shown of the loader.
                self.page = ViewerPage(arena.board, 0 if remote is None else relay + 1)
                pipes = self.pipes = Pipes()  # what they are talked to by
                self._homes: ReaderHomes | None = None
                if turns:
                    from lit_loader.core.executors.reader_assignment import ReaderHomes

                    self._homes = ReaderHomes(turns, num_workers)
                board.token, board.workers = self.token, num_workers
                workers = self.workers = WorkerSet(spec, arena, board, pipes, self.page.close)
                self._finalizer = weakref.finalize(self, workers.close, unnoticed=True)
                pipes.begin()
                workers.prepare(spec, num_workers, context, seed, remote, relay)
                self.notices = workers.notices  # for the consumer
                self._start_more()
        except BaseException as error:
            if hasattr(self, "_finalizer"):
                self.close()
            explain_limit(error, num_workers)
            raise

    # --- tasks ---

    def submit(self, submitted: Task) -> None:
        """Submit a task.

        One of an iterable dataset's reader that has to say where it begins, and does not, comes out
        as lost.
        """
        indices = submitted.indices
        packed = b"" if indices is None else pack_indices(indices, submitted.own)
        task = _Task(submitted, packed)
        with self._lock:
            self._tasks[task.number] = task
            worker = None
            if not self._unassigned or self._homes is not None:
                worker = self._worker_for(task)
            if worker is None:
                self._unassigned.append(task)
            else:
                self._assign(task, worker)

    def _worker_for(self, task: _Task) -> _Worker | None:
        """The worker that a task is to be sent to now; None: it has to wait."""
        if self._homes is not None:
            return self._by_number.get(self._homes.home(position_of(task.number)))
        found, most, home = None, 1, (task.number & POSITION) % (self.num_workers or 1)
        for worker in self._by_number.values():
            credit = self._credit if worker.credit is None else worker.credit
            # Of several with as much room the same one in each epoch, for what a dataset keeps.
            room = 2 * (credit - worker.owed) + (worker.number == home)
            # What is called off is dropped soon; if not, it is not to add up.
            if room > most and len(worker.queue) < _DROPPED_SOON * credit and not worker.leaving:
                found, most = worker, room
        return found

    def _assign(self, task: _Task, worker: _Worker) -> None:
        """Send a copy of a task to a worker; a reader's whose place is not known there is lost."""
        packed = task.packed
        if self.of_readers and self._homes is not None:
            said = self._homes.send(position_of(task.number), packed)
            if said is None:
                del self._tasks[task.number]
                self._ready.append(Outcome(task.number, lost=True))
                self.pipes.wake()  # another thread may be waiting
                return
            packed = said
        nbytes = len(packed)
        slot = self.arena.acquire(nbytes)
        offset = slot.offset
        if packed:
            slot.view[:nbytes] = packed
        worker.places = place = worker.places + 1
        self._copies[offset] = copy = _Copy(task, worker.number, slot, place)
        worker.queue.append(copy)
        worker.owed += 1
        task.copies.append(offset)
        asked = task.submitted
        which = self.token, task.number, asked.epoch, *asked.seeds
        self.pipes.send(worker.number, packed_task(*which, offset, slot.capacity, nbytes, place))

    def _assign_waiting(self) -> None:
        waiting = self._unassigned
        for _ in range(len(waiting)):
            task = waiting.popleft()
            worker = self._worker_for(task)
            if worker is not None:
                self._assign(task, worker)
            else:
                waiting.append(task)
                if self._homes is None:  # nor for any other
                    waiting.rotate(1)
                    return

    def _idle_workers(self) -> list[_Worker]:
        if self._homes is not None or len(self._by_number) < 2:
            return []
        return [w for w in [*self._by_number.values()] if not w.queue and not w.leaving]

    def _copy_for_the_idle(self) -> None:
        """Send idle workers a second copy of what is queued behind another task."""
        with self._lock:
            starting, relay = self.workers.starting, self.workers.relay
            for worker in self._idle_workers():
                # Another thread may have submitted: then the copy would be queued, too.
                if worker.queue or worker.number == relay or worker.number in starting:
                    continue
                behind = [
                    copy.task
                    for other in self._by_number.values()
                    if other.number != relay  # which has all of them under way
                    for place, copy in enumerate(other.queue)
                    if (place or other.number in starting)
                    and len(copy.task.copies) == 1
                    and self._is_wanted(copy.task)
                ]
                if not behind:
                    return
                task = min(behind, key=lambda each: each.number)
                first = self._copies[task.copies[0]]
                self._assign(task, worker)
                self._call_off(first)

    def _call_off(self, copy: _Copy) -> None:
        """Call off a copy that its worker has not begun."""
        worker = self._by_number[copy.worker]
        if not copy.off and len(worker.queue) <= VOIDABLE:
            copy.off = True
            worker.owed -= 1
            self._board.call_off(worker.number, copy.place, True)

    def _is_wanted(self, task: _Task) -> bool:
        return self._tasks.get(task.number) is task and self.token == self._begun

    # --- replies ---

    def receive(self, timeout: float | None = None) -> Outcome | None:
        """Wait for the next task to be done, ``timeout`` seconds at most.

        Returns:
            The outcome, or None when the time is up or :meth:`Pipes.wake` was called.

        Raises:
            WorkerDeath: A worker is gone. What it and the others had finished came out before.
        """
        ready = self._ready
        deadline = None if timeout is None else time.monotonic() + timeout
        while not ready or (self.patient and self._awaited):
            if self._due:
                self._bring_about()
            if self.pipes.blocked:
                with self._lock:
                    self.pipes.flush()
            if self._dead is not None:
                self._see_to_the_dead()
                continue
            try:
                left = _FOR_EVER if deadline is None else max(0.0, deadline - time.monotonic())
                if self._idle:
                    self._idle = bool(self._idle_workers())
                # Else nobody could take a copy: a short time costs more than a long one.
                patience = _STRAGGLING if self._idle else _FOR_EVER
                came = self._wait(min(left, patience))
                if came is None and self._idle:
                    self._copy_for_the_idle()
                    came = left > patience and self._wait(left)
            except Ended as ended:
                self._dead = ended.sentinel
                self._read_all()  # what it and others had finished comes out before
                continue
            if not came:
                if came is None and left:
                    self._watch()
                    if deadline is None or time.monotonic() < deadline:
                        continue
                return None
            for message in self.pipes.read():
                if type(message) is Reply:
                    self._close_copy(message)
                else:
                    self._handle(message)
        return ready.popleft()

    def _wait(self, seconds: float) -> bool | None:
        pause = self.waits.left()
        if (came := self.pipes.wait(min(seconds, pause))) is None and pause < seconds:
            self.waits.look(self.workers.pids)
            came = self.pipes.wait(min(seconds, LONGEST_LOOK) - pause)
        return came

    def _watch(self) -> None:
        """Note that nothing has come for a second, or less, of waiting.

        Raises:
            WorkerDeath: A worker that was forked does not come up, and was ended.
        """
        self._stall.look(
            self, sum(hand.places - len(hand.queue) for hand in self._by_number.values())
        )
        workers = self.workers
        if workers.forks and workers.starting and self._stall.seconds >= _STUCK:
            self._stall.seconds = 0.0
            death = workers.end(min(workers.starting))
            death.stuck = True
            raise death

    def task(self, number: int) -> Task | None:
        """The task of this number; None: it has an outcome."""
        task = self._tasks.get(number)
        return None if task is None else task.submitted

    def _see_to_the_dead(self) -> None:
        """Clean up after a worker that exited as asked.

        Raises:
            WorkerDeath: It was not asked to.
        """
        sentinel, self._dead = self._dead, None
        assert sentinel is not None
        death = self.workers.death_of(sentinel)
        if not self._has_left(death.worker, death.exitcode):
            try:
                raise death
            finally:  # its traceback has this frame, and so whoever waits for the batch
                del death
        self.replace(death.worker)

    def _has_left(self, worker: int, exitcode: int | None) -> bool:
        """Whether a worker that is gone has left as it was to, with nothing in hand.

        What goes wrong behind that is nobody's loss: in a copy of a thread of an executor, say,
        Python joins the thread itself at the end, and exits with 1.
        """
        left = exitcode == 0 or self._board.read(worker).stage == Stage.LEFT
        return left and self._by_number[worker].leaving

    def _handle(self, message: Message) -> None:
        """Do what a worker's message asks for."""
        if type(message) is Reply:  # `receive` does so itself
            self._close_copy(message)
        elif type(message) is Need:
            self._grant(message)
        elif type(message) is Up:
            self._came_up(message)
        elif type(message) is Resumed and message.token == self.token:
            self._has_resumed(self._by_number[message.worker])
            if not self._awaited:
                self.trim()

    def _has_resumed(self, worker: _Worker) -> None:
        self._awaited -= worker.awaited
        worker.awaited = False

    def _close_copy(self, reply: Reply) -> None:
        """Close a copy's account; what is the first of a task still wanted is ready."""
        status, _, sent_with, offset, at, nbytes = reply[:MEASURED]
        with self._lock:
            copy = self._copies.pop(sent_with)
            worker, task, slot = self._by_number[copy.worker], copy.task, copy.slot
            if worker.queue[0] is copy:
                worker.queue.popleft()
            else:
                worker.queue.remove(copy)
            if not worker.queue:
                self._idle = True
            if copy.off:
                self._board.call_off(worker.number, copy.place, False)
            else:
                worker.owed -= 1
            if copy.space is not None:
                other = copy.space
                if offset == other.offset:
                    slot, other = other, slot
                self.arena.release(other, used=False)
            task.copies.remove(copy.slot.offset)
            # `_is_wanted`, spelled out
            wanted = self._tasks.get(task.number) is task and self.token == self._begun
            if not wanted or status == Status.DROPPED:
                self.arena.release(slot, used=not reply.began)  # one that nobody has begun
                if status == Status.DROPPED and wanted and not task.copies:
                    self._put_back([task])
            else:
                del self._tasks[task.number]
                outcome = Outcome.of_reply(task.number, reply)
                if status == Status.DONE:
                    outcome.memory = self.arena.lease(slot, at + nbytes)  # goes with the batch
                else:
                    outcome.ended = status == Status.ENDED
                    if status == Status.FAILED:
                        failure = slot.memory[at : at + nbytes].tobytes()
                        outcome.failure = WorkerException.unpack(failure)
                    # It is not known how much of it a batch that failed late has filled.
                    self.arena.release(slot, used=outcome.failure is None)
                self._ready.append(outcome)
                for second in task.copies:
                    self._call_off(self._copies[second])
            if self._unassigned:
                self._assign_waiting()

    def _grant(self, need: Need) -> None:
        with self._lock:
            copy, offset, capacity = self._copies[need.slot], 0, NOT_WANTED
            if self._is_wanted(copy.task):
                try:
                    copy.space = self.arena.acquire(need.nbytes)
                    offset, capacity = copy.space.offset, copy.space.capacity
                except LoaderError:
                    capacity = NOT_TO_BE_HAD  # the worker says so
            self.pipes.send(need.worker, pack(Space(need.slot, offset, capacity)))

    def is_pending(self, number: int) -> bool:
        """Whether a task has no outcome yet."""
        self._read_all()
        return number in self._tasks

    def _read_all(self) -> None:
        while messages := self.pipes.read():
            for message in messages:
                self._handle(message)

    # --- epochs ---

    def cancel(self, token: int | None = None) -> None:
        """Call off all tasks; workers finish no more than the sample they are in.

        Not if another epoch has begun since that of ``token``. May be called from any thread, the
        garbage collector's too, and in a forked copy of the pool, where it does nothing.
        :meth:`resume` comes before the next task.
        """
        if not self.closed and token in (None, self.token):
            self.token += 1
            self._board.token = self.token

    def resume(self) -> None:
        """Begin a new epoch: tasks from here on are of that.

        Older ones are not waited for: their replies come before those to the new ones.
        """
        self.cancel()
        if self._due:  # before readers begin at workers that are to leave
            self._bring_about()
            self._see_off()
        with self._lock:
            self._tasks.clear()
            self._unassigned.clear()
            self._ready.clear()
            self._read_all()  # of older tasks, so that viewers do not count them as ready
            for copy in self._copies.values():
                copy.off = True
            self._begun = self.token
            if self._homes is not None:
                self._homes.forget_places()
            for worker in self._by_number.values():
                worker.owed, worker.awaited = 0, not worker.leaving
                if worker.awaited:
                    self.pipes.send(worker.number, pack(Resume(self.token)))
            self._awaited = sum(worker.awaited for worker in self._by_number.values())

    def send_attributes(self) -> bool:
        """Send the workers what has changed of the dataset's plain attributes; False: nothing has.

        :meth:`resume` comes next: what they are at has been made with the old ones.
        """
        changed = self.workers.attributes.changed()
        if changed:
            parts = packed_attributes(pickle.dumps(changed, pickle.HIGHEST_PROTOCOL))
            with self._lock:
                for number, worker in self._by_number.items():
                    if not worker.leaving:
                        for part in parts:
                            self.pipes.send(number, part)
        return bool(changed)

    def trim(self) -> None:
        """Return the memory of slots that a new epoch will not need to the system."""
        self.arena.trim(self._in_flight + 2)

    # --- how many workers ---

    def resize(self, num_workers: int, in_flight: int | None = None) -> None:
        """Change the number of workers; any thread may, at any time, and does not wait for it.

        ``num_workers`` is 1 to :data:`MOST_WORKERS`; if ``in_flight`` is None, it stays. Those with
        the highest numbers leave: each finishes what it has, and gets no more. Readers of an
        iterable dataset are served by others then, from their next batch on.
        """
        if in_flight is not None:
            self._in_flight = in_flight
        self.num_workers = num_workers
        self._set_credit()
        self._due = True
        if not self.closed:
            self.pipes.wake()

    def _set_credit(self) -> None:
        """Divide what may be in flight among the workers that do not say it themselves."""
        here = self._in_flight - self._remote_tasks
        self._credit = max(1, -(-here // max(1, self.num_workers)))

    def _bring_about(self) -> None:
        """Start the workers that are missing, let those leave that are too many."""
        self._due = False  # and is True again, if another number is wanted from here on
        workers = self.workers
        with HeldBack(), self._lock:
            if self.num_workers != workers.num_workers:
                self._resized = True
                self._board.workers = workers.num_workers = self.num_workers
                for worker, hand in self._by_number.items():
                    if not workers.is_wanted(worker) and not hand.leaving:
                        hand.leaving = True
                        self.pipes.send(worker, pack(Stop()))
        self._start_more()

    def _see_off(self) -> None:
        """Wait for idle workers that leave, so that no reader moves for them later."""
        processes, deadline = self.workers.processes, time.monotonic() + _MOMENT
        for number in [each.number for each in self._by_number.values() if each.leaving]:
            process = processes[number]
            if not wait_for([process.sentinel], max(0.0, deadline - time.monotonic())):
                return  # it is noticed when a batch is waited for
            self._read_all()
            process.reap()
            if not self._has_left(number, process.exitcode):
                return  # the same for a death
            self.replace(number)

    def _start_more(self) -> None:
        workers = self.workers
        with HeldBack(), self._lock:
            try:
                while due := workers.due():
                    for number in due:
                        workers.launch(number, self.token)
                        self._take_on(number)
            except (LoaderError, OSError) as error:
                # More than there were at first are a wish; the epoch can do without.
                if not self._resized or 0 not in workers.processes:
                    raise
                self._make_do(error)
                return
            self._divide()

    def _take_on(self, number: int) -> None:
        self._idle = True
        places = self._places.get(number, 0)
        self._by_number[number] = _Worker(number, places, number == self.workers.relay)

    def _make_do(self, error: Exception) -> None:
        """Continue with the workers that there are: others cannot be started."""
        workers, wanted = self.workers, self.workers.num_workers
        there = next((n for n in range(wanted) if n not in workers.processes), wanted)
        if there == wanted:  # none is missing: fewer are wanted meanwhile
            return
        self._board.workers = workers.num_workers = self.num_workers = there
        self._set_credit()
        text = f"num_workers stays at {there} instead of {wanted}, and no batch is lost"
        text += f": {error}"
        self.notices.append(FewerWorkers(text, there))
        self._divide()

    def _divide(self) -> None:
        """Divide readers among the workers that stay, and send what waits for a worker."""
        if self._homes is not None and self._resized:
            relay = self.workers.relay
            able = [w for w, hand in self._by_number.items() if not hand.leaving and w != relay]
            if able:
                self._homes.settle(able, self.workers.num_workers)
        self._assign_waiting()

    def _came_up(self, up: Up) -> None:
        self.workers.came_up(up.worker)
        with self._lock:
            hand = self._by_number[up.worker]
            if hand.credit is not None:
                hand.credit = up.credit
                self._assign_waiting()
        self._start_more()

    def replace(self, worker: int, skip_task: int | None = None) -> None:
        """Start another process for a worker that has ended; its tasks go to others.

        But for ``skip_task``, a task's number. One that was to leave has no successor. Raises a
        LoaderError if no process can be started.
        """
        self._read_all()
        with HeldBack(), self._lock:
            if skip_task is not None and (task := self._tasks.pop(skip_task, None)) is not None:
                for copy in task.copies:  # it would end others, too
                    self._call_off(self._copies[copy])
            self._give_back(worker)
            self._start_more()

    def _give_back(self, worker: int) -> None:
        """Close the accounts of a worker that is gone: nobody else knew of its slots."""
        lost, hand = [], self._by_number.pop(worker)
        for copy in hand.queue:
            del self._copies[copy.slot.offset]
            for slot in filter(None, (copy.slot, copy.space)):
                self.arena.release(slot, used=False)
            copy.task.copies.remove(copy.slot.offset)
            if self._is_wanted(copy.task) and not copy.task.copies:
                lost.append(copy.task)
                if self.of_readers:  # its reader's place is another one by now
                    copy.task.packed = b""
        self._put_back(lost)
        if self._homes is not None:
            self._homes.lose(worker)
        self._places[worker] = hand.places
        self._has_resumed(hand)
        if self.workers.processes[worker].sentinel == self._dead:
            self._dead = None  # seen to before it came to that; the number may be another's next
        self.workers.clear_away(worker)

    def _put_back(self, tasks: list[_Task]) -> None:
        """Queue tasks for a worker again, the earliest first."""
        self._unassigned = deque(sorted((*tasks, *self._unassigned), key=lambda each: each.number))

    # --- what is seen from outside ---

    def awaited_workers(self, every: bool = False) -> dict[int, BoardRow]:
        """The workers that have tasks, and what each is doing; ``every``: also those that start."""
        with self._lock:
            relay = self.workers.relay
            owing = [w for w, hand in self._by_number.items() if hand.queue and w != relay]
            rows = {worker: self._board.read(worker) for worker in owing}
        return {worker: row for worker, row in rows.items() if every or self.workers.counts(row)}

    @property
    def is_any_worker_s(self) -> bool:
        """Whether any worker may make any batch."""
        return self._homes is None

    def is_at_its_first(self, worker: int) -> bool:
        """Whether a worker has not replied to any task."""
        hand = self._by_number[worker]
        return hand.places - len(hand.queue) == hand.first

    def is_successor(self, worker: int) -> bool:
        """Whether a worker has the number of one that has ended, and that had tasks."""
        return self._by_number[worker].first > 0

    @property
    def settled(self) -> bool:
        """Whether there are just as many as there are to be, all of them up."""
        return self.workers.settled and self.workers.num_workers == self.num_workers

    @property
    def unread(self) -> int:
        """Outcomes that workers have sent and that were not received yet, about."""
        return 0 if self.closed else self.pipes.unread + len(self._ready)

    @property
    def processes(self) -> list[WorkerProcess]:
        """The workers' processes, and the relay's as the last one."""
        processes = {} if self.closed else self.workers.processes
        return [process for _, process in sorted(processes.items())]

    @property
    def memory(self) -> tuple[int, int]:
        """Bytes of shared memory that batches take, and the dataset."""
        return (0, 0) if self.closed else (self.arena.resident, self.workers.payload.shared_bytes)

    @property
    def closed(self) -> bool:
        """Whether the workers are gone, or belong to another process than this one."""
        return self.workers.closed or self.workers.pid != os.getpid()

    def close(self) -> None:
        """Stop the workers and let go of everything; a second call does nothing."""
        self.workers.close()
        self._finalizer.detach()
