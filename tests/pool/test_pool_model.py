"""The pool and its tasks against simulated workers: every interleaving is a list of steps.

The pool is the real one, with its pipes, its board and its arena. Its workers are objects in this
process that do what `worker/main.py` does one step at a time: read a message, look at its issue,
announce the task, write the batch, send the result. Hypothesis chooses who takes the next step, who
dies where, and what the parent does meanwhile, and shrinks what fails to a few steps.

Held to: every batch comes exactly once and is whole, also later while the consumer keeps it; no
slot is free, lent or another task's while a live worker may write into it; nothing waits for ever.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import select
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lit_loader.memory.arena import ArenaMap
from lit_loader.pool import worker_set
from lit_loader.pool.outcome import Outcome, WorkerDeath
from lit_loader.pool.worker_pool import WorkerPool
from lit_loader.transport.messages import (
    SIZE,
    Ack,
    Attend,
    Grant,
    Grow,
    Message,
    Part,
    Proceed,
    Result,
    Resume,
    Spare,
    Status,
    Task,
    Up,
    pack,
    unpack,
    unpack_indices,
)
from lit_loader.transport.status_board import Stage, StatusBoard, board_bytes
from lit_loader.worker.payload import Links

pytestmark = pytest.mark.timeout(600)  # what fails is to be shrunk, too

SLOT = 1 << 16
SMALL = 64  # bytes of a batch that fits the slot of its task
LARGE = SLOT + 1  # of one that does not


def nbytes_of(number: int) -> int:
    return LARGE if number % 5 == 4 else SMALL


def content_of(generation: int, number: int) -> int:
    """What every byte of a batch is."""
    return (generation * 7 + number) % 251


class Process:
    """What the pool sees of a simulated worker."""

    pid, exitcode, peak_memory = 1 << 30, -9, 0  # no process has this number

    def __init__(self, count: int) -> None:
        ended = os.eventfd(0)
        # Of several that are dead the pool takes that of the lowest descriptor: always the same.
        self.sentinel = fcntl.fcntl(ended, fcntl.F_DUPFD_CLOEXEC, 100 + count)
        os.close(ended)
        self.alive = True

    def kill(self) -> None:
        if self.alive:
            self.alive = False
            os.eventfd_write(self.sentinel, 1)

    terminate = kill

    def is_alive(self) -> bool:
        return self.alive

    def join(self) -> None:
        assert not self.alive, "the pool waits for a worker that lives"

    def close(self) -> None:
        os.close(self.sentinel)


class Worker:
    """A worker process's loop, taken apart into steps.

    Attributes:
        writing: The task that this worker may write the batch of, with the larger slot if it got
            one; None: it writes nowhere.
    """

    def __init__(self, links: Links, memory: ArenaMap, process: Process, turns: int) -> None:
        self.links = links
        self._turns = turns
        self._places: dict[int, int] = {}  # the batch that each reader can go on with
        self.process = process
        self.writing: Task | None = None
        self.larger: Grant | None = None
        self._memory = memory
        self._board = StatusBoard(memory.board)
        self._row = (links.worker + 1) * board_bytes(0) // 8
        self._generation = links.generation
        self._inbox: deque[Message] = deque()
        self._next: Any = self._begin

    def step(self) -> bool:
        """Take a step; returns False where a process would be in a blocking read."""
        return self.process.alive and self._next() is not False

    def _begin(self) -> None:
        self._board.enter(self.links.worker, Stage.INITIALISING, -1)
        self._send(Up(self.links.worker))
        self._next = self._rest

    def _read(self, descriptor: Any) -> Message | None:
        if not self._readable(descriptor):
            return None
        return unpack(os.read(descriptor.fd, SIZE))

    def _send(self, message: Up | Result | Ack | Grow | Spare) -> None:
        os.write(self.links.results.fd, pack(message))

    def _rest(self) -> None:
        stays = self._board.rest(self.links.worker)
        if not stays and self.links.tasks is None:
            stays = bool(self._inbox) or self._readable(self.links.control)
        self._next = self._idle if stays else self.process.kill

    def _readable(self, descriptor: Any) -> bool:
        poll = select.poll()
        poll.register(descriptor.fd, select.POLLIN)
        return bool(poll.poll(0))

    def _idle(self) -> bool:
        if self._inbox:
            message: Message | None = self._inbox.popleft()
        else:
            message = self._read(self.links.tasks or self.links.control)
        if message is None:
            return False
        if isinstance(message, Attend):
            message = self._read(self.links.control)
            if message is None:
                self._send(Spare(self.links.worker))
        self._take(message)
        return True

    def _take(self, message: Message | None) -> None:
        if isinstance(message, Task):
            self._next = lambda: self._look(message)
        elif isinstance(message, Resume):
            self._generation = message.generation
            self._places.clear()
            self._next = lambda: self._acknowledge(message)
        else:
            assert message is None or isinstance(message, (Proceed, Part))
            if isinstance(message, Part):
                self._places.pop(message.reader, None)
            self._next = self._rest

    def _acknowledge(self, message: Resume) -> None:
        self._send(Ack(self.links.worker, message.generation))
        self._next = self._await_proceed

    def _await_proceed(self) -> bool:
        message = self._read(self.links.control)
        if message is not None:
            self._take(message)
        return message is not None

    def _leave(self) -> None:
        self.writing = self.larger = None
        self._next = self._rest

    def _look(self, task: Task) -> None:
        if (task.generation, task.issue) == (self._generation, self._board.issue):
            self.writing = task
            self._next = self._announce_half
        else:
            self._leave()

    def _announce_half(self) -> None:
        task = self.writing
        assert task is not None
        words = self._board._words
        words[self._row + 4], words[self._row] = task.issue, Stage.FETCHING
        self._next = self._announce

    def _announce(self) -> None:
        task = self.writing
        assert task is not None
        self._board.enter(self.links.worker, Stage.FETCHING, task.number, task.issue)
        self._next = self._write

    def _cancelled(self) -> bool:
        return self._board.generation != self._generation

    def _write(self) -> None:
        task = self.writing
        assert task is not None
        if self._cancelled():
            return self._leave()
        slot = self._memory.memory(task.offset, task.capacity)
        if not self._turns:
            assert unpack_indices(slot[: task.nbytes]) == [task.number], "indices were written over"
        else:
            self._read_on(task, slot)
        if nbytes_of(task.number) > task.capacity:
            self._send(
                Grow(
                    self.links.worker, task.generation, task.number, task.offset,
                    nbytes_of(task.number),
                )
            )  # fmt: skip
            self._next = self._await_grant
        else:
            self._next = lambda: self._write_into(task, task.offset, task.capacity)
        return None

    def _read_on(self, task: Task, slot: Any) -> None:
        """A reader goes on where it is open, or opens at the point that the task has."""
        reader = task.number % self._turns
        if task.nbytes:
            assert unpack_indices(slot[: task.nbytes]) == reader, "it is another reader's point"
        else:
            assert self._places.get(reader, reader) == task.number, "a reader is elsewhere"
        self._places[reader] = task.number + self._turns

    def _await_grant(self) -> bool:
        task, message = self.writing, self._read(self.links.control)
        assert task is not None
        if message is None:
            return False
        if isinstance(message, Grant):
            if (message.generation, message.number) == (task.generation, task.number):
                if message.capacity == 0:
                    self._next = lambda: self._finish(Status.FAILURE, task.offset)
                else:
                    self.larger = message
                    self._next = lambda: self._write_into(task, message.offset, message.capacity)
        else:
            self._inbox.append(message)
            if isinstance(message, Resume):
                self._leave()
        return True

    def _write_into(self, task: Task, offset: int, capacity: int) -> None:
        slot = self._memory.memory(offset, capacity)
        slot[: nbytes_of(task.number)] = content_of(task.generation, task.number)
        self._next = lambda: self._finish(Status.BATCH, offset)

    def _finish(self, status: int, offset: int) -> None:
        task = self.writing
        assert task is not None
        nbytes = nbytes_of(task.number) if status == Status.BATCH else 0
        self._send(
            Result(
                status, self.links.worker, task.generation, task.number, offset, 0, nbytes, 1
            )
        )  # fmt: skip
        self.writing = self.larger = None
        self._next = self._rest


class Simulation:
    """Stands in for what starts worker processes.

    Attributes:
        workers: By number.
        meanwhile: Numbers of workers that take a step each while the next process is started.
    """

    def __init__(self, links: Links, turns: int) -> None:
        self._turns = turns
        self._memory = ArenaMap(links.arena.fd, links.mapped, links.board_bytes)
        self._count = 0
        self.workers: dict[int, Worker] = {}
        self.meanwhile: list[int] = []
        self.notices: deque[str] = deque()
        self.forks = False
        self.up_deadline: float | None = None

    def came_up(self) -> None:
        pass

    def start_all(self, links: Sequence[Links]) -> list[Process]:
        for each in links:
            self._count += 1
            self.workers[each.worker] = Worker(
                each, self._memory, Process(self._count), self._turns
            )
        for number in self.meanwhile:
            if worker := self.workers.get(number % links[0].num_workers):
                worker.step()
        return [self.workers[each.worker].process for each in links]

    def close(self) -> None:
        self._memory.board.release()


MEANWHILE = st.lists(st.integers(0, 2), max_size=6)


class PoolMachine(RuleBasedStateMachine):
    """A consumer, a pool, and workers that are stepped and killed in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.pool: WorkerPool | None = None
        self.outstanding: set[int] = set()
        self.next_number = 0
        self.held: list[tuple[int, int, Any]] = []

    @initialize(
        num_workers=st.integers(1, 3),
        processors=st.integers(1, 3),
        depth=st.integers(1, 4),
        turns=st.one_of(st.just(0), st.integers(1, 5)),
    )
    def begin(self, num_workers: int, depth: int, turns: int = 0, processors: int = 3) -> None:
        def make(context: Any, links: Any, spec: Any) -> Simulation:
            self.simulation = Simulation(links, turns)
            return self.simulation

        self.num_workers, self.depth, self.turns = num_workers, depth, turns
        with mock.patch.multiple(
            worker_set, make_starter=make, usable_processors=lambda: processors
        ):
            self.pool = WorkerPool(
                None,  # type: ignore[arg-type]  # the spec is a real worker's affair
                num_workers,
                multiprocessing.get_context("fork"),
                depth * num_workers,
                0,
                turns,
                slot_bytes=SLOT,
            )
        self.pool.read_from(lambda reader: reader)

    @property
    def resuming(self) -> bool:
        return self.pool is not None and self.pool.resuming

    @precondition(lambda self: not self.resuming)
    @rule(count=st.integers(1, 4))
    def submit(self, count: int) -> None:
        for _ in range(count):
            if len(self.outstanding) < self.depth * self.num_workers:
                number, self.next_number = self.next_number, self.next_number + 1
                self.outstanding.add(number)
                self.pool.submit(number, None if self.turns else [number], 0, 0)

    @rule(worker=st.integers(0, 2), count=st.integers(1, 8))
    def step(self, worker: int, count: int) -> None:
        for _ in range(count):
            self._workers(worker).step()
            self.slots_that_may_be_written_are_nobody_elses()

    @rule(worker=st.integers(0, 2))
    def kill(self, worker: int) -> None:
        self._workers(worker).process.kill()

    def _workers(self, number: int) -> Worker:
        """One of the workers that have been started."""
        return self.simulation.workers[self._started(number)]

    def _started(self, number: int) -> int:
        started = self.pool.started
        return started[number % len(started)]

    @rule(num_workers=st.integers(1, 3), at_once=st.booleans())
    def resize(self, num_workers: int, at_once: bool) -> None:
        """Another number of workers is wanted: now, or when something is received."""
        self.num_workers = num_workers
        self.pool.resize(num_workers)
        if at_once:
            self.pool.adapt(wait=False)  # no worker takes a step meanwhile

    @precondition(lambda self: not self.resuming)
    @rule(worker=st.integers(0, 2), meanwhile=MEANWHILE, give_up=st.booleans())
    def kill_and_replace(self, worker: int, meanwhile: list[int], give_up: bool) -> None:
        number = self._started(worker)
        self.kill(worker)
        # One that was leaving has no successor, and may be no loss.
        while not self._receive(meanwhile, give_up) and number in self.pool.started:
            pass

    @precondition(lambda self: not self.resuming)
    @rule(worker=st.integers(0, 2), count=st.integers(0, 8), meanwhile=MEANWHILE)
    def end_hung(self, worker: int, count: int, meanwhile: list[int]) -> None:
        """End a worker that hangs, and gets on after all in the last moment."""
        self.step(worker, count)
        self.kill(worker)
        self.simulation.meanwhile = meanwhile
        self._replace(self.pool.end_hung(self._started(worker)), give_up=False)

    @precondition(lambda self: not self.resuming)
    @rule(most=st.integers(1, 4))
    def receive(self, most: int) -> None:
        for _ in range(most):
            self._receive([], give_up=False)

    def _receive(self, meanwhile: list[int], give_up: bool) -> bool:
        """Take in what there is; returns whether a worker has been replaced."""
        self.simulation.meanwhile = meanwhile
        try:
            outcome = self.pool.receive(0.0)
        except WorkerDeath as death:
            self._replace(death, give_up)
            return True
        if outcome is not None:
            self._deliver(outcome)
        return False

    def _replace(self, death: WorkerDeath, give_up: bool) -> None:
        number = death.row.number
        busy = death.row.stage in Stage.BUSY and not self.resuming
        # As lit_loader.pool.recovery decides about a task that has ended two workers.
        if give_up and busy and not self.turns and self.pool.is_pending(number):
            self.outstanding.remove(number)
            self.pool.replace(death.worker, skip_task=number)
        else:
            self.pool.replace(death.worker)

    def _deliver(self, outcome: Outcome) -> None:
        assert outcome.number in self.outstanding, "a batch came twice, or after it was given up"
        self.outstanding.remove(outcome.number)
        assert outcome.failure is None
        assert outcome.memory is not None
        content = content_of(self.pool.generation, outcome.number)
        self.held.append((outcome.number, content, outcome.memory[: outcome.nbytes]))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 100))
    def let_go(self, which: int) -> None:
        del self.held[which % len(self.held)]

    @precondition(lambda self: not self.resuming)
    @rule()
    def begin_epoch(self) -> None:
        self.outstanding.clear()
        self.next_number = 0
        self.pool.resume()

    @precondition(lambda self: self.resuming)
    @rule(meanwhile=MEANWHILE)
    def resumed(self, meanwhile: list[int]) -> None:
        self.simulation.meanwhile = meanwhile
        try:
            self.pool.resumed(0.0)
        except WorkerDeath as death:
            self._replace(death, give_up=False)

    @invariant()
    def batches_held_are_whole(self) -> None:
        for number, content, memory in self.held:
            assert len(memory) == nbytes_of(number)
            assert (memory == content).all(), f"batch {number} is not what was written"

    @invariant()
    def slots_that_may_be_written_are_nobody_elses(self) -> None:
        if self.pool is None:
            return
        arena, in_flight = self.pool._arena, self.pool._dispatcher._in_flight
        free = {slot.offset for slot in [*arena._free.warm, *arena._free.cold]}
        lent = {reference.slot.offset for reference in arena._leases}
        owner = {
            slot.offset: task.number for task in in_flight._tasks.values() for slot in task.slots
        }
        writers: set[int] = set()
        for worker in self.simulation.workers.values():
            if worker.writing is None or not worker.process.alive:
                continue
            for slot in filter(None, (worker.writing, worker.larger)):
                assert slot.offset not in free, "a free slot may be written into"
                assert slot.offset not in lent, "a slot in the consumer's hands may be written into"
                assert slot.offset not in writers, "two workers have the same slot"
                number = worker.writing.number
                assert owner.get(slot.offset, number) == number, "a slot is another task's"
                writers.add(slot.offset)

    def teardown(self) -> None:
        if self.pool is None:
            return
        try:
            self._run_to_the_end()
        finally:
            self.held.clear()
            for worker in self.simulation.workers.values():
                worker.process.kill()
            self.pool.close()
            # A failure that is being shrunk keeps what its frames refer to, descriptors too.
            for worker in self.simulation.workers.values():
                vars(worker).clear()
            vars(self.pool).clear()
            self.pool = None
            del self.simulation

    def _run_to_the_end(self) -> None:
        """Whatever has happened, workers that are left alone finish everything."""
        wanted = [*range(self.num_workers)]
        for turn in range(60):
            # In turns, as the kernel wakes who has waited longest: else an Attend that is meant for
            # the last would be taken by the first, time after time.
            for number in range(turn, turn + 3):
                self.step(number, 8)
            if self.resuming:
                self.resumed([])
            elif self.outstanding or self.pool.started != wanted:
                self.receive(1)
            else:
                break
            self.batches_held_are_whole()
        assert not self.outstanding and not self.resuming, "something is waited for in vain"
        assert self.pool.started == wanted, "there are more workers than are wanted, or fewer"


