"""A user's sampler in one epoch: drawn from up to a position and on from there, batch by batch.

::

    load_state_dict ─ its generators go back to where the epoch began ─▶ set_epoch, by the program
    first batch ─ its own state_dict goes back, too ─ drawn again up to the position ─▶ groups
                                   what was drawn is compared with what the state says ╯

- Indices are cheap: a position is reached by drawing again what was drawn before it. So what a
  state has of a sampler is what it was where the epoch began: its random generators, found as a
  dataset's are, and its ``state_dict()``. Nothing else is brought back. A digest of what was drawn
  tells when the order drawn again is another one, and the program is warned.
- One that draws from the global generators finds them seeded from (seed, epoch, batch number), and
  they are put back afterwards: 80 us a batch. To go on with the epoch's would take four times that.
- One that has generators of its own goes on with them from epoch to epoch, as with torch's loader.
"""

from __future__ import annotations

import copy
import itertools
import numbers
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
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

from lit_loader.core.sampling.batch_plan import BatchPlan
from lit_loader.core.sampling.orders import EpochOrder
from lit_loader.core.sampling.user_sampler import SAMPLER, Marks
from lit_loader.core.seeding.bases import PassSeeds
from lit_loader.core.seeding.generator_state import Loan, preserved
from lit_loader.core.seeding.seeds import derive, extend, seed_globals
from lit_loader.core.state.position import EpochPosition
from lit_loader.core.state.sampler_state import digest
from lit_loader.core.state.state_validation import resuming
from lit_loader.core.state.stateful import ITERATOR, OpenStream
from lit_loader.core.system.interrupts import is_interruption
from lit_loader.describe import program_stacklevel, short_repr
from lit_loader.errors import OptionError

_NOWHERE: Final = -1
_SAMPLER_STREAM = 0x5A3F  # keeps a sampler's seeds apart from those of the batches it makes
_T = TypeVar("_T")


