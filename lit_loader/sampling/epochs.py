"""Which epoch a loader is in, how far, and where its next iterator begins.

::

    load(position) ─▶ pending ─╮
    set_epoch(e) ─▶ requested ─┼─ begin() ─▶ position, kept up to date by the iterator
    counting up ─▶ next epoch ─╯               │
                                 commit() ─▶ committed ─▶ now()

- Nothing is decided before an iterator's first ``next()`` calls :meth:`Epochs.begin`: training
  loops load a state, make an iterator and set the epoch in any order.
- A loaded position is kept until then, unless another epoch than its own has been asked for.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any

from lit_loader.checkpoint.position import EpochPosition, Position
from lit_loader.sampling.batch_plan import BatchPlan
from lit_loader.sampling.epoch_batches import EpochBatches
from lit_loader.seeding.seeds import BaseSeed

__all__ = ["EpochStart", "Epochs"]


@dataclass(frozen=True)
class EpochStart:
    """What an iterator learns at its first ``next()``.

    Attributes:
        epoch: The epoch's number.
        seed: Its base seed.
        batches: The indices of each batch, from the position on; None for an iterable dataset.
        position: Where to begin; the iterator keeps it up to date.
    """

    epoch: int
    seed: int
    batches: EpochBatches | None
    position: EpochPosition


class Epochs:
    """The epochs of one loader.

    Args:
        plan: What the batches hold; None for an iterable dataset.
        base_seed: The loader's.
    """

    def __init__(self, plan: BatchPlan | None, base_seed: BaseSeed) -> None:
        self._plan = plan
        self._base_seed = base_seed
        self._next_epoch = 0
        self._epoch_requested = False
        self._position: EpochPosition | None = None
        self._commits = self._within = False
        self._committed: Position | None = None
        self._pending: Position | None = None

    def replan(self, plan: BatchPlan | None) -> None:
        """Take another plan, from the next epoch on."""
        self._plan = plan

    def set_epoch(self, epoch: int) -> None:
        """Ask for the epoch that the next iterator loads."""
        self._next_epoch = epoch
        self._epoch_requested = True

    def load(self, position: Position) -> None:
        """Let the next iterator begin at ``position``."""
        self._next_epoch = position.epoch
        self._epoch_requested = False
        self._committed = None
        self._pending = position

    def begin(self, readers: int) -> EpochStart:
        """Begin the epoch that comes next.

        Args:
            readers: Readers of an iterable dataset, 0 for a map-style one.
        """
        pending, requested = self._pending, self._requested()
        given = None
        if pending is None:
            if self._position is not None:
                self._abandon(self._position.now())
            start = self._epoch_start(requested)
        elif requested in (None, pending.anchor):
            start, given = pending, pending.sampler or {}
            if requested is not None:
                start = dataclasses.replace(pending, requested=requested)
        elif pending.batches:
            self._leave(pending)
            start = self._epoch_start(requested, between=True)
        else:
            given = pending.sampler or {}
            start = dataclasses.replace(self._epoch_start(requested), sampler=pending.sampler)
        position = EpochPosition(start, readers)
        batches = None
        if self._plan is not None:
            # A sampler that was not interrupted is not restored either: it goes on by itself.
            batches = self._plan.batches(start.epoch, start.batches, given)
        begun = EpochStart(start.epoch, start.seed, batches, position)
        # All at once: nothing is called any more that a signal handler could raise in.
        self._pending, self._committed, self._epoch_requested = None, None, False
        self._next_epoch, self._position, self._within = start.epoch + 1, position, False
        return begun

    def _abandon(self, position: Position) -> None:
        """Leave an epoch that was begun, for the next one.

        Where the sampler really is depends on how far ahead of the consumer it was drawn from.
        """
        if not position.ended and _is_replayed(position.sampler):
            self._leave(position)

    def _leave(self, position: Position) -> None:
        """Bring a sampler to where it goes on from, after an epoch that was left at a position.

        A generator has drawn what has been given out, as with torch's loader without workers
        (with workers, torch's is as far ahead as it prefetches). If that is the whole epoch,
        whether or not its end was asked for, it is behind the end; and so is a sampler that has a
        state of its own.
        """
        if self._plan is None or position.sampler is None:
            return
        given_out = position.delivered
        if _is_replayed(position.sampler) and not self._plan.is_end(given_out):
            drawn = self._plan.batches(position.epoch, max(0, given_out - 1), position.sampler)
            if given_out:
                next(drawn, None)
            else:
                drawn.rewind()
            return
        try:
            left = len(self._plan) - position.batches
        except (TypeError, NotImplementedError):
            return  # perhaps it has no end
        rest = self._plan.batches(position.epoch, position.batches, position.sampler)
        for _ in itertools.islice(rest, left + 1):
            pass

    def _epoch_start(self, requested: int | None, between: bool = False) -> Position:
        """The start of an epoch: of that which was asked for, or else of the next one.

        Args:
            requested: The epoch that was asked for, if any.
            between: Whether the sampler is known to be between two epochs.
        """
        before = None if self._position is None else self._position.now()
        sampler = None
        if self._plan is not None:
            if before is not None:
                between = between or before.ended or self._plan.is_end(before.batches)
            sampler = self._plan.sampler_state(between)
        epoch = requested
        if epoch is None:
            epoch, requested = self._next_epoch, None if before is None else before.requested
        return Position(epoch, self._base_seed(), sampler=sampler, requested=requested)

    def _requested(self) -> int | None:
        """The epoch that somebody has asked for since the last one began, or None."""
        requested = None if self._plan is None else self._plan.requested_epoch()
        if requested is None and self._epoch_requested:
            return self._next_epoch
        return requested

    def commit(self, ahead: bool = False, within: bool = False) -> None:
        """Note that everything given out so far is used; see ``DataLoader.commit``."""
        self._commits, self._within = True, within
        if self._position is not None and self._pending is None:
            before = ahead and self._plan is None
            self._committed = self._position.before_last() if before else self._position.now()

    @property
    def begun_without_commits(self) -> bool:
        """Whether batches have been given out, and nobody says which of them were used."""
        return self._position is not None and self._pending is None and not self._commits

    def now(self) -> Position:
        """The position that a state taken now has."""
        pending, requested = self._pending, self._requested()
        if pending is not None and requested in (None, pending.anchor):
            return pending
        if pending is not None or self._position is None:
            return self._epoch_start(requested)
        now = self._position.now()
        if self._commits and (self._committed is None or self._committed.delivered < now.delivered):
            return self._committed or self._position.start
        return self._epoch_start(requested) if now.ended and not self._within else now


def _is_replayed(sampler: Any) -> bool:
    """Whether all that a sampler must remember is where its generators and counters were."""
    return bool(sampler) and sampler.keys() <= {"generator", "carried"}
