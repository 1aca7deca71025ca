"""`ReadPool`: the threads with which a worker reads the samples of its batch (``read_threads=n``).

::

    MapFetcher ─ a job for each sample ─▶ one queue ─▶ n threads ─▶ answers ─▶ samples, in order

- In such a thread a `Sample` stands for `BatchBuilder` and `Progress`. It knows the sample's place
  in the batch, so `get_rng` returns what it returns without threads.
- Jobs are begun in the order of the batch. If several samples raise, the first one in the batch
  counts, as without threads.
- A batch that is no longer wanted is left at once; samples that were begun are read to their end.
- The threads start with the first batch. They end when the pool is dropped, or with the process. A
  forked copy starts new ones.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from lit_loader.context import Reading, read_apart, reading
from lit_loader.core.batch.batch_spec import BatchSpec, TorchModes
from lit_loader.core.batch.progress import Cancelled, Progress
from lit_loader.core.batch.worker_info import answer_threads
from lit_loader.core.seeding.loader_seeds import lent_to_others
from lit_loader.core.seeding.seeds import SAMPLE, BatchRng, extend
from lit_loader.core.seeding.shared_draws import SharedDraws
from lit_loader.core.system.one_core_thread import OneCoreThread, await_threads

if TYPE_CHECKING:
    from lit_loader.core.batch.batch_builder import BatchBuilder

_GRACE: Final = 0.5
"""Seconds that the end of a pool waits at most for threads that are at a sample."""

Read = Callable[[Any, Any], object]
"""Called with an item, and the `Sample` or `Progress` of it."""


@dataclass(eq=False, slots=True)
class Sample:
    """What one sample is read with, in the thread that reads it; and what came of that.

    ``rng`` makes its generators, ``seed`` is the answer of ``get_worker_info().seed``, ``note``
    takes what the user is to be warned of, and ``beat`` notes that there is progress.
    """

    place: int
    rng: BatchRng
    seed: int
    note: Callable[[str], None]
    beat: Callable[[], None]
    is_wanted: bool = True
    is_done: bool = False
    value: object = None
    error: BaseException | None = None
    tokens: int = 0
    nanoseconds: int = 0

    def step(self, place: int) -> None:
        """Note that another attempt at this sample comes next.

        Raises:
            Cancelled: The batch is no longer wanted.
        """
        if not self.is_wanted:
            raise Cancelled
        self.beat()


_Job = tuple[Read, object, Sample, Reading, SimpleQueue[Sample]]
"""What is read how, where the result goes, what the batch's thread reads, and who waits."""


class ReadPool:
    """Reads the samples of one batch at a time, by ``count`` threads, for a `BatchBuilder`."""

    def __init__(self, spec: BatchSpec, builder: BatchBuilder) -> None:
        self.count, self._spec = spec.read_threads, spec
        self._builder = weakref.proxy(builder)  # which has the pool: no cycle delays their end
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._pid = 0  # the process that the threads are in
        # Notices if samples draw from generators that threads share; None: the executor does.
        self.draws: SharedDraws | None = None
        self.end: Callable[[], object] = lambda: None

    def watch(self, generators: Iterable[tuple[str, object]]) -> None:
        """Notice draws from generators that were found in the dataset."""
        self.draws = SharedDraws(generators)

    def read(
        self, read: Read, items: Sequence[object], places: Sequence[int], progress: Progress
    ) -> list[Any]:
        """Return ``[read(item, sample) for …]``, each called in a thread.

        A `Sample` is that at one of these places of the batch.

        Raises:
            BaseException: What ``read`` raised; that of the first item if there are several.
            Cancelled: The batch is no longer wanted.
        """
        if self._pid != os.getpid():
            self._start()
        samples = [self._sample_at(place, progress) for place in places]
        answers, draws, context = SimpleQueue[Sample](), self.draws, reading()
        before = None if draws is None else draws.look()
        for item, sample in zip(items, samples, strict=True):
            self._jobs.put((read, item, sample, context, answers))
        try:
            with lent_to_others():  # a sample may iterate a loader
                _await(samples, answers, progress)
        finally:
            _give_up(samples, 0)  # if the batch is no longer wanted, or a signal handler raised
        if draws is not None and (report := draws.report(before)) is not None:
            context.maker.note(report)
        context.tokens += sum(sample.tokens for sample in samples)
        return [sample.value for sample in samples]

    def _sample_at(self, place: int, progress: Progress) -> Sample:
        spec, builder = self._spec, self._builder
        rng, seed = BatchRng(spec.size, spec.rank, spec.num_replicas), builder.seed
        rng.begin(builder.rng.pass_seed, builder.rng.batch)
        if spec.per_sample:
            seed = extend(rng.pass_seed, SAMPLE, rng.sample_seed(place)) >> 1
        return Sample(place, rng, seed, builder.note, progress.beat)

    def _start(self) -> None:
        answer_threads()
        if self.draws is not None:  # in a forked process its lock may be copied as held
            self.draws.lock = threading.Lock()
        jobs, threads = SimpleQueue[_Job | None](), list[OneCoreThread]()
        self._jobs = jobs
        self.end = end = weakref.finalize(self, _end, jobs, threads)
        end.atexit = False  # they wait, and are daemons
        for number in range(self.count):
            name = f"lit_loader reader {number}"
            thread = OneCoreThread(target=_serve, args=(jobs, self._spec.modes), name=name)
            thread.start()
            threads.append(thread)
        self._pid = os.getpid()


def _await(samples: Sequence[Sample], answers: SimpleQueue[Sample], progress: Progress) -> None:
    """Wait until all samples are done; report the first one that is not as being read."""
    first, last = 0, len(samples) - 1
    for _ in samples:
        done = answers.get()
        done.is_done = True
        if done.error is not None:
            _give_up(samples, done.place)
        while first < last and samples[first].is_done:
            first += 1
        progress.step(samples[first].place)
    slowest = max(samples, key=lambda sample: sample.nanoseconds)
    progress.slowest, progress.slowest_at = slowest.nanoseconds, slowest.place
    for sample in samples:
        if (raised := sample.error) is not None:
            progress.place, sample.error = sample.place, None
            try:
                raise raised
            finally:
                del raised  # the traceback holds this frame


def _give_up(samples: Sequence[Sample], place: int) -> None:
    """Begin no more samples from a place on."""
    for sample in samples:
        if sample.place >= place:
            sample.is_wanted = False


def _serve(jobs: SimpleQueue[_Job | None], modes: TorchModes) -> None:
    """Read samples until None comes."""
    own = Reading()
    read_apart(own)
    with modes.held():
        while (job := jobs.get()) is not None:
            _read(own, job)
            del job


def _read(own: Reading, job: _Job) -> None:
    """Read one sample, and answer."""
    read, item, sample, context, answers = job
    own.epoch, own.shard, own.info = context.epoch, context.shard, context.info
    own.of_thread, own.maker, own.tokens = context.of_thread, sample, 0
    sample.rng.step = sample
    began = time.monotonic_ns()
    try:
        if sample.is_wanted:
            sample.value = read(item, sample)
    except Cancelled:
        pass
    except BaseException as raised:  # raised again where the batch is built
        sample.error = raised
    own.maker = None
    sample.tokens, sample.nanoseconds = own.tokens, time.monotonic_ns() - began
    answers.put(sample)


def _end(jobs: SimpleQueue[_Job | None], threads: list[OneCoreThread]) -> None:
    for _ in threads:
        jobs.put(None)
    await_threads(threads, _GRACE)