class SamplerBatches:
    """One rank's batches of an epoch; nothing is asked of the sampler before the first.

    ``given`` is what :meth:`state` gave at the start, where a position from outside is gone on
    from, empty if there is nothing; None: the sampler begins the epoch as it is, perhaps one that
    it has ``left`` in its middle.
    """

    computed = False

    def __init__(
        self,
        plan: BatchPlan,
        epoch: int,
        seeds: PassSeeds,
        start: int = 0,
        given: Mapping[str, Any] | None = None,
        left: bool = False,
    ) -> None:
        self._left = left or bool(given and given.get("left"))
        self._plan, self._user, self._epoch = plan, plan.sampler, epoch
        self._group_size = plan.size * plan.shard.num_replicas
        self._seeds = [extend(seed, _SAMPLER_STREAM) for seed in seeds.of(epoch)]
        self._begin_at(start, given)

    def _begin_at(self, position: int, given: Mapping[str, Any] | None) -> None:
        self._at = _NOWHERE
        self._position, self._given, self._resumed = position, dict(given or {}), given is not None
        # From the global generators it is isolated, if it may draw; still, if it does not.
        self._has_begun = self._isolated = self._is_still = False
        self._groups, self._ahead = 0, list[Any]()  # drawn; items that are not given yet
        self._kept: dict[str, Any] = {}  # what the sampler was as the epoch began
        self._items: Iterator[Any] = iter(())
        self._is_over = False
        self._start: Marks | None = None  # where the sampler's generators were as the epoch began
        self._there: Marks | None = None  # and at the position
        self._drawn = 0  # a digest of what was drawn
        # The stream's first items, noted while it is striped: ranks get some again at its end.
        self._head: list[Any] = []
        self._batches = self._rank_batches()
        self._at = position  # the batch that comes next

    def draw(self, number: int, where: EpochPosition) -> Any:
        """Give batch ``number``: a list of indices, one index, or what the batch sampler yields.

        It is the one that comes next, or one before it: a signal handler's exception may have ended
        a sampler's iterator, which is a generator most times, or have kept the batch from whoever
        asked for it. ``where`` has what the sampler was there, and notes what it is behind this
        batch: samplers are drawn from ahead of delivery.
        """
        if self._at != number:
            state = where.sampler_at(number)
            self._user.unpack(state or {})  # the program has set nothing in between
            self._begin_at(number, state)
        self._at = _NOWHERE
        try:
            batch = next(self._batches)
        except Exception as error:
            # An exception within this question leaves it nowhere, too.
            if not is_interruption(error):
                self._at = number
            raise
        finally:  # also at its end, which may draw: what is elsewhere later, the program has set
            marks = self._user.marks()
        self._at = number + 1
        where.drawn(number, self.state(), marks)
        return batch

    def draw_end(self) -> None:
        """Let the sampler come to its end, behind the last batch."""
        next(self._batches, None)

    def state(self) -> dict[str, Any] | None:
        """Give what the sampler must remember behind the group drawn last; None: nothing."""
        if not self._has_begun:
            return None
        return {**self._kept, "drawn": [self._drawn, *_whose(self._plan)]}

    def _begin(self) -> None:
        """Note where the sampler's generators are as the epoch begins."""
        user = self._user
        # In its midst an epoch that no set_epoch tells goes on as it began, whatever is set later.
        is_set = user.was_seeded() or (not self._position and user.have_moved()[0])
        if self._resumed and not is_set:
            user.unpack(self._given)
        self._kept, self._start = user.pack(), user.marks()
        user.begin(self._epoch)
        self._has_begun = True

    def _rank_batches(self) -> Iterator[Any]:
        """Draw this rank's batches, from the position on."""
        plan, shard, head = self._plan, self._plan.shard, self._head
        needed = shard.num_replicas - 1 if shard.remainder == "pad" else 0  # again, at the end
        self._begin()
        for group in self._groups_from_position():
            if len(head) < needed:
                head += group[: needed - len(head)]
            mine = shard.deal(group, head)
            if not mine or (plan.drop_last and len(mine) < plan.size):
                continue
            if plan.batched and type(mine[0]) is not list:
                _refuse_single(mine[0])
            yield mine[0] if plan.single else mine

    def _groups_from_position(self) -> Iterator[list[Any]]:
        """Draw the items of all ranks, batch by batch."""
        group = self._come_to_position()
        if group is None:
            # At the epoch's end nothing is lost: a program may have told it the next one already,
            # or other ranks leave off more of the epoch.
            if not self._plan.is_end(self._position):
                warnings.warn(
                    f"lit_loader: the sampler {type(self._plan.source).__name__} gives other "
                    f"indices than before the state was taken, up to batch {self._position} of "
                    f"epoch {self._epoch}: from here on some samples come twice and some not at "
                    "all; call its set_epoch before the epoch's first batch, as the run did that "
                    "the state is of, or give it state_dict and load_state_dict [LL319]",
                    stacklevel=program_stacklevel(),
                )
            group = self._take(self._group_size)
        if not self._position and self._is_still:
            self._user.note_first(self._drawn, bool(_own_parts(self._kept)))
        while group:
            yield group
            group = self._take(self._group_size)

    def leave(self) -> bool:
        """Bring the sampler to where it goes on from, after an epoch that is left at the position.

        That is behind the end, if all batches were given out; but if the program has seeded its
        generators since, they stay as they are. Returns whether the sampler, as the program has set
        it, gave what it had given before.
        """
        if self._has_begun:  # it has come there, and gone on
            self._user.bring(self._there)
            return True
        is_set = self._user.was_seeded() or self._user.have_moved()[0]
        found = self._user.marks()
        self._resumed = not is_set
        self._begin()
        known = tuple(self._given.get("drawn", ()))[1:] == _whose(self._plan)
        gave = self._come_to_position(leaves=True) is not None and known
        if is_set:
            self._user.bring(found)
        elif not self._plan.is_end(self._position):
            self._user.bring(self._there)
        else:
            while not self._is_over:
                self._take(self._group_size)
        return gave

    def _come_to_position(self, leaves: bool = False) -> list[Any] | None:
        """Give the first group; None: the sampler gives another order than the state says.

        ``leaves``: nothing is drawn behind the position.
        """
        parts, role = _own_parts(self._given), "batch_sampler" if self._plan.batched else SAMPLER
        if self._left and parts:
            # It would go on with the epoch that was left: once it has, it begins the next one.
            with resuming(self._plan.source, role):
                self._open(parts)
        # Until it is drawn from, many a sampler's state is that of the epoch before.
        for own in ({}, parts) if self._left and parts else (parts, {}) if parts else ({},):
            with resuming(self._plan.source, role) if own else nullcontext():
                group = self._reach(own, leaves)
            if group or (group is not None and (self._position or not own)):
                return group
        return None

    def _reach(self, parts: Mapping[str, Any], leaves: bool) -> list[Any] | None:
        """Open the sampler and give the first group; None: it has not come to the position."""
        needed, size = self._plan.shard.num_replicas - 1, self._group_size
        del self._head[:]
        self._open(parts)
        for _ in range(self._position):  # in the same batches
            if not self._ahead and self._is_over:
                break
            taken = self._take(size)
            self._head += taken[: max(0, needed - len(self._head))]
        self._there = self._user.marks()
        drawn = tuple(self._given.get("drawn", ()))
        if drawn[1:] == _whose(self._plan) and drawn[0] != self._drawn:
            return None
        return [] if leaves else self._take(size)

    # --- drawing ---

    def _open(self, parts: Mapping[str, Any]) -> None:
        """Begin to iterate, with the sampler where its parts of a state say."""
        self._drawn, self._groups, self._is_over = 0, 0, False
        # With the first batch: one seed is for both, wherever the sampler draws its order.
        source, self._isolated = _reproducible(self._plan.source, self._seeds[0])
        self._ahead = self._lent(partial(self._begin_to_draw, source, parts))

    def _begin_to_draw(self, source: Any, parts: Mapping[str, Any]) -> list[Any]:
        cuts = type(source) is BatchSampler
        inner = source.sampler if cuts else source
        # It may be iterated again; and its load_state_dict may set a generator that it draws from.
        begin = partial(self._user.bring, self._start)
        opened = self._user.opened = OpenStream(inner, SAMPLER, parts, begin, preserved)
        if own := _own_parts(self._given) or opened.state():
            self._kept |= {**own, "left": True} if self._left else own
        self._items = opened.iterator
        if cuts:
            cutter = copy.copy(source)  # the user's keeps its sampler
            cutter.sampler = _going_on(opened.iterator)
            self._items = iter(cutter)
        taken = list(itertools.islice(_going_on(self._items), self._group_size))
        self._is_over = len(taken) < self._group_size
        # One that draws from them has another order each time, which follows from the seed.
        self._is_still = self._isolated and _are_at(self._seeds_of(self._groups - 1))
        return taken

    def _take(self, number: int) -> list[Any]:
        """Draw some items; after the end it is not asked again, at which some begin anew."""
        taken, self._ahead = self._ahead[:number], self._ahead[number:]
        if len(taken) < number and not self._is_over:
            wanted = itertools.islice(_going_on(self._items), number - len(taken))
            taken += self._lent(partial(list, wanted))
            self._is_over = len(taken) < number
        self._drawn = digest(taken, self._drawn)
        return taken

    def _seeds_of(self, number: int) -> list[int]:
        return [derive(seed, number) for seed in self._seeds]

    def _lent(self, draw: Callable[[], _T]) -> _T:
        """Let the sampler find the global generators seeded for a batch, and put them back."""
        number, self._groups = self._groups, self._groups + 1
        if not self._isolated:
            return draw()
        # Not a context: an exception at the edge of __enter__ or __exit__ would leave it begun.
        loan = Loan()
        try:
            loan.begin()
            seed_globals(*self._seeds_of(number))
            return draw()
        finally:
            try:
                loan.end()
            finally:
                loan.end()


