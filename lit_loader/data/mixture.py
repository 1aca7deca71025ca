"""`MixtureDataset`, `MixtureSampler`: several map-style datasets as one, mixed by weights.

And what both kinds of mixtures have: named sources. The draws of all epochs are one endless
sequence, of which epoch ``e`` is part number ``e``: so a source that is larger than its share of an
epoch is gone through to its end before anything of it comes again. Everything is computed from a
seed: any draw is reached at once, nothing is stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Sampler

from lit_loader.core.options.checks import flag, is_dataset, is_list, refuse, whole_number
from lit_loader.core.sampling.orders import EpochOrder, Indices, Permutation
from lit_loader.core.seeding.seeds import derive
from lit_loader.core.state.state_validation import Fingerprint
from lit_loader.data.by_length import summarise
from lit_loader.data.weights import ALL_DRAWS, Changes, Timeline, Weights, named_changes
from lit_loader.describe import public, short_repr
from lit_loader.errors import OptionError

__all__ = ["MixtureDataset", "MixtureSampler", "announce_epoch", "named_sources"]

_WITHIN = 2  # keeps random numbers within sources apart from those of their order


@public
class MixtureDataset(Dataset[Any]):
    """Several map-style datasets one after the other, with the weights to mix them by.

    Args:
        datasets: The sources, in a list, or by name; factories without arguments are called.
        weights: Relative frequency of each, in a list or by name. None: their lengths, so that all
            samples are equally frequent. Weights that change are a list of pairs, ``[(0, {"web": 3,
            "books": 1}), (5000, {"web": 1, "books": 1})]``: from which draw on they count, of all
            ranks together and over all epochs.

    Attributes:
        names: The sources' names; "0", "1", … for a list.
        datasets: The sources.
        lengths: Their lengths, as they were when this object was made.
        weights: Their weights, at first.
        changes: All their weights: (from which draw on, weights).
        starts: Index of each one's first sample, and the number of all samples.

    Raises:
        OptionError: Datasets and weights do not belong together, or an empty source has a weight.
    """

    def __init__(
        self,
        datasets: Mapping[str, Any] | Sequence[Any],
        weights: Weights | Sequence[tuple[int, Weights]] | None = None,
    ) -> None:
        self.names, self.datasets = named_sources(datasets)
        self.lengths = [*map(_length, self.names, self.datasets)]
        self.changes: Changes = [(0, self.lengths)]
        if weights is not None:
            self.changes = named_changes(weights, self.names)
        self.weights = self.changes[0][1]
        self.starts = [0, *itertools.accumulate(self.lengths)]
        drawn = [any(each) for each in zip(*(weights for _, weights in self.changes), strict=True)]
        for name, length, weight in zip(self.names, self.lengths, drawn, strict=True):
            if weight and not length:
                raise OptionError(f"source {name!r} is empty: leave it out, or set its weight to 0")

    def __len__(self) -> int:
        return self.starts[-1]

    def __repr__(self) -> str:
        lengths, weights = (
            short_repr(dict(zip(self.names, each, strict=True)))
            for each in (self.lengths, self.weights)
        )
        return f"{type(self).__name__}(lengths={lengths}, weights={weights})"

    def locate(self, index: int) -> tuple[int, int]:
        """Return where a sample comes from.

        Args:
            index: Its index in the mixture, from 0.

        Returns:
            The number of its source, in the order of ``names``, and its index there; both from 0.

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

    def __getitem__(self, index: int) -> Any:
        source, within = self.locate(index)
        return self.datasets[source][within]

    @property
    def __getitems__(self) -> Callable[[Sequence[int]], list[Any]] | None:
        """Reads a batch's samples at once; None where no source can."""
        known = (getattr(dataset, "__getitems__", None) for dataset in self.datasets)
        return self._getitems if any(known) else None

    def _getitems(self, indices: Sequence[int]) -> list[object]:
        places: dict[int, list[tuple[int, int]]] = {}
        for place, index in enumerate(indices):
            source, within = self.locate(index)
            places.setdefault(source, []).append((place, within))
        samples: list[object] = [None] * len(indices)
        for source, members in places.items():
            dataset = self.datasets[source]
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
    """Return the names and the datasets of a mapping or sequence; factories are called."""
    if not (isinstance(datasets, Mapping) or is_list(datasets)) or not datasets:
        refuse("datasets", "a list of datasets, or a mapping from name to dataset", datasets)
    if not isinstance(datasets, Mapping):
        datasets = {str(number): dataset for number, dataset in enumerate(datasets)}
    names, members = list(map(str, datasets)), list(datasets.values())
    return names, [*map(_made, names, members)]


