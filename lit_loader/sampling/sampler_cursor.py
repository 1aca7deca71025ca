"""`SamplerCursor`: a user's sampler in one epoch, drawn from, and asked for its place.

::

    sampler ─ opened, at its start or where a state says ─▶ groups: items of a batch of all ranks
                                                  ╰─ after each ─▶ its part of a state

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
import random
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

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
from lit_loader.errors import StateError
from lit_loader.sampling.batch_plan import BatchPlan
from lit_loader.sampling.orders import OrderedSampler, ShuffledSampler, resolve
from lit_loader.sampling.user_sampler import BETWEEN, SAMPLER
from lit_loader.seeding.generator_state import Loan, preserved
from lit_loader.seeding.seeds import derive, seed_globals

__all__ = ["SamplerCursor"]

_BEHIND, _FRESH = "behind", "fresh"
_PARTS = {SAMPLER, ITERATOR}

_SAMPLER_STREAM = 0x5A3F  # keeps a sampler's seeds apart from those of the batches it makes


class SamplerCursor:
    """A sampler in one epoch, from one position on.

    Args:
        plan: What is drawn from, and how much at a time.
        epoch: The epoch.
        position: Number of the first batch.
        given: What :meth:`state` gave there; nothing: it is reached by drawing from the start.
        resumed: Whether that came from outside: refusals then name the sampler.
        again: Whether the epoch had been begun already.

    Attributes:
        number: That of the group drawn last.
        head: The stream's first items, noted while it is striped; ranks get some again at its end.
    """

    def __init__(
        self,
        plan: BatchPlan,
        epoch: int,
        position: int,
        given: Mapping[str, Any],
        resumed: bool,
        again: bool = False,
    ) -> None:
        self._plan, self._epoch, self._position = plan, epoch, position
        self._given, self._resumed = dict(given), resumed
        self._is_known = resumed or again  # what the sampler carried, though that be nothing
        self._kept: dict[str, Any] = {}
        self._opened: Opened | None = None
        self._place: dict[str, Any] | None = None
        self.number = position
        self.head: list[Any] = list(self._given.get("head", ()))

    def state(self) -> dict[str, Any] | None:
        """Give what the sampler must remember behind the group drawn last; None: nothing."""
        if self._opened is None or not self._opened.stateful:
            return dict(self._kept) or None
        state = self._kept | (self._place or self._now())
        if self.head and ("head" in self._given or not self._plan.divides_evenly()):
            state["head"] = list(self.head)
        return state

    def _now(self) -> dict[str, Any]:
        """The samplers' own states, as they are."""
        return {} if self._opened is None else self._opened.state() or {}

    def begin(self) -> None:
        """Bring the sampler to where it was when the epoch began, and set the epoch on it."""
        with self._resuming() if self._resumed else _NOTHING:
            self._begin_memory()
            self._plan.sampler.announce(self._epoch)

    def rewind(self) -> None:
        """Bring the sampler to where it was when the epoch began."""
        self._begin_memory()
        self._begin_generator()

    def is_at_end(self) -> bool:
        """Whether a state is given that stands behind the epoch's last batch."""
        given = self._given.keys()
        at_its_place = given & _PARTS and not given & {_BEHIND, BETWEEN}
        return bool(at_its_place) and self._plan.is_end(self._position)

    def bring_to_end(self) -> None:
        """Bring the sampler to the epoch's end, from which nothing is left to draw."""
        self._begin_generator()
        self._restore_end()

    def groups(self) -> Iterator[list[Any]]:
        """Draw the items of all ranks, batch by batch; the first may be before the position."""
        plan, start = self._plan, self._position
        user, seed = plan.sampler, derive(resolve(plan.seed), self._epoch, _SAMPLER_STREAM)
        group_size = plan.size * plan.shard.num_replicas
        if _FRESH in self._given and user.opened is None:
            # So is this one: it is begun at its start, as that one was.
            drop = {*_PARTS, _BEHIND}
            self._given = {key: part for key, part in self._given.items() if key not in drop}
        given = self._given
        if BETWEEN in given:
            self._restore_end()
        self._begin_generator()
        source, isolated = _reproducible(plan.source, seed)
        restored = bool(given.keys() & {*_PARTS, BETWEEN})
        before = {part: given[part] for part in (*_PARTS, BETWEEN) if part in given} or (
            user.place_between() if user.between else None
        )
        fresh = {_FRESH: True} if user.opened is None else {}
        user.between, user.brought_to = False, None
        # A counter that was put back may do harm only when the order is made: up to the position.
        doubtful = self._resumed and "carried" in given
        draws, began = _BEHIND in given, derive(seed, 0)
        behind = self._behind(group_size) if restored else 0
        first = start - bool(behind) if restored else 0
        for number in itertools.count(first):
            opens = number == first
            wanted = behind if opens and behind else group_size
            # Not a context: an exception at the edge of __enter__ or __exit__ would leave it begun.
            loan = Loan() if isolated else None
            try:
                if loan is not None:
                    loan.begin()
                    seed_globals(began if opens else derive(seed, number))
                if opens:
                    with self._resuming() if restored or doubtful else _NOTHING:
                        items, opened = self._open(source)
                    if not restored and opened.tells_its_start:
                        before = self._now()
                    if isolated and number and not draws:
                        seed_globals(derive(seed, number))
                elif draws:
                    before = self._now()
                uneasy = (opens and restored) or (doubtful and number <= start)
                with self._resuming() if uneasy else _NOTHING:
                    group = _take(items, wanted)
                if opens and isolated and number == 0 and self._now():
                    draws = not _are_at(began)
            finally:
                if loan is not None:
                    try:
                        loan.end()
                    finally:
                        loan.end()
            if draws:
                place = {_BEHIND: 0, **fresh, **self._now()} if before is None else before
                self._place = {_BEHIND: group_size, **place}
            self.number = number
            yield group
            if len(group) < wanted:
                user.between = True
                return

    def _behind(self, group_size: int) -> int:
        """How many items before the position the samplers' own states are.

        They are a batch of all ranks together, of the batch size that the state was taken with.
        """
        behind, items = self._given.get(_BEHIND, 0), self._position * group_size
        # There it may be larger than all that there was: of a batch that was not full.
        is_end = self._plan.is_end(self._position)
        if not (is_count(behind) and (not behind or (items and (is_end or not items % behind)))):
            raise StateError(
                f"the sampler's state has behind={short_repr(behind)} at batch {self._position}, "
                "but only the batch before is drawn again: resume with a state as state_dict() "
                "gave it"
            )
        if BETWEEN in self._given and behind < items and not is_end:
            raise damaged("sampler['between'] must stand at an epoch's start only", True)
        return behind

    def _restore_end(self) -> None:
        """Bring stateful samplers to the end of an epoch."""
        with self._resuming(), preserved():
            opened = self._open_at(self._plan.sampler.drawn_from, self._given)
            if next(opened.iterator, None) is not None:
                # One that begins anew when it is brought to its end: so it must in the next epoch.
                opened.restore_again()
        self._plan.sampler.between = True
        self._plan.sampler.brought_to = {
            part: self._given[part] for part in _PARTS & self._given.keys()
        }

    def _resuming(self) -> AbstractContextManager[None]:
        return resuming(self._plan.source, "batch_sampler" if self._plan.batched else "sampler")

    def _begin_memory(self) -> None:
        """Bring a sampler's other generators, and its counters, to where they were; note them."""
        plan, carried = self._plan, self._given.get("carried")
        if carried is None:
            if self._is_known and not self._given.keys() & {*_PARTS, BETWEEN}:
                plan.sampler.memory.go_back()
            plan.sampler.memory.look()
            carried = plan.sampler.memory.note(plan.sampler.generator())
        else:
            for _ in range(2):
                if plan.sampler.memory.restore(carried, plan.sampler.generator()):
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
        generator, packed = self._plan.sampler.generator(), self._given.get("generator")
        if generator is not None:
            if packed is not None:
                unpack_generator(packed, generator)
            self._kept["generator"] = packed or pack_generator(generator)
        elif packed is not None:
            raise _unfit(self._plan.source, "a generator of its own")

    def _open(self, source: Any) -> tuple[Iterator[Any], Opened]:
        """Begin to iterate, where the state says if there is one."""
        given, cuts = self._given, type(source) is BatchSampler
        inner = source.sampler if cuts else source
        opened = self._opened = self._open_at(inner, {} if BETWEEN in given else given)
        if opened.stateful:
            self._kept.pop("carried", None)  # that is for it to remember
        items: Any = opened.iterator
        if items is inner:
            items = _Begun(items)
        if not cuts:
            return items, opened
        cutter = copy.copy(source)  # the user's keeps its sampler
        cutter.sampler = items
        return iter(cutter), opened

    def _open_at(self, sampler: Any, state: Mapping[str, Any]) -> Opened:
        """Begin to iterate a sampler, and remember it for the time between this epoch and next."""
        opened = Opened(sampler, SAMPLER, state, restoring=preserved)
        self._plan.sampler.opened = opened
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


def _unfit(source: Any, what: str) -> StateError:
    return StateError(
        f"the state is of a sampler with {what}, which {type(source).__name__} has not: "
        f"resume with the sampler that the state was taken from"
    )
