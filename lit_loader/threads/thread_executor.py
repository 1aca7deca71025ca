"""`ThreadExecutor`: worker threads of the training process; nothing is forked, pickled or copied.

::

    submit ─▶ tasks ─▶ threads: a `BatchLoader` each, of the same dataset … ─▶ done ─▶ receive

- What a sample draws from `lit_loader.get_rng`, ``get_worker_info().rng`` and
  `torch.thread_safe_generator` are the numbers that it draws in a process. These answer each thread
  by itself.
- Where the dataset has what one thread would change for another (generators, ``set_epoch``, what
  ``worker_init_fn`` or ``reseed_fn`` set), each thread has a copy, with the large parts shared
  (`streams/copies.py`).
- The global generators are one for all threads and are left alone. A draw from them is noticed:
  they are where they were before the consumer began to wait, or somebody else has moved them.
- Threads begin at the first `receive`, or with `begin`, and wait in a queue for what comes. They
  end with the iterator, as soon as they are done with the sample they are at; persistent ones do
  so, too, for new ones start in less than a millisecond. All are daemons: none keeps the
  interpreter.
"""

from __future__ import annotations

import dataclasses
import math
import os
import queue
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from types import FrameType
from typing import Any, Final

import torch

from lit_loader.context import read_apart, reading
from lit_loader.core.batch.batch_loader import BatchLoader
from lit_loader.core.batch.batch_spec import BatchSpec, BatchWithReport
from lit_loader.core.batch.collate import collate_privately
from lit_loader.core.batch.progress import Cancelled, Progress
from lit_loader.core.batch.timings import Timings
from lit_loader.core.batch.worker_info import WorkerInfo, answer_threads, show
from lit_loader.core.executors.executor import Executor, Task, failure
from lit_loader.core.executors.outcome import Outcome
from lit_loader.core.seeding.find_generators import find_generators
from lit_loader.core.seeding.global_states import GlobalStates
from lit_loader.core.seeding.seeds import of_thread
from lit_loader.core.system.processors import ProcessorClock
from lit_loader.core.transport.messages import POSITION, listed
from lit_loader.core.transport.status_board import ROW_WORDS, SINCE, STAGE, TOKEN, Stage
from lit_loader.core.transport.worker_exception import describe_batch
from lit_loader.describe import PACKAGE
from lit_loader.errors import LoaderError, WorkerTimeoutError
from lit_loader.streams.copies import DatasetCopies

__all__ = ["ThreadExecutor"]

_GRACE: Final = 0.5
"""Seconds that `close` waits at most for threads that are in the midst of a sample."""

_OFTEN: Final = 32
"""Waits at which it is seen whether a sample draws; then at every power of two."""

_LONGEST_LOOK: Final = 1.0
"""Seconds between two looks while nothing comes; one that comes later was held up itself."""

_SECOND_STALL: Final = 10
"""Times ``stall_warning`` after which a stall is told of once more."""

_ADVICE: Final = (
    "which threads share, so that no seed can be theirs: draw from lit_loader.get_rng() or "
    "torch.thread_safe_generator(), or set worker_method='multiprocessing'"
)


class _Desk:
    """What the threads and the executor share; holds neither the executor nor the iterator."""

    def __init__(self, spec: BatchSpec, seed: int) -> None:
        self.spec, self.seed, self.count, self.strict = spec, seed, 0, False
        self.tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()  # None ends a thread
        self.done: deque[Outcome] = deque()
        self.bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.up: queue.SimpleQueue[None] = queue.SimpleQueue()  # an item for each that has begun
        self.waiting = self.closed = False
        self.workers: dict[int, _Worker] = {}
        self.copies = _copies(spec, needed=False)

    def hand_in(self, outcome: Outcome) -> None:
        """Give an outcome to whoever receives."""
        outcome.timings.arrived = time.monotonic_ns()
        self.done.append(outcome)
        if self.waiting:
            self.bell.put(None)


