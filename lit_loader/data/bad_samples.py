"""Reading on past samples that cannot be read: retry, skip or replace them.

::

    BadSamples (the options) ─▶ Attempts: reads one sample, again if need be
                                    ├─ TolerantMapFetcher   samples by index
                                    ╰─ GoodSamples          samples of an iterator

A failed attempt has drawn nothing: the random generators are put back, so that a batch does not
depend on how often its samples had to be tried.
"""

from __future__ import annotations

import dataclasses
import inspect
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from lit_loader.context import reading
from lit_loader.core.batch.batch_spec import BatchSpec
from lit_loader.core.batch.fetch import OMITTED, MapFetcher
from lit_loader.core.batch.progress import Progress
from lit_loader.core.options.loader_config import Retry
from lit_loader.core.seeding.seeds import extend
from lit_loader.data.sample_errors import NOT_REPLACED, SampleError
from lit_loader.describe import annotate
from lit_loader.errors import OptionError, StateError

__all__ = [
    *("MAX_BACKOFF", "MAX_DRAWS", "MAX_IN_A_ROW"),
    *("Attempts", "BadSamples", "GoodSamples", "TolerantMapFetcher"),
]

MAX_BACKOFF: Final = 10.0
"""Seconds that the wait before a retry grows to at most."""

MAX_DRAWS: Final = 100
"""Replacements that are drawn for one bad sample; if all of them are bad too, that is an error."""

MAX_IN_A_ROW: Final = 1000
"""Bad samples of an iterable dataset that are skipped in a row; the next one is an error."""

_SLICE: Final = 0.05  # seconds within which a wait notices that its batch is no longer wanted

_BAD: Final = object()
"""Stands for a sample that could not be read."""


class Attempts:
    """Reads single samples, again if need be, and writes down those that cannot be read.

    ``before`` is called with the place in the batch before each attempt, and seeds the random
    generators: so an attempt that failed has drawn nothing. Several threads may read at a time.
    """

    def __init__(self, tolerance: BadSamples, before: Callable[[int], object]) -> None:
        self.tolerance, self._before = tolerance, before
        self._lock = threading.Lock()
        self.begin()

    def begin(self) -> None:
        """Begin a batch."""
        self.errors: list[SampleError] = []
        self.retries = 0  # how often samples of this batch were retried

    @property
    def are_too_many(self) -> bool:
        """Whether this batch alone passes the limit: no more is read, and its report is raised."""
        limit = self.tolerance.limit
        return limit is not None and len(self.errors) > limit

    def read(
        self,
        read: Callable[..., object],
        index: object,
        position: int,
        progress: Progress,
        several: bool = False,
    ) -> object:
        """Return ``read(index)``; if that is a bad sample, write it down and return `_BAD`.

        ``several``: samples at once, of which not all need be bad, and so none is written down.

        Raises:
            Exception: What ``read`` raises, if bad samples are not passed over.
            Cancelled: The batch is no longer wanted.
        """
        policy, retry, tries = self.tolerance.policy, self.tolerance.retry, 0
        while True:
            self._before(position)
            reading().again, tokens = tries > 0, reading().tokens
            try:
                return read(index)
            except (OptionError, StateError):
                raise  # the program or the state is wrong, and no other sample would be better
            except Exception as error:
                reading().tokens = tokens
                passes = isinstance(error, retry.on)  # type: ignore[arg-type]
                if tries == retry.times or not passes:
                    if several and (passes or policy != "raise"):
                        return _BAD
                    if policy == "raise":
                        if tries:
                            tried = f"this sample was tried {tries + 1} times"
                            annotate(error, f"{tried}, sample_retries={retry.times}")
                        raise
                    progress.step(position)  # raises if the batch was left meanwhile
                    self.errors.append(SampleError.of(error, index, position, tries))
                    return _BAD
            finally:
                reading().again = False
            self._wait(tries, position, progress)
            tries += 1
            with self._lock:
                self.retries += 1

    def _wait(self, tries: int, position: int, progress: Progress) -> None:
        """Wait before the next attempt; not longer than the batch is wanted."""
        doubled = 2.0 ** min(tries, 64)  # a float has an end
        seconds = min(self.tolerance.retry.backoff * doubled, MAX_BACKOFF)
        progress.step(position)
        while seconds > 0:
            time.sleep(min(seconds, _SLICE))
            seconds -= _SLICE
            progress.step(position)


