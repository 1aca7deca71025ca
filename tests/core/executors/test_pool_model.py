"""The pool and its tasks against simulated workers: every interleaving is a list of steps.

The pool is the real one, with its pipes, its board and its arena. Its workers are objects in this
process that do what `core/executors/main.py` does one step at a time: read a message, see whether
it is called off, announce the task, write the batch, reply. Hypothesis chooses who takes the next
step, who dies where, and what the parent does meanwhile, and shrinks what fails to a few steps.

Held to: every batch comes exactly once and is whole, also later while the consumer keeps it; no
slot is free, lent or another task's while a live worker may write into it; nothing waits for ever.
"""

import fcntl
import multiprocessing
import os
import select
import weakref
from collections import deque
from collections.abc import Iterator
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

from lit_loader.core.executors import executor, worker_pool, worker_set
from lit_loader.core.executors.executor import Outcome, WorkerDeath
from lit_loader.core.executors.process_start import Links
from lit_loader.core.executors.worker_pool import WorkerPool
from lit_loader.core.seeding.seeds import PassSeeds
from lit_loader.core.transport.arena import ArenaMap
from lit_loader.core.transport.messages import (
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
    unpack,
    unpack_indices,
)
from lit_loader.core.transport.status_board import Stage, StatusBoard

pytestmark = pytest.mark.timeout(600)  # what fails is to be shrunk, too

SLOT = 1 << 16
SMALL = 64  # bytes of a batch that fits the slot of its task
LARGE = SLOT + 1  # of one that does not


def nbytes_of(number: int) -> int:
    return LARGE if number % 5 == 4 else SMALL


def content_of(token: int, number: int) -> int:
    return (token * 7 + number) % 251


class Process:
    """What the pool sees of a simulated worker."""

    pid, peak_memory, relay_exit = 1 << 30, 0, None  # no process has this number

    def __init__(self, count: int) -> None:
        ended = os.eventfd(0)
        # Of several that are dead the pool takes that of the lowest descriptor: always the same.
        self.sentinel = fcntl.fcntl(ended, fcntl.F_DUPFD_CLOEXEC, 100 + count)
        os.close(ended)
        weakref.finalize(self, os.close, self.sentinel)
        self.exitcode: int | None = None

    def end(self, exitcode: int) -> None:
        if self.exitcode is None:
            self.exitcode = exitcode
            os.eventfd_write(self.sentinel, 1)

    def kill(self) -> None:
        self.end(-9)

    terminate = kill

    def is_alive(self) -> bool:
        return self.exitcode is None

    def reap(self) -> None:
        assert not self.is_alive(), "the pool waits for a worker that lives"


