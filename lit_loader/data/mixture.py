"""`MixtureDataset`: several map-style datasets as one, with the weights to mix them by.

What both kinds of mixtures do with their sources is here, too: `MixtureStream` uses it as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from lit_loader.config.checks import is_dataset, is_list
from lit_loader.data.mixture_schedule import Weights, exact_weights, named_weights
from lit_loader.describe import public, short_repr
from lit_loader.errors import OptionError

__all__ = ["MixtureDataset", "announce_epoch", "in_short", "named_sources"]

_SHOWN = 8


@public
class MixtureDataset(Dataset[Any]):
    """Several map-style datasets one behind the other, with the weights to mix them by.

    Args:
        datasets: The sources, in a list, or by name; factories without arguments are called.
        weights: Relative frequency of each, alike a list or by name; None: their lengths, so that
            every sample is as frequent as any other.

    Attributes:
        names: The sources' names; "0", "1", … for a list.
        datasets: The sources.
        lengths: Their lengths, as they were when this object was made.
        weights: Their weights.
        starts: Index of each one's first sample, and the number of all samples.

    Raises:
        OptionError: Datasets and weights do not belong together, or an empty source has a weight.
    """

    def __init__(
        self, datasets: Mapping[str, Any] | Sequence[Any], weights: Weights | None = None
    ) -> None:
        self.names, self.datasets = named_sources(datasets)
        self.lengths = [*map(_length, self.names, self.datasets)]
        self.weights = self.lengths if weights is None else named_weights(weights, self.names)
        if weights is not None:
            exact_weights(self.weights)  # bad ones are refused here, where they are given
        self.starts = [0, *itertools.accumulate(self.lengths)]
        for name, length, weight in zip(self.names, self.lengths, self.weights, strict=True):
            if weight and not length:
                raise OptionError(f"source {name!r} is empty: leave it out or give it weight 0")

    def __len__(self) -> int:
        return self.starts[-1]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_listed(self.names, self.lengths, self.weights)})"

    def locate(self, index: int) -> tuple[int, int]:
        """Give the number of the source that a sample comes from, and its index there.

        Raises:
            IndexError: There is no such sample.
        """
        if not 0 <= index < len(self):
            raise IndexError(
                f"index {index} is out of range for a MixtureDataset of {len(self)} samples, whose "
                "indices begin at 0"
            )
        source = int(np.searchsorted(self.starts, index, side="right")) - 1
        return source, index - self.starts[source]

    def reads_from(self, index: int) -> tuple[tuple[Any, int], ...]:
        """Give what a sample is read from (see `lit_loader.reads_ahead`)."""
        source, within = self.locate(index)
        return ((self.datasets[source], within),)

    def __getitem__(self, index: int) -> Any:
        source, within = self.locate(index)
        return self.datasets[source][within]

    @property
    def __getitems__(self) -> Callable[[Sequence[int]], list[Any]] | None:
        """Reads a batch's samples at once; None where no source can."""
        known = (getattr(dataset, "__getitems__", None) for dataset in self.datasets)
        return self._getitems if any(known) else None

    def _getitems(self, indices: Sequence[int]) -> list[Any]:
        places: dict[int, list[tuple[int, int]]] = {}
        for place, index in enumerate(indices):
            source, within = self.locate(index)
            places.setdefault(source, []).append((place, within))
        samples: list[Any] = [None] * len(indices)
        for source, members in places.items():
            dataset: Any = self.datasets[source]
            wanted = [within for _, within in members]
            many = getattr(dataset, "__getitems__", None)
            read = many(wanted) if many else [dataset[within] for within in wanted]
            for (place, _), sample in zip(members, read, strict=True):
                samples[place] = sample
        return samples

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch on those sources that have ``set_epoch``."""
        announce_epoch(self.datasets, epoch)


def named_sources(datasets: Any) -> tuple[list[str], list[Any]]:
    """Give the names and the datasets of a mapping or sequence; factories are called."""
    listed, kind = isinstance(datasets, Mapping) or is_list(datasets), type(datasets).__name__
    if listed and not datasets:
        kind = f"an empty {kind}"
    if not listed or not datasets:
        raise OptionError(
            "datasets must be a list of datasets, or a mapping from name to dataset, with at "
            f"least one, got {kind}"
        )
    if not isinstance(datasets, Mapping):
        datasets = {str(number): dataset for number, dataset in enumerate(datasets)}
    names, members = list(map(str, datasets)), list(datasets.values())
    return names, [*map(_made, names, members)]


def _made(name: str, source: Any) -> Any:
    """The dataset that a source is, or that a factory makes."""
    if not is_dataset(source) and not callable(source):
        raise OptionError(
            f"datasets[{name!r}] must be a dataset, or a factory without arguments, got "
            f"{short_repr(source)}"
        )
    return source if is_dataset(source) else source()


def _length(name: str, dataset: Any) -> int:
    """The samples of a source."""
    if not hasattr(type(dataset), "__len__"):
        raise OptionError(
            f"datasets[{name!r}] must have a length, got {type(dataset).__name__}: a "
            "MixtureDataset is of map-style datasets, a MixtureStream of iterable ones"
        )
    return len(dataset)


def in_short(names: Sequence[str]) -> str:
    """Names for a reader, the first few of them."""
    return ", ".join([*map(repr, names[:_SHOWN]), *(["…"] if names[_SHOWN:] else [])])


def _listed(names: Sequence[str], lengths: Sequence[int], weights: Sequence[float]) -> str:
    """The sources for a reader, the first few of them."""
    parts = [
        f"{name!r}: {length:,} samples, weight {weight}"
        for name, length, weight in zip(names[:_SHOWN], lengths, weights, strict=False)
    ]
    return "; ".join([*parts, f"… {len(names)} sources in all"][: None if names[_SHOWN:] else -1])


def announce_epoch(datasets: Iterable[Any], epoch: int) -> None:
    """Call ``set_epoch`` of those sources that have one."""
    for dataset in datasets:
        if callable(set_epoch := getattr(dataset, "set_epoch", None)):
            set_epoch(epoch)
