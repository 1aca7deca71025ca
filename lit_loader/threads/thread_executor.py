"""`ThreadExecutor`: worker threads that share the dataset; nothing is forked, pickled or copied.

::

    map-style   submit ─▶ one queue for all threads ─────────╮
    a stream    submit ─▶ the queue of the reader's thread ──┴─▶ `_Worker` ─▶ done ─▶ receive

- Each thread builds batches by a `BatchBuilder` of its own, and is answered for itself by
  `get_rng`, `get_worker_info` and `torch.thread_safe_generator`. These draw what they draw in a
  worker process.
- The global generators, and those that the dataset holds, belong to all threads and are not seeded.
  That samples draw from them is noticed while the training loop waits in ``next()``.
- A reader of a stream is served by one thread. When the number of threads changes it may move to
  another one, as the same object.
- The threads are daemons. They end with the iterator, each after the sample that it is at.
"""

from __future__ import annotations

import math
import os
import queue
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from functools import partial
from typing import Any, Final

import torch
from torch.utils.data import IterDataPipe

from lit_loader.context import Reading, read_apart
from lit_loader.core.batch.batch_builder import builder_of
from lit_loader.core.batch.batch_spec import BatchSpec, BatchWithReport
from lit_loader.core.batch.collate import collate_privately
from lit_loader.core.batch.fetch import EndOfData
from lit_loader.core.batch.progress import Cancelled, Progress, Timings
from lit_loader.core.batch.worker_info import WorkerInfo, answer_threads, show
from lit_loader.core.executors.executor import MOST_WORKERS, Executor, Outcome, Task, failure
from lit_loader.core.executors.worker_pool import StallWatch
from lit_loader.core.seeding.held_generators import Found, find_generators
from lit_loader.core.seeding.seeds import UNTOLD
from lit_loader.core.seeding.shared_draws import SharedDraws
from lit_loader.core.system.linux import ProcessorClock
from lit_loader.core.system.one_core_thread import OneCoreThread, await_threads
from lit_loader.core.system.shared_file import HeldFile, map_part, nameless_file, round_up
from lit_loader.core.transport.messages import POSITION, listed
from lit_loader.core.transport.status_board import (
    ROW_WORDS,
    BoardRow,
    Stage,
    StatusBoard,
    board_bytes,
)
from lit_loader.core.transport.viewer_page import PAGE_BYTES, SINCE, ViewerPage
from lit_loader.core.transport.worker_exception import describe_batch
from lit_loader.describe import PACKAGE
from lit_loader.diagnostics.death_messages import doing_task
from lit_loader.diagnostics.sentences import doing
from lit_loader.errors import OptionError, WorkerError, WorkerTimeoutError

_GRACE: Final = 0.5
"""Seconds that `close` waits at most for threads that are at a sample."""

_LONGEST_LOOK: Final = 0.25
"""Seconds from one look for hangs and stalls to the next at most; see `StallWatch`."""

_LOSS: Final = "readers that shuffle by it lose samples and repeat others"

_running: Final[weakref.WeakSet[ThreadExecutor]] = weakref.WeakSet()


