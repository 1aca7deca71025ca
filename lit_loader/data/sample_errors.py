"""Samples that cannot be read: how often they are tried, what is noted of them, what is too many.

A worker's `Attempts` give `SampleError`s, which the parent notes in its `SampleErrorLog`.
A *bad sample* is one whose reading raises an ``Exception``: ``dataset[index]``, ``__getitems__``,
``next()`` of an iterator, and nothing else.
"""

from __future__ import annotations

import dataclasses
import logging
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from lit_loader.context import reading
from lit_loader.core.batch.batch_spec import BatchWithReport
from lit_loader.core.batch.fetch import NothingLeft
from lit_loader.core.batch.progress import Progress
from lit_loader.core.batch.timings import BatchLog
from lit_loader.core.state.position import EpochPosition
from lit_loader.describe import PACKAGE, annotate, class_name, message_of, short_repr
from lit_loader.errors import OptionError, SampleErrorsError, StateError

__all__ = [
    "BAD",
    "KEPT_ERRORS",
    "MAX_BACKOFF",
    "NOT_REPLACED",
    "TRANSIENT_ERRORS",
    "Attempts",
    "SampleError",
    "SampleErrorLog",
    "Tolerance",
    "TooMany",
]

KEPT_ERRORS: Final = 100
"""So many of the last errors of an epoch are kept for the message, and of the first logged."""

TRANSIENT_ERRORS: Final[tuple[type[Exception], ...]] = (OSError, TimeoutError)
"""What may pass by itself, unless the options say otherwise."""

MAX_BACKOFF: Final = 10.0
"""Seconds that the wait before a retry grows to at most."""

BAD: Final = object()
"""What stands for a sample that could not be read."""

NOT_REPLACED: Final = "no replacement found"
"""What was done about the samples of a batch for which nothing at all could be read."""

_SLICE: Final = 0.05  # seconds within which a wait notices that its batch is no longer wanted
_FRAMES: Final = 3
_MESSAGE: Final = 300

_log = logging.getLogger("lit_loader.sample_errors")


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """What is done about a sample whose reading raises an exception; the loader's options."""

    policy: str  # "raise", "skip" or "replace"
    limit: int | None  # bad samples that an epoch may have; None: any number
    retries: int  # times that a sample is read again after a transient error
    backoff: float  # seconds before the first of these; doubled for each further one
    transient: tuple[type[Exception], ...]


@dataclasses.dataclass(frozen=True)
class SampleError:
    """A sample that could not be read; plain data, so that it travels and can be kept.

    Attributes:
        index: The sample's index; None for an iterable dataset.
        position: Its place in the batch, from 0.
        kind: Name of the exception's class, with its module unless it is a builtin.
        message: The exception's message on one line, shortened.
        trace: The innermost lines of its traceback, innermost first, on one line.
        retries: Times that it was read again before it was given up.
        action: What was done: ``"skipped"``, ``"replaced by 17"`` or ``"no replacement found"``.
    """

    index: Any
    position: int
    kind: str
    message: str
    trace: str
    retries: int
    action: str = "skipped"

    @classmethod
    def of(cls, error: Exception, index: Any, position: int, retries: int) -> SampleError:
        """Write an exception down."""
        message = " ".join(message_of(error).split())
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [frame for frame in frames if not frame.filename.startswith(PACKAGE)]
        return cls(
            index=index,
            position=position,
            kind=class_name(type(error)),
            message=message if len(message) <= _MESSAGE else f"{message[:_MESSAGE]} …",
            trace=" ← ".join(
                f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
                for frame in reversed(theirs[-_FRAMES:] or frames[-1:])
            ),
            retries=retries,
        )

    def __str__(self) -> str:
        where = f"position {self.position} of its batch"
        if self.index is not None:
            where = f"index {short_repr(self.index)} ({where})"
        retries = "1 retry" if self.retries == 1 else f"{self.retries} retries"
        tried = f" after {retries}" if self.retries else ""
        return f"{where}: {self.kind}: {self.message}{tried}; {self.action}; {self.trace}"


def _is_new(index: Any, seen: set[Any]) -> bool:
    """Whether this is the first bad sample of that index, or has none; notes it."""
    try:
        new = index is None or index not in seen
        seen.add(index)
    except Exception:  # an index may be anything
        return True
    return new


class TooMany(NothingLeft):
    """A batch alone has more bad samples than the whole epoch may have: the rest is in vain."""


