"""`IterableFetcher`: reads an iterable dataset's samples; `StateMeter`: when its state is due."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lit_loader.core.batch.fetch import OMITTED, EndOfData, NothingLeft
from lit_loader.core.batch.progress import Progress
from lit_loader.streams.other_streams import open_stream

__all__ = ["IterableFetcher", "StateMeter"]

_SHARE: Final = 1 / 32
"""Part of the time of making batches that may be spent on states."""


class IterableFetcher:
    """Reads samples of an iterable dataset, which is iterated at once, in its order.

    ``state`` is what :meth:`state` returned where reading is to continue, and ``good`` what passes
    over bad samples (None: every exception is raised). ``before_sample`` is called with the place
    in the batch before each sample but the stream's first.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None,
        drop_last: bool,
        state: Any = None,
        good: Any = None,
        before_sample: Callable[[int], None] | None = None,
    ) -> None:
        self._opened = open_stream(dataset, "dataset", state)
        self._good, self._before_sample = good, before_sample
        self._iterator: Any = good.of(self._opened.iterator) if good else self._opened.iterator
        self._batch_size, self._drop_last = batch_size, drop_last
        self._began_at = state
        # Whether a state may be read by another dataset, which cannot begin as this one has.
        self._changes = hasattr(dataset, "adapt_state")
        self._ended = False
        self.has_begun = False  # whether a sample has been asked for

    def fetch(self, progress: Progress, after_first: Callable[[], object] | None = None) -> Any:
        """Return the next batch's samples; ``after_first`` is called when the first one is there.

        Raises:
            EndOfData: Nothing is left, and there is nothing to report.
        """
        good, before, size = self._good, self._before_sample, self._batch_size or 1
        if good is not None:
            good.begin(progress)
        if self._ended:
            raise EndOfData
        self.has_begun = True
        samples: list[Any] = []
        append, iterator = samples.append, self._iterator
        try:
            if after_first is not None:
                progress.step(0)
                append(next(iterator))
                after_first()
            if before is None and progress.is_quick:
                progress.step(-1)
                for progress.place in range(len(samples), size):
                    append(next(iterator))
            else:
                for place in range(len(samples), size):
                    progress.step(place)
                    if before is not None:
                        before(place)
                    append(next(iterator))
        except StopIteration:
            self._ended = True
            if not samples or (self._drop_last and self._batch_size is not None):
                if good is not None and good.noted:
                    return OMITTED  # the end comes next time
                raise EndOfData from None
        except NothingLeft:
            return OMITTED
        return samples[0] if self._batch_size is None else samples

    def state(self) -> dict[str, Any] | None:
        """Return what is needed to continue from here; None: no state leads here.

        It may change as soon as more is read. Before anything has been read, that is what it was
        begun with. Empty: it was begun at its start, from which it is replayed.
        """
        opened = self._opened
        if not opened.stateful:
            return None
        if not (self.has_begun or self._changes):  # a generator that has not run knows no place
            return self._began_at or {}
        return opened.state_now()


class StateMeter:
    """Says when a stream's state is due: as often as it can be afforded.

    A resume makes the batches since the last state again, so it takes as long as about thirty
    states do. ``made`` are nanoseconds of making batches since then.
    """

    def __init__(self) -> None:
        self.made = 0
        # Nanoseconds of the last two: the machine may have been at something else during one.
        self._costs = 0, 0

    @property
    def due(self) -> bool:
        """Whether the state is to be taken before the next batch."""
        return self.made * _SHARE >= min(self._costs)

    def taken(self, nanoseconds: int) -> None:
        """Note that it was taken, and how long that took."""
        self._costs, self.made = (self._costs[1], nanoseconds), 0