class ThreadExecutor(Executor):
    """The threads of a loader, for the pass ``made``."""

    processes: tuple[object, ...] = ()
    memory = 0, 0  # which processes would share

    def __init__(self, core: Any, made: Any) -> None:
        answer_threads()
        collate_privately()
        loader = core.loader
        self.num_workers: int = loader.num_workers or 1
        self._depth: int = max(1, core.depth)
        spec: BatchSpec = core.spec(made)
        if core.iterable and spec.shards is None and self.num_workers > 1:
            _check_stream(spec.dataset)
        found = find_generators(spec.dataset, spec.collate_fn, spec.worker_init_fn).generators
        shared = frozenset(id(generator) for _, generator in found)
        self.spec = spec._replace(shared_generators=shared)
        self.seed = made.seeds.seed >> 1
        self.readers = core.readers
        self.lanes = [_Lane() for _ in range(self.readers)]
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()  # but those of readers
        self.done: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()
        self._threads: dict[int, _Worker] = {}
        self._lock = threading.Lock()  # of the number of threads
        self.beginning, self.has_begun = threading.Lock(), False  # the pass, in the dataset
        self._pid, self.is_closed, self._is_stopping = os.getpid(), False, False
        # The status board and the page for viewers, as worker processes have them.
        nbytes = round_up(board_bytes(max(MOST_WORKERS, self.num_workers)) + PAGE_BYTES)
        self._file: HeldFile | None = HeldFile(nameless_file("lit_loader")[0])
        os.ftruncate(self._file.fd, nbytes)
        memory = memoryview(map_part(self._file.fd, 0, nbytes))
        self.board = StatusBoard(memory)
        self.board.workers = self.num_workers
        self.page: ViewerPage = ViewerPage(memory)
        self.page.begin_epoch(made.epoch, made.position.now().delivered)
        self.page.rest()  # the training loop does not wait yet
        harm = [_LOSS] if self.readers > 1 else []
        self.shared_draws = SharedDraws(found, partial(_quiet_since, self.page), *harm)
        self._waits = core.log.waits
        self._timeout, stall = loader.timeout, loader.stall_warning
        self._watch = StallWatch(stall or 0, core.seams.stall, _LONGEST_LOOK)
        # Seconds between two looks for hangs and stalls while nothing comes.
        self._looks = [min(each / 4, _LONGEST_LOOK) for each in (self._timeout, stall) if each]
        _running.add(self)

    # --- batches ---

    def submit(self, task: Task) -> None:
        """Put the task where its thread takes it."""
        self._start()
        if not self.readers:
            self._tasks.put(task)
            return
        reader = (task.number & POSITION) % self.readers
        self.lanes[reader].tasks.append(task)
        self._threads[reader % min(self.num_workers, len(self._threads))].tasks.put(reader)

    def receive(self, timeout: float | None = None) -> Outcome | None:
        """Wait for an outcome; a WorkerTimeoutError if a thread hangs."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        self._watch.begin()
        while not self._is_stopping:
            self._start()  # those that a `resize` has added
            workers = [*self._threads.values()]
            self._watch.look(workers, 0)
            self._look_for_a_hang(workers, self._watch.seconds)
            left = self._waits.left()
            pause = min(left, *self._looks, max(0.0, until - time.monotonic()))
            try:
                outcome = self.done.get(timeout=pause)
            except queue.Empty:
                if time.monotonic() >= until:
                    return None
                if pause == left and self.spec.read_threads < 2:
                    reading = [each for each in workers if each.row.stage == Stage.FETCHING]
                    self._waits.look([each.thread.native_id or 0 for each in reading], threads=True)
            else:
                if outcome is not None:
                    return outcome
        return None

    def room(self, outstanding: int) -> int:
        """Return how many more tasks may be outstanding."""
        return self._depth - outstanding

    # --- threads ---

    def _start(self) -> None:
        """Start the threads that are missing."""
        if len(self._threads) >= self.num_workers:
            return
        with self._lock:
            for number in range(self.num_workers):
                if number not in self._threads and len(self._threads) < self.num_workers:
                    self.board.launched(number, self._pid)
                    tasks = queue.SimpleQueue() if self.readers else self._tasks
                    worker = _Worker(self, number, tasks)
                    worker.thread.start()
                    self._threads[number] = worker

    def resize(self, num_workers: int, depth: int) -> None:
        """Change the number of threads; from any thread."""
        with self._lock:
            self._depth, self.board.workers = depth, num_workers
            surplus, self.num_workers = len(self._threads) - num_workers, num_workers
            # Threads of a stream stay: tasks of their readers may wait in their queues.
            for _ in range(0 if self.readers else surplus):
                self._tasks.put(None)
        self.done.put(None)  # whoever waits starts those that are missing

    def leave(self, worker: _Worker) -> None:
        """Note that a thread has ended."""
        self.board.enter(worker.number, Stage.LEFT, -1)
        with self._lock:
            del self._threads[worker.number]

    def wake(self) -> None:
        """Stop a `receive` in another thread."""
        self._is_stopping = True
        self.done.put(None)

    def close(self, keep_workers: bool = False) -> None:
        """End the threads; one that is at a sample ends after it."""
        if self.is_closed or self._pid != os.getpid():
            return
        self.is_closed = True
        _running.discard(self)
        self.board.token = -1  # they leave their batch at the next sample
        workers = [*self._threads.values()]
        for worker in workers:
            worker.tasks.put(None)
        await_threads([worker.thread for worker in workers], _GRACE)
        self.page.close()
        self._file = None

    # --- what is seen of the threads ---

    def _look_for_a_hang(self, workers: list[_Worker], waited: float) -> None:
        """Raise a WorkerTimeoutError if a thread hangs; before the loop waits is no hang."""
        if not self._timeout or waited < self._timeout:
            return
        for worker in workers:
            row = worker.row
            seconds = (time.monotonic_ns() - row.since) / 1e9
            if row.stage in (*Stage.BUSY, Stage.INITIALISING) and seconds >= self._timeout:
                raise WorkerTimeoutError(
                    f"worker thread {worker.number} has been {worker.doing(row)} for "
                    f"{seconds:.1f} s (timeout={self._timeout:g}). A thread cannot be ended, so it "
                    "continues next to the ones that take its place. Fix what it waits for, or "
                    f"raise timeout [LL037]. Its stack:\n{worker.stack()}"
                )

    @property
    def workers(self) -> Any:  # type: ignore[override]
        """The threads; no attribute, which would refer to itself and be freed late."""
        return self

    @property
    def settled(self) -> bool:
        """Whether all threads have begun."""
        return len(self._threads) >= self.num_workers

    @property
    def unread(self) -> int:
        """Outcomes that were not received yet, about."""
        return self.done.qsize()


def _quiet_since(page: ViewerPage) -> int:
    """Return since when the training loop waits; 0: it runs, or another loader has threads."""
    return max(0, page.row[SINCE]) if len(_running) == 1 else 0


def _check_stream(dataset: object) -> None:
    """Refuse a stream that several threads cannot iterate, because there is no copy for each."""
    why = {
        "is its own iterator": hasattr(dataset, "__next__"),
        "keeps its place in itself (state_dict)": hasattr(dataset, "state_dict"),
        "is a DataPipe": isinstance(dataset, IterDataPipe),
    }
    for reason, applies in why.items():
        if applies:
            raise OptionError(
                f"worker threads share the dataset, and {type(dataset).__name__} {reason}, so "
                "several of them cannot read it. Pass num_shards=…, which reads each shard from a "
                "copy, or use worker_method='multiprocessing' or num_workers=1"
            )


class _Lane:
    """What batches are built with one after another: a thread's, or a reader's of a stream."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # held while a batch is built
        self.thread = 0  # that has built the last one
        self.tasks: deque[Task] = deque()  # of a reader
        self.builder: Any = None
        self.reading = Reading(of_thread=True)
        self.reading.generator = torch.Generator()