@pytest.fixture
def machine() -> Iterator[PoolMachine]:
    """For interleavings that have been wrong once; at the end all batches must come, whole."""
    machine = PoolMachine()
    yield machine
    machine.teardown()


def test_a_new_process_that_is_quick(machine: PoolMachine) -> None:
    """It takes a task before its pool has issued that again: the task is void already."""
    machine.begin(num_workers=1, depth=2)
    machine.submit(2)
    machine.kill_and_replace(0, meanwhile=[0, 0, 0], give_up=False)
    machine.slots_that_may_be_written_are_nobody_elses()


def test_the_result_of_an_older_copy(machine: PoolMachine) -> None:
    """It comes from a worker that is ended, and its slot is used again, for the same task."""
    machine.begin(num_workers=2, depth=2)
    machine.submit(1)
    machine.step(0, 3)  # it has the task, and has not announced it
    machine.kill_and_replace(1, meanwhile=[], give_up=False)
    machine.end_hung(0, 5, meanwhile=[])  # it has made the batch, and sent the result
    machine.receive(1)
    assert machine.held == []


@pytest.mark.parametrize("assigned", [False, True], ids=["", "assigned"])
def test_a_new_process_in_the_handshake_that_is_quick(machine: PoolMachine, assigned: bool) -> None:
    """It takes what announces a control message: the message is there already."""
    machine.begin(num_workers=2, depth=1, turns=2 * assigned)
    machine.begin_epoch()
    machine.kill(0)
    machine.resumed(meanwhile=[0, 0, 0])


