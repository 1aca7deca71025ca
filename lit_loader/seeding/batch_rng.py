"""`BatchRng`: what `lit_loader.get_rng` gives, which follows from the sample alone.

::

    BatchLoader ── begin(seed), indices, progress ──▶ BatchRng ◀── get_rng(), get_worker_info().rng

A batch notes where it is, which costs a few stores; a generator is made when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import islice
from typing import Any, Final, Protocol

import numpy as np

from lit_loader.seeding.seeds import extend, sample_seed

__all__ = ["BatchRng"]

_OWN: Final = 0x6765_745F_726E_67  # keeps these streams apart from what is seeded otherwise


class _Progress(Protocol):
    @property
    def position(self) -> int:
        """Give that of the sample that is being read."""


class BatchRng:
    """Gives the generators of the batch that is being made.

    Args:
        batched: Whether its indices are a collection (else a single index).

    Attributes:
        epoch_seed: ``derive(seed, epoch)``, from which samples with an index have their own.
        parts: What a batch's seed is derived from besides, or that of a stream's beginning.
        together: Whether samples have no index, or are read all at once.
        indices: The batch's.
        progress: Says which sample is being read; None: none is, as in ``collate_fn``.
    """

    __slots__ = (
        "_batched",
        "_index",
        "_made",
        *("epoch_seed", "indices", "parts", "progress", "together"),
    )

    def __init__(self, batched: bool) -> None:
        self._batched, self.together = batched, True
        self.epoch_seed = 0
        self.indices: Any = None
        self.progress: _Progress | None = None
        self._made: dict[Any, Any]
        self.begin()

    def begin(self, *parts: int) -> None:
        """Begin a batch, or its collation: whatever was made before is not given again."""
        self.parts, self._index, self._made = parts, None, {}

    def attempt(self, index: Any) -> None:
        """Begin to read one sample, once more perhaps; its index, if it has one."""
        self._index, self._made = None if index is self.indices and self._batched else index, {}

    def give(self, index: Any, make: Callable[[int], Any] = np.random.default_rng) -> Any:
        """Give what was made for a sample, or make it, by its seed.

        Args:
            index: The sample's; None: the one that is being read, or the batch.
            make: Makes it; one such function, one thing a sample.
        """
        position = -1
        if self.progress is not None:
            position = self.progress.position
            index = self._at(position) if index is None else index
        own = (*self.parts, position + 1)
        seed = (
            extend(self.epoch_seed, *own) if index is None else sample_seed(self.epoch_seed, index)
        )
        key = make, position, seed
        if key not in self._made:  # in one step: threads of the dataset's may ask for the same one
            self._made.setdefault(key, make(extend(seed, _OWN)))
        return self._made[key]

    def _at(self, position: int) -> Any:
        """Give the index of a sample; None: it has none, or is read with the others at once."""
        indices = self.indices
        if self._index is not None or self.together:
            return self._index
        if not self._batched:
            return indices
        if type(indices) is list:
            return indices[position]
        if isinstance(indices, Collection):  # a tensor, a set, ...: as it is iterated
            return next(islice(indices, position, None))
        return None  # an iterator, which has been used up

    @property
    def last(self) -> list[Any]:
        """The generator that was made last, if there is any: where it is tells what was drawn."""
        made = [each for each in self._made.values() if isinstance(each, np.random.Generator)]
        return [each.bit_generator for each in made[-1:]]

    def place(self) -> Any:
        """Give where it is, for `go_back`; what is drawn meanwhile leaves no trace."""
        place = self.parts, self._index, self._made, self.progress
        self._made = {}
        return place

    def go_back(self, place: Any) -> None:
        """Be where it was."""
        self.parts, self._index, self._made, self.progress = place
