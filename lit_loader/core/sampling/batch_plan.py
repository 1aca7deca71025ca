"""What each batch of a pass holds: a pure function of the pass's seed and the batch number.

::

    sampler ──items──▶ global batches of batch_size * num_replicas items ──▶ this rank's batches
    batch_sampler ──▶ groups of num_replicas batches ──────────────────────▶ this rank's batches

- The epoch's stream of items is defined globally, the same on all ranks, and striped: item ``j``
  goes to rank ``j % num_replicas``. A user's batch sampler is striped by batches.
- The loader's own orders are computed, so any position is reached at once: `ComputedBatches`. A
  user's sampler is iterated as it is: `core/sampling/sampler_batches.py`.

And the samplers that a loader shows as its attributes, with the plan behind them::

    options ─choose_samplers─▶ loader.sampler, loader.batch_sampler ─ShownSamplers.plan─▶ BatchPlan

Programs of torch's world ask ``loader.sampler`` whether the data is sharded already (by torch's
``DistributedSampler``) and which indices this process reads, and set the epoch on it. So a sharded
loader shows a `DistributedSampler` of which all of that is true (`compat/torch_samplers.py`); the
batches themselves are computed by the plan from what stands behind it. Programs may change these
samplers between two epochs, or only set an attribute of one: the loader notes what it has shown
when a plan was made, and rebuilds the plan if that has changed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.utils.data import BatchSampler, DistributedSampler

from lit_loader.core.options.loader_config import LoaderConfig, UnevenRanks
from lit_loader.core.sampling.orders import (
    CHUNK,
    ComputedOrder,
    EndlessSampler,
    Indices,
    OrderedSampler,
    ShuffledSampler,
    shown_epoch,
)
from lit_loader.core.seeding.loader_seeds import LoaderSeeds
from lit_loader.core.state.position import Position
from lit_loader.core.state.state_validation import Fingerprint, fingerprint_of
from lit_loader.errors import OptionError, StateError

_FIRST_CHUNK: Final = 256
"""Indices that are computed at first, and twice as many each time up to `CHUNK`: an epoch's first
batch does not wait for those of the next hundred."""


@dataclass(frozen=True)
class Shard:
    """This process's share of a stream of items that is the same in all processes.

    Item ``j`` goes to rank ``j % num_replicas``. What becomes of the ``remainder``: "pad"
    repeats items from the stream's start, "drop" leaves it off, "keep" gives each item once, so
    that lower ranks may get one more.
    """

    rank: int = 0
    num_replicas: int = 1
    remainder: UnevenRanks = "pad"

    def assigned(self, length: int) -> int:
        """Return how many items all ranks together get from a stream of ``length`` items."""
        left = length % self.num_replicas
        if self.remainder == "keep" or not left:
            return length
        return length - left + (self.num_replicas if self.remainder == "pad" else 0)

    def share(self, length: int) -> int:
        """Return how many items this rank gets from a stream of ``length`` items."""
        return -((self.rank - self.assigned(length)) // self.num_replicas)

    def positions(self, start: int, stop: int, length: int) -> Indices:
        """Return where in a stream of ``length`` items this rank's ``start`` to ``stop`` are."""
        positions = np.arange(start, stop, dtype=np.int64)
        if self.num_replicas == 1:
            return positions
        positions *= self.num_replicas
        positions += self.rank
        if self.remainder == "pad":
            positions %= max(length, 1)
        return positions

    def deal(self, items: list[object], head: list[object]) -> list[object]:
        """Return this rank's items of a part of the stream that begins at a multiple of the ranks.

        A number of items that does not divide evenly is the stream's end; ``head`` are its first
        ``num_replicas - 1`` items, or all if there are fewer.
        """
        missing = self.assigned(len(items)) - len(items)
        if missing < 0:
            items = items[:missing]
        elif missing:
            items = items + list(itertools.islice(itertools.cycle(head), missing))
        return items[self.rank :: self.num_replicas]


_WHOLE: Final = Shard()


