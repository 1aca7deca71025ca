"""Which epoch a loader is in, how far, and where its next iterator begins.

::

    load(position) ─▶ loaded ─╮
    set_epoch(e) ── asked for ┼─ begin() ─▶ a pass: its position is kept up to date by its iterator
    counting up ──────────────╯              ╰─ commit() ─▶ committed ─▶ now()

Nothing is decided before an iterator's first ``next()`` calls `Epochs.begin`: training loops load a
state, make an iterator and set the epoch in any order. What is decided then, and which position a
state has that is taken instead:

========  ===================  ========================================  ========================
state     epoch asked for      ``begin()``                               ``now()``
========  ===================  ========================================  ========================
no pass   any                  its start                                 its start
no pass   none                 the start of epoch 0                      the start of epoch 0
loaded    none, or its own     goes on at the loaded position            the loaded position
loaded    another              gives the position up: that one's start   that one's start
a pass    any                  its start                                 as below
a pass    none                 the next one's start                      as below
========  ===================  ========================================  ========================

A state taken while there is a pass has the position that was committed last, if ``commit()`` is
used and batches have been given out since; else where the current iterator is, or, once that has
ended, the start of the epoch that ``begin()`` would give.

**Which iterator is current**: one that begins while no other is in mid-epoch, at its first batch;
one that begins beside another, at its second. So ``next(iter(loader))`` within a loop moves no
position. An epoch that was asked for stays so until a pass of it has come to its second batch, or
to its end. Where ``commit()`` is used, a pass of one batch that was not committed, and whose
iterator is gone, was a look, or was begun too early: it is forgotten.
"""

from __future__ import annotations

import copy
import dataclasses
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from lit_loader.core.sampling.batch_plan import BatchPlan, ComputedBatches
from lit_loader.core.seeding.bases import Bases, LoaderSeeds, PassSeeds
from lit_loader.core.seeding.seeds import derive
from lit_loader.core.state.position import EpochPosition, Position
from lit_loader.describe import program_stacklevel

if TYPE_CHECKING:  # it is loaded for a sampler of the user's
    from lit_loader.core.sampling.sampler_batches import SamplerBatches

EpochBatches: TypeAlias = "ComputedBatches | SamplerBatches"


class Said(NamedTuple):
    """Which epoch a dataset with ``set_epoch`` is to be told; the program may have told it one."""

    listens: bool = False  # whether it has set_epoch
    itself: int | None = None  # what the program has told the dataset itself since the last pass
    stays: bool = False  # workers have copies that were made before that

    def told(self, start: Position, requested: int | None) -> int | None:
        """Give the epoch that workers tell their datasets in a pass; None: none.

        What the program has told the loader last, and nothing if it has told the dataset itself.
        """
        if not self.listens:
            return None
        if self.itself is not None:
            return self.itself if self.stays else None
        if requested is not None:
            return start.epoch
        return start.told


_NOTHING: Final = Said()


@dataclass(frozen=True)
class EpochStart:
    """What an iterator learns at its first ``next()``."""

    epoch: int
    bases: Bases  # what the order follows from
    seeds: PassSeeds  # and what is drawn
    batches: EpochBatches | None  # from the position on; None for an iterable dataset
    position: EpochPosition  # where to begin; the iterator keeps it up to date

    @property
    def following(self) -> PassSeeds:
        """What is drawn in the passes that follow, at this one's epoch; see `PassSeeds.ahead`."""
        start = self.position.start
        return dataclasses.replace(start, look=0).seeds if start.look else self.seeds