class ThreadExecutor(Executor):
    """So many threads; ``depth`` batches may be outstanding.

    ``timeout`` and ``stall_warning`` are seconds (0: none). Where it is ``strict``, a draw from a
    global generator is an error.
    """

    eager = True

    def __init__(
        self,
        spec: BatchSpec,
        seed: int,
        num_workers: int,
        depth: int,
        timeout: float = 0,
        stall_warning: float = 0,
        strict: bool = False,
    ) -> None:
        answer_threads()
        collate_privately()
        self.depth = depth
        self._desk = desk = _Desk(spec, seed)
        desk.count, desk.strict = num_workers, strict
        self._timeout = timeout
        limits = stall_warning, _SECOND_STALL * stall_warning
        self._stall_limits = [*filter(None, limits)]
        self._pid, self._stopping = os.getpid(), False
        self._waits, self._told = 0, False
        self._submitter, self._before = 0, GlobalStates.now()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, core: Any, start: Any) -> ThreadExecutor:
        """Give that of a loader, for the pass ``start``."""
        loader, seed = core.loader, core.worker_seed(start)
        waits = loader.timeout, loader.stall_warning
        strict = bool(loader.check_determinism)
        return cls(core.spec(), seed, loader.num_workers, core.depth, *waits, strict)

    def submit(self, task: Task) -> None:
        """Put the task where an idle thread takes it."""
        if not self._waits:
            self._submitter, self._before = threading.get_ident(), GlobalStates.now()
        self._desk.tasks.put(task)

    def room(self, outstanding: int) -> int:
        """As many as are ahead at most."""
        return self.depth - outstanding

    def receive(self, timeout: float | None = None) -> Outcome | None:
        """Wait for an outcome; a WorkerTimeoutError if a thread hangs."""
        desk = self._desk
        # Before the first ones begin: nobody else is at anything then.
        before = self._mark() if not desk.done and timeout is None else None
        if len(desk.workers) < desk.count:
            self._start()
        outcome = self._take(timeout)
        if before is not None and outcome is not None and GlobalStates.now() != before:
            self._tell_of_draw(outcome)
        return outcome

    def _take(self, timeout: float | None) -> Outcome | None:
        desk, limits = self._desk, self._stall_limits
        now, waited, stall = time.monotonic(), 0.0, None
        desk.waiting = True  # before the look: what is handed in from now on rings
        while not desk.done and not self._stopping:
            before, now = now, time.monotonic()
            waited += min(now - before, _LONGEST_LOOK)  # not the time of a Ctrl-Z
            if timeout is not None and waited >= timeout:
                break
            until = math.inf if timeout is None else timeout - waited
            until = min(until, self._patience(waited))
            if limits:
                stall = self._look_for_stall(waited, stall)
                next_look = limits[0] / (2 if stall is None else 1) if limits else math.inf
                until = min(until, next_look - waited)
            if until != math.inf:
                until = min(until, _LONGEST_LOOK)
            try:
                desk.bell.get(timeout=None if until == math.inf else max(0.0, until))
            except queue.Empty:
                continue
        desk.waiting = False
        return desk.done.popleft() if desk.done else None

    def begin(self) -> None:
        """Start the threads now, for tasks that nobody receives yet; they end with this object."""
        weakref.finalize(self, _end, self._desk).atexit = False
        self._waits += 1  # the program goes on meanwhile, and draws
        self._start()

    def _start(self) -> None:
        """Start the threads that are missing."""
        desk, threads = self._desk, torch.get_num_threads()
        with self._lock:
            for number in range(desk.count):
                if number not in desk.workers:
                    worker = desk.workers[number] = _Worker(desk, number)
                    worker.thread.start()
                    desk.up.get()
        # A thread that is set to one processor sets what threads that begin later have.
        torch.set_num_threads(threads)

    # --- what is seen of the threads ---

    def _patience(self, waited: float) -> float:
        """Give the seconds until a thread may hang; WorkerTimeoutError: one does."""
        if not self._timeout:
            return math.inf
        left = self._timeout
        for worker in [*self._desk.workers.values()]:
            stage, seconds = worker.stage, (time.monotonic_ns() - worker.since) / 1e9
            if stage not in Stage.BUSY and stage != Stage.INITIALISING:
                continue
            # Before the consumer waits it counts for nothing.
            left = min(left, self._timeout - min(seconds, waited))
            if left <= 0:
                self.waiting = False  # this is the executor's end
                raise WorkerTimeoutError(
                    f"worker thread {worker.number} has been {Stage.NAMES[stage]} for "
                    f"{seconds:.1f} s ({worker.task}), timeout={self._timeout:g}: a thread cannot "
                    "be ended, so it goes on beside the next ones; fix what keeps it from going "
                    f"on, or raise timeout. [LL037] It is at\n{worker.stack()}"
                )
        return left

    def _look_for_stall(self, waited: float, stall: Any) -> Any:
        """Tell of a stall after so many seconds; with what was seen at half of that."""
        workers, [limit, *_] = [*self._desk.workers.values()], self._stall_limits
        if waited >= limit / 2 and stall is None:
            # Most programs never need it.
            from lit_loader.core.executors.stall import ThreadStall

            stall = ThreadStall(workers)
        if waited >= limit:
            del self._stall_limits[0]
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

    def _tell_of_draw(self, outcome: Outcome) -> None:
        """Have the user told that somebody draws from global generators while he waits."""
        self._told = True
        text = f"a sample (or worker_init_fn) draws from, or seeds, a global generator, {_ADVICE}"
        text += " [LL418]"
        if self._desk.strict:
            name = type(self._desk.spec.dataset).__name__
            outcome.error = LoaderError(f"check_determinism: {name}: {text}")
            return
        made = outcome.made or BatchWithReport(None, None, None)
        outcome.made = made._replace(notes=(*made.notes, text))

    # --- its life ---

    def resize(self, num_workers: int, depth: int) -> None:
        """Have another number of threads; from any thread."""
        with self._lock:
            desk, self.depth = self._desk, depth
            for _ in range(desk.count - num_workers):
                desk.tasks.put(None)
            desk.count = num_workers

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
        if not self.elsewhere:
            _end(self._desk)

    @property
    def waiting(self) -> bool:
        """Whether nothing but a wait is going on."""
        return self._desk.waiting

    @waiting.setter
    def waiting(self, value: bool) -> None:
        self._desk.waiting = value

    @property
    def elsewhere(self) -> bool:  # type: ignore[override]
        """Whether this is a forked copy, in which no thread is."""
        return self._pid != os.getpid()

    @property
    def closed(self) -> bool:  # type: ignore[override]
        """Whether it makes no more batches."""
        return self._desk.closed or self.elsewhere

    @property
    def unread(self) -> int:  # type: ignore[override]
        """Outcomes that were not received yet."""
        return len(self._desk.done)