class Worker:
    """A worker process's loop, taken apart into steps.

    Attributes:
        writing: The task that this worker may write the batch of; None: it writes nowhere.
        larger: The larger slot that it has for it.
    """

    def __init__(self, links: Links, memory: ArenaMap, process: Process, turns: int) -> None:
        self.links = links
        self._turns = turns
        self._places: dict[int, int] = {}  # the batch that each reader can go on with
        self.process = process
        self.writing: Task | None = None
        self.larger: Space | None = None
        self._memory = memory
        self._board = StatusBoard(memory.board)
        self._token = links.token
        self._inbox: deque[Message] = deque()
        self._next: Any = self._begin

    def step(self) -> bool:
        """Take a step; returns False where a process would be in a blocking read."""
        return self.process.is_alive() and self._next() is not False

    def _begin(self) -> None:
        self._board.enter(self.links.worker, Stage.INITIALISING, -1)
        self._send(Up(self.links.worker))
        self._next = self._rest

    def _read(self) -> Message | None:
        poll = select.poll()
        poll.register(self.links.control.fd, select.POLLIN)
        return unpack(os.read(self.links.control.fd, SIZE)) if poll.poll(0) else None

    def _send(self, message: Message) -> None:
        os.write(self.links.results.fd, pack(message))

    def _rest(self) -> None:
        self.writing = self.larger = None
        self._board.enter(self.links.worker, Stage.IDLE, -1)
        self._next = self._idle

    def _idle(self) -> bool:
        message = self._inbox.popleft() if self._inbox else self._read()
        if message is None:
            return False
        if isinstance(message, Task):
            self._next = lambda: self._look(message)
        elif isinstance(message, Resume):
            self._token = message.token
            self._places.clear()
            self._next = lambda: self._say(Resumed(self.links.worker, message.token))
        elif isinstance(message, Stop):
            self._next = self._leave
        else:
            assert isinstance(message, Space)  # came too late: its batch was dropped
        return True

    def _say(self, message: Message) -> None:
        self._send(message)
        self._next = self._rest

    def _leave(self) -> None:
        self._board.enter(self.links.worker, Stage.LEFT, -1)
        self._next = lambda: self.process.end(0)

    def _look(self, task: Task) -> None:
        self.writing = task
        wanted = self._board.wants(self.links.worker, task.token, task.sequence)
        self._next = self._announce if wanted and not self._cancelled() else self._drop

    def _cancelled(self) -> bool:
        return self._board.token != self._token

    def _drop(self) -> None:
        self._reply(Status.DROPPED)

    def _announce(self) -> None:
        assert self.writing is not None
        self._board.enter(self.links.worker, Stage.FETCHING, self.writing.number)
        self._next = self._write

    def _write(self) -> None:
        task = self.writing
        assert task is not None
        if self._cancelled():
            return self._drop()
        assert task.token == self._token, "a task of another epoch is wanted"
        slot = self._memory.memory(task.slot, task.capacity)
        if not self._turns:
            assert unpack_indices(slot[: task.nbytes].tobytes()) == [task.number], (
                "indices were written over"
            )
        else:
            self._read_on(task, slot)
        if nbytes_of(task.number) > task.capacity:
            self._send(Need(self.links.worker, task.slot, nbytes_of(task.number)))
            self._next = self._await_space
        else:
            self._next = lambda: self._write_into(task.slot, task.capacity)
        return None

    def _read_on(self, task: Task, slot: Any) -> None:
        """A reader goes on where it is open, or opens at the point that the task has."""
        reader = task.number % self._turns
        if task.nbytes:
            assert unpack_indices(slot[: task.nbytes].tobytes()) == reader, (
                "it is another reader's point"
            )
        else:
            assert self._places.get(reader, reader) == task.number, "a reader is elsewhere"
        self._places[reader] = task.number + self._turns

    def _await_space(self) -> bool:
        task, message = self.writing, self._read()
        assert task is not None
        if message is None:
            return False
        if not isinstance(message, Space):
            self._inbox.append(message)
            if isinstance(message, Resume):
                self._next = self._drop
        elif message.slot == task.slot:
            if message.capacity == NOT_WANTED:
                self._next = self._drop
            else:
                self.larger = message
                self._next = lambda: self._write_into(message.offset, message.capacity)
        return True

    def _write_into(self, offset: int, capacity: int) -> None:
        task = self.writing
        assert task is not None
        slot = self._memory.memory(offset, capacity)
        slot[: nbytes_of(task.number)] = content_of(task.token, task.number)
        self._next = lambda: self._reply(Status.DONE, offset, nbytes_of(task.number))

    def _reply(self, status: int, offset: int = 0, nbytes: int = 0) -> None:
        task = self.writing
        assert task is not None
        self._send(Reply(status, self.links.worker, task.slot, offset, 0, nbytes, 1))
        self._rest()


