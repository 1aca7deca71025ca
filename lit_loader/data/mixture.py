"""`MixtureDataset`, `MixtureSampler`: several map-style datasets as one, mixed by weights.

And what both kinds of mixtures have: named sources, weights, the order of sources they lead to::

    weights ─▶ exact shares ─▶ blocks of draws ─▶ Schedule.at(block): source of each draw,
                                                  and how many draws of that source came before
    that ─▶ pass, place = divmod(count, len(source)) ─▶ that pass's own shuffle ─▶ index

The draws of all epochs are one endless sequence, of which epoch ``e`` is part number ``e``: so a
source that is larger than its share of an epoch is gone through to its end before anything of it
comes again. Everything is computed from a seed: any draw is reached at once, nothing is stored.
"""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Sampler

from lit_loader.checkpoint.fingerprint import Fingerprint, summarise
from lit_loader.config.checks import flag, is_dataset, is_list, plain, whole_number
from lit_loader.describe import public, short_repr
from lit_loader.errors import OptionError
from lit_loader.sampling.orders import CHUNK, EpochOrder, Indices
from lit_loader.sampling.permutation import Permutation
from lit_loader.seeding.seeds import derive

__all__ = [
    *("MixtureDataset", "MixtureSampler", "Schedule", "Weights"),
    *("announce_epoch", "named_sources", "named_weights"),
]

Weights = Mapping[str, float] | Sequence[float]

_SCHEDULE, _WITHIN = 1, 2  # keeps random numbers of sources and within them apart
_ALL_DRAWS = 2**61  # where the sequence begins again
_BLOCK = 1024
_SMALLEST = Fraction(1, 1_000_000)


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
        lengths, weights = (
            short_repr(dict(zip(self.names, each, strict=True)))
            for each in (self.lengths, self.weights)
        )
        return f"{type(self).__name__}(lengths={lengths}, weights={weights})"

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


def announce_epoch(datasets: Iterable[Any], epoch: int) -> None:
    """Call ``set_epoch`` of those sources that have one."""
    for dataset in datasets:
        if callable(set_epoch := getattr(dataset, "set_epoch", None)):
            set_epoch(epoch)