class SamplerEpochs:
    """The samplers of a loader on which programs set the epoch.

    A sampler of the loader's own knows whether an epoch was set on it. Of any other one the
    attribute ``epoch`` counts, as with torch's ``DistributedSampler``.
    """

    def __init__(self, samplers: Iterable[Any]) -> None:
        self._samplers = [s for s in samplers if callable(getattr(s, "set_epoch", None))]

    def asked(self) -> int | None:
        """Return the epoch that is set; None: none is."""
        for sampler in self._samplers:
            if hasattr(sampler, "requested_epoch"):
                epoch = sampler.requested_epoch
            else:
                epoch = shown_epoch(sampler)
            if epoch is not None:
                return int(epoch)
        return None

    def set(self, epoch: int, informed: tuple[object, ...] = ()) -> None:
        """Set an epoch that the program has set on the loader; not of users' ``informed`` ones."""
        for sampler in self._samplers:
            if hasattr(sampler, "requested_epoch") or not any(sampler is each for each in informed):
                sampler.set_epoch(epoch)

    def show(self, epoch: int, resumed: bool = False) -> None:
        """Set the epoch that samplers show, which was counted, or ``resumed``."""
        for sampler in self._samplers:
            if hasattr(sampler, "requested_epoch"):
                if resumed:
                    sampler.requested_epoch = None
                if sampler.requested_epoch is None:
                    sampler.epoch = epoch
            elif resumed and shown_epoch(sampler) is not None:
                sampler.set_epoch(epoch)