class Simulation:
    """Stands in for what starts worker processes.

    Attributes:
        workers: By number.
        meanwhile: Numbers of workers that take a step each while the next process is started.
    """

    def __init__(self, turns: int) -> None:
        self._turns = turns
        self._memory: ArenaMap | None = None
        self._count = 0
        self.workers: dict[int, Worker] = {}
        self.meanwhile: list[int] = []

    def start_worker(self, context: Any, links: Links, payload: Any) -> Process:
        if self._memory is None:
            self._memory = ArenaMap(links.arena.fd, links.mapped, links.board_bytes)
        self._count += 1
        process = Process(self._count)
        self.workers[links.worker] = Worker(links, self._memory, process, self._turns)
        for number in self.meanwhile:
            if worker := self.workers.get(number % links.num_workers):
                worker.step()
        return process


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
        self.num_workers, self.depth, self.turns = num_workers, depth, turns
        self.simulation = Simulation(turns)
        self.patches = [
            mock.patch.object(worker_set, "start_worker", self.simulation.start_worker),
            mock.patch.object(worker_pool, "_MOMENT", 0.0),  # nobody takes a step meanwhile
        ]
        for each in self.patches:
            each.start()
        with (
            mock.patch.multiple(worker_set, Payload=mock.Mock(), usable_cores=lambda: processors),
            mock.patch("lit_loader.core.transport.arena._LARGEST_SLOT", SLOT),
        ):
            self.pool = WorkerPool(
                None,  # type: ignore[arg-type]  # the spec is a real worker's affair
                num_workers,
                multiprocessing.get_context("fork"),
                depth * num_workers,
                0,
                turns,
            )
        self.pool.of_readers = bool(turns)

    @rule(count=st.integers(1, 4))
    def submit(self, count: int) -> None:
        for _ in range(count):
            if len(self.outstanding) < self.depth * self.num_workers:
                number, self.next_number = self.next_number, self.next_number + 1
                self.outstanding.add(number)
                indices = None if self.turns else [number]
                self.pool.submit(executor.Task(number, indices, 0, PassSeeds(0)))

    @rule(worker=st.integers(0, 2), count=st.integers(1, 8))
    def step(self, worker: int, count: int) -> None:
        for _ in range(count):
            self._workers(worker).step()
            self.slots_that_may_be_written_are_nobody_elses()

    @rule(worker=st.integers(0, 2))
    def kill(self, worker: int) -> None:
        self._workers(worker).process.kill()

    def _workers(self, number: int) -> Worker:
        return self.simulation.workers[self._started(number)]

    def _started(self, number: int) -> int:
        started = sorted(self.pool.workers.processes)
        return started[number % len(started)]

    @rule(num_workers=st.integers(1, 3))
    def resize(self, num_workers: int) -> None:
        """Another number of workers is wanted when something is received next."""
        self.num_workers = num_workers
        self.pool.resize(num_workers)

    @rule(worker=st.integers(0, 2), meanwhile=MEANWHILE, give_up=st.booleans())
    def kill_and_replace(self, worker: int, meanwhile: list[int], give_up: bool) -> None:
        number = self._started(worker)
        killed = self._workers(worker)
        self.kill(worker)
        # One that was leaving may be no loss, and may have a successor if it is wanted again.
        while not self._receive(meanwhile, give_up):
            if (
                number not in self.pool.workers.processes
                or self.simulation.workers[number] is not killed
            ):
                break

    @rule(worker=st.integers(0, 2), count=st.integers(0, 8), meanwhile=MEANWHILE)
    def end_hung(self, worker: int, count: int, meanwhile: list[int]) -> None:
        """End a worker that hangs, and gets on after all in the last moment."""
        self.step(worker, count)
        self.kill(worker)
        self.simulation.meanwhile = meanwhile
        self._replace(self.pool.workers.end(self._started(worker)), give_up=False)

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
        busy = death.row.stage in Stage.BUSY
        # As the `Healer` decides about a task that has ended two workers.
        if give_up and busy and not self.turns and self.pool.is_pending(number):
            self.outstanding.remove(number)
            self.pool.replace(death.worker, skip_task=number)
        else:
            self.pool.replace(death.worker)

    def _deliver(self, outcome: Outcome) -> None:
        assert outcome.number in self.outstanding, "a batch came twice, or after it was given up"
        if outcome.lost:  # as lit_loader.core.epoch.epoch does: again, with its reader's place
            assert self.turns
            reader = outcome.number % self.turns
            self.pool.submit(executor.Task(outcome.number, reader, 0, PassSeeds(0)))
            return
        self.outstanding.remove(outcome.number)
        assert outcome.failure is None and outcome.memory is not None
        content = content_of(self.pool.token, outcome.number)
        self.held.append((outcome.number, content, outcome.memory[: outcome.reply.nbytes]))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 100))
    def let_go(self, which: int) -> None:
        del self.held[which % len(self.held)]

    @rule()
    def begin_epoch(self) -> None:
        self.outstanding.clear()
        self.next_number = 0
        self.pool.resume()

    @invariant()
    def batches_held_are_whole(self) -> None:
        for number, content, memory in self.held:
            assert len(memory) == nbytes_of(number)
            assert (memory == content).all(), f"batch {number} is not what was written"

    @invariant()
    def slots_that_may_be_written_are_nobody_elses(self) -> None:
        if self.pool is None:
            return
        arena = self.pool.arena
        free = {*arena._unused, *(slot.offset for slot in [*arena._warm, *arena._cold])}
        lent = {slot.offset for slot in arena._leased}
        owner = {
            slot.offset: copy.task.number
            for copy in self.pool._copies.values()
            for slot in (copy.slot, copy.space)
            if slot is not None
        }
        assert arena.in_flight == len(owner), "a slot is lost"
        writers: set[int] = set()
        for worker in self.simulation.workers.values():
            if worker.writing is None or not worker.process.is_alive():
                continue
            offsets = [worker.writing.slot]
            offsets += [] if worker.larger is None else [worker.larger.offset]
            for offset in offsets:
                assert offset not in free, "a free slot may be written into"
                assert offset not in lent, "a slot in the consumer's hands may be written into"
                assert offset not in writers, "two workers have the same slot"
                assert owner[offset] == worker.writing.number, "a slot is another task's"
                writers.add(offset)

    def teardown(self) -> None:
        if self.pool is None:
            return
        try:
            self._run_to_the_end()
        finally:
            for each in self.patches:
                each.stop()
            self.held.clear()
            for worker in self.simulation.workers.values():
                worker.process.kill()
            self.pool.close()
            # A failure that is being shrunk keeps what its frames refer to, descriptors too.
            for worker in self.simulation.workers.values():
                vars(worker).clear()
            vars(self.pool).clear()
            self.pool = None
            del self.simulation, self.patches

    def _run_to_the_end(self) -> None:
        """Whatever has happened, workers that are left alone finish everything."""
        wanted = [*range(self.num_workers)]
        for turn in range(60):
            for number in range(turn, turn + 3):
                self.step(number, 8)
            if not self.outstanding and sorted(self.pool.workers.processes) == wanted:
                break
            self.receive(1)
            self.batches_held_are_whole()
        assert not self.outstanding, "something is waited for in vain"
        assert sorted(self.pool.workers.processes) == wanted, (
            "there are more workers than are wanted, or fewer"
        )
        for _ in range(60):  # a Resume of each epoch that was begun may stand before
            if not self.pool._copies:
                break
            for number in range(3):
                self.step(number, 8)
            self.receive(1)
        assert not self.pool._copies, "a slot is owed for ever"


