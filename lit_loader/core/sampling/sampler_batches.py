"""`SamplerBatches`: one pass over a user's sampler, drawn batch by batch; resumed where it was.

::

    sampler with state_dict ── load_state_dict(state of the batch) ──────────────────╮
    another ── its generator as the pass began ── drawn again up to the position ────┴─▶ continues

- A sampler (or its iterator) that has ``state_dict`` and ``load_state_dict`` is called after each
  batch, and put back there. No state of its own says where a pass begins (many count their passes
  in ``iter``), so there it is the state after the first batch, and the items of that.
- Another one is drawn again, which is cheap, for no data is read: from its attribute ``generator``
  as it was when the pass began, or from the global generators, which are seeded for each batch. A
  digest of what was drawn tells whether the same came again; if not, one warning says so.
- A sampler's iterator ends when an exception passes through it. The sampler is then opened again
  at the batch that is due, in the same way. A generator cannot be: it continues, or is at its end.
"""

from __future__ import annotations

import copy
import itertools
import numbers
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np
import torch
import torch.distributed
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from lit_loader.core.sampling.batch_plan import BatchPlan, generator_of
from lit_loader.core.sampling.orders import ComputedOrder
from lit_loader.core.seeding.borrowed_rng import BorrowedRng, Draws
from lit_loader.core.seeding.seeds import extend
from lit_loader.core.state.position import PassPosition, Position
from lit_loader.core.state.sampler_state import digest, pack_generator, unpack_generator
from lit_loader.core.state.state_validation import resuming
from lit_loader.core.state.stateful import ITERATOR, OpenStream
from lit_loader.describe import program_stacklevel, short_repr
from lit_loader.errors import OptionError

__all__ = ["SamplerBatches"]

_SAMPLER_STREAM: Final = 0x5A3F  # keeps a sampler's seeds apart from those of its batches
_T = TypeVar("_T")