def _made(name: str, source: Any) -> Any:
    if not is_dataset(source) and not callable(source):
        refuse(f"datasets[{name!r}]", "a dataset, or a factory without arguments", source)
    return source if is_dataset(source) else source()


def _length(name: str, dataset: Any) -> int:
    if not hasattr(type(dataset), "__len__"):
        raise OptionError(
            f"datasets[{name!r}] must have a length, got {type(dataset).__name__}: a "
            "MixtureDataset is of map-style datasets, a MixtureStream of iterable ones"
        )
    return len(dataset)


def announce_epoch(datasets: Iterable[object], epoch: int) -> None:
    """Call ``set_epoch`` of those sources that have one."""
    for dataset in datasets:
        if callable(set_epoch := getattr(dataset, "set_epoch", None)):
            set_epoch(epoch)


@public
class MixtureSampler(EpochOrder, Sampler[int]):
    """Draws from the sources of a `MixtureDataset` by weight, from each without replacement.

    A source that has been gone through begins again, in another order. What an epoch holds is a
    function of (lengths, weights, epoch_length, seed, epoch), and any place in it is reached at
    once; the loader shares it out to ranks and resumes it as it does its own orders. In a
    configuration it is a factory, which is called with the dataset::

        sampler: {_target_: lit_loader.MixtureSampler, _partial_: true, epoch_length: 10000}

    Args:
        data_source: The dataset.
        epoch_length: Draws in an epoch, over all ranks; None: as many as there are samples.
        shuffle: Shuffle each source, in each pass over it; False: in its own order.
        seed: Seed of the mixture; the loader's own ``seed`` is not known here.

    Raises:
        OptionError: ``data_source`` is no `MixtureDataset`, or an option or a weight is refused.

    Examples:
        >>> from lit_loader import DataLoader, MixtureDataset, MixtureSampler
        >>> sources = {"web": ["w0", "w1", "w2"], "books": ["b0"]}
        >>> mixture = MixtureDataset(sources, weights={"web": 3, "books": 1})
        >>> sampler = MixtureSampler(mixture, epoch_length=8, seed=1)
        >>> [len(batch) for batch in DataLoader(mixture, 4, sampler=sampler)]
        [4, 4]
    """

    def __init__(
        self,
        data_source: MixtureDataset,
        epoch_length: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        if not isinstance(data_source, MixtureDataset) or not len(data_source):
            refuse("data_source", "a MixtureDataset with at least one sample", data_source)
        self.epoch_length = len(data_source)
        if epoch_length is not None:
            self.epoch_length = whole_number("epoch_length", epoch_length, low=1)
        self.data_source, self.dataset_length = data_source, len(data_source)
        self.shuffle = flag("shuffle", shuffle)
        self.seed = whole_number("seed", seed)
        self._timeline = Timeline(data_source.names, data_source.changes, self.seed)

    def __len__(self) -> int:
        return self.epoch_length

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.data_source!r}, epoch_length={self.epoch_length}, "
            f"shuffle={self.shuffle}, seed={self.seed})"
        )

    def order(self, epoch: int) -> Callable[[Indices], Indices]:  # noqa: D102
        first = self._first_draw(epoch)
        return lambda positions: self._draw(positions + first)

    def state_fingerprint(self) -> Fingerprint:
        """Name what the order depends on, besides the epoch."""
        return {
            "seed": self.seed,
            "shuffle": self.shuffle,
            "epoch_length": self.epoch_length,
            "lengths": summarise(self.data_source.lengths),
            "shares": self._timeline.to_state()[0][1],
        }

    def order_state(self) -> dict[str, object]:
        """Return by which weights sources are drawn from."""
        return {"weights": self._timeline.to_state()}

    def place_in(self, state: object, epoch: int, items: int) -> int:
        """Check that the draws up to a state were made by the weights that this mixture has."""
        weights = state.get("weights") if isinstance(state, Mapping) else None
        self._timeline.check(weights, self._first_draw(epoch) + items)
        return items

    def _first_draw(self, epoch: int) -> int:
        # An epoch that no run comes to must not be beyond 64 bits.
        return epoch * self.epoch_length % ALL_DRAWS

    def _draw(self, draws: Indices) -> Indices:
        """Return the dataset indices of draws, counted from the first one of epoch 0."""
        sources, counts = self._timeline.at(draws)
        result = np.empty_like(draws)
        for source in np.unique(sources).tolist():
            chosen = sources == source
            length = self.data_source.lengths[source]
            passes, places = np.divmod(counts[chosen], length)
            for number in np.unique(passes).tolist() if self.shuffle else ():
                now = passes == number
                seed = derive(self.seed, _WITHIN, source, number)
                places[now] = Permutation(length, seed).at(places[now])
            result[chosen] = places + self.data_source.starts[source]
        return result