class _Worker:
    def __init__(
        self, executor: ThreadExecutor, number: int, tasks: queue.SimpleQueue[Any]
    ) -> None:
        self.number, self.tasks, self._executor = number, tasks, executor
        self._lane, self._initialised = _Lane(), False
        self._indices: object = None  # of its batch, for messages
        self._progress = Progress(executor.board.words, (number + 1) * ROW_WORDS)
        self.thread = OneCoreThread(target=self._run, name=f"lit_loader worker {number}")

    @property
    def row(self) -> BoardRow:
        """What it does, and since when."""
        return self._executor.board.read(self.number)

    def doing(self, row: BoardRow) -> str:
        """Say it: ``fetching index 17 (sample 2 of batch 3, indices [...])``."""
        return doing(row.stage, None) if row.number < 0 else doing_task(row, self._indices)

    def stack(self) -> str:
        """Return the stack of the thread, where it is in the user's code."""
        # reach: python: what another thread is at
        frame = sys._current_frames().get(self.thread.ident or 0)
        found = [] if frame is None else traceback.extract_stack(frame)
        ours = [n for n, each in enumerate(found) if each.filename.startswith(PACKAGE)]
        own = found[max(ours, default=-1) + 1 :] or found[-1:]
        return "".join(traceback.format_list(own)).rstrip() or "(it has ended)"

    def _run(self) -> None:
        executor, me = self._executor, threading.get_ident()
        self._clock = ProcessorClock(thread=True)
        self._progress.idle()
        with executor.spec.modes.held():
            while (item := self.tasks.get()) is not None and not executor.is_closed:
                lane = executor.lanes[item] if executor.readers else self._lane
                with lane.lock:
                    lane.thread = me
                    outcome = self._make(lane, lane.tasks.popleft() if executor.readers else item)
                if outcome is not None:
                    outcome.timings.arrived = time.monotonic_ns()
                    executor.done.put(outcome)
                del item, outcome
        for lane in (self._lane, *executor.lanes):
            if lane.thread == me and lane.builder is not None:
                # A stream is closed in the thread that has read it.
                lane.builder.begin_epoch() if executor.readers else lane.builder.end()
        self._clock.close()
        executor.leave(self)

    def _make(self, lane: _Lane, task: Task) -> Outcome | None:
        """Build a task's batch, or note what that raises; None: it is no longer wanted."""
        outcome, progress, number = Outcome(task.number), self._progress, task.number & POSITION
        self._indices = indices = listed(task.indices) if task.own else task.indices
        self._clock.start()
        read_apart(lane.reading)
        batch: object = None
        try:
            builder = lane.builder or self._begin(lane, number)
            progress.begin(number)
            batch = builder.take(indices, progress) if builder.reads_table else None
            if batch is None:
                batch = self._load(lane, indices, number, task)
        except Cancelled:
            return None
        except EndOfData:
            outcome.ended = True
        except BaseException as error:
            place = "in worker_init_fn"
            if (builder := lane.builder) is not None:
                place = describe_batch(number, builder.whose(number) or indices, progress)
            if not isinstance(error, Exception):  # the program is neither to end nor interrupted
                error, error.__cause__ = WorkerError(f"{type(error).__name__}: {error}"), error
            outcome.error = failure(error, f"in worker {self.number} (a thread), {place}")
        finally:
            lane.reading.maker = None
        now = progress.idle(made=True)
        samples = 0 if batch is None else builder.samples
        measured = progress.stages(samples, now, *self._clock.used())
        outcome.timings = Timings(self.number, 0, measured)
        if type(batch) is BatchWithReport:
            outcome.made, batch = batch, batch.batch
        outcome.batch = batch
        return outcome

    def _load(self, lane: _Lane, indices: object, number: int, task: Task) -> object:
        """Build a batch by the user's code, and notice what it draws from."""
        executor, draws, seeds = self._executor, self._executor.shared_draws, task.seeds
        builder = lane.builder
        if not executor.readers:
            with executor.beginning:
                if not executor.has_begun:  # the dataset's set_epoch is called once
                    lane.reading.epoch, lane.reading.maker = task.epoch, builder
                    builder.begin(seeds, self._progress)
                    executor.has_begun = True
            seeds = seeds._replace(dataset_epoch=UNTOLD)
        before = draws.look()
        batch = builder.load(indices, number, task.epoch, seeds, self._progress)
        report = draws.report(before)
        if report is None:
            return batch
        made = batch if type(batch) is BatchWithReport else builder.with_report(batch)
        return made._replace(notes=(*made.notes, report))

    def _begin(self, lane: _Lane, number: int) -> Any:
        """Make what builds the batches of a lane; before the thread's first one, initialise it."""
        executor, spec = self._executor, self._executor.spec
        executor.board.enter(self.number, Stage.INITIALISING, -1)
        kind = WorkerInfo if spec.shards is None else spec.streams.process_info
        ids: dict[str, Any] = {"id": self.number, "num_workers": executor.num_workers}
        ids["worker_method"] = "thread"  # as torch's threads say
        show(kind(**ids, seed=executor.seed + self.number, dataset=spec.dataset))
        if spec.worker_init_fn is not None and not self._initialised:
            spec.worker_init_fn(self.number)
        self._initialised = True
        place, count = self.number, executor.num_workers
        if executor.readers:
            place, count = number % executor.readers, executor.readers
        lane.builder = builder = builder_of(spec, place, count, Found())
        builder.seed_globals = lane.reading.generator.manual_seed
        return builder