class SamplerBatches:
    """One rank's batches of a pass; the sampler is not used before the first.

    ``place`` is where to begin; where it is ``resumed``, with what the sampler must remember there.
    """

    computed = False

    def __init__(self, plan: BatchPlan, place: Position, resumed: bool) -> None:
        self._plan, self._epoch = plan, place.epoch
        self._draws = Draws()
        self._seed = extend(place.order_seed, _SAMPLER_STREAM)
        self._group_size = plan.size * plan.shard.num_replicas
        # In the middle of a pass striped ranks must know its first items, to pad its end.
        pads = plan.shard.remainder == "pad"  # with drop_last, too: batches may be filled by it
        self._head_size = plan.shard.num_replicas - 1 if pads else 0
        self._first = place.batches
        self._generator: bytes | None = None  # the sampler's as the pass began, packed
        self._given: Mapping[str, Any] = (place.sampler or {}) if resumed else {}
        self._batches: Iterator[object] | None = None  # None: to be opened at the batch that is due
        self._at = place.batches
        self._opened: OpenStream | None = None
        # What the sampler must remember before this pass; None: nothing, or nothing was drawn.
        self.at_start: Mapping[str, object] | None = None

    def draw(self, number: int, where: PassPosition) -> object:
        """Return batch ``number``: a list of indices, one index, or what the batch sampler yields.

        It is the one that comes next, or the one that an exception kept from the consumer.
        ``where`` notes what the sampler is after this batch, for it is drawn ahead of delivery.
        """
        if self._batches is None or number != self._at:
            self._batches = self._open(number)
        batches, self._batches = self._batches, None
        batch = next(batches)  # after an exception it is opened again, with the state before it
        given = self._state()
        left = self._finished(batches) if number + 1 == self._length else batches
        self._batches, self._at, self._given = left, number + 1, given
        where.drawn(number, given)
        return batch

    @cached_property
    def _length(self) -> int | None:
        """The number of batches, if the sampler knows it; asked once, when it has begun."""
        try:
            return len(self._plan)
        except Exception:  # the user's
            return None

    def _finished(self, batches: Iterator[object]) -> Iterator[object]:
        """Bring the sampler to its end, after which many prepare their next pass; return the rest.

        Some programs ask for ``len(loader)`` batches and no more.
        """
        try:
            more = [*itertools.islice(batches, 1)]
        except Exception as error:  # it is raised in place of the next batch
            return _raising(error)
        return itertools.chain(more, batches)

    def after(self) -> Mapping[str, object] | None:
        """Return what the sampler must remember after a pass that was drawn up to the place."""
        batches = self._open(self._first)
        if self._plan.is_end(self._first):
            self._finished(batches)
        return self.at_end()

    def at_end(self) -> Mapping[str, object] | None:
        """Return what the sampler must remember after this pass; None: nothing."""
        if self._opened is not None and self._opened.stateful:
            return {**(self._opened.state() or {}), "over": True}
        packed = pack_generator(generator_of(self._plan.source))
        return None if packed is None else {"generator": packed}

    def _open(self, number: int) -> Iterator[object]:
        """Begin to draw at a batch."""
        if self._opened is not None and isinstance(self._plan.source, _ONCE_ONLY):
            return self._rank_batches()
        # It is opened with the seed of the pass's start: many samplers draw their order in iter().
        self._digest, self._groups, self._head = 0, 0, list[object]()
        self._whose = _whose(self._plan)
        source, given = self._plan.source, self._given
        generator = generator_of(source)
        own = {part: given[part] for part in ("sampler", ITERATOR) if part in given}
        if not own and generator is not None:
            packed = given.get("generator", self._generator)
            first = number == 0 and self._opened is None
            if packed is not None and not (first and self._is_seeded_anew(packed, generator)):
                unpack_generator(packed, generator)
            self._generator = pack_generator(generator)
        self._items = self._begin(own)
        if given.get("over"):  # of the pass before: once that has ended, the next one begins
            next(self._items, None)
            self._items = self._begin({})
        elif own:
            self._groups, self._head = number, list(given.get("head", ()))
            self._items = itertools.chain(given.get("due", ()), self._items)
        batches = self._rank_batches()
        if number and not own:
            for _ in itertools.islice(batches, number):
                pass
            self._compare(number)
        return batches

    def _is_seeded_anew(self, packed: bytes, generator: object) -> bool:
        """Whether the program has seeded the sampler's generator for the pass that begins.

        As by ``manual_seed(epoch)``, or in the sampler's ``set_epoch``, after a state between two
        passes was taken. Only seeding changes ``initial_seed()``.
        """
        if not isinstance(generator, torch.Generator):
            return False
        saved = torch.Generator(generator.device)
        unpack_generator(packed, saved)
        known = saved.initial_seed(), self._plan.generator_seed
        return generator.initial_seed() not in known

    def _begin(self, own: Mapping[str, object]) -> Iterator[object]:
        """Iterate the sampler from where its ``own`` state says."""
        source = self._plan.source
        cuts = type(source) is BatchSampler
        inner = source.sampler if cuts else source
        role = "batch_sampler" if self._plan.batched else "sampler"
        if type(inner) in _RANDOM and inner.generator is None:
            inner = copy.copy(inner)  # the user's must not change
            inner.generator = torch.Generator().manual_seed(self._seed)
        is_loaded = bool(own) and self._opened is None
        self._is_still = isinstance(inner, ComputedOrder) or type(inner) in _NO_GLOBAL_DRAWS
        opened = self._opened = self._lent(lambda: OpenStream(inner, "sampler", own, role=role))
        items: Iterator[object] = opened.iterator
        self._is_still |= type(items) in _DRAWN  # in iter()
        if type(items) not in _PLAIN:
            items = _going_on(items)
        if is_loaded:
            items = _resumed(items, inner, role)
        if not cuts:
            return items
        cutter = copy.copy(source)
        cutter.sampler = items
        return iter(cutter)

    def _rank_batches(self) -> Iterator[object]:
        """Draw this rank's batches: its part of each group of items of all ranks."""
        plan, opened = self._plan, self._opened
        items, whole = self._items, self._group_size
        assert opened is not None
        while True:
            group = self._lent(lambda: [*itertools.islice(items, whole)])
            self._groups += 1
            if not opened.asked or not opened.stateful:
                self._digest = digest(group, self._digest)
            if self._groups == 1 and not self._first:
                self._note_start(group)
            if self._head_size:
                self._head += group[: self._head_size - len(self._head)]
            mine = group if plan.shard.num_replicas == 1 else plan.shard.deal(group, self._head)
            if mine and not (plan.drop_last and len(mine) < plan.size):
                if plan.batched and type(mine[0]) is not list:
                    _refuse_single(mine[0])
                yield mine[0] if plan.single else mine
            if len(group) < whole:  # after its end a sampler is not asked again: some begin again
                return

    def _note_start(self, first: list[object]) -> None:
        """Note what leads to the start of the pass, once its first items are drawn."""
        assert self._opened is not None
        if self._opened.stateful:
            self.at_start = {**(self._opened.state() or {}), "due": [*first]}
        elif self._generator is not None:
            self.at_start = {"generator": self._generator}

    def _lent(self, draw: Callable[[], _T]) -> _T:
        """Seed the global generators for a batch of the sampler, and restore them.

        For each one: a sampler that shuffles parts of its order draws at any batch.
        """
        if self._is_still:
            return draw()
        with BorrowedRng(self._draws, always=True) as rng:
            rng.seed(extend(self._seed, self._groups) >> 1)
            return draw()

    def _state(self) -> Mapping[str, object]:
        """Return what the sampler must remember after the batch drawn last."""
        opened, generator = self._opened, self._generator
        assert opened is not None
        if opened.asked and opened.stateful:
            state = opened.state() or {}
            return {**state, "head": list(self._head)} if self._head_size else state
        drawn = [self._digest, *self._whose]
        return {"drawn": drawn} if generator is None else {"generator": generator, "drawn": drawn}

    def _compare(self, number: int) -> None:
        """Warn if the sampler, drawn again, gives other indices than before the state was taken."""
        drawn = tuple(self._given.get("drawn", ()))
        # At the pass's end nothing is lost, and another rank's share is another one.
        if drawn[1:] != self._whose or drawn[0] == self._digest or self._plan.is_end(number):
            return
        warnings.warn(
            f"lit_loader: the resume is not exact. {type(self._plan.source).__name__} gives other "
            f"indices for the first {number} batches of epoch {self._epoch} than before the state "
            "was taken, so some samples come twice and some not at all. Call its set_epoch before "
            "the first batch, or give it state_dict and load_state_dict [LL319]",
            stacklevel=program_stacklevel(),
        )


