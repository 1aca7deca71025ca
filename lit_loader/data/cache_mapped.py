"""`MappedDataset`: what comes behind a cache, and is done anew each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from torch.utils.data import Dataset

from lit_loader.config.checks import refuse

__all__ = ["Indexed", "MappedDataset"]

T_co = TypeVar("T_co", covariant=True)
_R = TypeVar("_R")


class Indexed(Protocol[T_co]):
    """What gives samples by their index."""

    def __getitem__(self, index: int, /) -> T_co: ...


class MappedDataset(Dataset[T_co]):
    """A map-style dataset whose samples go through a function, each time."""

    def __init__(self, dataset: Any, function: Callable[[Any], T_co]) -> None:
        if not callable(function):
            refuse("function", "a function, to be called with each sample", function)
        self.dataset = dataset
        self.function = function

    def map(self, function: Callable[[T_co], _R]) -> MappedDataset[_R]:
        """Return a dataset of ``function(sample)``, which is called behind this one's."""
        return MappedDataset(self, function)

    def __len__(self) -> int:
        return len(self.dataset)

    def reads_from(self, index: Any) -> tuple[tuple[Any, Any], ...]:
        """Give what a sample is read from (see `lit_loader.reads_ahead`)."""
        return ((self.dataset, index),)

    def __getitem__(self, index: Any) -> T_co:
        return self.function(self.dataset[index])

    @property
    def __getitems__(self) -> Callable[[Sequence[Any]], list[Any]] | None:
        """Reads a batch's samples at once; None where the dataset cannot."""
        many = getattr(self.dataset, "__getitems__", None)
        if many is None:
            return None
        return lambda indices: [self.function(sample) for sample in many(indices)]
