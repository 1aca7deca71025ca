"""`SampleError` and `SampleErrorLog`: which samples of an epoch could not be read.

A *bad sample* is one whose reading raises an ``Exception``: ``dataset[index]``, ``__getitems__`` or
``next()`` of an iterator. Workers write each down as a `SampleError`; the log is in the training
process. Its count is no part of a state: after a resume it begins at 0.
"""

from __future__ import annotations

import dataclasses
import logging
import traceback
from collections import deque
from typing import Any, Final

from lit_loader.core.batch.batch_spec import BatchWithReport
from lit_loader.core.batch.progress import BatchLog
from lit_loader.describe import PACKAGE, class_name, message_of, public, short_repr
from lit_loader.errors import SampleErrorsError

__all__ = ["KEPT_ERRORS", "NOT_REPLACED", "SampleError", "SampleErrorLog"]

NOT_REPLACED: Final = "not replaced"
"""The action where every sample that was drawn in place of a bad one is bad, too."""

KEPT_ERRORS: Final = 100
"""Errors of an epoch that are logged (the first) and kept for the message (the last)."""

_FRAMES: Final = 3
_MESSAGE: Final = 300

_log = logging.getLogger("lit_loader.sample_errors")


@public
@dataclasses.dataclass(frozen=True)
class SampleError:
    """A sample that could not be read: an entry of ``SampleErrorsError.errors``.

    Attributes:
        index: The sample's index; None for an iterable dataset.
        position: Its place in the batch, from 0.
        kind: Name of the exception's class, with its module unless it is a builtin.
        message: The exception's message on one line, shortened.
        trace: The innermost lines of its traceback, innermost first, on one line.
        retries: How often it was retried before it was given up.
        action: What was done: ``"skipped"``, ``"replaced by 17"``, or ``"not replaced"`` where no
            replacement could be read.
    """

    index: Any
    position: int
    kind: str
    message: str
    trace: str
    retries: int
    action: str = "skipped"

    @classmethod
    def of(cls, error: Exception, index: object, position: int, retries: int) -> SampleError:
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


class SampleErrorLog:
    """The bad samples of one epoch.

    More than ``limit`` of them are an error; None tolerates any number. ``log`` counts those of all
    epochs.
    """

    def __init__(self, limit: int | None, log: BatchLog) -> None:
        self._limit, self._log = limit, log
        self._omitted = 0  # batches so far of which nothing was left
        self.count = self.retries = 0
        self.errors: deque[SampleError] = deque(maxlen=KEPT_ERRORS)  # the last of them

    def note(self, number: int, made: BatchWithReport) -> None:
        """Note the bad samples of a batch that is yielded or omitted now.

        Called in the order in which batches are yielded, so that the limit is passed at the same
        batch for any number of workers: a SampleErrorsError.
        """
        self._log.counts["sample_errors"] += len(made.errors)
        self._log.counts["sample_retries"] += made.retries
        self.retries += made.retries
        self._omitted += made.omitted
        for error in made.errors:
            self.count += 1
            self._log.note("bad sample", str(error))
            if self.count <= KEPT_ERRORS:
                _log.warning("bad sample in batch %d, %s", number, error)
            elif self.count == KEPT_ERRORS + 1:
                _log.warning("further bad samples of this epoch are counted, and not logged")
        self.errors.extend(made.errors)
        if made.errors and self._limit is not None and self.count > self._limit:
            shown = "".join(f"\n  {error}" for error in self.errors)
            which = "" if self.count == len(self.errors) else f" (the last {len(self.errors)})"
            raise self._error(
                f"{self.count} bad samples in an epoch; max_sample_errors={self._limit} allows "
                f"{self._limit}. Fix them, or raise max_sample_errors. They are{which} [LL211]:"
                f"{shown}"
            )
        if any(error.action == NOT_REPLACED for error in made.errors):
            raise self._hopeless("no replacement of a bad sample could be read")

    def end(self, epoch: int, delivered: int) -> SampleErrorsError | None:
        """Return an error if an epoch ends of which every batch was omitted."""
        if not self.count or delivered > self._omitted:
            return None
        return self._hopeless(f"no sample of epoch {epoch} could be read")

    def _hopeless(self, what: str) -> SampleErrorsError:
        return self._error(
            f"{what} ({self.count:,} bad samples). Fix what they have in common, or set "
            f"on_sample_error='raise' to see the traceback [LL211]. The last is {self.errors[-1]}"
        )

    def _error(self, message: str) -> SampleErrorsError:
        error = SampleErrorsError(message)
        error.errors = tuple(self.errors)
        return error
