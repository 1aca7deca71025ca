"""Which epoch a loader is in, how far, and where its next iterator begins.

::

    load(position) ─▶ Loaded ─╮
    set_epoch(e) ─────────────┼─ begin() ─▶ Running: its position is kept up to date by the iterator
    Fresh, counting up ───────╯              ╰─ commit() ─▶ committed ─▶ now()

Nothing is decided before an iterator's first ``next()`` calls `Epochs.begin`: training loops load a
state, make an iterator and set the epoch in any order. What is decided then, and which position a
state has that is taken instead:

========  ===================  ========================================  ========================
state     epoch asked for      ``begin()``                               ``now()``
========  ===================  ========================================  ========================
Fresh     any                  its start                                 its start
Fresh     none                 the start of epoch 0                      the start of epoch 0
Loaded    none, or its own     goes on at the loaded position            the loaded position
Loaded    another              gives the position up: that one's start   that one's start
Loaded    another, its sampler  goes on if it gives what it gave, else    the loaded position
          told apart            as above, with a warning
Running   any                  its start; a sampler leaves the epoch     as below
Running   none                 the next one's start; likewise            as below
========  ===================  ========================================  ========================

A state taken while it is running has the position that was committed last, if ``commit()`` is used
and batches have been given out since; else where the iterator is, or, once that has ended, the
start of the epoch that ``begin()`` would give.

Programs look at a batch by ``next(iter(loader))`` while another iterator is in the midst of its
epoch. That one is kept beside: the position is its own again once it goes on, or the other one has
been dropped behind its first batch. A look, which is dropped before the iterator beside it, is no
epoch, and a sampler's generators are put back: the order of what follows does not depend on it.
Looks in a row are of different epochs, and draw on from each other.
"""

from __future__ import annotations

import copy
import dataclasses
import warnings
import weakref
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from lit_loader.checkpoint.position import EpochPosition, Position
from lit_loader.checkpoint.stateful import ITERATOR
from lit_loader.describe import program_stacklevel
from lit_loader.sampling.batch_plan import BatchPlan, ComputedBatches
from lit_loader.sampling.drawn_batches import DrawnBatches
from lit_loader.sampling.user_sampler import COUNTED, SAMPLER, Place
from lit_loader.seeding.bases import Bases, LoaderSeeds, PassSeeds

__all__ = ["EpochBatches", "EpochStart", "Epochs"]

EpochBatches = ComputedBatches | DrawnBatches

_OF_ITERATOR: Final = (
    *("begun", "_batches", "_committed", "_within", "_earlier", "_announced", "_iterator"),
    "_next_epoch",
)
"""What `Epochs` knows of one iterator's epoch."""


class Said(NamedTuple):
    """Which epoch a dataset with ``set_epoch`` is to be told; the program may have told it one."""

    listens: bool = False  # whether it has set_epoch
    itself: int | None = None  # what the program has told the dataset itself since the last pass
    stays: bool = False  # workers have copies that were made before that

    def told(self, start: Position, requested: int | None, tells: bool) -> int | None:
        """Give the epoch that workers tell their datasets in a pass; None: none.

        What the program has told the loader last, and nothing if it has told the dataset itself.
        """
        if not self.listens:
            return None
        if self.itself is not None:
            return self.itself if self.stays else None
        if requested is not None or tells:
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