class Schedule:
    """Which source each draw of an endless sequence comes from, as a function of a seed.

    Draws are planned in blocks: of 1,024, or as many as a source of little weight needs to come
    once. After each block every source has had its share of all draws so far, give or take less
    than one; within a block the order is random. OptionError: the weights are refused.
    """

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        exact = exact_weights(weights)
        total = sum(exact)
        self.shares = [weight / total for weight in exact]
        least = min(share for share in self.shares if share)
        if least < _SMALLEST:
            raise OptionError(
                "weights must each be 0 or at least a millionth of their sum, for a source of less "
                f"would hardly ever come, got weights={weights!r}"
            )
        self.seed = seed
        self.block = max(_BLOCK, math.ceil(1 / least))
        # Exact fractions: rounding must neither lose a draw nor give one twice, however many.
        self._bounds = [Fraction(0), *itertools.accumulate(self.shares)]
        self._last: tuple[int, tuple[Indices, Indices]] | None = None

    def drawn(self, blocks: int) -> list[int]:
        """Give how often each source comes in the first ``blocks`` blocks."""
        draws = blocks * self.block
        floors = [draws * bound.numerator // bound.denominator for bound in self._bounds]
        # Not negative from one block to the next, because block * share is at least 1 (or 0).
        return [after - before for before, after in itertools.pairwise(floors)]

    def at(self, block: int) -> tuple[Indices, Indices]:
        """Give for each draw of a block its source, and how many of that source came before it.

        Counted from the sequence's beginning; two int64 arrays, not to be written to.
        """
        if self._last is None or self._last[0] != block:
            before, after = self.drawn(block), self.drawn(block + 1)
            quotas = np.subtract(after, before)
            shuffle = Permutation(self.block, derive(self.seed, _SCHEDULE, block))
            sources = np.repeat(np.arange(len(quotas)), quotas)[shuffle.take(0, self.block)]
            counts = np.empty(self.block, np.int64)
            firsts = np.cumsum(quotas) - quotas - before
            in_turn = np.arange(self.block) - np.repeat(firsts, quotas)
            counts[np.argsort(sources, kind="stable")] = in_turn
            self._last = block, (sources, counts)
        return self._last[1]


def named_weights(weights: Weights, names: Sequence[str]) -> list[float]:
    """Give each source's weight; OptionError where weights and sources do not fit."""
    if isinstance(weights, Mapping):
        if set(weights) != set(names):
            raise OptionError(
                f"weights must name the datasets {', '.join(map(repr, names))}, got "
                f"{', '.join(map(repr, weights))}"
            )
        return [plain(weights[name]) for name in names]
    if isinstance(weights, str) or not hasattr(weights, "__len__"):
        raise OptionError(
            "weights must be a list of numbers, one for each dataset, or a mapping from name to "
            f"number, got weights={short_repr(weights)}"
        )
    if len(weights) != len(names):
        raise OptionError(
            f"weights must be one for each of the {len(names)} datasets, got {len(weights)} weights"
        )
    return list(map(plain, weights))


def exact_weights(weights: Sequence[Any]) -> list[Fraction]:
    """Give weights without rounding; OptionError where they are not weights."""
    numeric = all(isinstance(weight, (numbers.Real, Decimal)) for weight in weights)
    if (
        not numeric
        or not all(0 <= weight < math.inf for weight in weights)
        or not any(weight > 0 for weight in weights)
    ):
        raise OptionError(
            "weights must be finite numbers of at least 0, and at least one of them above 0, got "
            f"weights={list(weights)!r}"
        )
    # Fraction knows float alone of the inexact kinds, and keeps NumPy's integers, which overflow.
    known = (numbers.Rational, Decimal)
    exact = (plain(weight) for weight in weights)
    return [Fraction(weight if isinstance(weight, known) else float(weight)) for weight in exact]


@public
class MixtureSampler(EpochOrder, Sampler[int]):
    """Draws from the sources of a `MixtureDataset` by weight, from each without replacement.

    ::

        DataLoader(mixture, 32, sampler=MixtureSampler(mixture, epoch_length=10_000, seed=1))

    A source that has been gone through begins again, in another order. What an epoch holds is a
    function of (lengths, weights, epoch_length, seed, epoch), and any place in it is reached at
    once; the loader shares it out to ranks and resumes it as it does its own orders. In a
    configuration it is a factory, which is called with the dataset::

        sampler: {_target_: lit_loader.MixtureSampler, _partial_: true, epoch_length: 10000}

    Args:
        data_source: The dataset.
        epoch_length: Draws in an epoch, over all ranks; None: as many as there are samples.
        shuffle: Shuffle each source, anew for each pass over it; False: in its own order.
        seed: Seed of the mixture; the loader's own ``seed`` is not known here.

    Raises:
        OptionError: ``data_source`` is no `MixtureDataset`, or an option or a weight is refused.
    """

    def __init__(
        self,
        data_source: MixtureDataset,
        epoch_length: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        if not isinstance(data_source, MixtureDataset):
            raise OptionError(
                "data_source must be a MixtureDataset, which knows its sources, got "
                f"{type(data_source).__name__}: put the datasets into one"
            )
        if not len(data_source):
            raise OptionError(
                f"all sources of the mixture are empty ({short_repr(data_source.names)}): there is "
                "nothing to draw from, look at how the datasets are made"
            )
        self.epoch_length = len(data_source)
        if epoch_length is not None:
            self.epoch_length = whole_number("epoch_length", epoch_length, low=1)
        self.data_source, self.shuffle = data_source, flag("shuffle", shuffle)
        self.seed = whole_number("seed", seed)
        self._schedule = Schedule(data_source.weights, self.seed)

    def __len__(self) -> int:
        return self.epoch_length

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.data_source!r}, epoch_length={self.epoch_length}, "
            f"shuffle={self.shuffle}, seed={self.seed})"
        )

    def order(self, epoch: int) -> Callable[[Indices], Indices]:
        # An epoch that no run comes to must not be beyond 64 bits.
        first = epoch * self.epoch_length % _ALL_DRAWS
        return lambda positions: self._draw(positions + first)

    def counts(self, epoch: int) -> dict[str, int]:
        """Give how often each source comes in an epoch, by name; computes the whole epoch."""
        starts = np.array(self.data_source.starts)
        total = np.zeros(len(self.data_source.names), np.int64)
        for start in range(0, self.epoch_length, CHUNK):
            drawn = np.searchsorted(starts, self.indices(epoch, start, start + CHUNK), "right") - 1
            total += np.bincount(drawn, minlength=len(total))
        return dict(zip(self.data_source.names, total.tolist(), strict=True))

    def state_fingerprint(self) -> Fingerprint:
        """Name what the order depends on, besides the epoch; see `checkpoint/fingerprint.py`.

        Weights are named as shares: 3 and 1 give the same order as 0.75 and 0.25.
        """
        return {
            "seed": self.seed,
            "shuffle": self.shuffle,
            "epoch_length": self.epoch_length,
            "lengths": summarise(self.data_source.lengths),
            "shares": summarise(self._schedule.shares),
        }

    def _draw(self, draws: Indices) -> Indices:
        """Give the dataset indices of draws, counted from the first one of epoch 0."""
        sources, counts = np.empty_like(draws), np.empty_like(draws)
        blocks, within = np.divmod(draws, self._schedule.block)
        for block in np.unique(blocks).tolist():
            chosen = blocks == block
            block_sources, block_counts = self._schedule.at(block)
            sources[chosen] = block_sources[within[chosen]]
            counts[chosen] = block_counts[within[chosen]]
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
