"""The batches of one rank in one epoch: computed, or drawn from a user's sampler.

- A user's sampler that draws from the global generators finds them seeded from (seed, epoch,
  batch number), and they are put back afterwards: 80 us a batch. Where it is restored by a state of
  its own it begins with the seed of batch 0 all the same, for it may draw its order before its
  first item; so the state is that of the batch before, which is drawn again.
- One that has a ``generator`` of its own goes on with it from epoch to epoch, as with torch's
  loader; its state at the epoch's start (3.2 KB) is then part of the position.
- So are the other generators, and the counters, of a sampler without ``state_dict``
  (`sampling/sampler_memory.py`).
"""

from __future__ import annotations

import copy
import itertools
import numbers
import random
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from lit_loader.checkpoint.sampler_state import pack_generator, unpack_generator
from lit_loader.checkpoint.stateful import ITERATOR, Opened
from lit_loader.checkpoint.untrusted_state import damaged, is_count, resuming
from lit_loader.describe import short_repr
from lit_loader.errors import OptionError, StateError
from lit_loader.sampling.orders import (
    CHUNK,
    EpochOrder,
    OrderedSampler,
    Seed,
    Shard,
    ShuffledSampler,
    resolve,
)
from lit_loader.sampling.sampler_memory import SamplerMemory
from lit_loader.seeding.generator_state import preserved
from lit_loader.seeding.seeds import derive, seed_globals
from lit_loader.system.interrupts import is_interruption

__all__ = ["BETWEEN", "SAMPLER", "EpochBatches", "Plan"]

SAMPLER, BETWEEN = "sampler", "between"
"""Keys of a sampler's part of a state; see `checkpoint/sampler_state.py`."""

_BEHIND, _FRESH = "behind", "fresh"
_PARTS = {SAMPLER, ITERATOR}

_SAMPLER_STREAM = 0x5A3F  # keeps a sampler's seeds apart from those of the batches it makes

_FIRST_CHUNK = 256
"""Indices that are computed at first, and twice as many each time up to `CHUNK`: an epoch's first
batch does not wait for those of the next hundred."""


_NOWHERE = -1


class Plan(Protocol):
    """What an epoch's batches ask of the plan for all epochs, and tell it: a `BatchPlan`.

    Attributes:
        source: The sampler or batch sampler.
        batched: Whether it is a batch sampler.
        single: Whether a batch is one item of the source.
        size: Items of the source a batch on this rank.
        drop_last: Leave off this rank's last batch if it is not full.
        shard: This rank's share.
        seed: The base seed.
        between: Whether a user's sampler has come to an epoch's end, and not been drawn from since.
        opened: The sampler in the epoch that was begun last.
        brought_to: Its state, where it was restored behind an epoch.
        memory: What samplers without ``state_dict`` carry from epoch to epoch.
    """

    source: Any
    batched: bool
    single: bool
    size: int
    drop_last: bool
    shard: Shard
    seed: Seed
    between: bool
    opened: Opened | None
    brought_to: dict[str, Any] | None
    memory: SamplerMemory

    @property
    def drawn_from(self) -> Any:
        """The sampler that is asked for its place, and iterated."""

    def is_end(self, batches: int) -> bool:
        """Whether nothing is left of an epoch after ``batches`` batches, as far as is known."""

    def divides_evenly(self) -> bool:
        """Whether all ranks get as many items without any being repeated, as far as is known."""

    def announce(self, epoch: int) -> None:
        """Tell the samplers which epoch begins."""

    def generator(self) -> torch.Generator | None:
        """Give the generator that a sampler has of its own."""

    def place_between(self) -> dict[str, Any]:
        """Give the samplers' own states behind an epoch; empty if they have none."""


