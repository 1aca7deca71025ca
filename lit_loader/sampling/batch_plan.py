"""What each batch of an epoch holds: a pure function of (seed, epoch, batch number).

::

    sampler ──items──▶ global batches of batch_size * num_replicas items ──▶ this rank's batches
    batch_sampler ──▶ groups of num_replicas batches ──────────────────────▶ this rank's batches

- The epoch's stream of items is defined globally, the same on all ranks, and striped: item ``j``
  goes to rank ``j % num_replicas``. A user's batch sampler is striped alike, a batch an item.
- The loader's own orders are computed, so any position is reached at once. A user's sampler is
  iterated as it is; a position is reached by its own ``load_state_dict``, or else by drawing its
  indices again, which reads no data.
- A user's sampler that draws from the global generators finds them seeded; one that has a
  ``generator`` of its own goes on with it from epoch to epoch: `sampling/epoch_batches.py`.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils.data import BatchSampler

from lit_loader.checkpoint.fingerprint import Fingerprint, fingerprint_of
from lit_loader.checkpoint.sampler_state import pack_generator
from lit_loader.checkpoint.stateful import Opened, is_stateful
from lit_loader.config.scalars import plain
from lit_loader.errors import OptionError, StateError
from lit_loader.sampling.epoch_batches import BETWEEN, SAMPLER, EpochBatches
from lit_loader.sampling.orders import EpochOrder, Seed, Shard
from lit_loader.sampling.sampler_memory import SamplerMemory
from lit_loader.sampling.sharded_sampler import distributed_sampler_of

__all__ = ["BatchPlan", "UpcomingBatch"]


class UpcomingBatch(NamedTuple):
    """A batch of an epoch to come.

    Attributes:
        epoch: The epoch.
        position: Of the batch in it.
        indices: What it is made of.
    """

    epoch: int
    position: int
    indices: Any


class _Announced(int):
    """An epoch that the loader has told a sampler, to be told from what a program tells it.

    Samplers with a state of their own get a plain number: they may put it into that.
    """


class BatchPlan:
    """Which indices each batch of this rank holds, as a function of (seed, epoch, batch number).

    Args:
        sampler: An `OrderedSampler`, a `ShuffledSampler`, or any iterable of indices.
        batch_sampler: Any iterable of batches, given instead of batch size and sampler.
        batch_size: Samples a batch on this rank; None for single indices instead of lists.
        drop_last: Leave off this rank's last batch if it is not full.
        shard: This rank's share. A sampler that is a torch ``DistributedSampler`` (or a batch
            sampler around one) shards itself and is not sharded again.
        seed: Base seed, or a function that gives it at the start of an epoch; the same one that
            the `ShuffledSampler` has.
        watched: A sampler that programs may tell the epoch instead of this one, or None.
        dataset: The dataset; what samplers hold of it is not theirs.

    Raises:
        OptionError: A sampler tells of itself what cannot be part of a state, or a batch sampler
            gives single indices.
    """

    def __init__(
        self,
        sampler: Iterable[Any] | None,
        batch_sampler: Iterable[Any] | None = None,
        batch_size: int | None = 1,
        drop_last: bool = False,
        shard: Shard | None = None,
        seed: Seed = 0,
        watched: Any = None,
        dataset: Any = None,
    ) -> None:
        self.source: Any = sampler if batch_sampler is None else batch_sampler
        self.batched = batch_sampler is not None
        self.single = self.batched or batch_size is None
        if isinstance(batch_sampler, EpochOrder):
            raise OptionError(
                f"batch_sampler must give lists of indices, but {type(batch_sampler).__name__} "
                "gives single ones: pass it as sampler, with batch_size"
            )
        self.size = 1 if self.single or batch_size is None else batch_size
        self.drop_last = drop_last
        self.shard = shard or Shard()
        self.seed = seed
        self._owners: list[Any] = [self.source]
        if isinstance(inner := getattr(self.source, "sampler", None), Iterable):
            self._owners.append(inner)  # Lightning, too, looks for a batch sampler's sampler
        self.rank, self.num_replicas = self.shard.rank, self.shard.num_replicas
        if (distributed := distributed_sampler_of(self.source)) is not None:
            self.shard = Shard()
            self.rank, self.num_replicas = distributed.rank, distributed.num_replicas
        if watched is not None:
            self._owners.append(watched)
        self.memory = SamplerMemory(() if is_stateful(self.drawn_from) else self._owners, dataset)
        self._epochs_seen = [0] * len(self._owners)
        self.between = False
        """Whether a user's sampler has come to an epoch's end, and not been drawn from since."""
        self.opened: Opened | None = None
        """The sampler in the epoch that was begun last."""
        self.brought_to: dict[str, Any] | None = None
        """Its state, where it was restored behind an epoch: many tell it once they are iterated."""
        self.fingerprint()  # what cannot be told is refused here, not at the first checkpoint

    def __getstate__(self) -> dict[str, Any]:
        # The iterator of a sampler cannot be copied; a copy goes on from the sampler itself.
        return {**self.__dict__, "opened": None}

    def __len__(self) -> int:
        """Give this rank's number of batches in a full epoch.

        Raises:
            TypeError: If the sampler has no length.
        """
        share = self.shard.share(len(self.source))
        return share // self.size if self.drop_last else -(-share // self.size)

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

    def start_for(self, samples: int) -> int:
        """Find the batch number at which ``samples`` items of the epoch have been delivered.

        Args:
            samples: What `samples_after` gave, perhaps for other ranks or another batch size.

        Returns:
            The number of the next batch, counted from 0.

        Raises:
            StateError: If the position lies within a batch of this plan.
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

    def divides_evenly(self) -> bool:
        """Whether all ranks get as many items without any being repeated, as far as is known."""
        length = self._stream_length()
        return length is not None and length % self.shard.num_replicas == 0

    def _stream_length(self) -> int | None:
        """Number of items that all ranks together go through in an epoch; None if unknown."""
        try:
            length = len(self.source)
        except (TypeError, NotImplementedError):
            return None
        if self.num_replicas != self.shard.num_replicas:  # a DistributedSampler tells its share
            return length * self.num_replicas
        return min(length, self.shard.assigned(length))

    def requested_epoch(self) -> int | None:
        """Give the epoch that was set on the sampler since the last epoch began; None if none.

        Programs call ``set_epoch`` on a sampler of theirs without telling the loader; for such
        samplers an ``epoch`` attribute counts as a request that no loader has announced, so that
        the same number set again is one too.
        """
        for owner, seen in zip(self._owners, self._epochs_seen, strict=True):
            if isinstance(owner, EpochOrder):
                if owner.requested_epoch is not None:
                    return owner.requested_epoch
            elif callable(getattr(owner, "set_epoch", None)):
                given = getattr(owner, "epoch", None)
                epoch = plain(given)
                if not isinstance(epoch, int) or epoch < 0:
                    continue
                if type(given) is _Announced:
                    continue  # by a loader, this one or one that it is a copy of
                if epoch != seen or type(seen) is _Announced:
                    return epoch
        return None

    def batches(
        self, epoch: int, start: int = 0, state: Mapping[str, Any] | None = None
    ) -> EpochBatches:
        """Give this rank's batches of an epoch; nothing is asked of the sampler before the first.

        Args:
            epoch: Epoch number; it is announced to samplers that have ``set_epoch``.
            start: Number of the first batch, counted from 0; beyond the end there are none.
            state: What `EpochBatches.state` gave at this position; where a position from outside
                is gone on from, empty if there is nothing.

        Raises:
            StateError: When the first batch is asked for, if the sampler cannot take ``state``.
        """
        return EpochBatches(self, epoch, start, state)

    def expected_batches(self, epoch: int) -> Iterator[Any]:
        """Give the indices of an epoch's batches without beginning it; for the loader's own orders.

        Args:
            epoch: Epoch number; it is announced to nobody.
        """
        assert isinstance(self.source, EpochOrder), "other samplers change when they are drawn from"
        return EpochBatches(self, epoch, 0, None).computed(self.source)

    def lookahead(self, epoch: int) -> Iterator[UpcomingBatch] | None:
        """Give the batches of the epochs after this one, as far as it can expect them.

        Args:
            epoch: Epoch number.

        Returns:
            None for samplers that are not the loader's own.
        """
        return self._coming(epoch) if isinstance(self.source, EpochOrder) else None

    def _coming(self, epoch: int) -> Iterator[UpcomingBatch]:
        for following in itertools.count(epoch + 1):
            position = -1
            for position, indices in enumerate(self.expected_batches(following)):
                yield UpcomingBatch(following, position, indices)
            if position < 0:
                return  # an epoch without batches: so are all others

    def sampler_state(self, between: bool = True) -> dict[str, Any] | None:
        """Give what the sampler itself must remember between two epochs; None if nothing.

        Args:
            between: Whether that is where it is.

        Returns:
            Primitives, given back to `batches` with ``start=0``.
        """
        state: dict[str, Any] = {}
        if generator := self.generator():
            state["generator"] = pack_generator(generator)
        if (carried := self.memory.note(generator)) is not None:
            state["carried"] = carried
        return state | (self.place_between() if between else {}) or None

    def place_between(self) -> dict[str, Any]:
        """Give the samplers' own states behind an epoch; empty if they have none."""
        parts = self.brought_to
        if parts is not None:
            parts = copy.deepcopy(parts)
        elif self.opened is not None:
            parts = self.opened.state()
        elif is_stateful(self.drawn_from):
            parts = {SAMPLER: copy.deepcopy(self.drawn_from.state_dict())}
        return parts | {BETWEEN: True} if parts else {}

    def fingerprint(self) -> Fingerprint:
        """Give what the samplers tell of themselves: fields "sampler.…" of a state's fingerprint.

        Raises:
            OptionError: One of them gives what cannot be part of a state.
        """
        fields: Fingerprint = {}
        for depth, owner in enumerate(self._owners):
            fields |= fingerprint_of("sampler" + ".sampler" * depth, owner)
        return fields

    def announce(self, epoch: int) -> None:
        """Tell the samplers which epoch begins."""
        for number, owner in enumerate(self._owners):
            if isinstance(owner, EpochOrder):
                owner.epoch, owner.requested_epoch = epoch, None
            elif callable(getattr(owner, "set_epoch", None)):
                told = epoch if is_stateful(owner) else _Announced(epoch)
                self.memory.announce(owner, told)
                kept = getattr(owner, "epoch", None) is told
                self._epochs_seen[number] = told if kept else epoch

    def generator(self) -> torch.Generator | None:
        """Give the generator that a sampler has of its own, which goes on from epoch to epoch."""
        for owner in self._owners:
            generator = getattr(owner, "generator", None)
            if isinstance(generator, torch.Generator) and not isinstance(owner, EpochOrder):
                return generator
        return None

    @property
    def drawn_from(self) -> Any:
        """The sampler that is asked for its place, and iterated.

        A user's batch sampler, too; that of one of torch's, which only cuts what its sampler gives.
        """
        return self._owners[-1] if type(self.source) is BatchSampler else self.source
