"""Reading samples out of a dataset: by index, or by iterating.

Both fetchers do only this. They report each sample before they read it, which is how a worker says
where it is and finds out that a batch is no longer wanted; collation comes afterwards and
elsewhere, so that the two can be timed apart.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from lit_loader.board import Progress
from lit_loader.errors import StateError
from lit_loader.restoring import restore

__all__ = ["EndOfData", "Fetcher", "IterableFetcher", "MapFetcher"]


class EndOfData(Exception):
    """The iterable dataset (or this worker's share of it) has nothing more to give."""


class Fetcher(Protocol):
    """What the two fetchers have in common."""

    def fetch(self, indices: Any, progress: Progress) -> Any:
        """Return a batch's samples: a list, or one sample without automatic batching."""


class MapFetcher:
    """Reads samples of a map-style dataset.

    Args:
        dataset: Anything with ``__getitem__`` (and, at will, ``__getitems__``, which then gets the
            whole list of indices at once).
        batched: Whether ``indices`` is a batch's list of indices, or a single index.
        before_sample: Called with each index before its sample is read; a dataset's
            ``__getitems__`` then gets one index at a time. None: nothing is called.
    """

    def __init__(
        self, dataset: Any, batched: bool, before_sample: Callable[[Any], None] | None = None
    ) -> None:
        self._dataset = dataset
        self._batched = batched
        self._before_sample = before_sample
        # A dataset may set __getitems__ to None to say that it has none.
        self._many = getattr(dataset, "__getitems__", None)
        self._get = partial(operator.getitem, dataset)

    def fetch(self, indices: Any, progress: Progress) -> Any:
        """Return ``[dataset[i] for i in indices]``, or ``dataset[indices]`` if not batched."""
        if not self._batched:
            return self._one(indices, progress)
        if self._before_sample is not None:
            return self._one_by_one(indices, self._before_sample, progress)
        if self._many is not None:
            progress.step(0)
            return self._many(indices)
        return progress.read(self._get, indices)

    def _one(self, index: Any, progress: Progress) -> Any:
        progress.step(0)
        if self._before_sample is not None:
            self._before_sample(index)
        return self._dataset[index]

    def _one_by_one(
        self, indices: Any, before_sample: Callable[[Any], None], progress: Progress
    ) -> list[Any]:
        def get(index: Any) -> Any:
            before_sample(index)
            return self._dataset[index] if self._many is None else self._many([index])[0]

        return progress.read(get, indices)


class IterableFetcher:
    """Reads samples of an iterable dataset, in the order in which it gives them.

    Args:
        dataset: The dataset; iterated at once.
        batch_size: Samples a batch; None gives single samples.
        drop_last: Leave off a last batch that is not full.
        state: What :meth:`state` gave where reading is to go on; None begins at the start.
    """

    def __init__(
        self, dataset: Any, batch_size: int | None, drop_last: bool, state: Any = None
    ) -> None:
        if state is not None and _has_state(dataset):
            restore(dataset, state, "dataset")
        self._iterator: Any = iter(dataset)
        # The iterator knows best where it is; a dataset that keeps its own place comes second.
        self._stateful: Any = next(filter(_has_state, (self._iterator, dataset)), None)
        if state is not None and self._stateful is None:
            raise StateError(
                f"the state is of a dataset with state_dict and load_state_dict, which "
                f"{type(dataset).__name__} has not: resume with the dataset that it was taken from"
            )
        if state is not None and _has_state(self._iterator) and self._iterator is not dataset:
            restore(self._iterator, state, "dataset's iterator")
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._ended = False

    def fetch(self, indices: Any, progress: Progress) -> Any:
        """Return the next batch's samples; ``indices`` is None.

        Raises:
            EndOfData: Nothing is left.
        """
        if self._ended:
            raise EndOfData
        samples: list[Any] = []
        try:
            for position in range(self._batch_size or 1):
                progress.step(position)
                samples.append(next(self._iterator))
        except StopIteration:
            self._ended = True
            if not samples or self._drop_last:
                raise EndOfData from None
        return samples[0] if self._batch_size is None else samples

    def state(self) -> Any:
        """Return what the dataset or its iterator needs to go on from here; None if it cannot."""
        return None if self._stateful is None else copy.deepcopy(self._stateful.state_dict())


def _has_state(candidate: Any) -> bool:
    return callable(getattr(candidate, "state_dict", None)) and callable(
        getattr(candidate, "load_state_dict", None)
    )
