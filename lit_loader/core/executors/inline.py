"""`Inline`: ``num_workers=0``, batches are made in the consumer's thread, when it asks for them."""

from __future__ import annotations

import time
import weakref

from lit_loader.context import reading
from lit_loader.core.batch.batch_builder import builder_of
from lit_loader.core.batch.batch_spec import BatchSpec, BatchWithReport
from lit_loader.core.batch.fetch import EndOfData
from lit_loader.core.batch.progress import Progress, Timings
from lit_loader.core.executors.executor import Executor, Outcome, Pin, Task, failure
from lit_loader.core.seeding.borrowed_rng import BorrowedRng, draws_of
from lit_loader.core.seeding.held_generators import Found
from lit_loader.core.seeding.seeds import PassSeeds
from lit_loader.core.transport.messages import POSITION, listed
from lit_loader.core.transport.worker_exception import describe_batch


class Inline(Executor):
    """Makes each batch in the thread that asks for it, by `make`: nothing is submitted or received.

    The global random generators are, after that, as they were before. Loaders in other threads wait
    meanwhile, unless they read tables: the generators are one resource of the process.
    """

    def __init__(
        self, spec: BatchSpec, pin: Pin | None, seeds: PassSeeds, found: Found | None, owner: object
    ) -> None:
        """``found`` are the generators that the dataset holds, if known; ``owner`` the loader."""
        self._pin, self._iterable = pin, spec.iterable
        self._progress = Progress()
        self._builder = builder = builder_of(spec, found=found)
        builder.enter(seeds)
        self._draws = draws_of(spec.dataset, spec.collate_fn, owner)
        always = spec.per_sample or spec.reseed_fn is not None
        if spec.iterable or spec.read_threads > 1 or always:
            # At once: the builder is in cycles.
            end = builder.begin_epoch if spec.iterable else builder.end
            weakref.finalize(self, end).atexit = False
        self.draws = not builder.reads_table
        # A table only where it cannot be read as one: nothing is locked.
        self._always = always or builder.reads_table

    def make(self, task: Task) -> Outcome:
        """Make the batch of a task, at once."""
        progress, builder = self._progress, self._builder
        indices = listed(task.indices) if task.own else task.indices
        progress.begin(-1)
        batch, error = builder.take(indices, progress) if builder.reads_table else None, None
        if batch is None:
            batch, error = self._load(task, indices)
        now = time.monotonic_ns()
        timings = Timings(-1, 0, progress.stages(builder.samples, now))
        timings.arrived = now
        outcome = Outcome(task.number, timings)
        if error is not None:
            outcome.ended = isinstance(error, EndOfData)
            outcome.error = None if outcome.ended else error
            del error  # whose traceback is to hold no frame that holds it
        elif type(batch) is BatchWithReport:
            outcome.made, outcome.batch = batch, batch.batch
        else:
            outcome.batch = batch
        if self._pin is not None:
            outcome.pin(self._pin)
        return outcome

    def _load(self, task: Task, indices: object) -> tuple[object, BaseException | None]:
        """Make a batch by the user's code, with the generators lent; or return what it raised."""
        builder, number, context = self._builder, task.number & POSITION, reading()
        draws, tapes, rng = self._draws, builder.held.tapes, None
        watched = not self._always and draws.batches >= draws.due
        if draws.drawn or tapes or self._always or watched:
            rng = BorrowedRng(draws, tapes, self._always, watched)
        builder.seed_globals = None if rng is None else rng.seed
        place = context.leave()
        try:
            try:
                if rng is None:
                    draws.batches += 1
                else:
                    rng.begin()
                batch = builder.load(indices, number, task.epoch, task.seeds, self._progress)
            finally:
                context.return_to(place)
                if rng is not None:
                    rng.end()
        except BaseException as error:
            # A signal handler may have raised before all was put back.
            context.return_to(place)
            if rng is not None:
                rng.end()
            if isinstance(error, EndOfData):  # another one has no frames, which hold this executor
                return None, EndOfData()
            if not isinstance(error, Exception):
                raise
            # What an exception from a worker has in its message.
            read = builder.whose(number) if self._iterable else indices
            return None, failure(error, f"in {describe_batch(number, read, self._progress)}")
        if rng is None or rng.late is None:
            return batch, None
        made = batch if type(batch) is BatchWithReport else builder.with_report(batch)
        return made._replace(notes=(*made.notes, rng.late)), None

    def close(self, keep_workers: bool = False) -> None:
        """Close the stream that is being read."""
        if self._iterable:
            self._builder.begin_epoch()
