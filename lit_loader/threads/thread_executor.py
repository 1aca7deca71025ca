"""`ThreadExecutor`: worker threads of the training process; nothing is forked, pickled or copied.

::

    map-style   submit ─▶ one queue for all threads ─────────────╮
    a stream    submit ─▶ the queue of the reader's thread ──────┴─▶ `_Maker` ─▶ done ─▶ receive

- A `_Maker` makes the batches of one thread, or of one reader of a stream, one after another. A
  reader goes to another thread when the number of threads changes, as the same object.
- What a sample draws from `lit_loader.get_rng`, ``get_worker_info().rng`` and
  `torch.thread_safe_generator` are the numbers that it draws in a process. These answer each maker
  by itself.
- What a sample sets in ``self`` is its thread's own: each has the dataset with attributes of its
  own, whose values are shared. Where one thread would change these for another (generators,
  ``set_epoch``, ``worker_init_fn``, ``reseed_fn``) it has a copy, with the large parts shared. A
  stream changes as it is read: each reader has a copy, of all that can be changed
  (`streams/copies.py`).
- The global generators are one for all threads and are left alone. A draw from them is noticed:
  they are where they were before the consumer began to wait, or somebody else has moved them.
- Threads begin at the first `receive`, or with `begin`, and wait in a queue for what comes. They
  end with the iterator, as soon as they are done with the sample they are at; persistent ones do
  so, too, for new ones start in less than a millisecond: their copies are kept. All are daemons:
  none keeps the interpreter.
"""

from __future__ import annotations

import dataclasses
import os
import queue
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import torch

from lit_loader.context import NOBODY, read_apart, reading, reading_here
from lit_loader.core.batch.batch_builder import BatchBuilder, maker_of
from lit_loader.core.batch.batch_spec import BatchSpec, BatchWithReport
from lit_loader.core.batch.collate import collate_privately
from lit_loader.core.batch.fetch import EndOfData
from lit_loader.core.batch.progress import Cancelled, Progress
from lit_loader.core.batch.timings import Timings
from lit_loader.core.batch.worker_info import WorkerInfo, show
from lit_loader.core.executors.executor import Executor, Task, failure
from lit_loader.core.executors.outcome import Outcome
from lit_loader.core.seeding.find_generators import find_generators
from lit_loader.core.seeding.global_states import GlobalStates
from lit_loader.core.seeding.seeds import of_thread
from lit_loader.core.system.processors import ProcessorClock
from lit_loader.core.system.shared_file import HeldFile, map_part, nameless_file, round_up
from lit_loader.core.transport.messages import POSITION, listed, position_of
from lit_loader.core.transport.status_board import ROW_WORDS, Stage, StatusBoard, board_bytes
from lit_loader.core.transport.viewer_page import PAGE_BYTES, ViewerPage
from lit_loader.core.transport.worker_exception import describe_batch
from lit_loader.describe import PACKAGE
from lit_loader.diagnostics.death_messages import doing_task
from lit_loader.diagnostics.sentences import doing
from lit_loader.errors import LoaderError, WorkerError, WorkerTimeoutError
from lit_loader.streams.copies import DatasetCopies, with_own_attributes
from lit_loader.streams.readers import ProcessInfo, Readers
from lit_loader.threads.answers import answer_threads
from lit_loader.threads.batch_memory import BatchMemory

_GRACE: Final = 0.5
"""Seconds that `close` waits at most for threads that are in the midst of a sample."""

_OFTEN: Final = 32
"""Waits at which it is seen whether a sample draws; then at every power of two."""

_LONGEST_LOOK: Final = 0.25
"""Seconds between two looks at most; one that comes later was held up itself."""

_SECOND_STALL: Final = 10
"""Times ``stall_warning`` after which a stall is told of once more."""

_ROWS: Final = 1024
"""Threads that can be started: rows of the status board."""

_ADVICE: Final = (
    "which threads share, so that no seed can be theirs: draw from lit_loader.get_rng() or "
    "torch.thread_safe_generator(), or set worker_method='multiprocessing'"
)
_APART: Final = (
    ". Readers that shuffle by it share out different orders: samples are lost, or repeated"
)


class _Parts(NamedTuple):
    """What is copied for a thread, at once: what both refer to stays one."""

    dataset: Any
    collate_fn: Any