class TolerantMapFetcher(MapFetcher):
    """Reads samples as `MapFetcher` does, and copes with those that cannot be read.

    First all samples of the batch are read, then the bad ones are replaced, where they are to be:
    so the good ones are made with the same random numbers whichever way the bad ones go.

    A dataset's ``__getitems__`` gets the whole batch at first (not with a seed for each sample),
    and single indices after an exception. A replacement is any sample of the dataset; under a
    user's sampler another one of the batch, for only those has it chosen. ``seed_for`` returns the
    seed by which an index is replaced: so all workers, ranks and resumed runs choose the same.
    """

    def __init__(
        self, spec: BatchSpec, attempts: Attempts, seed_for: Callable[[Any], int], *threads: Any
    ) -> None:
        super().__init__(spec.dataset, spec.batched, None, *threads)
        self._attempts, self._seed_for = attempts, seed_for
        self._together = spec.seeding != "sample" and self._many is not None
        self._from_all = spec.own_order

    def fetch(self, indices: Any, progress: Progress) -> Any:
        """Return the good ones of ``[dataset[i] for i in indices]``, or `OMITTED`."""
        attempts = self._attempts
        attempts.begin()
        batch = indices if self._batched else [indices]
        if self._together:
            assert self._many is not None
            progress.step(0)
            many = self._many
            if self._pool is not None:
                many = partial(self._by_getitems, progress=progress)
            samples = attempts.read(many, batch, 0, progress, several=True)
            if samples is not _BAD:
                return samples
        samples = self.each(self._read, batch, progress)
        attempts.errors.sort(key=lambda error: error.position)
        if attempts.errors:
            if attempts.are_too_many:
                return OMITTED
            if attempts.tolerance.policy == "replace":
                self._replace(samples, batch, progress)
            samples = [sample for sample in samples if sample is not _BAD]
            if not samples:
                return OMITTED
        return samples if self._batched else samples[0]

    def _read(self, index: object, progress: Any) -> object:
        """Read a sample of the batch, unless the batch is lost anyway."""
        if self._attempts.are_too_many:
            return _BAD
        return self._attempts.read(self._alone, index, progress.place, progress)

    def _replace(self, samples: list[object], batch: Sequence[object], progress: Progress) -> None:
        """Replace the bad samples, until one cannot be."""
        attempts, errors = self._attempts, self._attempts.errors
        others: Sequence[object] = range(len(self._dataset))
        if not self._from_all:
            others = [batch[place] for place, sample in enumerate(samples) if sample is not _BAD]
        for number, error in enumerate(errors if others else ()):
            seed, place, action = self._seed_for(error.index), error.position, NOT_REPLACED
            for attempt in range(MAX_DRAWS):
                index = others[extend(seed, attempt) % len(others)]
                attempts.errors = []  # a bad one that is drawn counts where it is due
                progress.step(place)
                samples[place] = attempts.read(self._alone, index, place, progress)
                if samples[place] is not _BAD:
                    action = f"replaced by {index!r}"
                    break
            errors[number] = dataclasses.replace(error, action=action)
            if action == NOT_REPLACED:
                break
        attempts.errors = errors


_REACHED: Final = object()
"""Stands for the end of an iterator."""


class GoodSamples:
    """An iterator over those samples of an iterable dataset that can be read.

    Not a generator, which would be finished by the first exception that it lets through. For the
    same reason a generator of the user's cannot be asked again: its end, which it then claims, is
    not the data's, and the exception is raised instead.
    """

    def __init__(self, attempts: Attempts, source: Iterator[object]) -> None:
        self._attempts, self._source = attempts, source
        self._progress = Progress()
        self._position = 0
        self._error: Exception | None = None  # the source's last, since the last good sample

    def begin(self, progress: Progress) -> None:
        """Begin a batch."""
        self._progress, self._position = progress, 0
        self._attempts.begin()

    @property
    def noted(self) -> bool:
        """Whether there is something to report of this batch."""
        return bool(self._attempts.errors or self._attempts.retries)

    def __next__(self) -> object:
        try:
            for _ in range(MAX_IN_A_ROW):
                sample = self._attempts.read(self._ask, None, self._position, self._progress)
                if sample is _REACHED:
                    if self._error is not None and _went_through_a_generator(self._error):
                        raise self._noted(_NO_GOING_ON)
                    raise StopIteration
                if sample is not _BAD:
                    self._position += 1
                    return sample
                if self._attempts.are_too_many:
                    raise StopIteration
            raise self._noted(
                f"{MAX_IN_A_ROW} samples in a row could not be read, of which this was the last"
            )
        finally:
            self._error = None

    def _noted(self, note: str) -> Exception:
        """Return the source's last exception, with a note of why it was not passed over."""
        assert self._error is not None
        annotate(self._error, note)
        return self._error

    def _ask(self, _: None) -> object:
        try:
            return next(self._source, _REACHED)
        except Exception as error:
            self._error = error
            raise


_NO_GOING_ON = (
    "a generator cannot continue after an exception, so the sample was neither retried nor "
    "skipped. Catch the exception in the generator, or use an iterator class with __next__ [LL210]"
)


# reach: python: frames say whether a generator let an exception through
def _went_through_a_generator(error: Exception) -> bool:
    """Whether a generator has let the exception through, which has finished it."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_flags & inspect.CO_GENERATOR for frame, _ in frames)


@dataclasses.dataclass(frozen=True)
class BadSamples:
    """What is done about bad samples, by the loader's options: the ``tolerance`` of a spec."""

    policy: str  # "raise", "skip" or "replace"
    retry: Retry
    limit: int | None = None  # the loader's max_sample_errors

    map_fetcher: ClassVar[type[TolerantMapFetcher]] = TolerantMapFetcher
    stream: ClassVar[type[GoodSamples]] = GoodSamples

    def attempts(self, before: Callable[[int], object]) -> Attempts:
        """Return what reads single samples, see `Attempts`."""
        return Attempts(self, before)

    @classmethod
    def of(cls, loader: Any) -> BadSamples:
        """Return that of a loader's options."""
        retries = loader.sample_retries
        retry = retries if isinstance(retries, Retry) else Retry(retries)
        return cls(loader.on_sample_error, retry, loader.max_sample_errors)
