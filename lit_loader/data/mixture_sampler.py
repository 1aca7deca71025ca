"""`MixtureSampler`: which sample of which source each draw from a `MixtureDataset` is.

::

    Schedule: draw number ─▶ (source, how many draws of that source came before)
    that ─▶ pass, place = divmod(count, len(source)) ─▶ that pass's own shuffle ─▶ index

The draws of all epochs are one endless sequence, of which epoch ``e`` is part number ``e``: so a
source that is larger than its share of an epoch is gone through to its end before anything of it
comes again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch.utils.data import Sampler

from lit_loader.checkpoint.fingerprint import Fingerprint, summarise
from lit_loader.config.checks import flag, whole_number
from lit_loader.data.mixture import MixtureDataset, Schedule
from lit_loader.describe import public, short_repr
from lit_loader.errors import OptionError
from lit_loader.sampling.orders import CHUNK, EpochOrder, Indices
from lit_loader.sampling.permutation import Permutation
from lit_loader.seeding.seeds import derive

__all__ = ["MixtureSampler"]

_WITHIN = 2  # keeps these random numbers apart from those of `data/mixture.py`
_ALL_DRAWS = 2**61  # where the sequence begins again


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

    def order(self, epoch: int) -> Callable[[Indices], Indices]:  # noqa: D102
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