class BatchPlan:
    """Which indices each batch of this rank holds, as a function of the pass and batch number.

    ``batched``: the source gives batches; ``batch_size`` None: single indices instead of lists. A
    sampler that is a torch ``DistributedSampler``, or a batch sampler around one, shards itself and
    is not sharded again. ``shown``: the sampler in whose place the source stands.
    """

    # What the sampler's generator was seeded with when the loader was made.
    generator_seed: int | None = None

    def __init__(
        self,
        source: Iterable[object],
        batched: bool = False,
        batch_size: int | None = 1,
        drop_last: bool = False,
        shard: Shard | None = None,
        shown: object = None,
    ) -> None:
        self.source: Any = source
        own = source if isinstance(source, ComputedOrder) else None
        self.is_computed = own is not None  # any position is known at once
        self.batched = batched
        self.single = batched or batch_size is None  # a batch is one item of the source
        if batched and own is not None and not own.of_batches:
            raise OptionError(
                f"batch_sampler must give lists of indices, but {type(source).__name__} "
                "gives single ones: pass it as sampler, with batch_size"
            )
        self.size = 1 if self.single or batch_size is None else batch_size
        self.drop_last = drop_last
        self.shard = shard or _WHOLE
        self.rank, self.num_replicas = self.shard.rank, self.shard.num_replicas
        self._fingerprinted: tuple[object, ...] = (source,)
        if own is None:
            if (distributed := distributed_sampler_of(source)) is not None:
                self.shard = _WHOLE
                self.rank, self.num_replicas = distributed.rank, distributed.num_replicas
            inner = getattr(source, "sampler", None)
            if isinstance(inner, Iterable):
                self._fingerprinted = source, inner
            if isinstance(generator := generator_of(source), torch.Generator):
                self.generator_seed = generator.initial_seed()
        samplers = self._fingerprinted if shown is source else (shown, *self._fingerprinted)
        self.epochs = SamplerEpochs(samplers)
        self.fingerprint()  # one that cannot be part of a state is refused at once

    def fingerprint(self) -> Fingerprint:
        """Return the samplers' part of a state's fingerprint: its fields "sampler.…"."""
        fields: Fingerprint = {}
        for depth, each in enumerate(self._fingerprinted):
            fields |= fingerprint_of("sampler" + ".sampler" * depth, each)
        return fields

    @property
    def is_shuffled(self) -> bool:
        """Whether the order is a shuffle of the loader's own."""
        return isinstance(self.source, ShuffledSampler)

    def __len__(self) -> int:
        """Return this rank's number of batches in a full epoch; a TypeError without a length."""
        share = self.shard.share(len(self.source))
        return share // self.size if self.drop_last else -(-share // self.size)

    @property
    def distributed(self) -> int | None:
        """The seed of torch's ``DistributedSampler``, if its order is to be given; else None."""
        return self.source.distributed if isinstance(self.source, ShuffledSampler) else None

    def order(self, place: Position) -> Callable[[Indices], Indices]:
        """Return the order of a pass of one of the loader's own samplers."""
        if isinstance(self.source, ShuffledSampler):
            return self.source.order_of(place.epoch, place.order_seed, place.distributed)
        order: Callable[[Indices], Indices] = self.source.order(place.epoch)
        return order

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

    def start_for(self, samples: int) -> int:
        """Find the batch number at which ``samples`` items of the epoch have been delivered.

        A StateError if that lies within a batch of this plan.
        """
        length = self._stream_length()
        if length is not None and samples >= length:
            return -(-length // self.global_size)
        batches, within = divmod(samples, self.global_size)
        if within:
            what = "batches" if self.batched else "samples"
            raise StateError(
                f"the state's position of {samples} {what} of all ranks is not a multiple of "
                f"batch_size * num_replicas = {self.size} * {self.num_replicas}: resume with a "
                "batch_size and num_replicas whose product divides it"
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


class ComputedBatches:
    """One rank's batches of an epoch of one of the loader's own orders: any of them at once.

    A batch is an int64 array, where it is not a single index.
    """

    computed = True
    at_start: Mapping[str, object] | None = None  # what must be remembered before the pass

    def __init__(self, plan: BatchPlan, place: Position) -> None:
        self._plan, self._epoch, self._order = plan, place.epoch, plan.order(place)
        self._length, self._size = len(plan.source), plan.size
        self._share = plan.shard.share(self._length)
        if plan.drop_last:
            self._share -= self._share % plan.size
        # The number of the first batch that is kept, and the indices of some from there on.
        self._chunk: tuple[int, Indices | Sequence[int]] = 0, ()
        # Batches are computed, and kept, by their order itself.
        self._most = 1 if plan.batched else max(1, CHUNK // plan.size)
        self._next_size = min(self._most, max(1, _FIRST_CHUNK // plan.size))

    def draw(self, number: int, where: object = None) -> object:
        """Return batch ``number``; StopIteration after the last."""
        first, chunk = self._chunk
        at = (number - first) * self._size
        if not 0 <= at < len(chunk):
            at, (_, chunk) = 0, self._compute(number)
        return chunk[at] if self._plan.single else chunk[at : at + self._size]

    def at(self, number: int) -> Indices | np.int64:
        """Return batch ``number`` alone; nothing is begun by that. IndexError: there is none."""
        start = number * self._size
        stop = min(start + self._size, self._share)
        if not 0 <= start < stop:
            batches = -(-self._share // self._size)
            raise IndexError(
                f"batch {number:,} is out of range: epoch {self._epoch} has {batches:,} batches, "
                "whose numbers begin at 0"
            )
        indices = self._order(self._plan.shard.positions(start, stop, self._length))
        return indices[0] if self._plan.single else indices

    def at_end(self) -> None:
        """Return what must be remembered after the pass: nothing."""

    def _compute(self, number: int) -> tuple[int, Indices | Sequence[int]]:
        plan, start = self._plan, number * self._size
        stop = min(start + self._next_size * self._size, self._share)
        if start >= stop:
            raise StopIteration
        self._next_size = min(2 * self._next_size, self._most)
        chunk = self._order(plan.shard.positions(start, stop, self._length))
        self._chunk = number, chunk.tolist() if plan.single and not plan.batched else chunk
        return self._chunk


def generator_of(source: object) -> object:
    """Return the generator that a sampler has as its attribute; None if it has none."""
    if isinstance(source, ComputedOrder):
        return None
    generator = getattr(source, "generator", None)
    inner = getattr(source, "sampler", None)
    if generator is None and inner is not None and not isinstance(inner, ComputedOrder):
        return getattr(inner, "generator", None)
    return generator


def distributed_sampler_of(sampler: object) -> DistributedSampler[object] | None:
    """Find what shards in a sampler, or in a batch sampler's sampler; None: neither does."""
    for _ in range(4):  # of a wrapper around a batch sampler around a wrapper
        if sampler is None or isinstance(sampler, DistributedSampler):
            return sampler
        sampler = getattr(sampler, "sampler", None)
    return None


class ShownSamplers(NamedTuple):
    """What a loader shows of its order at one moment.

    ``cut`` is what a plain ``BatchSampler`` cuts into batches; of others that and all that follows
    is None.
    """

    sampler: Any
    batch_sampler: Iterable[object] | None
    cut: Iterable[object] | None = None
    batch_size: int | None = None
    drop_last: bool | None = None

    @classmethod
    def of(cls, sampler: object, batches: Iterable[object] | None) -> ShownSamplers:
        """Note what a loader with these samplers shows now."""
        if type(batches) is not BatchSampler:
            return cls(sampler, batches)
        return cls(sampler, batches, batches.sampler, batches.batch_size, batches.drop_last)

    def is_of(self, sampler: object, batches: Any) -> bool:
        """Whether a loader with these samplers still shows this; items are not compared."""
        if sampler is not self.sampler or batches is not self.batch_sampler:
            return False
        return type(batches) is not BatchSampler or (
            batches.sampler is self.cut
            and (batches.batch_size, batches.drop_last) == (self.batch_size, self.drop_last)
        )

    def plan(self, batch_size: int | None, uneven_ranks: UnevenRanks) -> BatchPlan:
        """Make the plan of the batches; a batch sampler takes the place of a batch size."""
        batched, size, drop_last = self.batch_sampler is not None, None, False
        shown = self.sampler if self.batch_sampler is None else self.batch_sampler
        if self.cut is not None:
            default = batch_size is not None and self.cut is self.sampler
            if default or _sharding_of(self.cut) is not None:
                batched, shown = False, self.cut
                size, drop_last = self.batch_size, bool(self.drop_last)
        items, shard = _sharding_of(shown, uneven_ranks) or (shown, _WHOLE)
        return BatchPlan(items, batched, size, drop_last, shard, shown)


def choose_samplers(
    config: LoaderConfig,
    dataset: Any,
    iterable: bool,
    seeds: LoaderSeeds,
    share: Callable[[Iterable[object], Shard], Iterable[object]],
) -> tuple[Iterable[object], Iterable[object] | None]:
    """Make what ``loader.sampler`` and ``loader.batch_sampler`` show: what this process reads.

    The seeds learn of a distributed sampler of the user's. An OptionError, if such a
    sampler and the options do not mean the same processes. ``share`` makes what shows a rank's
    share of what a sampler gives (`compat/torch_samplers.py`).
    """
    sampler, batch_sampler = config.sampler, config.batch_sampler
    deciding = sampler if batch_sampler is None else batch_sampler
    _check_length(deciding, dataset)
    given = distributed_sampler_of(deciding)
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


def is_share(sampler: object) -> bool:
    """Whether a sampler shows a rank's share of another one, its ``source``."""
    return isinstance(getattr(sampler, "shard", None), Shard)


def order_name(source: object) -> str:
    """Name an order in a state: the sampler's class, or that it is a shuffle of the loader's own.

    That of a ``DistributedSampler`` is one, too: a pass continues in the order it began with.
    """
    return "shuffled" if isinstance(source, ShuffledSampler) else type(source).__name__


def _check_length(sampler: object, dataset: Any) -> None:
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


def _check_replicas(config: LoaderConfig, sampler: DistributedSampler[object]) -> None:
    theirs, ours = (sampler.rank, sampler.num_replicas), (config.rank, config.num_replicas)
    if ours not in ((None, None), theirs):
        raise OptionError(
            f"the sampler shards for rank {theirs[0]} of {theirs[1]}, but rank={ours[0]} and "
            f"num_replicas={ours[1]} were given: leave these at None"
        )


def _sharding_of(sampler: Any, uneven_ranks: UnevenRanks = "pad") -> tuple[Any, Shard] | None:
    """Return the items for all ranks and this rank's share; None: the sampler is to be iterated.

    All that torch's ``DistributedSampler`` (a subclass may mean something else) says are rank,
    replicas, shuffle, seed, and whether to drop the rest. So its order is computed. One that does
    not drop the rest leaves it to the loader's option, for it may be the Trainer's.
    """
    if is_share(sampler):
        return sampler.source, sampler.shard
    if isinstance(sampler, ComputedOrder):
        return sampler, _WHOLE
    if type(sampler) is not DistributedSampler:
        return None
    data: Any = sampler.dataset
    order: ComputedOrder = OrderedSampler(data)
    if sampler.shuffle:
        order = ShuffledSampler(data, distributed=sampler.seed)
    remainder: UnevenRanks = "drop" if sampler.drop_last else uneven_ranks
    return order, Shard(sampler.rank, sampler.num_replicas, remainder)