def test_another_worker_is_woken_than_the_one_that_is_to_leave(machine: PoolMachine) -> None:
    """It says so, and one more Attend is sent, until the right one takes it."""
    machine.begin(num_workers=3, depth=1)
    for worker in range(3):
        machine.step(worker, 8)  # all wait
    machine.resize(2, at_once=True)
    for worker in (0, 1, 0):
        machine.step(worker, 8)
        machine.receive(2)
    assert machine.pool.started == [0, 1, 2]
    machine.step(2, 8)
    machine.receive(1)
    assert machine.pool.started == [0, 1]


def test_who_dies_with_what_was_to_wake_the_one_that_is_to_leave(machine: PoolMachine) -> None:
    """What it says of it is dropped, or is never said: the one that waits is woken again."""
    machine.begin(num_workers=2, depth=1)
    for worker in range(2):
        machine.step(worker, 8)
    machine.resize(1, at_once=True)
    machine.end_hung(0, 1, meanwhile=[])


def test_who_dies_before_it_comes_up_and_is_not_wanted_any_more(machine: PoolMachine) -> None:
    """There is room for another one to start, then."""
    machine.begin(num_workers=1, depth=1, processors=1)
    machine.step(0, 8)
    machine.receive(1)
    machine.resize(3, at_once=True)  # 1 starts; 2 is to follow
    machine.step(1, 8)
    machine.receive(1)  # and does
    machine.resize(1, at_once=True)
    machine.step(1, 8)
    machine.receive(1)
    assert machine.pool.started == [0, 2]
    machine.resize(2, at_once=True)
    machine.kill_and_replace(1, meanwhile=[], give_up=False)  # which is worker 2