class Epochs:
    """The epochs of one loader; its plan is None for an iterable dataset."""

    def __init__(self, plan: BatchPlan | None, seeds: LoaderSeeds) -> None:
        self.plan = plan  # another one counts from the next epoch on
        self._seeds = seeds
        self.tells = False  # whether the dataset is told the epochs that are counted, too
        self._next_epoch = 0
        self._epoch_requested = False
        # What had begun when all iterators were to load the same epoch; None: each is the next one.
        self._kept_since: tuple[EpochPosition | None] | None = None
        self._commits = False  # whether commit() is used at all
        self._ahead = False  # whether the last commit was of a loop that takes a batch ahead
        self._loaded: Position | None = None  # at which the next iterator may begin
        self._followed: Position | None = None  # another loader's pass before the first one here
        # Of the epoch that was begun last, and perhaps has ended since:
        self.begun: EpochPosition | None = None  # where its iterator is
        self._iterator: weakref.ref[object] | None = None
        self._batches: EpochBatches | None = None
        self._committed: Position | None = None  # where it was at the last commit
        self._within = False  # whether the training loop's epoch goes on behind the end of this one
        # Until the first commit: what was committed in the epoch before, if that has batches which
        # are not used yet although this one has begun, for a loop that takes one ahead.
        self._earlier: Position | None = None
        # An epoch that a training loop is going to ask for and has begun with this one.
        self._announced: int | None = None
        # The same of iterators that are in the midst of their epochs, and others were begun since.
        self._beside: list[dict[str, Any]] = []
        # One that has ended, for a loop that has not come to the end yet: see `hold`.
        self._held: dict[str, Any] | None = None
        # Those that are gone since the last one began, in that order.
        self._gone: list[weakref.ref[object]] = []
        self._before = 0  # the epoch that was next before the last one began
        self._place: Place | None = None  # and where the sampler's generators were
        # How many looks there were since there was anything beside, and where the last one has left
        # the generators.
        self._looks, self._look_marks = 0, None

    def with_seeds(self, seeds: LoaderSeeds) -> Epochs:
        """Give a copy, which goes on from here by itself; both have the same samplers."""
        copied = copy.copy(self)
        copied._seeds, copied.begun, copied._batches = seeds, copy.deepcopy(self.begun), None
        copied._iterator, copied._beside, copied._gone = None, [], []
        copied._held = None
        return copied

    @property
    def _running(self) -> EpochPosition | None:
        """Where the iterator that was begun last is; None: there is none, or a state was loaded."""
        return self.begun if self._loaded is None else None

    def set_epoch(self, epoch: int) -> None:
        """Ask for the epoch that the next iterator loads."""
        if self.plan is not None:
            self.plan.sampler.choose(epoch)
        self._next_epoch, self._epoch_requested, self._kept_since = epoch, True, None

    def keep(self) -> None:
        """Let all iterators load the epoch that is next, until one ends or a batch is committed."""
        self.release()
        self._kept_since, self._looks = (self.begun,), 0
        if self.plan is None:  # else it has been asked for, and generators may have to be put back
            # Whether one that was cycled is a look does not depend on when it is collected.
            self._beside = []

    def hold(self) -> None:
        """Let no iterator that begins now count as an epoch, until `keep`, `release` or `load`.

        A loop that takes a batch ahead learns of its iterator's end before its own last step.
        """
        self._go_back()
        self._count_up()
        self._held = self._now_begun()

    def release(self) -> None:
        """Let iterators count again."""
        if self._held is not None:
            self._go_back()
            self._held = None

    def _count_up(self) -> None:
        if self._kept_since and self.begun is not self._kept_since[0]:
            self._epoch_requested, self._kept_since = False, None
            self._next_epoch += 1

    def load(self, position: Position) -> None:
        """Let the next iterator begin there; refused (a StateError), nothing has changed."""
        if self.plan is not None:  # what was set before is part of what is resumed
            self.plan.sampler.take_up(position.sampler or {}, not position.batches)
        self._loaded, self._next_epoch, self._held = position, position.epoch, None
        self._epoch_requested, self._kept_since = False, None

    def follow(self, position: Position) -> None:
        """Let the next pass be the one after another loader's, which was this one."""
        if not self._seeds.chosen:
            self._seeds.adopt(position.bases)
        self.begun, self._iterator, self._followed = None, None, position
        if not self._epoch_requested:
            self._next_epoch = position.epoch + 1

    def begin(self, readers: int, iterator: object, said: Said = _NOTHING) -> EpochStart:
        """Begin the epoch that comes next; with the readers of an iterable dataset, or 0."""
        if self.begun is not None and self.begun.ended:
            self._count_up()
        self._go_back()
        loaded, running, requested = self._loaded, self._running, self._requested()
        beside = [each for each in (*self._beside, self._now_begun()) if _goes_on(each)]
        before, looks, place = self._next_epoch, self._looks if beside else 0, None
        if loaded is not None:
            start, given = self._begin_loaded(loaded, requested)
        else:
            renewed = self._seeds.renew()
            if renewed == "all":
                self._next_epoch, before, looks = 0 if requested is None else requested, 0, 0
            if running is not None:
                if not _goes_on(self._now_begun()):
                    self._warn_if_lost(running)
                    self._warn_of_look(running, iterator)
                place = self._abandon(running)
                if looks and self.plan is not None:
                    self.plan.sampler.bring(self._look_marks)
            # A sampler that was not interrupted is not restored either: it goes on by itself.
            start, given = self._epoch_start(requested, looks=looks), None
            if renewed:  # for this pass
                start = dataclasses.replace(
                    start, bases=self._seeds.count_from(start.epoch), repeats=0, passed=-1
                )
        start = dataclasses.replace(start, told=said.told(start, requested, self.tells))
        position = EpochPosition(start, readers)
        batches: EpochBatches | None = None
        if self.plan is not None:
            counted = start.requested is None and self.plan.sampler.is_programs
            if given is not None and start.batches:  # a loaded state says it
                counted = counted and self._is_told_apart(start)
            self.plan.sampler.counted = counted
            if self.plan.is_computed:
                batches = ComputedBatches(self.plan, start.epoch, start.bases)
            else:
                left = bool((start.sampler or {}).get("left"))
                batches = DrawnBatches(
                    self.plan, start.epoch, start.seeds, start.batches, given, left
                )
        begun = EpochStart(start.epoch, start.bases, start.seeds, batches, position)
        earlier = self._unused() if self._ahead else None
        held = weakref.ref(iterator, self._gone.append)
        # All at once: nothing is called any more that a signal handler could raise in.
        self._loaded, self._next_epoch = None, start.epoch
        if self._kept_since is None:
            self._epoch_requested, self._next_epoch = False, start.epoch + 1
        self.begun, self._batches, self._iterator = position, batches, held
        self._committed, self._within, self._earlier, self._announced = None, False, earlier, None
        self._beside = beside if loaded is None else []
        self._before, self._place, self._looks = before, place, looks
        del self._gone[:]
        return begun

    def _now_begun(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _OF_ITERATOR}

    def go_on(self, position: EpochPosition) -> None:
        """Note that an iterator with this position goes on, and that another was begun since."""
        for each in self._beside:
            if each["begun"] is position:
                was_look = self._looked_at_beside() is not None
                if was_look:
                    self._put_generators_back()
                self._go_back_to(each, was_look)
                if self.plan is not None and self.plan.sampler.has_generators and not was_look:
                    position.others_drew(self.plan.sampler.have_moved()[1])
                    warnings.warn(
                        "two iterators of one loader take turns, and its sampler draws from a "
                        "generator of its own: what they give may depend on the number of "
                        "workers; use a loader for each, or shuffle=True",
                        stacklevel=program_stacklevel(),
                    )
                return

    def _looked_at_beside(self) -> dict[str, Any] | None:
        """Give what the iterator begun last was a look beside; None: it was no look.

        A look gives one batch, and is gone before what it is beside.
        """
        if self._held is not None:
            return None if self.begun is self._held["begun"] else self._held
        gone, last = self._gone, self._iterator
        if last not in gone or self._loaded is not None:
            return None
        begun = self.begun
        if begun is None or begun.ended or begun.since != 1:
            return None
        later = gone[gone.index(last) + 1 :]
        outlived = [
            each
            for each in self._beside
            if _goes_on(each) or (each["_iterator"] in later and not each["begun"].ended)
        ]
        return outlived[-1] if outlived else None

    def _put_generators_back(self) -> None:
        """Let a sampler's generators be where they were before a look, if nobody has set them."""
        if self.plan is not None and self.begun is not None:
            sampler, look = self.plan.sampler, self.begun
            if not sampler.have_moved()[0]:
                self._look_marks = look.marks_at(look.now().delivered)
                sampler.go_back(self._place)

    def _go_back(self) -> None:
        """Go back to the iterator before, if the last one was a look."""
        found = self._looked_at_beside()
        if found is not None:
            self._put_generators_back()
            self._go_back_to(found, was_look=True)

    def _go_back_to(self, found: dict[str, Any], was_look: bool) -> None:
        others = [each for each in (*self._beside, self._now_begun()) if each is not found]
        asked = self._epoch_requested or self._kept_since is not None
        if was_look and not asked:
            self._next_epoch = self._before
            self._looks += 1
        counted = self._next_epoch
        vars(self).update(found)
        if self.plan is not None or not self._commits:
            self._next_epoch = counted
        self._beside = [each for each in others if _goes_on(each)]

    def _warn_if_lost(self, running: EpochPosition) -> None:
        """Tell if an iterator that was to give one batch has taken the position of a resume."""
        at = running.start
        if at.batches and not self._commits and running.since == 1:
            now = running.now()
            if not now.ended and (self.plan is None or not self.plan.is_end(now.delivered)):
                warnings.warn(
                    f"the loaded position, batch {at.batches} of epoch {at.epoch}, went to an "
                    "iterator that has given one batch, and the rest of that epoch is left out: "
                    "look at a batch before load_state_dict, or by another loader",
                    stacklevel=program_stacklevel(),
                )

    def _warn_of_look(self, running: EpochPosition, iterator: object) -> None:
        """Tell if a batch was looked at before an iterator that is older has begun.

        There is nothing then by which the generators could be put back.
        """
        is_older = getattr(iterator, "made_after", running) is not running
        is_look = running.since == 1 and not running.ended and self._iterator in self._gone
        if is_older and is_look and self.plan is not None and self.plan.sampler.has_generators:
            warnings.warn(
                "a batch was looked at before the loop's first one, and the sampler draws from a "
                "generator of its own: the order is another one than without that look, and "
                "after a resume yet another; look at a batch later, or by another loader, or use "
                "shuffle=True",
                stacklevel=program_stacklevel(),
            )

    def begun_for(self, epoch: int) -> None:
        """Note for which epoch of a training loop this one has begun.

        A loop that takes a batch ahead sets that only later: it is not the next iterator's, too.
        """
        running = self._running
        if running is not None:
            self._announced = epoch
            running.start = dataclasses.replace(running.start, requested=epoch)

    def _unused(self) -> Position | None:
        """What was committed, if batches have been given out since."""
        running, committed = self._running, self._committed
        if running is None or committed is None:
            return None if running is None else self._earlier
        return committed if committed.delivered < running.now().delivered else None

    def _begin_loaded(
        self, loaded: Position, requested: int | None
    ) -> tuple[Position, dict[str, Any] | None]:
        """Decide where to begin after a position was loaded; with it, what its sampler is given."""
        if requested in (None, loaded.anchor):
            start = loaded
            if requested is not None:
                start = dataclasses.replace(loaded, requested=requested)
            return start, loaded.sampler or {}
        if loaded.batches:
            if self._leave(loaded) and self._is_told_apart(loaded):
                return dataclasses.replace(loaded, requested=requested), loaded.sampler or {}
            if self._is_told_apart(loaded) and not self._is_end(loaded):
                warnings.warn(
                    f"set_epoch({requested}) gives up the loaded position, batch {loaded.batches} "
                    f"of epoch {loaded.epoch}: the rest of that epoch is left out; to go on with "
                    "it, set the epoch that the state was taken in",
                    stacklevel=program_stacklevel(),
                )
            is_left = not self._is_end(loaded)
            start = self._epoch_start(requested, between=not is_left, left=is_left)
            return dataclasses.replace(start, **loaded.passes(start.epoch)), None
        start = self._epoch_start(requested)
        start = dataclasses.replace(start, sampler=loaded.sampler, **loaded.passes(start.epoch))
        return start, loaded.sampler or {}

    def _abandon(self, position: EpochPosition) -> Place | None:
        """Leave an epoch that was begun, for the next one.

        A sampler's generators then have drawn what was given out, as with torch's loader without
        workers; behind all batches, the end too. If the program has set them since, they stay.
        Returns where they are to be if the epoch is gone on with; None: it has no sampler.
        """
        if self.plan is None:
            return None
        now, sampler = position.now(), self.plan.sampler
        place = sampler.place()
        if now.ended:
            return place
        (are_set, found), batches = sampler.have_moved(), self._batches
        if not self.plan.is_end(now.delivered):
            gave_none = now.delivered and not position.since  # of a resumed epoch
            if gave_none and not are_set and isinstance(batches, DrawnBatches):
                batches.leave()
            else:
                sampler.bring(found if are_set else position.marks_at(now.delivered))
        elif isinstance(batches, DrawnBatches):
            batches.draw_end()  # which is not drawn again
            if are_set:
                sampler.bring(found)
            else:
                place = sampler.place()
        return place

    def _is_told_apart(self, loaded: Position) -> bool:
        """Whether the sampler may have been told another epoch than was counted, unseen."""
        return self.plan is not None and bool((loaded.sampler or {}).get(COUNTED))

    def _is_end(self, position: Position) -> bool:
        return self.plan is None or self.plan.is_end(position.delivered)

    def _leave(self, position: Position) -> bool:
        """Bring a sampler to behind a loaded epoch; returns whether it gave what it had given."""
        kept = {"generator", "generators", SAMPLER, ITERATOR} & (position.sampler or {}).keys()
        if self.plan is None or not (kept or self._is_told_apart(position)):
            return False
        batches = DrawnBatches(
            self.plan, position.epoch, position.seeds, position.delivered, position.sampler
        )
        return batches.leave()

    def _epoch_start(
        self, requested: int | None, between: bool = False, left: bool = False, looks: int = 0
    ) -> Position:
        """The start of an epoch: of that which was asked for, or else of the next one.

        ``between``: the sampler is known to be between two epochs; ``left``: to have left one.
        ``looks``: how many were begun beside the same iterator before.
        """
        before = self._followed if self.begun is None else self.begun.now()
        sampler = None
        if self.plan is not None:
            if before is not None:
                between = between or before.ended or self.plan.is_end(before.batches)
            left = left or (self._running is not None and not between)
            sampler = self.plan.sampler.state(between and not left, left)
        epoch = requested
        if epoch is None:
            requested = None if before is None else before.requested
            epoch = self._next_epoch + looks
        start = Position(epoch, self._seeds.bases(), sampler=sampler, requested=requested)
        if before is None:
            return start
        return dataclasses.replace(start, told=before.told, **before.passes(epoch))

    def _requested(self) -> int | None:
        """The epoch that was asked for since the last one began, or None."""
        requested = None if self.plan is None else self.plan.sampler.requested_epoch()
        if requested is None and self._epoch_requested:
            requested = self._next_epoch
        announced = self._running is not None and requested == self._announced
        return None if announced else requested

    def commit(self, ahead: bool = False, within: bool = False) -> None:
        """Note that all that was given out is used; see ``DataLoader.commit``."""
        self._go_back()
        running, self._commits, self._ahead = self._running, True, ahead
        self._count_up()
        if running is not None:
            self._within = within
            self._committed = running.before_last() if ahead else running.now()
        if self._held is not None:
            self._held = self._now_begun()

    @property
    def is_loaded(self) -> bool:
        """Whether the next iterator begins where a state was loaded."""
        return self._loaded is not None

    @property
    def begun_without_commits(self) -> bool:
        """Whether batches have been given out, and nothing says which of them were used."""
        return self._running is not None and not self._commits

    def now(self) -> Position:
        """The position that a state taken now has; changes nothing."""
        found = self._looked_at_beside()
        if found is None:
            return self._now()
        seen, place = copy.copy(self), None
        try:
            if self._held is not None and self.plan is not None:  # an end's state has generators
                place = self.plan.sampler.place()
                seen._put_generators_back()
            seen._go_back_to(found, was_look=True)
            return seen._now()
        finally:
            if self.plan is not None:
                self.plan.sampler.go_back(place)

    def _now(self) -> Position:
        loaded, running, requested = self._loaded, self._running, self._requested()
        if loaded is not None and (
            requested in (None, loaded.anchor) or self._is_told_apart(loaded)
        ):
            return loaded
        if running is None:
            return self._epoch_start(requested)
        now, committed = running.now(), self._committed
        if self._commits and (committed is None or committed.delivered < now.delivered):
            return committed or self._earlier or running.start
        return self._epoch_start(requested) if now.ended and not self._within else now


def _goes_on(one: dict[str, Any]) -> bool:
    """Whether an iterator lives that is in the midst of its epoch."""
    begun, iterator = one["begun"], one["_iterator"]
    return begun is not None and not begun.ended and iterator is not None and iterator() is not None
