"""The samplers that a loader shows as its attributes, and the plan of its batches behind them.

::

    options ─choose_samplers─▶ loader.sampler, loader.batch_sampler ─ShownSamplers.plan─▶ BatchPlan

Programs of torch's world ask ``loader.sampler`` whether the data is sharded already (by torch's
``DistributedSampler``) and which indices this process reads, and set the epoch on it. So a sharded
loader shows a `DistributedSampler` of which all of that is true; the batches
themselves are computed by the plan from what stands behind it. Programs may change these samplers
between two epochs, or only set an attribute of one: the loader notes what it has shown when a plan
was made, and makes the plan anew if that has changed.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from lit_loader.core.options.loader_config import LoaderConfig
from lit_loader.core.order.batch_plan import BatchPlan, Shard, distributed_sampler_of
from lit_loader.core.order.orders import (
    EndlessSampler,
    EpochOrder,
    OrderedSampler,
    Seed,
    ShuffledSampler,
    resolve,
)
from lit_loader.core.seeding.bases import LoaderSeeds
from lit_loader.errors import OptionError

__all__ = ["SHUFFLED", "ShardedSampler", "ShownSamplers", "choose_samplers", "order_name"]

SHUFFLED: Final = frozenset({ShuffledSampler.__name__, DistributedSampler.__name__})
"""Names in a state of the two orders that a `ShuffledSampler` can give."""


class ShownSamplers(NamedTuple):
    """What a loader shows of its order at one moment.

    ``cut`` is what a plain ``BatchSampler`` cuts into batches; of others that and all that follows
    is None.
    """

    sampler: Any
    batch_sampler: Any
    cut: Any = None
    batch_size: int | None = None
    drop_last: bool | None = None

    @classmethod
    def of(cls, sampler: Any, batches: Any) -> ShownSamplers:
        """Note what a loader with these samplers shows now."""
        if type(batches) is not BatchSampler:
            return cls(sampler, batches)
        return cls(sampler, batches, batches.sampler, batches.batch_size, batches.drop_last)

    def is_same(self, other: ShownSamplers) -> bool:
        """Whether both show the same; samplers are not compared by their items."""
        return self[3:] == other[3:] and all(map(operator.is_, self[:3], other[:3]))

    def plan(self, batch_size: int | None, seeds: LoaderSeeds, dataset: Any) -> BatchPlan:
        """Make the plan of the batches; a batch sampler takes the place of a batch size."""
        batched, size, drop_last = self.batch_sampler is not None, None, False
        shown = self.batch_sampler if batched else self.sampler
        if self.cut is not None:
            default = batch_size is not None and self.cut is self.sampler
            if default or _sharding_of(self.cut, seeds) is not None:
                batched, shown = False, self.cut
                size, drop_last = self.batch_size, bool(self.drop_last)
        items, shard, watched = _sharding_of(shown, seeds) or (shown, Shard(), None)
        return BatchPlan(items, batched, size, drop_last, shard, seeds, watched, dataset)


def choose_samplers(
    config: LoaderConfig, dataset: Any, iterable: bool, seeds: LoaderSeeds
) -> tuple[Iterable[Any], Iterable[Any] | None]:
    """Make what ``loader.sampler`` and ``loader.batch_sampler`` show: what this process reads.

    The seeds learn of a distributed sampler of the user's. An OptionError, if such a
    sampler and the options do not mean the same processes.
    """
    sampler, batch_sampler = config.sampler, config.batch_sampler
    _check_length(sampler if batch_sampler is None else batch_sampler, dataset)
    given = distributed_sampler_of(sampler if batch_sampler is None else batch_sampler)
    if given is not None:
        _check_replicas(config, given)
        seeds.of_ranks(given.num_replicas, getattr(given, "seed", None))
    if sampler is None:
        if iterable:
            sampler = EndlessSampler()
        elif config.shuffle:
            sampler = ShuffledSampler(dataset, config.generator, seeds)
        else:
            sampler = OrderedSampler(dataset)
    if config.num_replicas is not None and not iterable and given is None:
        shard = Shard(config.rank or 0, config.num_replicas, config.uneven_ranks)
        sampler = shard_items(sampler, shard)
        if batch_sampler is not None:
            batch_sampler = shard_items(batch_sampler, shard)
    if batch_sampler is not None or config.batch_size is None:
        return sampler, batch_sampler
    batches = BatchSampler(sampler, config.batch_size, config.drop_last)
    if hasattr(sampler, "set_epoch"):
        # Transformers' Trainer, which on a resume builds a loader of torch's from these batches,
        # tells them their epoch: without this that loader would go on in the first one's order.
        batches.set_epoch = sampler.set_epoch  # type: ignore[attr-defined]
    return sampler, batches


def order_name(source: Any) -> str:
    """Name an order in a state: the sampler's class, or torch's where the order is that one's."""
    if isinstance(source, ShuffledSampler) and source.as_distributed:
        return DistributedSampler.__name__
    return type(source).__name__


