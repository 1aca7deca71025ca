"""Reading samples out of a dataset, by their indices: this is where ``dataset[index]`` is called.

A fetcher does only this. It reports each sample before it reads it, which is how a worker says
where it is and finds out that a batch is no longer wanted; collation comes afterwards and
elsewhere, so that the two can be timed apart. Iterable datasets have one of their own, in their
add-on, and so has what copes with samples that cannot be read (``tolerance`` of `BatchSpec`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import Subset

from lit_loader.core.batch.progress import QUICK, Progress

if TYPE_CHECKING:
    from lit_loader.core.batch.read_pool import Read, ReadPool

_clock = time.monotonic_ns
_ReadMany = Callable[[Any], Any]  # a dataset's __getitems__

OMITTED: Final = object()
"""What is fetched if bad samples have left nothing of a batch."""


def getitems_of(dataset: object) -> _ReadMany | None:
    """Return what reads a batch's samples all at once; None: there is nothing.

    Torch's ``Subset`` has ``__getitems__`` for the sake of what is in it. Around a dataset that has
    none it reads one sample after the other: so do we then, and know which one it is at.
    """
    if (
        isinstance(dataset, Subset)
        and type(dataset).__getitems__ is Subset.__getitems__
        and type(dataset).__getitem__ is Subset.__getitem__
        and getitems_of(dataset.dataset) is None
    ):
        return None
    # A dataset may set it to None to say that it has none.
    return getattr(dataset, "__getitems__", None)


class EndOfData(Exception):
    """The iterable dataset (or this worker's share of it) has nothing more to give."""


class MapFetcher:
    """Reads samples of a map-style dataset: a batch's list of indices, or one index.

    ``before_sample`` is called with the place in the batch before each sample is read; a dataset's
    ``__getitems__``, which else has the whole list, then gets one index at a time.

    With a ``pool`` the samples of a batch are read by its threads, and ``__getitems__`` gets a part
    of the list in each.
    """

    def __init__(
        self,
        dataset: Any,
        batched: bool,
        before_sample: Callable[[int], None] | None = None,
        pool: ReadPool | None = None,
    ) -> None:
        self._dataset, self._batched = dataset, batched
        self._many = getitems_of(dataset) if batched else None
        self._before_sample, self._pool = before_sample, pool

    def fetch(self, indices: Any, progress: Progress) -> Any:
        """Return ``[dataset[i] for i in indices]``, or ``dataset[indices]`` if not batched."""
        before, dataset, many = self._before_sample, self._dataset, self._many
        if before is None and many is not None:
            return self._by_getitems(many, indices, progress)
        if self._batched and self._pool is not None:
            return self.each(lambda index, _: dataset[index], indices, progress)
        samples: list[object] = []
        if self._batched and before is None and progress.is_quick:
            progress.samples, times = samples, [_clock()]
            for index in indices:
                samples.append(dataset[index])
                times.append(_clock())
            if times[-1] - times[0] >= QUICK * len(samples):
                progress.was_read(times)
            return samples
        for place, index in enumerate(indices if self._batched else [indices]):
            progress.step(place)
            if before is not None:
                before(place)
            samples.append(dataset[index] if many is None else many([index])[0])
        return samples if self._batched else samples[0]

    def each(self, read: Read, indices: Sequence[object], progress: Progress) -> list[object]:
        """Return ``read(index, progress)`` of each index, in order; by threads if there is a pool.

        ``read`` is called with a ``progress`` of that sample: it has its ``place``, and ``step`` is
        called before another attempt.
        """
        if self._pool is not None and len(indices) > 1:
            return self._pool.read(read, indices, range(len(indices)), progress)
        found: list[object] = []
        for place, index in enumerate(indices):
            progress.step(place)
            found.append(read(index, progress))
        return found

    def _by_getitems(self, many: _ReadMany, indices: Any, progress: Progress) -> Any:
        """Read samples by ``__getitems__``: all at once, or a part in each thread of the pool."""
        size = len(indices)
        if self._pool is None or size < 2:
            return many(indices)
        count = min(self._pool.count, size)
        starts = [size * number // count for number in range(count + 1)]
        parts = [indices[start:end] for start, end in itertools.pairwise(starts)]
        try:
            found = self._pool.read(lambda part, _: many(part), parts, starts[:-1], progress)
        finally:
            progress.place = -1  # which sample of its part it is, is not known
        if any(type(part) is not list for part in found):
            # What is no list of samples cannot be joined: it is made at once from now on.
            self._pool = None
            return many(indices)
        return [sample for part in found for sample in part]

    def _alone(self, index: object) -> object:
        return self._dataset[index] if self._many is None else self._many([index])[0]
