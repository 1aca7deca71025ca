"""The samplers that a loader shows as its attributes, and the plan of its batches behind them.

::

    options ─choose_samplers─▶ loader.sampler, loader.batch_sampler ─ShownSamplers.plan─▶ BatchPlan

Programs may change these samplers between two epochs, or only set an attribute of one. The loader
notes what it has shown when a plan was made, and makes the plan anew if that has changed.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from torch.utils.data import BatchSampler, DistributedSampler

from lit_loader.config.loader_config import LoaderConfig
from lit_loader.errors import OptionError
from lit_loader.sampling.batch_plan import BatchPlan
from lit_loader.sampling.orders import EndlessSampler, OrderedSampler, ShuffledSampler
from lit_loader.sampling.shard import (
    Shard,
    Sharding,
    distributed_sampler_of,
    shard_items,
    sharding_of,
)
from lit_loader.seeding.seeds import BaseSeed

__all__ = [
    *("SHUFFLED", "ShownSamplers", "choose_samplers", "order_name", "wrappable_by_lightning"),
]

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

    def plan(self, batch_size: int | None, base_seed: BaseSeed, dataset: Any) -> BatchPlan:
        """Make the plan of the batches; a batch sampler takes the place of a batch size."""
        batched, size, drop_last = self.batch_sampler is not None, None, False
        shown = self.batch_sampler if batched else self.sampler
        if self.cut is not None:
            default = batch_size is not None and self.cut is self.sampler
            if default or sharding_of(self.cut, base_seed) is not None:
                batched, shown = False, self.cut
                size, drop_last = self.batch_size, bool(self.drop_last)
        items, shard, watched = sharding_of(shown, base_seed) or Sharding(shown, Shard())
        return BatchPlan(items, batched, size, drop_last, shard, base_seed, watched, dataset)


def choose_samplers(
    config: LoaderConfig, dataset: Any, iterable: bool, base_seed: BaseSeed
) -> tuple[Iterable[Any], Iterable[Any] | None]:
    """Make what ``loader.sampler`` and ``loader.batch_sampler`` show: what this process reads.

    The base seed learns the seed of a distributed sampler of the user's. An OptionError, if such a
    sampler and the options do not mean the same processes.
    """
    sampler, batch_sampler = config.sampler, config.batch_sampler
    certain = config.in_order and config.on_sample_error == "raise"
    if not certain and any(kind.__name__ == _NOTING for kind in type(batch_sampler).__mro__):
        batch_sampler = _Unnoted(batch_sampler)
    given = distributed_sampler_of(sampler if batch_sampler is None else batch_sampler)
    if given is not None:
        _check_replicas(config, given)
        seed = getattr(given, "seed", None)
        base_seed.sampler = seed if isinstance(seed, int) else None
    if sampler is None:
        if iterable:
            sampler = EndlessSampler()
        elif config.shuffle:
            sampler = ShuffledSampler(dataset, config.generator, base_seed)
        else:
            sampler = OrderedSampler(dataset)
    if config.num_replicas is not None and not iterable and given is None:
        shard = Shard(config.rank or 0, config.num_replicas, config.shard_tail)
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


def _check_replicas(config: LoaderConfig, sampler: DistributedSampler[Any]) -> None:
    theirs, ours = (sampler.rank, sampler.num_replicas), (config.rank, config.num_replicas)
    if ours not in ((None, None), theirs):
        raise OptionError(
            f"the sampler shards for rank {theirs[0]} of {theirs[1]}, but rank={ours[0]} and "
            f"num_replicas={ours[1]} were given: leave these at None"
        )


# --- whether Lightning may note which indices a batch was made of, for writers of predictions ---

# Its wrapper notes batches as they are drawn. Where the loader gives them out in another order, or
# leaves samples out, number ``i`` would be another batch's: then the wrapper is hidden, and
# Lightning says that it cannot infer the indices.


# Known by its name, for there are two (``lightning``, ``pytorch_lightning``), and no loader needs
# either.
# reach: lightning: the class that Lightning looks for
_NOTING = "_IndexBatchSamplerWrapper"


def wrappable_by_lightning(batch_sampler: Any) -> Any:
    """Make of a list of batches what Lightning can wrap: it copies a batch sampler's attributes."""
    if batch_sampler is None or hasattr(batch_sampler, "__dict__"):
        return batch_sampler
    return _Unnoted(batch_sampler)


class _Unnoted:
    """A batch sampler that gives what another gives, and nothing else of it but its sampler."""

    def __init__(self, batch_sampler: Iterable[Any]) -> None:
        self.sampler = getattr(batch_sampler, "sampler", None)
        self._batch_sampler: Any = batch_sampler

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batch_sampler)

    def __len__(self) -> int:
        return len(self._batch_sampler)
