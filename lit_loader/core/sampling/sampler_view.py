"""The samplers that a loader shows as its attributes, and the plan of its batches behind them.

::

    options ─choose_samplers─▶ loader.sampler, loader.batch_sampler ─ShownSamplers.plan─▶ BatchPlan

Programs of torch's world ask ``loader.sampler`` whether the data is sharded already (by torch's
``DistributedSampler``) and which indices this process reads, and set the epoch on it. So a sharded
loader shows a `DistributedSampler` of which all of that is true (`compat/torch_samplers.py`); the
batches themselves are computed by the plan from what stands behind it. Programs may change these
samplers between two epochs, or only set an attribute of one: the loader notes what it has shown
when a plan was made, and rebuilds the plan if that has changed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from torch.utils.data import BatchSampler, DistributedSampler

from lit_loader.core.options.loader_config import LoaderConfig
from lit_loader.core.sampling.batch_plan import BatchPlan, Shard, distributed_sampler_of
from lit_loader.core.sampling.orders import (
    ComputedOrder,
    EndlessSampler,
    OrderedSampler,
    ShuffledSampler,
)
from lit_loader.core.seeding.loader_seeds import LoaderSeeds
from lit_loader.errors import OptionError


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

    def plan(self, batch_size: int | None) -> BatchPlan:
        """Make the plan of the batches; a batch sampler takes the place of a batch size."""
        batched, size, drop_last = self.batch_sampler is not None, None, False
        shown = self.batch_sampler if batched else self.sampler
        if self.cut is not None:
            default = batch_size is not None and self.cut is self.sampler
            if default or _sharding_of(self.cut) is not None:
                batched, shown = False, self.cut
                size, drop_last = self.batch_size, bool(self.drop_last)
        items, shard = _sharding_of(shown) or (shown, Shard())
        return BatchPlan(items, batched, size, drop_last, shard, shown)


def choose_samplers(
    config: LoaderConfig,
    dataset: Any,
    iterable: bool,
    seeds: LoaderSeeds,
    share: Callable[[Any, Shard], Any],
) -> tuple[Iterable[Any], Iterable[Any] | None]:
    """Make what ``loader.sampler`` and ``loader.batch_sampler`` show: what this process reads.

    The seeds learn of a distributed sampler of the user's. An OptionError, if such a
    sampler and the options do not mean the same processes. ``share`` makes what shows a rank's
    share of what a sampler gives (`compat/torch_samplers.py`).
    """
    sampler, batch_sampler = config.sampler, config.batch_sampler
    _check_length(sampler if batch_sampler is None else batch_sampler, dataset)
    given = distributed_sampler_of(sampler if batch_sampler is None else batch_sampler)
    if given is not None:
        _check_replicas(config, given)
        seeds.of_ranks(given.num_replicas, own_order=not is_share(given))
        # Programs rebuild a loader around the sampler of another one, on each rank.
        theirs = getattr(getattr(given, "source", None), "seed", None)
        if isinstance(theirs, LoaderSeeds):
            seeds.follow(theirs)
    if sampler is None:
        if iterable:
            sampler = EndlessSampler()
        elif config.shuffle:
            sampler = ShuffledSampler(dataset, config.generator, seeds)
        else:
            sampler = OrderedSampler(dataset)
    if config.replica is not None and not iterable and given is None:
        shard = Shard(*config.replica, config.uneven_ranks)
        sampler = share(sampler, shard)
        if batch_sampler is not None:
            batch_sampler = share(batch_sampler, shard)
    if batch_sampler is not None or config.batch_size is None:
        return sampler, batch_sampler
    batches = BatchSampler(sampler, config.batch_size, config.drop_last)
    if hasattr(sampler, "set_epoch"):
        # Transformers' Trainer, which on a resume builds a loader of torch's from these batches,
        # tells them their epoch: without this that loader would go on in the first one's order.
        batches.set_epoch = sampler.set_epoch  # type: ignore[attr-defined]
    return sampler, batches


def is_share(sampler: Any) -> bool:
    """Whether a sampler shows a rank's share of another one, its ``source``."""
    return isinstance(getattr(sampler, "shard", None), Shard)


def order_name(source: Any) -> str:
    """Name an order in a state: the sampler's class, or that it is a shuffle of the loader's own.

    That of a ``DistributedSampler`` is one, too: a pass continues in the order it began with.
    """
    return "shuffled" if isinstance(source, ShuffledSampler) else type(source).__name__


def _check_length(sampler: Any, dataset: Any) -> None:
    """Refuse a sampler of another dataset's lengths: samples would be left out, or not be there."""
    known = sampler.dataset_length if isinstance(sampler, ComputedOrder) else None
    if known is None or not hasattr(type(dataset), "__len__"):
        return
    try:
        length = len(dataset)
    except (TypeError, NotImplementedError):
        return
    if known != length:
        raise OptionError(
            f"{type(sampler).__name__} was made for {known:,} samples, and the dataset "
            f"({type(dataset).__name__}) has {length:,}. Make the sampler for this dataset, with "
            "one number for each of its samples"
        )


def _check_replicas(config: LoaderConfig, sampler: DistributedSampler[Any]) -> None:
    theirs, ours = (sampler.rank, sampler.num_replicas), (config.rank, config.num_replicas)
    if ours not in ((None, None), theirs):
        raise OptionError(
            f"the sampler shards for rank {theirs[0]} of {theirs[1]}, but rank={ours[0]} and "
            f"num_replicas={ours[1]} were given: leave these at None"
        )


def _sharding_of(sampler: Any) -> tuple[Any, Shard] | None:
    """Return the items for all ranks and this rank's share; None: the sampler is to be iterated.

    All that torch's ``DistributedSampler`` (a subclass may mean something else) says are rank,
    replicas, shuffle, seed, and what to do with the rest. So its order is computed.
    """
    if is_share(sampler):
        return sampler.source, sampler.shard
    if isinstance(sampler, ComputedOrder):
        return sampler, Shard()
    if type(sampler) is not DistributedSampler:
        return None
    data: Any = sampler.dataset
    order: ComputedOrder = OrderedSampler(data)
    if sampler.shuffle:
        order = ShuffledSampler(data, distributed=sampler.seed)
    remainder: Any = "drop" if sampler.drop_last else "pad"
    return order, Shard(sampler.rank, sampler.num_replicas, remainder)