class _Worker:
    """One thread, and what it makes batches by."""

    def __init__(self, desk: _Desk, number: int) -> None:
        self.number, self._desk = number, desk
        self.task = "no batch"  # for messages
        self._words = memoryview(bytearray(16 * ROW_WORDS)).cast("q")
        self._progress = Progress(self._words)
        self._maker: BatchLoader | None = None
        self._private = False  # whether it has a copy of the dataset
        name = f"lit_loader worker {number}"
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def leave(self) -> None:
        """Have it end at the next sample."""
        self._words[TOKEN] = -1

    @property
    def stage(self) -> int:
        """At which stage it is."""
        return self._words[ROW_WORDS + STAGE]

    @property
    def since(self) -> int:
        """Since when, in nanoseconds of ``time.monotonic_ns()``."""
        return self._words[ROW_WORDS + SINCE]

    def stack(self) -> str:
        """Give the stack of the thread, where it is in the user's code."""
        # reach: python: what another thread is at
        frame = sys._current_frames().get(self.thread.ident or 0)
        return "(it has ended)" if frame is None else _stack(frame)

    def _run(self) -> None:
        desk = self._desk
        torch.set_num_threads(1)
        of_thread.generator = torch.Generator()
        read_apart()
        self._clock = ProcessorClock(thread=True)
        self._progress.idle()
        desk.up.put(None)
        while (task := desk.tasks.get()) is not None and not desk.closed:
            outcome = self._make(task)
            if outcome is not None:
                desk.hand_in(outcome)
            del task, outcome
        self._clock.close()
        desk.workers.pop(self.number, None)

    def _make(self, task: Task) -> Outcome | None:
        """Make a task's batch, or note what it raises; None: it is not wanted any more."""
        outcome, progress = Outcome(task.number), self._progress
        number, indices = task.number & POSITION, task.indices
        if task.own:
            indices = listed(indices)
        self.task = f"batch {number}"
        self._clock.start()
        where = f"in worker {self.number} (a thread)"
        batch: Any = None
        try:
            maker = self._maker or self._begin()
            progress.begin(number)
            batch = maker.take(indices, progress)
            if batch is None:
                batch = maker.load(indices, number, task.epoch, task.seeds, progress)
                if maker.generators and not self._private:  # which it has made in this batch
                    maker = self._take_copy()
                    batch = maker.load(indices, number, task.epoch, task.seeds, progress)
            outcome.timings.samples = maker.samples
        except Cancelled:
            return None
        except BaseException as error:
            if self._maker is None:
                place = "in worker_init_fn"
            else:
                place = describe_batch(number, indices, progress)
            outcome.error = failure(error, f"{where}, {place}")
        finally:
            reading.maker = None
        now = progress.idle()
        times = progress.stages(now, *self._clock.used())
        outcome.timings = Timings(self.number, 0, outcome.timings.samples, *times)
        if type(batch) is BatchWithReport:
            outcome.made, batch = batch, batch.batch
        outcome.batch = batch
        self.task = "no batch"
        return outcome

    def _begin(self) -> BatchLoader:
        """Have the dataset, and run worker_init_fn: again, if that raises, for the next batch."""
        desk, number = self._desk, self.number
        self._words[ROW_WORDS + STAGE] = Stage.INITIALISING
        self._words[ROW_WORDS + SINCE] = time.monotonic_ns()
        spec = desk.spec if desk.copies is None else self._copied(desk.copies)
        told = {"id": number, "num_workers": desk.count, "seed": desk.seed + number, **_METHOD}
        show(WorkerInfo(dataset=spec.dataset, **told))
        if spec.worker_init_fn is not None:
            spec.worker_init_fn(number)
        self._maker = self._maker_of(spec)
        return self._maker

    def _take_copy(self) -> BatchLoader:
        """Go on with a copy of the dataset, for it holds generators by now."""
        copies = _copies(self._desk.spec, needed=True)
        assert copies is not None
        self._maker = self._maker_of(self._copied(copies))
        return self._maker

    def _maker_of(self, spec: BatchSpec) -> BatchLoader:
        """Make batches of the dataset, or of a copy; what no copy has for itself is told."""
        desk = self._desk
        maker = BatchLoader(spec, self.number, desk.count)
        if self._private:
            held = find_generators(desk.spec.dataset, desk.spec.collate_fn)
            own = set(map(id, find_generators(spec.dataset, spec.collate_fn).generators))
            for path, generator in held.pairs:
                if id(generator) in own:
                    text = (
                        f"{path} is a random generator, {_ADVICE}, or make it in __init__ [LL419]"
                    )
                    if desk.strict:
                        raise LoaderError(f"check_determinism: {text}")
                    maker.note(text)
        return maker

    def _copied(self, copies: DatasetCopies) -> BatchSpec:
        dataset, collate_fn = copies.make()
        self._private = True
        return dataclasses.replace(self._desk.spec, dataset=dataset, collate_fn=collate_fn)


