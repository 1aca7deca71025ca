"""`LoaderIterator`: what ``iter(loader)`` gives; one pass over the data, as the consumer sees it.

Its two kinds make the batches in this process (`iteration/in_process.py`) or have workers make them
(`iteration/epoch_run.py`). Here is what they share: the order of steps in ``next()``, the
position that a checkpoint remembers, the end of the epoch, the count of what could not be read.

Nothing starts before the first ``next()``: ``iter()`` is free, and an iterator that is thrown away
leaves no trace. That first ``next()`` fixes the epoch and where in it to begin.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

from lit_loader.batch.batch_spec import BatchWithReport
from lit_loader.batch.sample_errors import SampleErrorLog
from lit_loader.describe import program_stacklevel
from lit_loader.errors import LoaderError
from lit_loader.iteration.torch_surface import TorchSurface
from lit_loader.sampling.advice import broken_promise, dropped_batches, ignored_share
from lit_loader.sampling.epochs import EpochStart
from lit_loader.seeding.generator_lock import Turn
from lit_loader.streams.tail import ShardTail
from lit_loader.system.interrupts import is_interruption

if TYPE_CHECKING:
    from lit_loader.iteration.core import LoaderCore
    from lit_loader.iteration.exactness_check import ExactnessCheck

__all__ = ["LoaderIterator"]

T_co = TypeVar("T_co", covariant=True)

_NO_END: Final = (
    "a StopIteration came up in the midst of an epoch, and would have passed for its end: the "
    "traceback above shows where; nothing is lost, the next next() gives the batch"
)


class LoaderIterator(TorchSurface, Generic[T_co]):
    """An iterator over an epoch's batches.

    Attributes:
        sample_errors: The samples of the epoch that could not be read, so far.
        observer: Is shown the batches, as long as it is not done; None for most.
        made_after: What had been begun last when this was made.
    """

    observer: ExactnessCheck | None = None

    _draws = False
    """Whether the global random generators are needed, of which other threads wait for a turn."""

    def __init__(self, core: LoaderCore) -> None:
        self._core = core
        self._data_loader = core.loader  # which lives as long as it is iterated
        self.sample_errors = SampleErrorLog(self._data_loader.max_sample_errors)
        self.made_after = core.epochs.begun
        self._start: EpochStart | None = None
        self._tail: ShardTail | None = None
        self._due = True  # whether it is not known yet if there is one
        self._ended = False
        self._given = 0  # when the last batch was given out
        self._samples = 0
        self._noted = -1  # the batch whose errors were noted last
        # What len(loader) has promised so far: list(loader) asks for the length after this.
        self._promised = core.promised

    def __iter__(self) -> LoaderIterator[T_co]:
        return self

    def __next__(self) -> T_co:
        asked, mine = False, Turn() if self._draws else None
        # A signal handler may raise at any instruction; all that follow the asking, up to the one
        # that returns, are in this block: what comes out otherwise is taken back.
        try:
            try:
                # Before the loader's own lock: a dataset that iterates this loader has that order.
                if mine is not None:
                    mine.take()
                with self._core.lock:
                    if self._ended:
                        raise StopIteration
                    start = self._start
                    if start is None or self._due:  # an interrupted one goes on with its epoch
                        start = self._start = start or self._core.begin_epoch(self)
                        self._tail = self._core.tail(start)
                        self._due = False
                    if self._core.epochs.begun is not start.position:
                        self._core.epochs.go_on(start.position)
                    self._settle(start)
                    asked = True
                    return self._next(start)
            finally:
                if mine is not None:
                    mine.end()
        except BaseException as error:
            received = not asked  # whether what comes out is what was asked for
            try:
                if mine is not None:
                    mine.end()  # what came out may have broken into the first one
                ended = isinstance(error, StopIteration)
                # From here on nothing is called, unless something is to be taken back.
                received = received or (self._ended if ended else not is_interruption(error))
            finally:
                if not received:
                    self._take_back()
            if ended and not received:
                raise LoaderError(_NO_END) from error
            raise

    def begin(self) -> None:
        """Begin the epoch now, where the loader's next one begins, and not at the first batch."""
        with self._core.lock:
            self._start = self._start or self._core.begin_epoch(self)

    def __len__(self) -> int:
        return len(self._data_loader)

    def __repr__(self) -> str:
        where = "not begun"
        if self._start is not None:
            given = self._start.position.now().delivered
            where = f"epoch {self._start.epoch}, "
            where += (
                "ended"
                if self._ended
                else f"{given:,} {'batch' if given == 1 else 'batches'} given out"
            )
        return f"<{type(self).__name__} of {self._data_loader!r}: {where}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an iterator over a loader cannot be pickled or copied: pickle the loader, and its "
            "state_dict()"
        )

    def as_ended(self) -> LoaderIterator[T_co]:
        """Give no batches; returns itself."""
        self._ended = True
        return self

    def _next(self, start: EpochStart) -> T_co:
        raise NotImplementedError

    def _settle(self, start: EpochStart) -> None:
        """Count what was given out last as received, since the consumer asks for more."""
        start.position.settle()

    def _take_back(self) -> None:
        """After an exception from outside: give again what it has kept from the consumer."""
        with self._core.lock:
            if self._start is not None:
                self._start.position.take_back()

    def _end(self, start: EpochStart) -> Exception:
        """Note that the epoch is over; returns what is to be raised."""
        if self.observer is not None:
            self.observer.finish()
        start.position.end()
        self._ended = True
        self._core.hear(start)
        if self._tail is not None:
            self._tail.end()
        begun = start.position.start.delivered  # a resumed one has had batches before
        delivered = start.position.now().delivered
        nothing = None if begun else self.sample_errors.end(start.epoch, delivered)
        core = self._core
        if self._promised is not None and core.shards is None and not self.sample_errors.count:
            args = self._promised, delivered, core.readers
            if text := dropped_batches(self._data_loader, *args):
                core.warn_once(text)
        return nothing or StopIteration()

    def _show(self, start: EpochStart, number: int, indices: Any, batch: Any) -> None:
        """Show the observer a batch."""
        assert self.observer is not None
        self.observer.note(start, number, indices, batch)
        if self.observer.done:
            self.observer = None

    def _note_errors(self, number: int, made: BatchWithReport) -> None:
        """Note what was wrong with a batch that is given out or omitted now."""
        if number == self._noted:
            return  # it has been taken back, and is given again
        self._noted = number
        errors = self.sample_errors.new(made.errors)
        recorder = self._core.recorder
        recorder.sample_errors += len(errors)
        recorder.sample_retries += made.retries
        for error in errors:
            recorder.note("bad sample", str(error))
        self.sample_errors.record(number, errors, made.retries)
        if made.omitted:
            self.sample_errors.omit(number, made.errors)
        for note in made.notes:
            self._core.tell(note)

    def _warn_of_ignored_share(self, divided: int) -> None:
        """Warn, once, that an iterable dataset gives several readers the same."""
        core = self._core
        sharded, ranks = core.shards is not None, core.replica[1]
        text = ignored_share(core.dataset, divided, core.readers, ranks, sharded)
        if text is not None:
            core.warn_once(text)

    def _count(self, samples: int) -> None:
        """Note the samples of a batch of an iterable dataset that is about to be given out."""
        self._samples += samples
        if self._promised is not None and self._samples > self._promised:
            # Once for an iterator; torch warns of it again at every batch that follows.
            loader = self._data_loader
            args = self._core.dataset, self._promised, self._samples, loader.num_workers
            warnings.warn(broken_promise(*args), stacklevel=program_stacklevel())
            self._promised = None
