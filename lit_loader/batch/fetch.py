"""Reading samples out of a dataset: by index, or by iterating.

The fetchers do only this. They report each sample before they read it, which is how a worker says
where it is and finds out that a batch is no longer wanted; collation comes afterwards and
elsewhere, so that the two can be timed apart.

Where the options ask for it, samples that cannot be read are tried again, skipped, or replaced by
others (`TolerantMapFetcher`, `GoodSamples`); else this costs nothing. An attempt that failed has
drawn nothing: the random generators are put back, so that what a batch holds does not depend on how
often its samples had to be tried.
"""

from __future__ import annotations

import inspect
import itertools
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NoReturn

from torch.utils.data import Subset

from lit_loader.batch.batch_spec import BatchSpec
from lit_loader.batch.sample_errors import BAD, NOT_REPLACED, OMITTED, Attempts, TooMany, annotate
from lit_loader.checkpoint.stateful import Opened
from lit_loader.seeding.seeds import extend
from lit_loader.transport.status_board import Progress

__all__ = [
    *("MAX_DRAWS", "MAX_IN_A_ROW", "EndOfData", "GoodSamples", "IterableFetcher", "MapFetcher"),
    *("TolerantMapFetcher", "as_read"),
]

MAX_DRAWS: Final = 100
"""Replacements that are drawn for one bad sample; if none of them is good it is skipped, and if no
sample of its batch is good either, no more are drawn for that batch."""

MAX_IN_A_ROW: Final = 1000
"""Bad samples of an iterable dataset that are skipped one after the other; then it is an error."""


def as_read(dataset: Any) -> tuple[Any, Callable[[Any], Any] | None]:
    """Give what a batch's samples are read from, and what reads them all at once, or None.

    Torch's ``Subset`` has ``__getitems__`` for the sake of what is in it. Around a dataset that has
    none it reads one sample after the other: so do we then, and know which one it is at.
    """
    kind = type(dataset)
    if (
        getattr(kind, "__getitems__", None) is Subset.__getitems__
        and kind.__getitem__ is Subset.__getitem__
        and as_read(dataset.dataset)[1] is None
    ):
        return dataset, None
    # A dataset may set it to None to say that it has none.
    return dataset, getattr(dataset, "__getitems__", None)


class EndOfData(Exception):
    """The iterable dataset (or this worker's share of it) has nothing more to give."""


class MapFetcher:
    """Reads samples of a map-style dataset: a batch's list of indices, or one index.

    ``before_sample`` is called with each index before its sample is read; a dataset's
    ``__getitems__``, which else has the whole list, then gets one index at a time.
    """

    def __init__(
        self, dataset: Any, batched: bool, before_sample: Callable[[Any], None] | None = None
    ) -> None:
        self._dataset, self._many = as_read(dataset) if batched else (dataset, None)
        self._batched = batched
        self._before_sample = before_sample

    def fetch(self, indices: Any, progress: Progress) -> Any:
        """Return ``[dataset[i] for i in indices]``, or ``dataset[indices]`` if not batched."""
        if not self._batched:
            progress.step(0)
            return self._seeded(indices)
        if self._before_sample is not None:
            return progress.read(self._seeded, indices)
        if self._many is not None:
            progress.step(0)
            return self._many(indices)
        return progress.read_all(self._dataset, indices)

    def _seeded(self, index: Any) -> Any:
        if self._before_sample is not None:
            self._before_sample(index)
        return self._alone(index)

    def _alone(self, index: Any) -> Any:
        return self._dataset[index] if self._many is None else self._many([index])[0]


class IterableFetcher:
    """Reads samples of an iterable dataset, which is iterated at once, in its order.

    ``state`` is what :meth:`state` gave where reading is to go on, ``good`` what passes over bad
    samples (None: every exception is raised). For ``before_iter`` and errors see `Opened`.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None,
        drop_last: bool,
        state: Any = None,
        before_iter: Callable[[], object] | None = None,
        good: Any = None,
    ) -> None:
        self.opened = Opened(dataset, "dataset", state, before_iter)
        self._good = good
        self._iterator: Any = good.of(self.opened.iterator) if good else self.opened.iterator
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._began_at = state
        self._begun = self._ended = False
        self.after_first: Callable[[], object] | None = None  # called once, after a first sample

    def fetch(self, indices: Any, progress: Progress) -> Any:
        """Return the next batch's samples; ``indices`` is None.

        Raises:
            EndOfData: Nothing is left, and there is nothing to report.
        """
        if self._good is not None:
            self._good.begin(progress)
        if self._ended:
            raise EndOfData
        samples: list[Any] = []
        try:
            if not self._begun:
                self._begun = True
                progress.step(0)
                samples.append(next(self._iterator))
                if self.after_first is not None:
                    self.after_first()
            for position in range(len(samples), self._batch_size or 1):
                progress.step(position)
                samples.append(next(self._iterator))
        except StopIteration:
            self._ended = True
            if not samples or self._drop_last:
                if self._good is not None and self._good.noted:
                    return OMITTED  # the end comes next time
                raise EndOfData from None
        except TooMany:
            return OMITTED
        return samples[0] if self._batch_size is None else samples

    def state(self) -> dict[str, Any] | None:
        """Return what is needed to go on from here; None: no state leads here.

        It may change as soon as more is read. Before anything has been read, that is what it was
        begun with. Empty: it was begun at its start, from which it is read again.
        """
        if not self.opened.stateful:
            return None
        if not self._begun and (self._began_at or not self.opened.tells_its_start):
            return self._began_at or {}
        return self.opened.state_now()


# --- samples that cannot be read ---


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
        """Put other samples into the places of the bad ones."""
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
        """Return the source's next sample, or why there is none."""
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