@dataclass
class _Pass:
    """An iterator's epoch, and what the program has said of it."""

    position: EpochPosition
    batches: EpochBatches | None
    iterator: Callable[[], object]  # a weak reference
    number: int  # in the order in which passes have begun
    asked: tuple[int] | None  # by `set_epoch`; None: it was counted to
    loaded: Position | None  # the position that it has taken
    # Until the first commit: what was committed in the pass before, if that has batches which are
    # not used yet although this one has begun, for a loop that takes one ahead.
    earlier: Position | None = None
    committed: Position | None = None  # where it was at the last commit
    within: bool = False  # whether the training loop's epoch goes on behind the end of this one

    @property
    def goes_on(self) -> bool:
        """Whether its iterator lives, in the middle of its epoch."""
        return not self.position.ended and self.iterator() is not None

    def goes_on_without(self, iterator: object) -> bool:
        """Whether it goes on while this iterator begins; not if that is its own, begun anew."""
        return self.goes_on and self.iterator() is not iterator

    @property
    def counts(self) -> bool:
        """Whether it is more than a first batch."""
        return self.position.ended or self.position.since > 1

    @property
    def was_look(self) -> bool:
        """Whether its iterator is gone, and has given one batch at most, which was not used."""
        return not (self.counts or self.is_used or self.iterator() is not None)

    @property
    def is_used(self) -> bool:
        """Whether a batch of it was committed."""
        return self.committed is not None and self.committed.since > 0


def _drawn(
    plan: BatchPlan, at: Position, start: int, given: dict[str, Any] | None, left: bool = False
) -> SamplerBatches:
    """Draw the batches of a user's sampler, from batch ``start`` on."""
    from lit_loader.core.sampling.sampler_batches import (
        SamplerBatches,
    )  # which own orders do without

    return SamplerBatches(plan, at.epoch, at.seeds, start, given, left)


def _nobody() -> None:
    """Stand for a weak reference to an iterator, in a copy of a loader."""


