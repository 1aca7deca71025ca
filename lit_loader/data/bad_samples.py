"""Reading on past samples that cannot be read: `TolerantMapFetcher`, `GoodSamples`.

They are tried again, skipped, or replaced by others, as the options say. An attempt that failed has
drawn nothing: the random generators are put back, so that what a batch holds does not depend on how
often its samples had to be tried.
"""

from __future__ import annotations

import inspect
import itertools
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

from lit_loader.core.batch.batch_spec import BatchSpec
from lit_loader.core.batch.fetch import OMITTED, MapFetcher
from lit_loader.core.batch.progress import Progress
from lit_loader.core.seeding.seeds import extend
from lit_loader.data.sample_errors import (
    BAD,
    NOT_REPLACED,
    TRANSIENT_ERRORS,
    Attempts,
    Tolerance,
    TooMany,
)
from lit_loader.describe import annotate

__all__ = ["MAX_DRAWS", "MAX_IN_A_ROW", "BadSamples", "GoodSamples", "TolerantMapFetcher"]

MAX_DRAWS: Final = 100
"""Replacements that are drawn for one bad sample; if none of them is good it is skipped, and if no
sample of its batch is good either, no more are drawn for that batch."""

MAX_IN_A_ROW: Final = 1000
"""Bad samples of an iterable dataset that are skipped one after the other; then it is an error."""


@dataclass(frozen=True)
class BadSamples:
    """The seam: what a `BatchSpec` has as its ``tolerance``."""

    tolerance: Tolerance

    @classmethod
    def of(cls, loader: Any) -> BadSamples:
        """Give that of a loader's options."""
        transient = loader.transient_errors
        return cls(
            Tolerance(
                policy=loader.on_sample_error,
                limit=loader.max_sample_errors,
                retries=loader.sample_retries,
                backoff=loader.retry_backoff,
                transient=TRANSIENT_ERRORS if transient is None else transient,
            )
        )

    def attempts(self, before: Callable[[Any], object], undo: Callable[[], object]) -> Attempts:
        """Give what reads single samples, see `Attempts`."""
        return Attempts(self.tolerance, before, undo)

    def map_fetcher(
        self, spec: BatchSpec, attempts: Attempts, seed_for: Callable[[Any], int]
    ) -> TolerantMapFetcher:
        """Give what reads samples by index."""
        return TolerantMapFetcher(spec, attempts, seed_for)

    def stream(self, attempts: Attempts) -> GoodSamples:
        """Give what passes over a stream's bad samples."""
        return GoodSamples(attempts)


class TolerantMapFetcher(MapFetcher):
    """Reads samples as `MapFetcher` does, and copes with those that cannot be read.

    First all samples of the batch are read, then the bad ones are replaced, where they are to be:
    so the good ones are made with the same random numbers whichever way the bad ones go.

    A dataset's ``__getitems__`` gets the whole batch at first (not with a seed for each sample),
    and single indices after an exception. A replacement is any sample of the dataset; under a
    user's sampler another one of the batch, for only those has it chosen. ``seed_for`` gives the
    seed by which an index is replaced.
    """

    def __init__(self, spec: BatchSpec, attempts: Attempts, seed_for: Callable[[Any], int]) -> None:
        super().__init__(spec.dataset, spec.batched)
        self._attempts, self._seed_for = attempts, seed_for
        self._together = spec.seeding != "sample" and self._many is not None
        self._from_all = spec.own_order

    def fetch(self, indices: Any, progress: Progress) -> Any:
        """Return what can be had of ``[dataset[i] for i in indices]``."""
        attempts = self._attempts
        attempts.begin()
        batch = indices if self._batched else [indices]
        if self._together:
            assert self._many is not None
            progress.step(0)
            samples = attempts.read(self._many, batch, 0, progress, several=True)
            if samples is not BAD:
                return samples
        try:
            samples = self._in_turn(batch, progress)
        except TooMany:
            return OMITTED
        if attempts.errors and not samples:
            return OMITTED
        return samples if self._batched else samples[0]

    def _in_turn(self, batch: Any, progress: Progress) -> list[Any]:
        read, positions = self._attempts.read, itertools.count()
        samples = progress.read(
            lambda index: read(self._alone, index, next(positions), progress), batch
        )
        if not self._attempts.errors:
            return samples
        if self._attempts.tolerance.policy == "replace":
            self._replace(samples, batch, progress)
        return [sample for sample in samples if sample is not BAD]

    def _replace(self, samples: list[Any], batch: Any, progress: Progress) -> None:
        errors = self._attempts.errors
        good = [place for place, sample in enumerate(samples) if sample is not BAD]
        others: Sequence[Any] = range(len(self._dataset))
        if not self._from_all:
            others = [batch[place] for place in good]
        for number, error in enumerate(tuple(errors)):
            samples[error.position] = sample = self._replacement(number, others, progress)
            if number == 0 and sample is BAD and self._from_all and not good:
                self._note(range(len(errors)), NOT_REPLACED)
                return  # nothing of all this can be read

    def _replacement(self, number: int, others: Sequence[Any], progress: Progress) -> Any:
        """Read the first good one of the replacements for a bad sample; `BAD` if there is none.

        Which they are depends on the epoch's seed, the bad sample's index and their count alone.
        A bad one is a bad sample like any other, and not read again for this batch.
        """
        errors = self._attempts.errors
        index, position, before = errors[number].index, errors[number].position, len(errors)
        seed = self._seed_for(index)
        tried = {error.index for error in errors} if self._from_all else set()
        for attempt in range(MAX_DRAWS if others else 0):
            place = extend(seed, attempt) % len(others)
            if place in tried:
                continue
            tried.add(place)
            progress.step(position)
            sample = self._attempts.read(self._alone, others[place], position, progress)
            if sample is not BAD:
                self._note([number, *range(before, len(errors))], f"replaced by {others[place]!r}")
                return sample
        return BAD

    def _note(self, numbers: Iterable[int], action: str) -> None:
        errors = self._attempts.errors
        for number in numbers:
            errors[number] = replace(errors[number], action=action)


