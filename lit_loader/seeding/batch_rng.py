"""`get_rng`: random numbers that follow from the sample, whoever reads it.

::

    BatchLoader ── begin(seed), indices, progress ──▶ BatchRng ◀── get_rng(), get_worker_info().rng

A batch notes where it is, which costs a few stores; a generator is made when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import islice
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import torch

from lit_loader.context import reading
from lit_loader.describe import public
from lit_loader.seeding.seeds import extend, sample_seed

__all__ = ["BatchRng", "get_rng"]

_OWN: Final = 0x6765_745F_726E_67  # keeps these streams apart from what is seeded otherwise
_T = TypeVar("_T")


class _Progress(Protocol):
    @property
    def position(self) -> int: ...


class BatchRng:
    """Gives the generators of the batch that is being made.

    Args:
        batched: Whether its indices are a collection (else a single index).

    Attributes:
        epoch_seed: ``derive(seed, epoch)``, from which samples with an index have their own.
        seed: The batch's; of a stream's beginning: the epoch's.
        singly: Whether samples are read one by one, by their indices.
        indices: The batch's.
        progress: Says which sample is being read; None: none is, as in ``collate_fn``.
    """

    __slots__ = (
        "_batched",
        "_index",
        "_made",
        "epoch_seed",
        "indices",
        "progress",
        "seed",
        "singly",
    )

    def __init__(self, batched: bool) -> None:
        self._batched, self.singly = batched, False
        self.epoch_seed = 0
        self.indices: Any = None
        self.progress: _Progress | None = None
        self.begin(0)

    def begin(self, seed: int) -> None:
        """Begin a batch, or its collation: whatever was made before is not given again."""
        self.seed = seed
        self.attempt(None)

    def attempt(self, index: Any) -> None:
        """Begin to read one sample, once more perhaps; None: a stream's next, or all together."""
        self._index = None if index is self.indices and self._batched else index
        self._made: dict[Any, Any] = {}

    def give(self, index: Any, make: Callable[[int], _T]) -> _T:
        """Give what was made for a sample, or make it, by its seed.

        Args:
            index: The sample's; None: the one that is being read, or the batch.
            make: Makes it; one such function, one thing a sample.
        """
        position = -1 if self.progress is None else self.progress.position
        if index is None and self.progress is not None:
            index = (
                self._index if self._index is not None or not self.singly else self._at(position)
            )
        if index is None:
            seed = extend(self.seed, _OWN, position + 1)
        else:
            seed = extend(sample_seed(self.epoch_seed, index), _OWN)
        key = make, position, seed
        made = self._made.get(key)
        # In one step: threads of the dataset's may ask for the same one.
        return self._made.setdefault(key, make(seed)) if made is None else made  # type: ignore[no-any-return]

    def _at(self, position: int) -> Any:
        if not self._batched:
            return self.indices
        if type(self.indices) is list:
            return self.indices[position]
        if isinstance(self.indices, Collection):  # a tensor, a set, ...: as it is iterated
            return next(islice(self.indices, position, None))
        return None  # an iterator, which has been used up

    @property
    def last(self) -> list[Any]:
        """The generator that was made last, if there is any: where it is tells what was drawn."""
        made = [each for each in self._made.values() if isinstance(each, np.random.Generator)]
        return [each.bit_generator for each in made[-1:]]

    def place(self) -> Any:
        """Give where it is, for `go_back`; what is drawn meanwhile leaves no trace."""
        place = self.seed, self._index, self._made, self.progress
        self._made = {}
        return place

    def go_back(self, place: Any) -> None:
        """Be where it was."""
        self.seed, self._index, self._made, self.progress = place


@public
def get_rng(index: Any = None) -> np.random.Generator:
    """A random generator for the sample that is being read; for use inside of a dataset.

    What it draws follows from (seed, epoch, index of the sample) and nothing else: the same in any
    worker, with ``num_workers=0``, on another machine, after a resume and in another attempt to
    read the sample. It needs not be found or kept, and costs nothing where it is not asked for::

        def __getitem__(self, index):
            rng = lit_loader.get_rng()
            return self.images[index] + rng.normal(0, 0.1, self.shape)

    All calls for one sample give the same generator, which goes on: two transforms that ask for it
    draw different numbers. A sample that comes twice in an epoch draws the same both times. Ask
    anew for each sample, and do not keep it.

    - In a collate function: one that follows from (seed, epoch, batch number).
    - In an iterable dataset: from these and the sample's place in the batch; before its first
      sample (``__iter__``, ``set_epoch``) from (seed, epoch) alone, alike for all readers.
    - In ``__getitems__``, which reads a batch at once: as in a collate function; with ``index``
      that sample's. Threads of the dataset's own should give it, too.
    - Outside of a loader: a new one, seeded by a draw from torch's global generator, so that
      ``torch.manual_seed`` decides it.

    Args:
        index: The sample's index; None: that of the sample that is being read.
    """
    maker = reading.maker
    if maker is None:
        return np.random.default_rng(int(torch.empty((), dtype=torch.int64).random_()))
    reading.asked = "lit_loader.get_rng()"
    return maker.rng.give(index, np.random.default_rng)  # type: ignore[no-any-return]