class Attempts:
    """Reads single samples, again if need be, and writes down those that cannot be read.

    ``before`` is called with the index before each attempt: it sets the random generators, or marks
    where they are. ``undo`` takes back what an attempt that failed has drawn.
    """

    def __init__(
        self, tolerance: Tolerance, before: Callable[[Any], object], undo: Callable[[], object]
    ) -> None:
        self.tolerance = tolerance
        self._before = before
        self._undo = undo
        self.begin()

    def begin(self) -> None:
        """Begin a batch."""
        self.errors: list[SampleError] = []
        self.retries = 0  # times that samples of this batch were read again
        self._seen: set[Any] = set()
        self._count = 0  # bad samples; each index counts once

    def read(
        self,
        read: Callable[[Any], Any],
        index: Any,
        position: int,
        progress: Progress,
        several: bool = False,
    ) -> Any:
        """Return ``read(index)``; if that is a bad sample, write it down and return `BAD`.

        ``several``: samples at once, of which not all need be bad, and so none is written down.

        Raises:
            Exception: What ``read`` raises, if bad samples are not passed over.
            TooMany: Nothing can come of this batch any more.
            Cancelled: The batch is no longer wanted.
        """
        tries, most = 0, self.tolerance.retries
        while True:
            self._before(index)
            reading().again, tokens = tries > 0, reading().tokens
            try:
                return read(index)
            except (OptionError, StateError):
                raise  # the program or the state is wrong, and no other sample would be better
            except Exception as error:
                self._undo()
                reading().tokens = tokens
                if tries == most or not isinstance(error, self.tolerance.transient):
                    if several and self.goes_on_after(error):
                        return BAD
                    if self.tolerance.policy == "raise":
                        if tries:
                            tried = f"this sample was tried {tries + 1} times"
                            annotate(error, f"{tried}, sample_retries={most}")
                        raise
                    self.errors.append(SampleError.of(error, index, position, tries))
                    self._count += _is_new(index, self._seen)
                    if self.tolerance.limit is not None and self._count > self.tolerance.limit:
                        raise TooMany from None
                    return BAD
            finally:
                reading().again = False
            self._wait(tries, position, progress)
            tries += 1
            self.retries += 1

    def goes_on_after(self, error: Exception) -> bool:
        """Whether this exception need not be raised."""
        return self.tolerance.policy != "raise" or isinstance(error, self.tolerance.transient)

    def _wait(self, tries: int, position: int, progress: Progress) -> None:
        """Wait before the next attempt; not longer than the batch is wanted."""
        doubled = 2.0 ** min(tries, 64)  # a float has an end
        seconds = min(self.tolerance.backoff * doubled, MAX_BACKOFF)
        progress.step(position)
        while seconds > 0:
            time.sleep(min(seconds, _SLICE))
            seconds -= _SLICE
            progress.step(position)


class SampleErrorLog:
    """The sample errors of one epoch, on the consumer's side; each index counts once.

    More than ``limit`` bad samples are an error; None: any number is tolerated. ``before`` a resume
    there were so many. ``log`` counts those of all epochs.
    """

    def __init__(self, limit: int | None, before: int, log: BatchLog) -> None:
        self._limit, self._log = limit, log
        self._seen: set[Any] = set()
        self._first: SampleError | None = None
        self._omitted = 0  # batches so far of which nothing was left
        self.count, self.retries = before, 0
        self.errors: deque[SampleError] = deque(maxlen=KEPT_ERRORS)  # the last of them

    def note(self, number: int, made: BatchWithReport, place: EpochPosition) -> None:
        """Note the bad samples of a batch that is given out or omitted now.

        Called in the order in which batches are given out, so that the limit is passed at the
        same batch for any number of workers: a SampleErrorsError.
        """
        errors = [error for error in made.errors if _is_new(error.index, self._seen)]
        self._log.counts["sample_errors"] += len(errors)
        self._log.counts["sample_retries"] += made.retries
        for error in errors:
            self._log.note("bad sample", str(error))
        place.skipped(len(errors))
        for error in errors[: max(0, KEPT_ERRORS - self.count)]:
            _log.warning("bad sample in batch %d, %s", number, error)
        if self.count <= KEPT_ERRORS < self.count + len(errors):
            _log.warning("further bad samples of this epoch are counted, and not logged")
        if errors and self._first is None:
            self._first = errors[0]
        self.count += len(errors)
        self.retries += made.retries
        self.errors.extend(errors)
        if errors and self._limit is not None and self.count > self._limit:
            shown = "".join(f"\n  {error}" for error in self.errors)
            which = "" if self.count == len(self.errors) else f" (the last {len(self.errors)})"
            raise self._error(
                f"max_sample_errors={self._limit} bad samples are allowed in an epoch, got "
                f"{self.count}: fix them or raise max_sample_errors; they are{which} "
                f"[LL211]:{shown}"
            )
        self._omitted += made.omitted
        if made.omitted and made.errors and made.errors[0].action == NOT_REPLACED:
            raise self._failed(
                f"no sample of batch {number} could be read, nor any that was drawn in its place",
                made.errors[0],
            )

    def end(self, epoch: int, delivered: int) -> SampleErrorsError | None:
        """Return an error if an epoch ends of which every batch was omitted."""
        if self._first is None or delivered > self._omitted:
            return None
        return self._failed(f"no sample of epoch {epoch} could be read", self._first)

    def _failed(self, what: str, first: SampleError) -> SampleErrorsError:
        return self._error(
            f"{what} ({self.count:,} bad samples): fix what they have in common, or set "
            f"on_sample_error='raise' to see the traceback [LL212]; the first is {first}"
        )

    def _error(self, message: str) -> SampleErrorsError:
        error = SampleErrorsError(message)
        error.errors = tuple(self.errors)
        return error