# Why an iterator gives no more samples: it has said so; it cannot go on after its exception.
_REACHED, _AFTER_ERROR = object(), object()


class GoodSamples:
    """An iterator over those samples of an iterable dataset's that can be read.

    Not a generator, which would be finished by the first exception that it lets through. For the
    same reason a generator of the user's cannot be asked again: its end, which it then claims, is
    none of the data's, and the exception is raised instead.
    """

    def __init__(self, attempts: Attempts) -> None:
        self._source: Any = None
        self._attempts = attempts
        self._progress = Progress()
        self._position = 0
        self._error: Exception | None = None  # the source's last, since the last good sample

    def of(self, source: Any) -> GoodSamples:
        """Begin to ask an iterator."""
        self._source = source
        return self

    def begin(self, progress: Progress) -> None:
        """Begin a batch."""
        self._progress, self._position = progress, 0
        self._attempts.begin()

    @property
    def noted(self) -> bool:
        """Whether there is something to report of this batch."""
        return bool(self._attempts.errors or self._attempts.retries)

    def __next__(self) -> Any:
        try:
            for _ in range(MAX_IN_A_ROW):
                sample = self._attempts.read(self._ask, None, self._position, self._progress)
                if sample is _REACHED:
                    raise StopIteration
                if sample is _AFTER_ERROR:
                    self._raise(_NO_GOING_ON)
                if sample is not BAD:
                    self._position += 1
                    return sample
            self._raise(
                f"{MAX_IN_A_ROW} samples in a row could not be read, of which this was the last"
            )
        finally:
            self._error = None

    def _raise(self, note: str) -> NoReturn:
        """Raise the source's last exception, with a note of why it was not passed over."""
        error = self._error
        assert error is not None
        try:
            annotate(error, note)
            raise error
        finally:
            del error  # its traceback holds this frame

    def _ask(self, _: None) -> Any:
        try:
            sample = next(self._source, _REACHED)
        except Exception as error:
            self._error = error
            finished = getattr(self._source, "gi_frame", self._source) is None
            if finished and self._attempts.goes_on_after(error):
                return _AFTER_ERROR
            raise
        if sample is not _REACHED:
            self._error = None
        elif self._error is not None and _went_through_a_generator(self._error):
            return _AFTER_ERROR
        return sample


_NO_GOING_ON = (
    "a generator cannot go on after an exception, so the sample was neither tried again nor "
    "skipped: catch the exception in the generator, or give an iterator with a __next__ of its "
    "own [LL210]"
)


# reach: python: frames say whether a generator let an exception through
def _went_through_a_generator(error: Exception) -> bool:
    """Whether a generator has let the exception through, which has finished it."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_flags & inspect.CO_GENERATOR for frame, _ in frames)
