"""What programs of torch's world find as a loader's samplers, and do with them.

A sharded loader shows a ``DistributedSampler``, where programs look whether the data is sharded;
what it says of ranks is true. Programs that rebuild the loaders that they are given iterate these
samplers themselves, by torch's loader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler

from lit_loader.core.sampling.batch_plan import Shard
from lit_loader.core.sampling.orders import (
    ComputedOrder,
    EpochOrder,
    OrderedSampler,
    ShuffledSampler,
    epoch_number,
)

__all__ = ["ShardedSampler", "shard_items"]


class ShardedSampler(DistributedSampler[Any]):
    """One rank's share of the items that a sampler, or a batch sampler, yields for all ranks.

    Its attributes are those of ``torch.utils.data.DistributedSampler``.
    """

    # torch's constructor is not called: it measures the dataset once and for all.
    def __init__(self, source: Iterable[object], shard: Shard) -> None:
        self.source: Any = source
        self.shard = shard
        self.dataset: Any = source
        if isinstance(source, ComputedOrder):
            self.dataset = self.data_source = source.data_source
        self.requested_epoch: int | None = None  # that a program has set
        self._epoch = 0
        self.num_replicas = shard.num_replicas
        self.rank = shard.rank
        self.shuffle = isinstance(source, ShuffledSampler)
        self.drop_last = shard.remainder == "drop"

    @property
    def seed(self) -> int:  # type: ignore[override]
        """Base seed of a shuffled order, 0 for others."""
        if not isinstance(self.source, ShuffledSampler):
            return 0
        seed = self.source.seed
        return seed() if callable(seed) else seed

    @property
    def epoch(self) -> int:
        """The epoch whose order is given."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch = epoch
        if isinstance(self.source, EpochOrder):
            self.source.epoch = epoch

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """Items of this rank."""
        return len(self)

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """Items of all ranks, those that some repeat or leave off counted so."""
        return self.shard.assigned(len(self.source))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next."""
        self.epoch = self.requested_epoch = epoch_number(epoch)
        set_epoch = getattr(self.source, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)

    def __len__(self) -> int:
        return self.shard.share(len(self.source))

    def __iter__(self) -> Iterator[Any]:
        shard, source = self.shard, self.source
        if isinstance(source, ComputedOrder):
            length = len(source)
            positions = shard.positions(0, shard.share(length), length)
            order = source.order(self.epoch)
            if source.of_batches:
                return (order(positions[at : at + 1])[0].tolist() for at in range(len(positions)))
            return iter(order(positions).tolist())
        items = list(source)
        return iter(shard.deal(items, items[: shard.num_replicas - 1]))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source!r}, rank={self.rank} of {self.num_replicas})"


class ShardedOrderedSampler(ShardedSampler, SequentialSampler):
    """A share of the dataset's own order: programs look for a ``SequentialSampler``."""


class ShardedShuffledSampler(ShardedSampler, RandomSampler):
    """A share of a shuffled order: programs look for a ``RandomSampler``."""

    replacement = False
    generator = None


def shard_items(source: Iterable[object], shard: Shard) -> ShardedSampler:
    """Return the sampler of one rank's share of the items that a sampler yields for all ranks."""
    if isinstance(source, OrderedSampler):
        return ShardedOrderedSampler(source, shard)
    kind = ShardedShuffledSampler if isinstance(source, ShuffledSampler) else ShardedSampler
    return kind(source, shard)
