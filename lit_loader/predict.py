"""The loader for ``Trainer.predict``: it remembers which samples each batch holds.

::

    plan ─indices─▶ note ─▶ iterator ─▶ batch ─▶ predict_step ─▶ BasePredictionWriter
                     ╰─ seen_batch_indices[batch_idx] ─────────▶ batch_indices ╯

Lightning tells its prediction writers the indices of a batch only if the loader's ``batch_sampler``
is of a class of its own, which it puts there for torch's ``DataLoader`` alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from lightning.pytorch.overrides.distributed import _IndexBatchSamplerWrapper

from lit_loader.batch_plan import EpochBatches
from lit_loader.iterator import EpochStart
from lit_loader.loader import DataLoader

__all__ = ["PredictionLoader", "SeenBatches"]

T_co = TypeVar("T_co", covariant=True)


class SeenBatches(_IndexBatchSamplerWrapper):
    """A batch sampler that shows, besides, the batches which the loader has drawn so far.

    Attributes:
        seen_batch_indices: The indices of this rank's batches since the epoch began, batch by
            batch; ahead of what has been given out by as much as the workers prefetch.
    """

    # Lightning's own constructor copies the attributes of a torch BatchSampler, and fails for a
    # batch sampler without any (a list of lists, say).
    def __init__(self, batch_sampler: Iterable[Any]) -> None:
        self.seen_batch_indices: list[Any] = []
        self._batch_sampler: Any = batch_sampler

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return iter(self._batch_sampler)

    def __len__(self) -> int:
        return len(self._batch_sampler)

    def __getattr__(self, name: str) -> Any:
        if name == "_batch_sampler":  # not there yet while this is being unpickled
            raise AttributeError(name)
        return getattr(self._batch_sampler, name)

    def __getstate__(self) -> dict[str, Any]:
        return {"_batch_sampler": self._batch_sampler, "seen_batch_indices": []}


class PredictionLoader(DataLoader[T_co]):
    """A `DataLoader` of batches in order whose ``batch_sampler`` is a `SeenBatches`.

    It is for map-style datasets with ``in_order=True`` and ``on_sample_error="raise"``: with other
    options batch number ``i`` need not hold what the sampler's batch number ``i`` says.
    """

    _seen: SeenBatches | None = None

    @property
    def batch_sampler(self) -> SeenBatches | None:
        """The batch sampler, with what has been drawn from it; None with ``batch_size=None``."""
        return self._seen

    @batch_sampler.setter
    def batch_sampler(self, value: Iterable[Any] | None) -> None:
        self._seen = None if value is None else SeenBatches(value)

    def begin_epoch(self) -> EpochStart:
        """Begin the epoch that comes next, with nothing seen of it."""
        start = super().begin_epoch()
        if self._seen is None or start.batches is None:
            return start
        seen = self._seen.seen_batch_indices = []
        # A stand-in: whoever draws from it knows no more of it than the iterators do.
        return dataclasses.replace(start, batches=_Noted(start.batches, seen))  # type: ignore[arg-type]


class _Noted(Iterator[Any]):
    """An epoch's batches, each of them noted when it is drawn."""

    def __init__(self, batches: EpochBatches, seen: list[Any]) -> None:
        self._batches, self._seen = batches, seen
        self.state = batches.state

    def __next__(self) -> Any:
        batch = next(self._batches)
        self._seen.append(batch)
        return batch
