"""Reading samples out of a dataset, by their indices: this is where ``dataset[index]`` is called.

A fetcher does only this. It reports each sample before it reads it, which is how a worker says
where it is and finds out that a batch is no longer wanted; collation comes afterwards and
elsewhere, so that the two can be timed apart. Iterable datasets have one of their own, in their
add-on, and so has what copes with samples that cannot be read (``tolerance`` of `BatchSpec`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from torch.utils.data import Subset

from lit_loader.core.batch.progress import Progress

__all__ = ["OMITTED", "EndOfData", "MapFetcher", "NothingLeft", "as_read"]

OMITTED: Final = object()
"""What is fetched if bad samples have left nothing of a batch."""


def as_read(dataset: Any) -> tuple[Any, Callable[[Any], Any] | None]:
    """Return what a batch's samples are read from, and what reads them all at once, or None.

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

    ``before_sample`` is called with the place in the batch before each sample is read; a dataset's
    ``__getitems__``, which else has the whole list, then gets one index at a time.
    """

    def __init__(
        self, dataset: Any, batched: bool, before_sample: Callable[[int], None] | None = None
    ) -> None:
        self._dataset, self._many = as_read(dataset) if batched else (dataset, None)
        self._batched = batched
        self._before_sample = before_sample

    def fetch(self, indices: Any, progress: Progress) -> Any:
        """Return ``[dataset[i] for i in indices]``, or ``dataset[indices]`` if not batched."""
        before = self._before_sample
        if not self._batched:
            progress.step(0)
            if before is not None:
                before(0)
            return self._alone(indices)
        if before is None and self._many is not None:
            progress.all_at_once()
            return self._many(indices)
        samples: list[Any] = []
        append, step, get = samples.append, progress.step, self._alone
        if before is None and type(indices) is list and progress.is_quick(len(indices)):
            progress.all_at_once()
            dataset = self._dataset
            for progress.place, index in enumerate(indices):
                append(dataset[index])
        else:
            for place, index in enumerate(indices):
                step(place)
                if before is not None:
                    before(place)
                append(get(index))
        progress.read(len(samples))
        return samples

    def _alone(self, index: Any) -> Any:
        return self._dataset[index] if self._many is None else self._many([index])[0]