def _own_parts(state: Mapping[str, Any]) -> dict[str, Any]:
    """What sampler and iterator themselves have said."""
    return {part: state[part] for part in (SAMPLER, ITERATOR) if part in state}


def _going_on(items: Iterator[Any]) -> Iterator[Any]:
    """Draw without ``iter``, at which samplers that are their own iterators begin anew."""
    while True:
        try:
            item = next(items)
        except StopIteration:
            return
        yield item


def _are_at(seeds: Iterable[int]) -> bool:
    """Whether the global generators are where `seed_globals` sets them; they are lent anyway."""
    found = random.random(), np.random.random(), torch.rand(()).item()
    seed_globals(*seeds)
    return found == (random.random(), np.random.random(), torch.rand(()).item())


_RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_DRAWS_NOTHING = (
    *(SequentialSampler, DistributedSampler),
    *(list, tuple, range, np.ndarray, torch.Tensor),
)


def _reproducible(source: Any, seed: int) -> tuple[Any, bool]:
    """Make a sampler a function of a seed; with whether it must be kept from the global generators.

    torch's random samplers without a generator get one, in a copy: the user's must not change.
    """
    kind = type(source)
    if kind is BatchSampler:
        inner, isolated = _reproducible(source.sampler, seed)
        if inner is not source.sampler:
            source = copy.copy(source)
            source.sampler = inner
        return source, isolated
    if kind in _RANDOM and source.generator is None:
        source = copy.copy(source)
        source.generator = torch.Generator().manual_seed(seed)
    draws_nothing = isinstance(source, EpochOrder) or kind in _DRAWS_NOTHING
    return source, not (draws_nothing or kind in _RANDOM)


def _whose(plan: BatchPlan) -> tuple[int, int]:
    """Whose share of the data the sampler gives: this process's, and of how many."""
    if plan.num_replicas > 1:
        return (plan.rank, plan.num_replicas) if plan.shard.num_replicas == 1 else (0, 1)
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


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
            " [LL622]"
        )
