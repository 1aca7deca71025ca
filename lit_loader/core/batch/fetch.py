"""Reading samples out of a dataset: by index, or by iterating.

The fetchers do only this. They report each sample before they read it, which is how a worker says
where it is and finds out that a batch is no longer wanted; collation comes afterwards and
elsewhere, so that the two can be timed apart.

What copes with samples that cannot be read takes their place where the options ask for it: see
``tolerance`` of `BatchSpec`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from torch.utils.data import Subset

from lit_loader.core.batch.progress import Progress
from lit_loader.core.state.stateful import Opened

__all__ = ["OMITTED", "EndOfData", "IterableFetcher", "MapFetcher", "NothingLeft", "as_read"]

OMITTED: Final = object()
"""What is fetched if bad samples have left nothing of a batch."""


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


class NothingLeft(Exception):
    """Nothing can come of a batch any more, for its samples cannot be read: it is omitted."""


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
        if not self._begun and (self._began_at or not self.opened.tells_its_start):
            return self._began_at or {}
        return self.opened.state_now()