class _Maker:
    """Makes batches one after another: those of one thread, or of one reader of a stream."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # held while it makes one
        self.loader: BatchBuilder | Readers | None = None
        self.private = False  # whether its dataset is a copy
        self.reading: Any = None  # what it reads: its own, whichever thread serves it
        self.thread: Any = None  # the `_Worker` that is at it

    def leave(self, worker: _Worker) -> None:
        """Let go of a stream that is in use by a thread which ends: some end in their thread."""
        with self.lock:
            if self.thread is worker:
                self.thread = None
                if self.loader is not None:
                    self.loader.begin_epoch()


class _Desk:
    """What the threads and the executor share; holds neither the executor nor the iterator.

    ``makers`` may be those of the iterator before; they are by thread, or by reader.
    """

    def __init__(self, spec: BatchSpec, seed: int, count: int, makers: dict[int, _Maker]) -> None:
        self.spec, self.seed, self.count, self.makers = spec, seed, count, makers
        self.pid = os.getpid()
        self.readers = len(spec.shards.mine) if spec.shards else count * spec.iterable
        self.lock = threading.Lock()  # of the number of threads
        self.most = count  # threads that a reader may have been sent to
        # Of a stream: each reader's tasks, and each thread's queue of readers with a task. Else one
        # queue of tasks. None ends a thread, if they are too many.
        self.lines: dict[int, deque[Task]] = {each: deque() for each in range(self.readers)}
        self.queues: dict[int, queue.SimpleQueue[Any]] = {}
        self.done: deque[Outcome] = deque()
        self.bell: queue.SimpleQueue[None] = queue.SimpleQueue()  # rings behind each
        self.up: queue.SimpleQueue[None] = queue.SimpleQueue()  # an item for each that has begun
        self.closed = False
        self.memory = BatchMemory()
        self.workers: dict[int, _Worker] = {}
        self.board: StatusBoard
        self.notes: list[str] = []  # what the user is to be warned of
        if count > 1 and not spec.iterable:
            from lit_loader.diagnostics.fork_dangers import thread_dangers

            self.notes += thread_dangers(spec.dataset)
        self.copies: DatasetCopies | None = None
        self.collations: Any = None
        if spec.shards is not None:
            self.copies = DatasetCopies(spec.dataset)
            self.collations = DatasetCopies(spec.collate_fn, of_structure=True)
            self._look_for_shared(self.copies.make(), self.collations.make())
        elif sum(each.loader is not None for each in makers.values()) < count and (
            spec.iterable or _is_changed(spec)
        ):
            self.copies = self.copies_of_parts()

    def copies_of_parts(self) -> DatasetCopies:
        """Make copies of dataset and collate_fn for threads."""
        spec, why = self.spec, "each worker thread reads a stream by a copy of its own"
        parts = _Parts(spec.dataset, spec.collate_fn)
        copies = DatasetCopies(parts, not spec.iterable, "loader", why)
        self._look_for_shared(*copies.make())
        return copies

    def _look_for_shared(self, dataset: Any, collate_fn: Any) -> None:
        """Note which generators a copy has in common with what it is of."""
        held = find_generators(self.spec.dataset, self.spec.collate_fn)
        own = set(map(id, find_generators(dataset, collate_fn).generators if held.pairs else ()))
        self.notes += [
            f"{path} is a random generator, {_ADVICE}, or make it in __init__ [LL419]"
            for path, generator in held.pairs
            if id(generator) in own
        ]

    @property
    def wanted(self) -> int:
        """How many threads there are to be; one that has no reader any more has nothing to do."""
        return self.most if self.readers else self.count

    def is_left_by(self, worker: _Worker) -> bool:
        """Whether a thread ends that was asked whether it is one too many."""
        with self.lock:
            if self.closed or len(self.workers) > self.wanted:
                self.workers.pop(worker.number, None)
                return True
        return False

    def queue_of(self, number: int) -> queue.SimpleQueue[Any]:
        """Give what a thread takes its work from."""
        return self.queues.setdefault(number if self.readers else 0, queue.SimpleQueue())

    def put(self, task: Task) -> None:
        """Have a task done: by any thread, or by its reader's."""
        if not self.readers:
            return self.queue_of(0).put(task)
        reader = position_of(task.number) % self.readers
        self.lines[reader].append(task)
        self.queue_of(reader % self.count).put(reader)


