"""`ExactnessCheck`: makes an epoch's first batches again, elsewhere, and compares.

An iterator shows it the batches that it gives out; what differs comes out as a warning.
A batch is to be a function of (seed, epoch, batch number). What breaks that and cannot be found by
looking (generators of the user's own making, counters, the order of sets, the process's id) is
noticed by what it does: the bytes differ. Of the batches that are compared only digests are kept,
taken before the consumer gets them.

With workers another worker process, started for this, makes them, the last one first. With
``num_workers=0`` or threads the consumer's own process does so, after the last of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

from lit_loader.context import reading
from lit_loader.core.batch.batch_builder import BatchBuilder
from lit_loader.core.batch.batch_spec import BatchWithReport
from lit_loader.core.batch.progress import Progress
from lit_loader.core.epoch.epochs import EpochStart
from lit_loader.core.executors.executor import Task
from lit_loader.core.executors.outcome import Outcome, WorkerDeath
from lit_loader.core.executors.worker_pool import WorkerPool
from lit_loader.core.seeding.generator_state import preserved
from lit_loader.core.transport.messages import position_of, task_number
from lit_loader.errors import ExactnessWarning, LoaderError
from lit_loader.profiling.digest import Digest, difference, digest

__all__ = ["ExactnessCheck", "check_of"]


class ExactnessCheck:
    """Compares an epoch's first batches with what they are when they are made again; once."""

    def __init__(self, core: Any, in_process: bool) -> None:
        self._core, self._in_process = core, in_process
        self._start: EpochStart | None = None
        self._made: dict[int, tuple[Any, Digest]] = {}  # indices and digests, of batches given out
        self.done = False  # whether there is nothing more to be done

    def note(self, start: EpochStart, number: int, indices: Any, batch: Any) -> None:
        """Note a batch that is about to be given out; the last one starts the comparison."""
        began = start.position.start
        # What a stream's reader gives follows from its beginning.
        if self.done or (self._core.iterable and (began.batches or began.readers)):
            return
        if self._start is not start:
            self._start, self._made = start, {}  # the epoch before was left early
        self._made[number] = indices, digest(batch)
        if len(self._made) >= self._core.loader.check_determinism:
            self.finish()

    def finish(self) -> None:
        """Compare what there is, at the latest at the epoch's end."""
        core, start, made = self._core, self._start, self._made
        if self.done or start is None or not made:
            return
        self.done = core.checked = True
        try:
            for number, batch in self._again(start):
                if number in made and (found := difference(made[number][1], digest(batch))):
                    core.warn_once(
                        f"check_determinism: batch {number} of epoch {start.epoch} came out "
                        f"otherwise when it was made again, after other batches: {found}. "
                        "Something there is not a function of seed and index (a generator that is "
                        "not found, a counter, the order of a set): seed it in "
                        "reseed_fn(dataset, seed), or let it follow from the index [LL408]",
                        ExactnessWarning,
                    )
                    return
        except (LoaderError, WorkerDeath, OSError) as error:
            cause = str(error)
            if isinstance(error, WorkerDeath):
                cause = f"the worker ended, with exit code {error.exitcode}"
            core.warn_once(
                f"check_determinism could not make the first batches again ({cause}): they were "
                "not compared [LL416]"
            )

    def _again(self, start: EpochStart) -> Iterator[tuple[int, Any]]:
        threads = self._core.loader.worker_method == "thread"
        if self._in_process or (threads and not self._core.iterable):
            return self._here(start)
        return self._by_threads(start) if threads else self._by_workers(start)

    def _by_threads(self, start: EpochStart) -> Iterator[tuple[int, Any]]:
        """Make a stream's batches again, by other copies of it."""
        executor = self._core.new_workers(start)
        try:
            for number in range(max(self._made) + 1):
                task = task_number(start.epoch, number)
                executor.submit(Task(task, None, start.epoch, start.seeds))
                outcome = executor.receive()
                if outcome is not None and not outcome.ended:
                    yield number, outcome.batch if outcome.error is None else outcome.error
        finally:
            executor.close()

    def _here(self, start: EpochStart) -> Iterator[tuple[int, Any]]:
        """Make batches again in this process, the last one first."""
        loader = BatchBuilder(self._core.spec())
        for number, (indices, _) in reversed(self._made.items()):
            place = reading().leave()
            try:
                with preserved():
                    batch = loader.load(indices, number, start.epoch, start.seeds, Progress())
            except Exception as error:
                batch = error
            finally:
                reading().return_to(place)
            yield number, batch.batch if type(batch) is BatchWithReport else batch

    def _by_workers(self, start: EpochStart) -> Iterator[tuple[int, Any]]:
        core, numbers, workers = self._core, [*self._made], 1
        # The first one at first, and again as the last: one alone is made twice.
        order = [numbers[0], *reversed(numbers)]
        if core.iterable:
            order = [*range(numbers[-1] + 1)]
            # One worker serves all readers, where these are no workers.
            workers = core.loader.num_workers if core.shards is None else 1
        pool = core.start_pool(core.worker_seed(start), workers)
        try:
            for number in order:  # one at a time: no task is taken by another's turn
                indices, _ = self._made.get(number, (None, None))
                pool.submit(task_number(start.epoch, number), indices, start.epoch, start.seeds)
                outcome = _received(pool, core.loader.timeout)
                if outcome.memory is not None or outcome.failure is not None:
                    outcome.unpack()
                    batch = outcome.batch if outcome.error is None else outcome.error
                    yield position_of(outcome.number), batch
        finally:
            pool.close()


def _received(pool: WorkerPool, timeout: float) -> Outcome:
    deadline = time.monotonic() + (timeout or math.inf)
    while (left := deadline - time.monotonic()) > 0:
        # While its workers come up, a pool returns early, to be asked again.
        outcome = pool.receive(None if left == math.inf else left)
        if outcome is not None:
            return outcome
    raise LoaderError(
        f"a batch took longer than timeout={timeout:g} while check_determinism made it again: "
        "raise timeout, or set it to 0 while you check [LL409]"
    )


def check_of(core: Any, in_process: bool) -> ExactnessCheck | None:
    """Give what compares the first batches with themselves made again; None: nothing does."""
    if core.checked:
        return None
    if in_process and core.iterable:
        core.warn_once(
            "check_determinism needs num_workers of at least 1 for an IterableDataset: it would "
            "be iterated twice in this process [LL417]"
        )
        return None
    return ExactnessCheck(core, in_process)