@pytest.fixture
def machine() -> Iterator[PoolMachine]:
    """At the end all batches must come, whole."""
    machine = PoolMachine()
    yield machine
    machine.teardown()


def test_a_second_copy_of_what_is_queued_behind(machine: PoolMachine) -> None:
    """The first of the two replies counts, the other one gives its slot back."""
    machine.begin(num_workers=2, depth=2)
    machine.submit(4)
    for worker in (0, 1):
        machine.step(worker, 2)
    machine.step(1, 60)  # it has done both of its tasks
    machine.receive(3)  # and is given what is queued behind the other's
    assert len(machine.pool._tasks) == 2 and len(machine.pool._copies) == 3
    machine.step(1, 60)
    machine.receive(1)
    assert sorted(number for number, *_ in machine.held) == [1, 2, 3]
    machine.step(0, 60)
    machine.receive(2)
    assert not machine.pool._copies


STORIES: dict[str, list[tuple[str, Any]]] = {
    # The first copy was called off, and is done all the same, by whoever is there.
    "who dies with the second copy": [
        ("begin", {"num_workers": 2, "depth": 2}), ("submit", 4), ("step", (1, 60)),
        ("receive", 3), ("kill_and_replace", (1, [], False)),
    ],
    # Reader 1 goes on in worker 0, and what worker 1 has it may still make: it is brought back to
    # what was lost, and then forth again.
    "who dies while it leaves, and its reader is ahead elsewhere": [
        ("begin", {"num_workers": 2, "depth": 8, "turns": 2}), ("submit", 4), ("resize", 1),
        ("submit", 2), ("kill_and_replace", (1, [], False)), ("submit", 2),
    ],
    "who is no longer wanted before it was started": [
        ("begin", {"num_workers": 3, "depth": 4, "turns": 3, "processors": 1}),
        ("submit", 4), ("resize", 1), ("submit", 4),
    ],
    # It has been told to stop: another one takes its place.
    "who has left and is wanted again": [
        ("begin", {"num_workers": 2, "depth": 8, "turns": 2}), ("step", (0, 8)), ("step", (1, 8)),
        ("resize", 1), ("resize", 2), ("submit", 4),
    ],
    # The answer is no answer to what is asked for in the new epoch, with the same slot.
    **{
        f"a slot that is asked for in the epoch before, seen {seen}": [
            ("begin", {"num_workers": 1, "depth": 5}), ("submit", 4), ("submit", 1),
            *[("step", (0, 5)), ("receive", 1)] * 4, ("step", (0, 5)),  # it needs a larger slot
            ("begin_epoch", ()), ("submit", 4), ("submit", 1), ("step", (0, seen)), ("receive", 1),
        ]
        for seen in range(3)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", STORIES)
def test_what_has_been_wrong_once(name: str, machine: PoolMachine) -> None:
    for step, given in STORIES[name]:
        if isinstance(given, dict):
            getattr(machine, step)(**given)
        else:
            getattr(machine, step)(*given if isinstance(given, tuple) else (given,))


def check(examples: int) -> None:
    how: Any = {"derandomize": True, "database": None, "suppress_health_check": list(HealthCheck)}
    how = settings(max_examples=examples, stateful_step_count=40, **how)
    run_state_machine_as_test(PoolMachine, settings=how)


def test_any_interleaving() -> None:
    check(150)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_any_interleaving_at_length() -> None:
    check(20_000)
