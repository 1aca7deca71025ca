"""`ExactnessCheck`: makes an epoch's first batches again, elsewhere, and compares.

An iterator shows it the batches that it gives out; what differs comes out as a warning.
A batch is to be a function of (seed, epoch, batch number). What breaks that and cannot be found by
looking (generators of the user's own making, counters, the order of sets, the process's id) is
noticed by what it does: the bytes differ. Of the batches that are compared only digests are kept,
taken before the consumer gets them.

With workers another worker process, started for this, makes them, the last one first. With
``num_workers=0`` the consumer's own process does so, after the last of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from lit_loader.batch.batch_loader import BatchLoader
from lit_loader.batch.batch_spec import BatchWithReport
from lit_loader.batch.digest import Digest, difference, digest
from lit_loader.context import reading
from lit_loader.errors import ExactnessWarning, LoaderError
from lit_loader.sampling.epochs import EpochStart
from lit_loader.seeding.generator_state import preserved
from lit_loader.transport.messages import position_of, task_number
from lit_loader.transport.status_board import Progress
from lit_loader.workers.outcome import Outcome, WorkerDeath
from lit_loader.workers.worker_pool import WorkerPool

__all__ = ["ExactnessCheck", "Made", "made_by_pool", "made_here"]


class Made(NamedTuple):
    """A batch that was given out.

    Attributes:
        epoch: Its epoch.
        seed: Base seed of the epoch.
        number: Position in the epoch.
        indices: What it was made of.
        digest: What it held.
    """

    epoch: int
    seed: int
    number: int
    indices: Any
    digest: Digest


Remake = Callable[[Sequence[Made]], Iterator[tuple[int, Any]]]
"""Makes batches again; gives their numbers and the batches, or the exceptions in their place."""


class ExactnessCheck:
    """Compares an epoch's first batches with what they are when they are made again; once.

    Args:
        batches: How many.
        remake: Makes them again.
        warn: Called with a warning's text and class.
        on_done: Called when the comparison begins, for it is made once.
        from_start: Whether only batches of an epoch that began at its start can be made again.

    Attributes:
        done: Whether there is nothing more to be done.
    """

    def __init__(
        self,
        batches: int,
        remake: Remake,
        warn: Callable[[str, type[Warning]], None],
        on_done: Callable[[], None],
        from_start: bool,
    ) -> None:
        self._batches = batches
        self._remake = remake
        self._warn = warn
        self._on_done = on_done
        self._from_start = from_start
        self._made: list[Made] = []
        self.done = False

    def note(self, start: EpochStart, number: int, indices: Any, batch: Any) -> None:
        """Note a batch that is about to be given out; the last one starts the comparison."""
        began = start.position.start
        if self.done or (self._from_start and (began.batches or began.readers)):
            return
        if self._made and self._made[0].epoch != start.epoch:
            self._made.clear()  # that epoch was left early
        self._made.append(Made(start.epoch, start.seed, number, indices, digest(batch)))
        if len(self._made) >= self._batches:
            self.finish()

    def finish(self) -> None:
        """Compare what there is, at the latest at the epoch's end."""
        if self.done or not self._made:
            return
        self.done = True
        self._on_done()
        made, self._made = self._made, []
        expected = {each.number: each for each in made}
        try:
            for number, batch in self._remake(made):
                one = expected.get(number)
                if one is not None and (found := difference(one.digest, digest(batch))):
                    self._warn(
                        f"check_exactness: batch {number} of epoch {one.epoch} came out otherwise "
                        f"when it was made again, after other batches: {found}. Something "
                        "there is not a function of seed and index (a generator that is not "
                        "found, a counter, the order of a set): seed it in "
                        "reseed_fn(dataset, seed), or let it follow from the index",
                        ExactnessWarning,
                    )
                    return
        except (LoaderError, WorkerDeath, OSError) as error:
            cause = str(error)
            if isinstance(error, WorkerDeath):
                cause = f"the worker ended, with exit code {error.exitcode}"
            self._warn(
                f"check_exactness could not make the first batches again ({cause}): they were not "
                "compared",
                UserWarning,
            )


def made_here(begin: Callable[[], BatchLoader]) -> Remake:
    """Make batches again in this process, the last one first.

    Args:
        begin: Gives what makes them.
    """

    def remake(made: Sequence[Made]) -> Iterator[tuple[int, Any]]:
        loader = begin()
        for one in reversed(made):
            place = reading.leave()
            try:
                with preserved():
                    batch = loader.load(one.indices, one.number, one.epoch, one.seed, Progress())
            except Exception as error:
                batch = error
            finally:
                reading.return_to(place)
            yield one.number, batch.batch if type(batch) is BatchWithReport else batch

    return remake


def made_by_pool(start: Callable[[int, int], WorkerPool], workers: int, timeout: float) -> Remake:
    """Make batches again in worker processes that are started for it.

    Args:
        start: Starts workers; called with the base seed and how many.
        workers: Workers among which the batches of an iterable dataset are dealt out in turn; 0 for
            a map-style one.
        timeout: Seconds that a batch may take; 0: any.
    """

    def remake(made: Sequence[Made]) -> Iterator[tuple[int, Any]]:
        first = made[0]
        numbers = [*range(made[-1].number + 1)]
        if not workers:
            # The first one at first, and again as the last: one alone is made twice.
            numbers = [first.number, *(one.number for one in reversed(made))]
        indices = {one.number: one.indices for one in made}
        pool = start(first.seed, max(1, workers))
        try:
            for number in numbers:  # one at a time: no task is taken by another's turn
                task = task_number(first.epoch, number)
                pool.submit(task, indices.get(number), first.epoch, first.seed)
                outcome = _received(pool, timeout)
                if outcome.memory is not None or outcome.failure is not None:
                    yield position_of(outcome.number), _batch(outcome)
        finally:
            pool.close()

    return remake


def _received(pool: WorkerPool, timeout: float) -> Outcome:
    deadline = time.monotonic() + (timeout or math.inf)
    while (left := deadline - time.monotonic()) > 0:
        # While its workers come up, a pool returns early, to be asked again.
        outcome = pool.receive(None if left == math.inf else left)
        if outcome is not None:
            return outcome
    raise LoaderError(f"a batch took longer than timeout={timeout:g}")


def _batch(outcome: Outcome) -> Any:
    outcome.unpack()
    return outcome.batch if outcome.error is None else outcome.error