# Torch has had it from 2.13 on.
_METHOD: Final[dict[str, Any]] = (
    {"worker_method": "thread"} if hasattr(torch, "thread_safe_generator") else {}
)


def _copies(spec: BatchSpec, needed: bool) -> DatasetCopies | None:
    """What makes copies of dataset and collate_fn for threads; None: one will do for all."""
    parts = spec.dataset, spec.collate_fn
    if not (
        needed
        or spec.worker_init_fn is not None
        or spec.reseed_fn is not None
        or callable(getattr(spec.dataset, "set_epoch", None))
        or find_generators(*parts).generators
    ):
        return None
    return DatasetCopies(parts, of_structure=True)


def _end(desk: _Desk) -> None:
    """End the threads; a second call does nothing."""
    if desk.closed:
        return
    desk.closed = True
    workers = [*desk.workers.values()]
    for worker in workers:
        worker.leave()
        desk.tasks.put(None)
    deadline = time.monotonic() + _GRACE
    for worker in workers:  # the garbage collector, run by one of them, may end up here
        if worker.thread is not threading.current_thread():
            worker.thread.join(max(0.0, deadline - time.monotonic()))


def _stack(frame: FrameType) -> str:
    """Write down a stack, without what is the loader's own at its beginning."""
    found = traceback.extract_stack(frame)
    last = max((n for n, each in enumerate(found) if each.filename.startswith(PACKAGE)), default=-1)
    own = [*found][last + 1 :] or [*found][-1:]
    return "".join(traceback.format_list(own)).rstrip()