class Epochs:
    """The epochs of one loader; its plan is None for an iterable dataset."""

    def __init__(self, plan: BatchPlan | None, seeds: LoaderSeeds) -> None:
        self.plan = plan  # another one counts from the next epoch on
        self._seeds = seeds
        self._next = 0  # the epoch that comes next, if none is asked for
        self._asked: tuple[int] | None = None  # for; an object, by which its passes know it
        self._commits = False  # whether commit() is used at all
        self._ahead = False  # whether the last commit was of a loop that takes a batch ahead
        self._loaded: Position | None = None  # at which the next iterator begins
        self._current: _Pass | None = None
        self.begun: EpochPosition | None = None  # where the current iterator is, or was at its end
        self._before: _Pass | None = None  # the pass that was current before
        self._beside: list[_Pass] = []  # those of iterators in mid-epoch that are not current
        self._passes = 0  # that have begun
        self._newest = -1, 0, -1  # the last that was no look: its number, ``repeats``, epoch
        # Where the current one was when another began beside it last, and how many had there.
        self._looks: tuple[tuple[int, ...], int] = (), 0

    def with_seeds(self, seeds: LoaderSeeds) -> Epochs:
        """Give a copy, which goes on from here by itself; both have the same samplers."""
        copied = copy.copy(self)
        copied._seeds, copied._beside, copied._before = seeds, [], None
        if self._current is not None:
            position: EpochPosition = copy.deepcopy(self._current.position)
            here = dataclasses.replace(
                self._current, position=position, batches=None, iterator=_nobody
            )
            copied._current, copied.begun = here, position
        return copied

    def set_epoch(self, epoch: int) -> None:
        """Ask for the epoch that the next iterator loads."""
        if self.plan is not None:
            self.plan.sampler.choose(epoch)
        self._next, self._asked = epoch, (epoch,)

    def load(self, position: Position) -> None:
        """Let the next iterator begin there; refused (a StateError), nothing has changed."""
        if self.plan is not None:  # what was set before is part of what is resumed
            self.plan.sampler.take_up(position.sampler or {}, not position.batches)
        self._loaded, self._next, self._asked = position, position.epoch, None

    def begin(
        self,
        place: Callable[[Position], EpochPosition],
        iterator: object,
        said: Said = _NOTHING,
    ) -> EpochStart:
        """Begin the epoch that comes next; ``place`` makes the position that its iterator keeps."""
        self._forget_look()
        self._count()
        loaded, requested, current = self._loaded, self._requested(), self._current
        beside = loaded is None and current is not None and current.goes_on_without(iterator)
        given = outer = None
        if loaded is not None:
            start, given = self._begin_loaded(loaded, requested)
        else:
            renewed = self._seeds.renew()
            if renewed == "all":
                self._next = 0
            if current is not None and not beside:
                self._warn_if_lost(current)
                self._leave(current)
            start = self._epoch_start(requested)
            if beside and requested is None and renewed != "all":
                assert current is not None
                outer = dataclasses.replace(current.position.start, looked=True)
                if current.position.start.looked:  # else it is as if that one's iterator were gone
                    start = dataclasses.replace(start, **self._look_at(current))
            if renewed:  # for this pass
                start = dataclasses.replace(
                    start, bases=self._seeds.count_from(start.epoch), repeats=0, passed=-1
                )
        start = dataclasses.replace(start, told=said.told(start, requested))
        position = place(start)
        batches: EpochBatches | None = None
        if self.plan is not None and self.plan.is_computed:
            batches = ComputedBatches(self.plan, start.epoch, start.own_bases)
        elif self.plan is not None:
            left = bool((start.sampler or {}).get("left"))
            batches = _drawn(self.plan, start, start.batches, given, left)
        begun = EpochStart(start.epoch, start.bases, start.seeds, batches, position)
        asked = self._asked
        if requested is None:
            asked = None
        elif asked != (requested,):  # on a sampler
            asked = (requested,)
        earlier = self._unused() if self._ahead and not beside else None
        number = self._passes
        made = _Pass(position, batches, weakref.ref(iterator), number, asked, loaded, earlier)
        going_on = [each for each in self._beside if each.goes_on_without(iterator)]
        # All at once: nothing is called any more that a signal handler could raise in.
        self._loaded, self._asked, self._passes = None, asked or self._asked, number + 1
        if outer is not None and current is not None:
            current.position.start = outer
        if beside:
            self._beside = [*going_on, made]
        else:
            self._beside = going_on if loaded is None else []
            self._become(made)
        return begun

    def foresee(self, said: Said = _NOTHING) -> Position | None:
        """Give where `begin` would begin now; None: beside an iterator. Nothing changes by that.

        It may begin elsewhere all the same: if the program seeds generators meanwhile, say.
        """
        self._forget_look()
        self._count()
        current, requested = self._current, self._requested()
        if self._loaded is not None:
            start = self.now()
        elif current is None or not current.goes_on:
            start = self._epoch_start(requested)
        else:
            return None
        if start.look:  # workers foresee the orders of passes that follow one another
            return None
        return dataclasses.replace(start, told=said.told(start, requested))

    def go_on(self, position: EpochPosition) -> None:
        """Note that an iterator which is not the current one is asked for a batch."""
        found = [each for each in self._beside if each.position is position]
        if not found or not position.since:  # its first one
            return
        current, one = self._current, found[0]
        self._beside.remove(one)
        for each in filter(None, (current, one)):
            start = each.position.start
            no_look = each is one or each.counts
            if no_look or (not self._seeds.of_job and (each.goes_on or not start.look)):
                self._newest = max(self._newest, (each.number, start.repeats, start.epoch))
        number, *later = self._newest
        if number > one.number:
            position.start = dataclasses.replace(position.start, later=(later[0], later[1]))
        if current is not None and current.goes_on:
            self._beside.append(current)
            if self.plan is not None and self.plan.sampler.has_generators:
                warnings.warn(
                    "lit_loader: two iterators of one loader take turns, and its sampler draws "
                    "from a generator of its own: what they give may depend on the number of "
                    "workers; use a loader for each, or shuffle=True [LL307]",
                    stacklevel=program_stacklevel(),
                )
        self._become(one)

    def _become(self, one: _Pass | None) -> None:
        """Let this be the current pass."""
        self._before, self._current = self._current, one
        self.begun = None if one is None else one.position
        if one is not None and one.asked is None:
            start = one.position.start
            self._next = max(start.epoch, -1 if start.later is None else start.later[1]) + 1

    def _count(self) -> None:
        """Take the epoch that was asked for as begun, if the current pass is of it and counts."""
        one = self._current
        if one is not None and one.asked is not None and one.asked is self._asked and one.counts:
            self._asked, self._next = None, one.position.start.epoch + 1

    def _forget_look(self) -> None:
        """Go back to the pass before, if commits tell that the current one was a look."""
        one = self._current
        if not self._commits or one is None or self._loaded is not None or not one.was_look:
            return
        self._current, self._before = self._before, None
        self.begun = None if self._current is None else self._current.position
        if one.asked is None:
            self._next = one.position.start.epoch
        if one.loaded is not None:
            asked = self._asked
            self.load(one.loaded)
            self._asked = asked

    def _leave(self, one: _Pass) -> None:
        """Leave a pass for the next one.

        A sampler's generators then have drawn what was given out, as with torch's loader without
        workers; behind all batches, the end too. If the program has set them since, they stay.
        """
        position = one.position
        batches: Any = one.batches  # None in a copy
        if self.plan is None or self.plan.is_computed or position.ended:
            return
        sampler, delivered = self.plan.sampler, position.now().delivered
        are_set, found = sampler.have_moved()
        if self.plan.is_end(delivered):
            if batches is not None and not batches.computed:
                batches.draw_end()  # which is not drawn again
            if are_set:
                sampler.bring(found)
        elif are_set:
            return
        elif delivered and not position.since and batches is not None and not batches.computed:
            batches.leave()  # of a resumed epoch, nothing was given
        else:
            sampler.bring(position.marks_at(delivered))

    def _warn_if_lost(self, one: _Pass) -> None:
        """Tell if an iterator that was to give one batch has taken the position of a resume."""
        at = one.position.start
        if at.batches and not self._commits and one.position.since == 1:
            now = one.position.now()
            if not now.ended and (self.plan is None or not self.plan.is_end(now.delivered)):
                warnings.warn(
                    f"lit_loader: the loaded position, batch {at.batches} of epoch {at.epoch}, "
                    "went to an iterator that has given one batch, and the rest of that epoch is "
                    "left out: look at a batch before load_state_dict, or by another loader "
                    "[LL306]",
                    stacklevel=program_stacklevel(),
                )

    def _unused(self) -> Position | None:
        """What was committed, if batches have been given out since."""
        one = self._current if self._loaded is None else None
        if one is None:
            return None
        if one.committed is None:
            return one.earlier
        return one.committed if one.committed.delivered < one.position.now().delivered else None

    def _begin_loaded(
        self, loaded: Position, requested: int | None
    ) -> tuple[Position, dict[str, Any] | None]:
        """Decide where to begin after a position was loaded; with it, what its sampler is given."""
        if self._keeps(loaded, requested):
            start = loaded
            if requested is not None:
                start = dataclasses.replace(loaded, requested=requested)
            return start, loaded.sampler or {}
        start, given = self._epoch_start(requested), None
        if not loaded.batches:
            start, given = dataclasses.replace(start, sampler=loaded.sampler), loaded.sampler or {}
        elif self.plan is not None and not self.plan.is_computed:
            unseen, is_end = self._may_be_told_unseen(loaded), self.plan.is_end(loaded.delivered)
            left = _drawn(self.plan, loaded, loaded.delivered, loaded.sampler)
            if left.leave() and unseen:
                return dataclasses.replace(loaded, requested=requested), loaded.sampler or {}
            if unseen and not is_end:
                warnings.warn(
                    f"lit_loader: set_epoch({requested}) gives up the loaded position, batch "
                    f"{loaded.batches} of epoch {loaded.epoch}: the rest of that epoch is left "
                    "out; to go on with it, set the epoch that the state was taken in [LL325]",
                    stacklevel=program_stacklevel(),
                )
            start = dataclasses.replace(start, sampler=self.plan.sampler.state(not is_end))
        return dataclasses.replace(start, **loaded.passes(start.epoch, self._commits)), given

    def _keeps(self, loaded: Position, requested: int | None) -> bool:
        """Whether a loaded position is that of the epoch that is asked for.

        A training loop that commits counts epochs of its own: a loader may have several in one.
        """
        own = None if self._commits else loaded.epoch
        return requested in (None, loaded.anchor, own)

    def _may_be_told_unseen(self, loaded: Position) -> bool:
        """Whether the program may have told a sampler of its own another epoch than was counted."""
        return loaded.requested is None and self.plan is not None and self.plan.sampler.is_programs

    def _look_at(self, one: _Pass) -> dict[str, Any]:
        """Tell a pass that begins beside another one from all others.

        By where that one is, so after a resume they are those that they would have been. Where
        ranks share the data one rank may look alone, and must have the orders of the others.
        """
        now = one.position.now()
        where = now.look, now.epoch, now.delivered
        self._looks = where, self._looks[1] + 1 if self._looks[0] == where else 0
        name = derive(*where, self._looks[1])
        if self._seeds.of_job:  # readers of a stream draw alike, see `_epoch_start`
            return {} if self.plan is None else {"repeats": now.repeats + name % 2**32}
        return {"look": name}

    def _number(self) -> int:
        """The next epoch, unless one is asked for.

        Where ranks share the data a look takes no epoch's number, for one rank may look alone.
        """
        one = self._current
        takes_one = one is None or one.counts or one.is_used or one.asked or one.loaded
        if one is not None and self._seeds.of_job and not takes_one:
            return one.position.start.epoch
        return self._next

    def _epoch_start(self, requested: int | None) -> Position:
        """The start of an epoch: of that which was asked for, or else of the next one."""
        before = None if self.begun is None else self.begun.now()
        sampler = None
        if self.plan is not None:
            left = before is not None and not (before.ended or self.plan.is_end(before.batches))
            sampler = self.plan.sampler.state(left)
        epoch = requested
        if epoch is None:
            requested = None if before is None else before.requested
            epoch = self._number()
        start = Position(epoch, self._seeds.bases(), sampler=sampler, requested=requested)
        if before is None:
            return start
        # Readers of a stream must draw alike on all ranks before their first sample.
        used = self._commits or (self._seeds.of_job and self.plan is not None)
        return dataclasses.replace(start, told=before.told, **before.passes(epoch, used))

    def _requested(self) -> int | None:
        """The epoch that was asked for, on a sampler perhaps; None: none is.

        A training loop that commits, and takes a batch ahead, tells a sampler the epoch only when
        it has begun: that is not the next iterator's, too.
        """
        requested = None if self.plan is None else self.plan.sampler.requested_epoch()
        one = self._current if self._loaded is None else None
        begun = one is not None and self._ahead and one.asked == (requested,)
        if begun and one is not None and self._asked in (None, one.asked):
            requested = None
        if requested is None and self._asked is not None:
            [requested] = self._asked
        return requested

    def commit(self, ahead: bool = False, within: bool = False) -> None:
        """Note that all that was given out is used; see ``DataLoader.commit``."""
        self._commits, self._ahead = True, ahead
        self._forget_look()
        self._count()
        one = self._current
        if one is not None and self._loaded is None:
            one.within = within
            one.committed = one.position.before_last() if ahead else one.position.now()

    @property
    def begun_without_commits(self) -> bool:
        """Whether batches have been given out, and nothing says which of them were used."""
        return self.begun is not None and self._loaded is None and not self._commits

    def now(self) -> Position:
        """The position that a state taken now has; no iterator's epoch changes by that."""
        self._forget_look()
        self._count()
        loaded, one, requested = self._loaded, self._current, self._requested()
        if loaded is not None and (
            self._keeps(loaded, requested) or self._may_be_told_unseen(loaded)
        ):
            return loaded
        if loaded is not None:
            start = self._epoch_start(requested)
            return dataclasses.replace(start, **loaded.passes(start.epoch, self._commits))
        if one is None:
            return self._epoch_start(requested)
        now, committed = one.position.now(), one.committed
        if self._commits and (committed is None or committed.delivered < now.delivered):
            return committed or one.earlier or one.position.start
        return self._epoch_start(requested) if now.ended and not one.within else now