def _check_length(sampler: Any, dataset: Any) -> None:
    """Refuse a sampler of another dataset's lengths: samples would be left out, or not be there."""
    known = sampler.dataset_length if isinstance(sampler, EpochOrder) else None
    if known is None or not hasattr(type(dataset), "__len__"):
        return
    try:
        length = len(dataset)
    except (TypeError, NotImplementedError):
        return
    if known != length:
        raise OptionError(
            f"{type(sampler).__name__} was made for {known:,} samples, and the dataset "
            f"({type(dataset).__name__}) has {length:,}: make the sampler for this dataset, with "
            "one number for each of its samples [LL311]"
        )


def _check_replicas(config: LoaderConfig, sampler: DistributedSampler[Any]) -> None:
    theirs, ours = (sampler.rank, sampler.num_replicas), (config.rank, config.num_replicas)
    if ours not in ((None, None), theirs):
        raise OptionError(
            f"the sampler shards for rank {theirs[0]} of {theirs[1]}, but rank={ours[0]} and "
            f"num_replicas={ours[1]} were given: leave these at None"
            " [LL624]"
        )


# --- a rank's share, as torch's programs know it ---


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
        self.drop_last = shard.remainder == "drop"

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
            order = source.order(source.epoch)
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


def shard_items(source: Iterable[Any], shard: Shard) -> ShardedSampler:
    """Give the sampler of one rank's share of the items that a sampler gives to all ranks."""
    if isinstance(source, OrderedSampler):
        return ShardedOrderedSampler(source, shard)
    kind = ShardedShuffledSampler if isinstance(source, ShuffledSampler) else ShardedSampler
    return kind(source, shard)


def _sharding_of(
    sampler: Any, seed: Seed
) -> tuple[Any, Shard, DistributedSampler[Any] | None] | None:
    """Take a sampler for the loader's own sharding; None: it is to be iterated.

    Gives the items for all ranks, this rank's share, and on what programs may set the epoch. All
    that torch's ``DistributedSampler`` (a subclass may mean something else) says are rank,
    replicas, shuffle, seed, and what to do with the rest. So its order is computed as the loader's
    own is; by the loader's base seed, which is the sampler's unless another was chosen.
    """
    if isinstance(sampler, ShardedSampler):
        return sampler.source, sampler.shard, None
    if isinstance(sampler, EpochOrder):
        return sampler, Shard(), None
    if type(sampler) is not DistributedSampler:
        return None
    data: Any = sampler.dataset
    order: EpochOrder = OrderedSampler(data)
    if sampler.shuffle:
        order = ShuffledSampler(data, seed=seed)
        order.as_distributed = True
    remainder: Any = "drop" if sampler.drop_last else "pad"
    return order, Shard(sampler.rank, sampler.num_replicas, remainder), sampler