class ThreadExecutor(Executor):
    """The threads of a loader, for the pass ``start``."""

    eager = True
    workers: Any = SimpleNamespace(pids=())  # for `AutoWorkers`: it has no processes

    def __init__(self, core: Any, start: Any) -> None:
        answer_threads()
        collate_privately()
        loader, count = core.loader, core.loader.num_workers or 1  # 0: from the next iterator on
        self.depth, self._strict = max(1, core.depth), bool(loader.check_determinism)
        self._persistent = loader.persistent_workers
        self._desk = desk = _Desk(core.spec(), core.worker_seed(start), count, _kept_by(core))
        nbytes = round_up(board_bytes(max(_ROWS, count)) + PAGE_BYTES)
        self._file: HeldFile | None = None
        try:
            self._file = HeldFile(nameless_file("lit_loader")[0])
            os.ftruncate(self._file.fd, nbytes)
            memory = memoryview(map_part(self._file.fd, 0, nbytes))
        except OSError:  # nobody sees it, then
            memory = memoryview(bytearray(nbytes))
        desk.board = StatusBoard(memory)
        desk.board.workers = count
        self.page = ViewerPage(memory)
        self.page.begin_epoch(start.epoch, start.position.now().delivered)
        self._waits_of_threads = core.log.waits
        self._timeout, stall = loader.timeout, loader.stall_warning
        self._stall_of = core.seams.stall
        self._stall_limits = [stall, _SECOND_STALL * stall] if stall else []
        # Seconds between two looks for hangs and stalls while nothing comes; none: nobody looks.
        self._looks = [min(each / 4, _LONGEST_LOOK) for each in (self._timeout, stall) if each]
        self._stopping = self._told = False
        self._waits, self._submitter, self._before = 0, 0, GlobalStates.now()
        self._lock = threading.Lock()

    def submit(self, task: Task) -> None:
        """Put the task where an idle thread takes it."""
        if not self._waits:
            self._submitter, self._before = threading.get_ident(), GlobalStates.now()
        self._desk.put(task)

    def room(self, outstanding: int) -> int:
        """As many as are ahead at most."""
        return self.depth - outstanding

    def receive(self, timeout: float | None = None) -> Outcome | None:
        """Wait for an outcome; a WorkerTimeoutError if a thread hangs."""
        desk = self._desk
        # Before the first ones begin: nobody else is at anything then.
        before = self._mark() if not desk.done and timeout is None else None
        if len(desk.workers) < desk.wanted:
            self._start()
        outcome = self._take(timeout)
        # A fork counts as a use; it moves none.
        after = None if before is None or outcome is None else GlobalStates.now()
        if before is not None and after is not None and after._replace(uses=before.uses) != before:
            self._told = True
            text = "a sample (or worker_init_fn) draws from, or seeds, a global generator, "
            desk.notes.append(f"{text}{_ADVICE}{_APART * (desk.readers > 1)} [LL418]")
        if desk.notes and outcome is not None and not outcome.ended and outcome.error is None:
            self._tell(outcome)
        return outcome

    def _take(self, timeout: float | None) -> Outcome | None:
        desk, stall, waits = self._desk, None, self._waits_of_threads
        now, waited = time.monotonic(), 0.0
        self.waiting = True
        while not desk.done and not self._stopping:
            before, now = now, time.monotonic()
            waited += min(now - before, _LONGEST_LOOK)  # not the time of a Ctrl-Z
            if timeout is not None and waited >= timeout:
                break
            self._look_for_a_hang(waited)
            if self._stall_limits:
                stall = self._look_for_a_stall(waited, stall)
            left = waits.left()
            looks = [left, *self._looks, *([] if timeout is None else [timeout - waited])]
            try:
                desk.bell.get(timeout=min(looks))
            except queue.Empty:
                if min(looks) == left:
                    waits.look(self._fetching(), threads=True)
        self.waiting = False
        if desk.bell.qsize():  # that of an outcome which nobody has waited for
            desk.bell.get()
        return desk.done.popleft() if desk.done else None

    def _fetching(self) -> list[int]:
        """The threads that read samples, by the system's numbers.

        0: one that waits for threads of its own, at an event, say, and not for a lock.
        """
        workers = [w for w in [*self._desk.workers.values()] if w.row.stage in Stage.SAMPLES]
        # reach: python: what another thread is at. Frames are not kept: this one is among them.
        files = {thread: at.f_code.co_filename for thread, at in sys._current_frames().items()}
        return [
            0
            if files.get(each.thread.ident or 0) == threading.__file__
            else each.thread.native_id or 0
            for each in workers
        ]

    def begin(self) -> None:
        """Start the threads now, for tasks that nobody receives yet; they end with this object."""
        weakref.finalize(self, _end, self._desk).atexit = False
        self._waits += 1  # the program goes on meanwhile, and draws
        self._start()

    def _start(self) -> None:
        desk, threads = self._desk, torch.get_num_threads()
        with self._lock:
            for number in range(desk.wanted):
                if number not in desk.workers and len(desk.workers) < desk.wanted:
                    desk.board.launched(number, desk.pid)
                    worker = desk.workers[number] = _Worker(desk, number)
                    worker.thread.start()
                    desk.up.get()
        # A thread that is set to one processor sets what threads that begin later have.
        torch.set_num_threads(threads)

    # --- what is seen of the threads ---

    def _look_for_a_hang(self, waited: float) -> None:
        """Raise a WorkerTimeoutError if a thread hangs; before the consumer waits is no hang."""
        if not self._timeout or waited < self._timeout:
            return
        for worker in [*self._desk.workers.values()]:
            row = worker.row
            seconds = (time.monotonic_ns() - row.since) / 1e9
            if row.stage in (*Stage.BUSY, Stage.INITIALISING) and seconds >= self._timeout:
                self.waiting = False  # this is the executor's end
                raise WorkerTimeoutError(
                    f"worker thread {worker.number} has been {worker.doing(row)} for "
                    f"{seconds:.1f} s, timeout={self._timeout:g}: a thread cannot "
                    "be ended, so it goes on beside the next ones; fix what keeps it from getting "
                    f"on, or raise timeout. [LL037] It is at\n{worker.stack()}"
                )

    def _look_for_a_stall(self, waited: float, stall: Any) -> Any:
        """Tell of a stall after so many seconds; with what was seen at half of that."""
        workers, [limit, *_] = [*self._desk.workers.values()], self._stall_limits
        if waited >= limit / 2 and stall is None:
            stall = self._stall_of(workers)
        if waited >= limit:
            del self._stall_limits[0]
            if stall is not None:
                stall.tell(workers, waited)
        return stall

    def _mark(self) -> GlobalStates | None:
        """Say where the global generators are before a wait; None: it is not looked."""
        self._waits += 1
        often = self._waits <= _OFTEN or not self._waits & (self._waits - 1)
        if self._told or not often:
            return None
        if self._submitter == threading.get_ident():
            return GlobalStates.now()
        # Another thread receives, and pins: the consumer waits for the first batch only.
        return self._before if self._waits == 1 else None

    def _tell(self, outcome: Outcome) -> None:
        """Have the user warned of what was noticed; or raise it in a batch's place."""
        notes = [*self._desk.notes]
        del self._desk.notes[: len(notes)]  # a thread may note something meanwhile
        if self._strict:
            name = type(self._desk.spec.dataset).__name__
            outcome.error = LoaderError(f"check_determinism: {name}: {notes[0]}")
            return
        made = outcome.made or BatchWithReport(None, None, None)
        outcome.made = made._replace(notes=(*made.notes, *notes))

    def resize(self, num_workers: int, depth: int) -> None:
        """Have another number of threads; from any thread."""
        with self._lock:
            desk, self.depth = self._desk, depth
            desk.count = desk.board.workers = num_workers
            desk.most = max(desk.most, num_workers)
            for _ in range(0 if desk.readers else len(desk.workers) - num_workers):
                desk.queue_of(0).put(None)

    def call_off(self) -> None:
        """End: the next iterator has threads of its own."""
        self.close()

    def stop(self) -> None:
        """Let a `receive` in another thread end."""
        self._stopping = True
        if not self.elsewhere:
            self._desk.bell.put(None)

    def close(self) -> None:
        """End the threads; one that is in the midst of a sample ends behind it."""
        if self.elsewhere or self._desk.closed:
            return
        self._file = None
        if self.page is not None:
            self.page.close()
        _end(self._desk)

    # --- what `AutoWorkers` asks a pool ---

    @property
    def measured(self) -> Any:
        """This, whose batches say how many threads there should be."""
        return self

    @property
    def num_workers(self) -> int:
        """How many threads there are to be."""
        return self._desk.count

    @property
    def settled(self) -> bool:
        """Whether these have begun."""
        return len(self._desk.workers) >= self._desk.count

    @property
    def makers(self) -> dict[int, Any]:  # type: ignore[override]
        """What persistent threads leave to others; readers of ``num_shards`` begin anew."""
        return self._desk.makers if self._persistent and not self._desk.spec.shards else {}

    @property
    def elsewhere(self) -> bool:  # type: ignore[override]
        """Whether this is a forked copy, in which no thread is."""
        return self._desk.pid != os.getpid()

    @property
    def closed(self) -> bool:  # type: ignore[override]
        """Whether it makes no more batches."""
        return self._desk.closed or self.elsewhere

    @property
    def unread(self) -> int:  # type: ignore[override]
        """Outcomes that were not received yet."""
        return len(self._desk.done)


