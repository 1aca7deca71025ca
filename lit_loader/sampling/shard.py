"""How a stream of items is shared out to ranks, and what ``loader.sampler`` shows then.

::

    num_replicas=, rank= ─shard_items─▶ ShardedSampler ──╮
    DistributedSampler of the user's, or Lightning's ────┤
                              loader.sampler shows it ◀──┴─sharding_of─▶ order, Shard ─▶ BatchPlan

`Shard` is arithmetic on positions, the same for the loader's own orders, users' samplers and batch
samplers. Programs of torch's world ask ``loader.sampler`` whether the data is sharded already
(Lightning looks for torch's ``DistributedSampler``) and which indices this process reads, and set
the epoch on it. So a sharded loader shows a `DistributedSampler` of which all of that is true; the
batches themselves are computed by the plan from what stands behind it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler

from lit_loader.sampling.orders import (
    EpochOrder,
    Indices,
    OrderedSampler,
    Seed,
    ShuffledSampler,
    resolve,
)

__all__ = [
    *("Shard", "ShardedSampler", "Sharding", "distributed_sampler_of", "shard_items"),
    "sharding_of",
]


@dataclass(frozen=True)
class Shard:
    """This process's share of a stream of items that all processes see alike.

    Item ``j`` goes to rank ``j % num_replicas``. What becomes of the last items, when their number
    does not divide evenly, is ``tail``: "pad" repeats items from the start of the stream, "drop"
    leaves the remainder off, "keep" gives each item once, so lower ranks may get one more than
    higher ones.
    """

    rank: int = 0
    num_replicas: int = 1
    tail: Literal["pad", "drop", "keep"] = "pad"

    def assigned(self, length: int) -> int:
        """Give how many items all ranks together get from a stream of ``length`` items."""
        remainder = length % self.num_replicas
        if self.tail == "keep" or not remainder:
            return length
        return length - remainder + (self.num_replicas if self.tail == "pad" else 0)

    def share(self, length: int) -> int:
        """Give how many items this rank gets from a stream of ``length`` items."""
        return -((self.rank - self.assigned(length)) // self.num_replicas)

    def positions(self, start: int, stop: int, length: int) -> Indices:
        """Give where in a stream of ``length`` items this rank's ``start`` to ``stop`` are."""
        positions = np.arange(start, stop, dtype=np.int64)
        positions *= self.num_replicas
        positions += self.rank
        if self.tail == "pad":
            positions %= max(length, 1)
        return positions

    def deal(self, items: list[Any], head: list[Any]) -> list[Any]:
        """Give this rank's items of a part of the stream that begins at a multiple of the ranks.

        A number of items that does not divide evenly is the stream's end; ``head`` are its first
        ``num_replicas - 1`` items, or all if there are fewer.
        """
        missing = self.assigned(len(items)) - len(items)
        if missing < 0:
            items = items[:missing]
        elif missing:
            items = items + list(itertools.islice(itertools.cycle(head), missing))
        return items[self.rank :: self.num_replicas]


class ShardedSampler(DistributedSampler[Any]):
    """One rank's share of the items that a sampler, or a batch sampler, gives to all ranks.

    Its attributes are those of ``torch.utils.data.DistributedSampler``.
    """

    # torch's constructor is not called: it measures the dataset once and for all.
    def __init__(self, source: Iterable[Any], shard: Shard) -> None:
        self.source: Any = source
        self.shard = shard
        self.dataset: Any = source
        if isinstance(source, EpochOrder):
            self.dataset = self.data_source = source.data_source
        self.num_replicas = shard.num_replicas
        self.rank = shard.rank
        self.shuffle = isinstance(source, ShuffledSampler)
        self.drop_last = shard.tail == "drop"

    @property
    def seed(self) -> int:  # type: ignore[override]
        """Base seed of a shuffled order, 0 for others."""
        return resolve(self.source.seed) if isinstance(self.source, ShuffledSampler) else 0

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The epoch whose order is given."""
        epoch = getattr(self.source, "epoch", 0)
        return epoch if isinstance(epoch, int) else 0

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """Items of this rank."""
        return len(self)

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """Items of all ranks, those that some repeat or leave off counted so."""
        return self.shard.assigned(len(self.source))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next, if the source has one for each."""
        set_epoch = getattr(self.source, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)

    def __len__(self) -> int:
        return self.shard.share(len(self.source))

    def __iter__(self) -> Iterator[Any]:
        shard, source = self.shard, self.source
        if isinstance(source, EpochOrder):
            length = len(source)
            positions = shard.positions(0, shard.share(length), length)
            return iter(source.order(source.epoch)(np.asarray(positions)).tolist())
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


def shard_items(source: Iterable[Any], shard: Shard) -> ShardedSampler:
    """Give the sampler of one rank's share of the items that a sampler gives to all ranks."""
    if isinstance(source, OrderedSampler):
        return ShardedOrderedSampler(source, shard)
    kind = ShardedShuffledSampler if isinstance(source, ShuffledSampler) else ShardedSampler
    return kind(source, shard)


class Sharding(NamedTuple):
    """What a sampler's items are, for all ranks, and which of them are this rank's."""

    items: Any
    shard: Shard
    watched: DistributedSampler[Any] | None = None  # on which programs may set the epoch instead


def sharding_of(sampler: Any, seed: Seed) -> Sharding | None:
    """Take a sampler for the loader's own sharding; None: it is to be iterated.

    torch's ``DistributedSampler`` (a subclass may mean something else) says no more than rank,
    replicas, shuffle, seed, and what to do with the rest. So its order is computed, position by
    position, as the loader's own is; by the loader's base seed, which is the sampler's unless
    another was chosen.
    """
    if isinstance(sampler, ShardedSampler):
        return Sharding(sampler.source, sampler.shard)
    if isinstance(sampler, EpochOrder):
        return Sharding(sampler, Shard())
    if type(sampler) is not DistributedSampler:
        return None
    data: Any = sampler.dataset
    order: EpochOrder = OrderedSampler(data)
    if sampler.shuffle:
        order = ShuffledSampler(data, seed=seed)
        order.as_distributed = True
    tail: Any = "drop" if sampler.drop_last else "pad"
    return Sharding(order, Shard(sampler.rank, sampler.num_replicas, tail), sampler)


def distributed_sampler_of(sampler: Any) -> DistributedSampler[Any] | None:
    """Find what shards in a sampler, or in a batch sampler's sampler; None: neither does."""
    for _ in range(4):  # of a wrapper around a batch sampler around a wrapper
        if sampler is None or isinstance(sampler, DistributedSampler):
            return sampler
        sampler = getattr(sampler, "sampler", None)
    return None
