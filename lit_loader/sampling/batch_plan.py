"""What each batch of an epoch holds: a pure function of (seed, epoch, batch number).

::

    sampler ──items──▶ global batches of batch_size * num_replicas items ──▶ this rank's batches
    batch_sampler ──▶ groups of num_replicas batches ──────────────────────▶ this rank's batches

- The epoch's stream of items is defined globally, the same on all ranks, and striped: item ``j``
  goes to rank ``j % num_replicas``. A user's batch sampler is striped alike, a batch an item.
- The loader's own orders are computed, so any position is reached at once. A user's sampler is
  iterated as it is; a position is reached by drawing its indices again, which reads no data.
- A user's sampler that draws from the global generators finds them seeded; one that has a
  ``generator`` of its own goes on with it from epoch to epoch: `sampling/sampler_cursor.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from lit_loader.errors import OptionError, StateError
from lit_loader.sampling.orders import EpochOrder, Indices, Seed, ShuffledSampler
from lit_loader.sampling.shard import Shard, distributed_sampler_of
from lit_loader.sampling.user_sampler import UserSampler
from lit_loader.seeding.seeds import BaseSeed

__all__ = ["BatchPlan"]


class BatchPlan:
    """Which indices each batch of this rank holds, as a function of (seed, epoch, batch number).

    A sampler that is a torch ``DistributedSampler``, or a batch sampler around one, shards itself
    and is not sharded again.

    Args:
        source: An `OrderedSampler`, a `ShuffledSampler`, or any iterable of indices, or of batches.
        batched: Whether it is one of batches.
        batch_size: Samples a batch on this rank; None for single indices instead of lists.
        drop_last: Leave off this rank's last batch if it is not full.
        shard: This rank's share.
        seed: The loader's base seed: a `ShuffledSampler` with it is one of the loader's own.
        watched: A sampler on which programs may set the epoch instead of this one, or None.
        dataset: The dataset; what samplers hold of it is not theirs.
    """

    def __init__(
        self,
        source: Iterable[Any],
        batched: bool = False,
        batch_size: int | None = 1,
        drop_last: bool = False,
        shard: Shard | None = None,
        seed: Seed = 0,
        watched: Any = None,
        dataset: Any = None,
    ) -> None:
        self.source: Any = source
        self.is_computed = isinstance(self.source, EpochOrder)  # any position is known at once
        self.batched = batched
        self.single = batched or batch_size is None  # a batch is one item of the source
        if batched and self.is_computed:
            raise OptionError(
                f"batch_sampler must give lists of indices, but {type(source).__name__} "
                "gives single ones: pass it as sampler, with batch_size"
            )
        self.size = 1 if self.single or batch_size is None else batch_size
        self.drop_last = drop_last
        self.shard = shard or Shard()
        self.seed = seed
        self.rank, self.num_replicas = self.shard.rank, self.shard.num_replicas
        if (distributed := distributed_sampler_of(self.source)) is not None:
            self.shard = Shard()
            self.rank, self.num_replicas = distributed.rank, distributed.num_replicas
        self.sampler = UserSampler(self.source, watched, dataset)

    def __len__(self) -> int:
        """Give this rank's number of batches in a full epoch; a TypeError without a length."""
        share = self.shard.share(len(self.source))
        return share // self.size if self.drop_last else -(-share // self.size)

    def order(self, epoch: int, seed: int) -> Callable[[Indices], Indices]:
        """Give the order of an epoch of one of the loader's own samplers, begun with a seed."""
        source: EpochOrder = self.source
        if isinstance(source, ShuffledSampler):  # another loader's has a seed of its own
            own = isinstance(self.seed, BaseSeed) and self.seed.is_kin(source.seed)
            return source.order(epoch, seed if own else None)
        return source.order(epoch)

    def is_end(self, batches: int) -> bool:
        """Whether nothing is left of an epoch after ``batches`` batches, as far as is known."""
        try:
            return batches >= len(self)
        except (TypeError, NotImplementedError):
            return False

    @property
    def global_size(self) -> int:
        """Items (samples, or a batch sampler's batches) in one batch of every rank."""
        return self.size * self.num_replicas

    def samples_after(self, batches: int) -> int:
        """Give how many items of the stream all ranks have got after ``batches`` batches each."""
        samples = batches * self.global_size
        length = self._stream_length()
        return samples if length is None else min(samples, length)

    def fits(self, batches: int, samples: int) -> bool:
        """Whether ``batches`` batches on each rank can have had ``samples`` items.

        The length of the stream, of a sampler's epoch say, may be another one by now.
        """
        most = batches * self.global_size
        return samples == self.samples_after(batches) or most - self.global_size < samples <= most

    def start_for(self, samples: int) -> int:
        """Find the batch number at which ``samples`` items of the epoch have been delivered.

        They are what `samples_after` gave, perhaps for other ranks or another batch size; a
        StateError if that lies within a batch of this plan.
        """
        length = self._stream_length()
        if length is not None and samples >= length:
            return -(-length // self.global_size)
        batches, within = divmod(samples, self.global_size)
        if within:
            raise StateError(
                f"the state's position of {samples} samples is not a multiple of batch_size * "
                f"num_replicas = {self.size} * {self.num_replicas}: resume with a batch_size and "
                f"num_replicas whose product divides it"
            )
        return batches

    def _stream_length(self) -> int | None:
        """Number of items that all ranks together go through in an epoch; None if unknown."""
        try:
            length = len(self.source)
        except (TypeError, NotImplementedError):
            return None
        if self.num_replicas != self.shard.num_replicas:
            return length * self.num_replicas  # a DistributedSampler's length is its share
        return min(length, self.shard.assigned(length))