class _Worker:
    def __init__(self, desk: _Desk, number: int) -> None:
        self.number, self.desk = number, desk
        self._indices: Any = None  # of its batch, for messages
        self._progress = Progress(desk.board.words, (number + 1) * ROW_WORDS)
        self._progress.empty = desk.memory.empty
        self._queue = desk.queue_of(number)
        self._initialised = False
        name = f"lit_loader worker {number}"
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def row(self) -> Any:
        """What it does, and since when."""
        return self.desk.board.read(self.number)

    def doing(self, row: Any) -> str:
        """Say it: ``fetching index 17 (sample 2 of batch 3, indices [...])``."""
        return doing(row.stage, None) if row.number < 0 else doing_task(row, self._indices)

    def stack(self) -> str:
        """Give the stack of the thread, where it is in the user's code."""
        # reach: python: what another thread is at
        frame = sys._current_frames().get(self.thread.ident or 0)
        found = [] if frame is None else traceback.extract_stack(frame)
        ours = [n for n, each in enumerate(found) if each.filename.startswith(PACKAGE)]
        own = found[max(ours, default=-1) + 1 :] or found[-1:]
        return "".join(traceback.format_list(own)).rstrip() or "(it has ended)"

    def _run(self) -> None:
        desk = self.desk
        torch.set_num_threads(1)
        of_thread.generator = torch.Generator()
        self._clock = ProcessorClock(thread=True)
        self._progress.idle()
        desk.up.put(None)
        with desk.spec.modes.held():
            while True:
                item = self._queue.get()
                if desk.closed or item is None:
                    if desk.is_left_by(self):
                        break
                    continue
                maker = desk.makers.setdefault(item if desk.readers else self.number, _Maker())
                with maker.lock:
                    task = desk.lines[item].popleft() if desk.readers else item
                    outcome = self._make(maker, task)
                if outcome is not None:
                    outcome.timings.arrived = time.monotonic_ns()
                    desk.done.append(outcome)
                    desk.bell.put(None)
                del item, task, outcome
            for maker in [*desk.makers.values()]:
                if maker.thread is self:  # others may be held for long
                    maker.leave(self)
        self._clock.close()
        desk.board.enter(self.number, Stage.LEFT, -1)

    def _make(self, maker: _Maker, task: Task) -> Outcome | None:
        """Make a task's batch, or note what it raises; None: it is not wanted any more."""
        outcome, progress = Outcome(task.number), self._progress
        number = task.number & POSITION
        self._indices = indices = listed(task.indices) if task.own else task.indices
        self._clock.start()
        batch: Any = None
        samples, began = 0, False
        try:
            loader, began = self._loader_of(maker), True
            progress.begin(number)
            batch = loader.take(indices, progress)
            if batch is None:
                batch = loader.load(indices, number, task.epoch, task.seeds, progress)
                if not maker.private and loader.generators:  # which it has made in this batch
                    loader = self._take_copy(maker)
                    batch = loader.load(indices, number, task.epoch, task.seeds, progress)
            samples = loader.samples
        except Cancelled:
            return None
        except EndOfData:
            outcome.ended = True
        except BaseException as error:
            place = "in worker_init_fn"
            if began:
                whose = loader.whose(number) if self.desk.readers else indices
                place = describe_batch(number, whose, progress)
            if not isinstance(error, Exception):  # the program is neither to end nor interrupted
                error, error.__cause__ = WorkerError(f"{type(error).__name__}: {error}"), error
            outcome.error = failure(error, f"in worker {self.number} (a thread), {place}")
        finally:
            reading.maker = None
        now = progress.idle(made=True)
        times = progress.stages(now, *self._clock.used())
        outcome.timings = Timings(self.number, 0, samples, *times)
        if type(batch) is BatchWithReport:
            outcome.made, batch = batch, batch.batch
        outcome.batch = batch
        return outcome

    def _loader_of(self, maker: _Maker) -> Any:
        """Give what makes the batch; before a maker's first one, the dataset is got ready."""
        desk, spec = self.desk, self.desk.spec
        read_apart(maker.reading)
        maker.reading, before, maker.thread = reading_here(), maker.thread, self
        if maker.loader is not None:
            if before is not None and before.desk is not desk:  # it hangs, or hung for long
                maker.loader.begin_epoch()
            return maker.loader
        desk.board.enter(self.number, Stage.INITIALISING, -1)
        kind = WorkerInfo
        if spec.shards is not None:
            kind, maker.private = ProcessInfo, True
            spec = dataclasses.replace(spec, collate_fn=desk.collations.make())
        elif desk.copies is not None:
            spec, maker.private = self._copied(desk.copies), True
        else:
            spec = dataclasses.replace(spec, dataset=with_own_attributes(spec.dataset))
        seed = desk.seed + self.number
        ids: dict[str, Any] = {"id": self.number, "num_workers": desk.count, "seed": seed}
        show(kind(**ids, dataset=spec.dataset, **_METHOD))
        if spec.worker_init_fn is not None and not self._initialised:
            spec.worker_init_fn(self.number)
        self._initialised = True  # again, if that has raised, for the next batch
        if spec.shards is None:
            maker.loader = maker_of(spec, self.number, desk.count)
        else:
            reading.shard_asked = NOBODY  # by a thread, not by a reader
            maker.loader = Readers(spec, desk.copies)
        return maker.loader

    def _take_copy(self, maker: _Maker) -> Any:
        """Go on with a copy of the dataset, for it holds generators by now."""
        spec, maker.private = self._copied(self.desk.copies_of_parts()), True
        maker.loader = maker_of(spec, self.number, self.desk.count)
        return maker.loader

    def _copied(self, copies: DatasetCopies) -> BatchSpec:
        dataset, collate_fn = copies.make()
        return dataclasses.replace(self.desk.spec, dataset=dataset, collate_fn=collate_fn)


