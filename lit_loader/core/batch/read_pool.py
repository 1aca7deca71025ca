"""`ReadPool`: the threads with which a worker reads the samples of its batch (``read_threads=n``).

::

    MapFetcher ─ a job for each sample ─▶ one queue ─▶ n threads ─▶ answers ─▶ samples, in order

- In such a thread a `Sample` stands for `BatchBuilder` and `Progress`. It knows the sample's place
  in the batch, so `get_rng` returns what it returns without threads.
- Jobs are begun in the order of the batch. If several samples raise, the first one in the batch
  counts, as without threads.
- A batch that is no longer wanted is left when the samples that were begun have been read.
- The threads start with the first batch. They end when the pool is dropped, or with the process. A
  forked copy starts new ones.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

from lit_loader.context import Reading, read_apart, reading
from lit_loader.core.batch.batch_spec import TorchModes
from lit_loader.core.batch.progress import Cancelled, Progress
from lit_loader.core.batch.worker_info import answer_threads
from lit_loader.core.seeding.generator_lock import lent_to_others
from lit_loader.core.seeding.seeds import BatchRng
from lit_loader.core.seeding.shared_draws import SharedDraws
from lit_loader.core.system.one_core_thread import OneCoreThread, await_threads

__all__ = ["ReadPool", "Sample"]

_GRACE: Final = 0.5
"""Seconds that the end of a pool waits at most for threads that are at a sample."""


class Sample:
    """What one sample is read with, in the thread that reads it.

    ``rng`` makes its generators, ``seed`` is the answer of ``get_worker_info().seed``, ``note``
    takes what the user is to be warned of, and ``beat`` notes that there is progress.
    """

    def __init__(
        self,
        place: int,
        rng: BatchRng,
        seed: int,
        note: Callable[[str], None],
        beat: Callable[[], None],
    ) -> None:
        self.place, self.rng, self.seed, self.note, self._beat = place, rng, seed, note, beat
        self.is_wanted = True
        rng.step = self

    def step(self, place: int) -> None:
        """Note that another attempt at this sample comes next.

        Raises:
            Cancelled: The batch is no longer wanted.
        """
        if not self.is_wanted:
            raise Cancelled
        self._beat()


class _Batch(NamedTuple):
    """A batch that is being read."""

    read: Callable[[Any, Any], Any]
    context: Reading  # of the thread that builds the batch
    answers: SimpleQueue[_Answer]


class _Answer(NamedTuple):
    number: int  # the job's
    value: Any = None
    error: BaseException | None = None
    tokens: int = 0
    nanoseconds: int = 0


class ReadPool:
    """Reads the samples of one batch at a time, by ``count`` threads."""

    def __init__(self, count: int, modes: TorchModes) -> None:
        self.count, self._modes = count, modes
        self._jobs: SimpleQueue[Any] = SimpleQueue()
        self._pid = 0  # the process that the threads are in
        self.draws: SharedDraws | None = None  # notices what they must not draw from
        self.end: Callable[[], Any] = lambda: None

    def look_for(self, found: Iterable[tuple[str, Any]]) -> None:
        """Notice if samples draw from generators that threads share: those found, the global."""
        self.draws = SharedDraws(found)

    def read(
        self,
        read: Callable[[Any, Any], Any],
        items: Sequence[Any],
        samples: Sequence[Sample],
        progress: Progress,
    ) -> list[Any]:
        """Return ``[read(item, sample) for …]``, each called in a thread.

        Raises:
            BaseException: What ``read`` raised; that of the first item if there are several.
            Cancelled: The batch is no longer wanted.
        """
        if self._pid != os.getpid():
            self._start()
        batch, draws = _Batch(read, reading(), SimpleQueue()), self.draws
        before = None if draws is None else draws.look()
        for number, item in enumerate(items):
            self._jobs.put((batch, number, item, samples[number]))
        try:
            with lent_to_others():  # a sample may iterate a loader
                found = _gathered(batch, samples, progress)
        finally:
            for sample in samples:  # if this is an exception, of a signal handler, say
                sample.is_wanted = False
        if draws is not None and (report := draws.report(before)) is not None:
            reading().maker.note(report)
        return found

    def _start(self) -> None:
        answer_threads()
        jobs, threads = SimpleQueue[Any](), list[OneCoreThread]()
        self._jobs = jobs
        self.end = end = weakref.finalize(self, _end, jobs, threads)
        end.atexit = False  # they wait, and are daemons
        for number in range(self.count):
            name = f"lit_loader reader {number}"
            thread = OneCoreThread(target=_serve, args=(jobs, self._modes), name=name)
            thread.start()
            threads.append(thread)
        self._pid = os.getpid()


def _gathered(batch: _Batch, samples: Sequence[Sample], progress: Progress) -> list[Any]:
    """Wait for a batch's answers; report the first sample that is not there as being read."""
    answers: dict[int, _Answer] = {}
    first, failed, cancelled = 0, len(samples), None
    while len(answers) < len(samples):
        answer = batch.answers.get()
        answers[answer.number] = answer
        if answer.error is not None and answer.number < failed:
            failed = answer.number
            for sample in samples[failed:]:
                sample.is_wanted = False
        while first in answers:
            first += 1
        try:
            progress.step(samples[min(first, len(samples) - 1)].place)
        except Cancelled as error:
            cancelled = error
            for sample in samples:
                sample.is_wanted = False
    if cancelled is not None:
        raise cancelled
    slowest = max(answers.values(), key=lambda answer: answer.nanoseconds)
    progress.slowest, progress.slowest_at = slowest.nanoseconds, samples[slowest.number].place
    if (raised := answers[min(failed, len(samples) - 1)].error) is not None:
        progress.place = samples[failed].place
        try:
            raise raised
        finally:
            del raised, answers, answer  # the traceback holds this frame
    reading().tokens += sum(answer.tokens for answer in answers.values())
    return [answers[number].value for number in range(len(samples))]


def _serve(jobs: SimpleQueue[Any], modes: TorchModes) -> None:
    """Read samples until None comes."""
    own = Reading()
    read_apart(own)
    with modes.held():
        while (job := jobs.get()) is not None:
            _read(own, *job)
            del job


def _read(own: Reading, batch: _Batch, number: int, item: Any, sample: Sample) -> None:
    """Read one sample, and answer."""
    if not sample.is_wanted:
        batch.answers.put(_Answer(number))
        return
    context, value, error = batch.context, None, None
    own.epoch, own.shard = context.epoch, context.shard
    own.of_thread, own.info = context.of_thread, context.info
    own.maker, own.tokens, began = sample, 0, time.monotonic_ns()
    try:
        value = batch.read(item, sample)
    except Cancelled:
        pass
    except BaseException as raised:  # raised again where the batch is built
        error = raised
    own.maker = None
    took = time.monotonic_ns() - began
    batch.answers.put(_Answer(number, value, error, own.tokens, took))


def _end(jobs: SimpleQueue[Any], threads: list[OneCoreThread]) -> None:
    for _ in threads:
        jobs.put(None)
    await_threads(threads, _GRACE)
