"""`IterableFetcher`: reads an iterable dataset's samples; `StateMeter`: when its state is due."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lit_loader.core.batch.fetch import OMITTED, EndOfData, NothingLeft
from lit_loader.core.batch.progress import Progress
from lit_loader.core.state.stateful import ITERATOR, OpenStream

__all__ = ["IterableFetcher", "StateMeter"]

_SHARE: Final = 1 / 32
"""Part of the time of making batches that may be spent on states."""

_CHEAP: Final = 100_000
"""Nanoseconds up to which a state is taken before each batch, however quick that is."""


class IterableFetcher:
    """Reads samples of an iterable dataset, which is iterated at once, in its order.

    ``state`` is what :meth:`state` gave where reading is to go on, ``good`` what passes over bad
    samples (None: every exception is raised). For ``before_iter`` and errors see `OpenStream`.
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
        self.opened = OpenStream(dataset, "dataset", state, before_iter)
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
            progress.read_next(self._iterator, samples, self._batch_size or 1)
        except StopIteration:
            self._ended = True
            if not samples or self._drop_last:
                if self._good is not None and self._good.noted:
                    return OMITTED  # the end comes next time
                raise EndOfData from None
        except NothingLeft:
            return OMITTED
        return samples[0] if self._batch_size is None else samples

    def state(self) -> dict[str, Any] | None:
        """Return what is needed to go on from here; None: no state leads here.

        It may change as soon as more is read. Before anything has been read, that is what it was
        begun with. Empty: it was begun at its start, from which it is read again.
        """
        if not self.opened.stateful:
            return None
        # A source that is asked in its iterator's stead may not know yet that it is begun: a
        # generator runs later.
        if not self._begun and (self._began_at or ITERATOR not in self.opened.asked):
            return self._began_at or {}
        return self.opened.state_now()


class StateMeter:
    """Says when a stream's state is due: before each batch, or as often as it can be afforded.

    A resume makes the batches since the last state once more, so it takes as long as about thirty
    states do. ``made`` are nanoseconds of making batches since then.
    """

    def __init__(self) -> None:
        self.made = 0
        # Nanoseconds of the last two: the machine may have been at something else during one.
        self._costs = 0, 0

    @property
    def due(self) -> bool:
        """Whether the state is to be taken before the next batch."""
        cost = min(self._costs)
        return cost <= _CHEAP or self.made * _SHARE >= cost

    def taken(self, nanoseconds: int) -> None:
        """Note that it was taken, and how long that took."""
        self._costs, self.made = (self._costs[1], nanoseconds), 0