# Torch has had it from 2.13 on.
_METHOD: Final[dict[str, Any]] = (
    {"worker_method": "thread"} if hasattr(torch, "thread_safe_generator") else {}
)


def _kept_by(core: Any) -> dict[int, _Maker]:
    """Take the makers of persistent threads before, if the loader's options are as they were."""
    loader, kept = core.loader, core.of_process
    makers: dict[int, _Maker] = kept.pop("makers", {})  # another iterator has others, meanwhile
    options, pid = kept.get("started_with", ({}, 0))
    # A forked child has none.
    if loader.persistent_workers and pid == os.getpid() and core.has(options):
        return makers
    kept["started_with"] = core.options("num_workers"), os.getpid()
    return {}


def _is_changed(spec: BatchSpec) -> bool:
    """Whether a thread would change, in a map-style dataset, what others read."""
    return (
        spec.worker_init_fn is not None
        or spec.reseed_fn is not None
        or callable(getattr(spec.dataset, "set_epoch", None))
        or bool(find_generators(spec.dataset, spec.collate_fn).generators)
    )


def _end(desk: _Desk) -> None:
    """End the threads; a second call does nothing, nor one in a forked copy, which has none."""
    if desk.closed or desk.pid != os.getpid():
        return
    desk.closed = True
    desk.board.token = -1  # they end at the next sample
    workers = [*desk.workers.values()]
    for worker in workers:
        desk.queue_of(worker.number).put(None)
    deadline = time.monotonic() + _GRACE
    for worker in workers:  # the garbage collector, run by one of them, may end up here
        if worker.thread is not threading.current_thread():
            worker.thread.join(max(0.0, deadline - time.monotonic()))