def test_who_is_wanted_again_before_it_has_left(machine: PoolMachine) -> None:
    """It stays, if it has not seen that it was to leave; else another takes its place."""
    machine.begin(num_workers=2, depth=1)
    for worker in range(2):
        machine.step(worker, 8)
    first = machine.simulation.workers[1]
    machine.resize(1, at_once=True)
    machine.resize(2, at_once=True)
    machine.step(1, 8)
    machine.receive(2)
    assert machine.simulation.workers[1] is first and first.process.alive
    machine.resize(1, at_once=True)
    machine.step(1, 8)
    machine.resize(2, at_once=True)
    machine.receive(2)
    assert machine.simulation.workers[1] is not first


def test_who_dies_while_it_leaves_and_its_reader_is_ahead_elsewhere(machine: PoolMachine) -> None:
    """The reader is brought back to what was lost, and then forth again."""
    machine.begin(num_workers=2, depth=8, turns=2)
    machine.submit(4)
    machine.resize(1, at_once=True)
    machine.submit(2)  # reader 1 goes on in worker 0; what worker 1 has, it may still make
    machine.kill_and_replace(1, meanwhile=[], give_up=False)
    machine.submit(2)


def test_who_is_no_longer_wanted_before_it_was_started(machine: PoolMachine) -> None:
    """It has tasks already, in its pipe: others make them."""
    machine.begin(num_workers=3, depth=4, turns=3, processors=1)
    machine.submit(4)
    machine.resize(1, at_once=True)
    machine.submit(4)


def test_who_has_left_and_is_wanted_again(machine: PoolMachine) -> None:
    """It is sent tasks when it has just looked for the last time: another makes them."""
    machine.begin(num_workers=2, depth=8, turns=2)
    for worker in range(2):
        machine.step(worker, 8)
    machine.resize(1, at_once=True)
    machine.step(1, 2)  # wakes up, and finds that it is to leave
    machine.resize(2, at_once=True)
    machine.submit(4)


def check(examples: int) -> None:
    run_state_machine_as_test(
        PoolMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_any_interleaving() -> None:
    check(400)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_any_interleaving_at_length() -> None:
    check(20_000)