def _raising(error: Exception) -> Iterator[object]:
    raise error
    yield


def _going_on(items: Iterator[_T]) -> Iterator[_T]:
    """Draw without ``iter``, at which samplers that are their own iterators begin again."""
    while True:
        try:
            item = next(items)
        except StopIteration:
            return
        yield item


def _resumed(items: Iterator[_T], sampler: object, role: str) -> Iterator[_T]:
    """Draw from a sampler that was given a state; whether that is one shows at the first item."""
    with resuming(sampler, role):
        first = [*itertools.islice(items, 1)]
    yield from first
    yield from items


_RANDOM: Final = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_NO_GLOBAL_DRAWS: Final = (
    *_RANDOM,
    *(SequentialSampler, DistributedSampler),
    *(list, tuple, range, np.ndarray, torch.Tensor),
)


_ONCE_ONLY: Final = (types.GeneratorType, map, filter, zip, itertools.chain, itertools.islice)

_DRAWN: Final = {*map(type, (iter([]), iter(()), iter(range(0))))}
"""Iterators over what is there already."""

_PLAIN: Final = {*_ONCE_ONLY, *_DRAWN, type(iter(np.empty(0)))}
"""Iterators that return themselves in ``iter``, and do nothing else."""


def _whose(plan: BatchPlan) -> tuple[int, int]:
    """Return whose share of the data the sampler gives: this process's, and of how many."""
    if plan.num_replicas > 1:
        return (plan.rank, plan.num_replicas) if plan.shard.num_replicas == 1 else (0, 1)
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _refuse_single(batch: object) -> None:
    """Refuse what a flat batch sampler gives; a batch may be any other object than a number."""
    if (
        batch is None
        or isinstance(batch, numbers.Number)
        or (isinstance(batch, (torch.Tensor, np.ndarray)) and not batch.ndim)
    ):
        raise OptionError(
            f"batch_sampler gave {short_repr(batch)} ({type(batch).__name__}), where a list of the "
            "batch's indices is expected: give lists, or use sampler with batch_size"
        )