class EpochBatches(Iterator[Any]):
    """The batches of one rank in one epoch, from `BatchPlan.batches`.

    Attributes:
        position: Number of the batch that comes next.
        at: The same; -1 after an exception of a signal handler's, until :meth:`go_to`.
    """

    def __init__(self, plan: Plan, epoch: int, start: int, state: Mapping[str, Any] | None) -> None:
        self.position = start
        self._plan, self._epoch, self._given = plan, epoch, dict(state or {})
        # Refusals name the sampler where what it was given came from outside.
        self._resumed = state is not None
        self._kept: dict[str, Any] = {}
        self._opened: Opened | None = None
        self._place: dict[str, Any] | None = None
        self._batches = self._run()
        self.at = start

    def __next__(self) -> Any:
        """Give the next batch: a list of indices, one index, or what the batch sampler yields."""
        position, self.at = self.position, _NOWHERE
        try:
            batch = next(self._batches)
        except Exception as error:
            # An exception within this question leaves it nowhere, too.
            if not is_interruption(error):
                self.at = position
            raise
        self.position = self.at = position + 1
        return batch

    def go_to(self, position: int, state: Mapping[str, Any] | None) -> None:
        """Let batch ``position`` come next, if a signal handler's exception has come in between.

        It may have ended a sampler's iterator, which is a generator most times; or the batch that
        was drawn has not come to whoever asked for it.

        Args:
            position: Number of the batch.
            state: What :meth:`state` gave at this position.
        """
        self.at = _NOWHERE
        self.position, self._given = position, dict(state or {})
        self._kept, self._opened, self._place = {}, None, None
        self._batches = self._run()
        self.at = position

    def state(self) -> dict[str, Any] | None:
        """Give what `BatchPlan.batches` needs besides ``start`` to go on after the last batch.

        Samplers are drawn from ahead of delivery, so ask right after each batch and keep the answer
        with it. It costs nothing (None) for the loader's own orders and for samplers that are
        functions of the seed.

        Returns:
            Primitives as far as the sampler's own state is; a new dict, nested parts not shared.
        """
        if self._opened is None or not self._opened.stateful:
            return dict(self._kept) or None
        return self._kept | (self._place or self._now())

    def _now(self) -> dict[str, Any]:
        """The samplers' own states, as they are."""
        return {} if self._opened is None else self._opened.state() or {}

    def _run(self) -> Iterator[Any]:
        with self._resuming() if self._resumed else _NOTHING:
            self._begin_memory()
            self._plan.announce(self._epoch)
        given, plan = self._given, self._plan
        at_its_place = given.keys() & _PARTS and not given.keys() & {_BEHIND, BETWEEN}
        if at_its_place and plan.is_end(self.position):
            self._begin_generator()
            self._bring_to_end()
            return
        own = isinstance(plan.source, EpochOrder)
        yield from self.computed(plan.source) if own else self._drawn()

    def _behind(self, group_size: int) -> int:
        """How many items before the position the samplers' own states are.

        They are a batch of all ranks together, of the batch size that the state was taken with.
        """
        behind, items = self._given.get(_BEHIND, 0), self.position * group_size
        # There it may be larger than all that there was: of a batch that was not full.
        is_end = self._plan.is_end(self.position)
        if not (is_count(behind) and (not behind or (items and (is_end or not items % behind)))):
            raise StateError(
                f"the sampler's state has behind={short_repr(behind)} at batch {self.position}, "
                "but only the batch before is drawn again: resume with a state as state_dict() "
                "gave it"
            )
        if BETWEEN in self._given and behind < items and not is_end:
            raise damaged("sampler['between'] must stand at an epoch's start only", True)
        return behind

    def _bring_to_end(self) -> None:
        """Bring stateful samplers to the end of an epoch, from which nothing is left to draw."""
        with self._resuming(), preserved():
            opened = self._open_at(self._plan.drawn_from, self._given)
            if next(opened.iterator, None) is not None:
                # One that begins anew when it is brought to its end: so it must in the next epoch.
                opened.restore_again()
        self._plan.between = True
        self._plan.brought_to = {part: self._given[part] for part in _PARTS & self._given.keys()}

    def computed(self, sampler: Any) -> Iterator[Any]:
        """Give the batches from the position on, of one of the loader's own orders."""
        plan, length, order = self._plan, len(sampler), sampler.order(self._epoch)
        size, share = plan.size, plan.shard.share(length)
        if plan.drop_last:
            share -= share % size
        start, step = self.position * size, max(1, _FIRST_CHUNK // size) * size
        while start < share:
            stop = min(start + step, share)
            chunk = order(plan.shard.positions(start, stop, length)).tolist()
            if plan.single:
                yield from chunk
            else:
                for first in range(0, stop - start, size):
                    yield chunk[first : first + size]
            start, step = stop, min(2 * step, max(1, CHUNK // size) * size)

    def _drawn(self) -> Iterator[Any]:
        plan, start, given = self._plan, self.position, self._given
        seed = derive(resolve(plan.seed), self._epoch, _SAMPLER_STREAM)
        group_size = plan.size * plan.shard.num_replicas
        if _FRESH in given and plan.opened is None:
            # So is this one: it is begun at its start, as that one was.
            self._given = given = {key: given[key] for key in given.keys() - {*_PARTS, _BEHIND}}
        if BETWEEN in given:
            self._bring_to_end()
        self._begin_generator()
        source, isolated = _reproducible(plan.source, seed)
        items: Iterator[Any] | None = None
        head: list[Any] = list(given.get("head", ()))
        restored = {part: given[part] for part in (*_PARTS, BETWEEN) if part in given}
        before = restored or (plan.place_between() if plan.between else None)
        fresh = {_FRESH: True} if plan.opened is None else {}
        plan.between, plan.brought_to = False, None
        # A counter that was put back may do harm only when the order is made: up to the position.
        doubtful = self._resumed and "carried" in given
        draws, began = _BEHIND in given, derive(seed, 0)
        behind = self._behind(group_size) if restored else 0
        for number in itertools.count(start - bool(behind) if restored else 0):
            with preserved() if isolated else _NOTHING:
                opens = items is None
                if isolated:
                    seed_globals(began if opens else derive(seed, number))
                if items is None:
                    with self._resuming() if restored or doubtful else _NOTHING:
                        items = self._open(source)
                    if not restored and self._opened and self._opened.tells_its_start:
                        before = self._now()
                    if isolated and number and not draws:
                        seed_globals(derive(seed, number))
                elif draws:
                    before = self._now()
                assert items is not None
                uneasy = (opens and restored) or (doubtful and number <= start)
                with self._resuming() if uneasy else _NOTHING:
                    wanted = behind if opens and behind else group_size
                    group = _take(items, wanted)
                if opens and isolated and number == 0 and self._now():
                    draws = not _are_at(began)
            if draws:
                place = {_BEHIND: 0, **fresh, **self._now()} if before is None else before
                self._place = {_BEHIND: group_size, **place}
            if plan.shard.tail == "pad" and len(head) < plan.shard.num_replicas - 1:
                head += group[: plan.shard.num_replicas - 1 - len(head)]
                if (self._place or self._now()) and not plan.divides_evenly():
                    self._kept["head"] = list(head)
            mine = plan.shard.deal(group, head)
            if number >= start and mine and not (plan.drop_last and len(mine) < plan.size):
                if plan.batched and type(mine[0]) is not list:
                    _refuse_single(mine[0])
                yield mine[0] if plan.single else mine
            if len(group) < wanted:
                plan.between = True
                return

    def _resuming(self) -> AbstractContextManager[None]:
        return resuming(self._plan.source, "batch_sampler" if self._plan.batched else "sampler")

    def rewind(self) -> None:
        """Bring a sampler to where it was when the epoch began."""
        self._begin_memory()
        self._begin_generator()

    def _begin_memory(self) -> None:
        """Bring a sampler's other generators, and its counters, to where they were; note them."""
        plan, carried = self._plan, self._given.get("carried")
        if carried is None:
            carried = plan.memory.note(plan.generator())
        else:
            for _ in range(2):
                if plan.memory.restore(carried, plan.generator()):
                    break
                # Generators that the sampler makes on first use: it is used, and brought back.
                with preserved():
                    seed_globals(0)
                    next(iter(plan.source), None)
            else:
                raise _unfit(plan.source, "other generators")
        if carried is not None:
            self._kept["carried"] = carried

    def _begin_generator(self) -> None:
        """Bring a sampler's own generator to where it was when the epoch began, and note that."""
        generator, packed = self._plan.generator(), self._given.get("generator")
        if generator is not None:
            if packed is not None:
                unpack_generator(packed, generator)
            self._kept["generator"] = packed or pack_generator(generator)
        elif packed is not None:
            raise _unfit(self._plan.source, "a generator of its own")

    def _open(self, source: Any) -> Any:
        """Begin to iterate, where the state says if there is one."""
        given, cuts = self._given, type(source) is BatchSampler
        inner = source.sampler if cuts else source
        self._opened = self._open_at(inner, {} if BETWEEN in given else given)
        if self._opened.stateful:
            self._kept.pop("carried", None)  # that is for it to remember
        if "head" in given:
            self._kept["head"] = list(given["head"])
        items = self._opened.iterator
        if items is inner:
            items = _Begun(items)
        if not cuts:
            return items
        cutter = copy.copy(source)  # the user's keeps its sampler
        cutter.sampler = items
        return iter(cutter)

    def _open_at(self, sampler: Any, state: Mapping[str, Any]) -> Opened:
        """Begin to iterate a sampler, and remember it for the time between this epoch and next."""
        opened = Opened(sampler, SAMPLER, state, restoring=preserved)
        self._plan.opened = opened
        return opened


class _Begun(Iterator[Any]):
    """A sampler that is its own iterator, not begun again by ``iter``, which ``islice`` calls."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def __next__(self) -> Any:
        return next(self._iterator)


_NOTHING: AbstractContextManager[None] = nullcontext()
_RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_DRAWS_NOTHING = (
    *(OrderedSampler, ShuffledSampler, SequentialSampler, DistributedSampler),
    *(list, tuple, range, np.ndarray, torch.Tensor),
)


def _take(items: Iterator[Any], number: int) -> list[Any]:
    """Draw some items; without ``iter``, at which some that are their own iterators begin anew."""
    taken: list[Any] = []
    while len(taken) < number:
        try:
            taken.append(next(items))
        except StopIteration:
            break
    return taken


def _reproducible(source: Any, seed: int) -> tuple[Any, bool]:
    """Make a sampler a function of a seed.

    Returns:
        The sampler to iterate, and whether it must be kept apart from the global generators.
        torch's random samplers without a generator get one, in a copy: the user's must not change.
    """
    kind = type(source)
    if kind in _RANDOM and source.generator is None:
        source = copy.copy(source)
        source.generator = torch.Generator().manual_seed(seed)
        return source, False
    if kind is BatchSampler:
        inner, isolated = _reproducible(source.sampler, seed)
        if inner is not source.sampler:
            source = copy.copy(source)
            source.sampler = inner
        return source, isolated
    return source, kind not in _RANDOM and kind not in _DRAWS_NOTHING


def _are_at(seed: int) -> bool:
    """Whether the global generators are where `seed_globals` sets them; to be seeded anew after."""
    found = random.random(), np.random.random(), torch.rand(()).item()
    seed_globals(seed)
    return found == (random.random(), np.random.random(), torch.rand(()).item())


def _refuse_single(batch: Any) -> None:
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


def _unfit(source: Any, what: str) -> StateError:
    return StateError(
        f"the state is of a sampler with {what}, which {type(source).__name__} has not: "
        f"resume with the sampler that the state was taken from"
    )
