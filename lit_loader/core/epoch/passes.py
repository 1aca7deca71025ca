"""`Passes`: which pass over the data comes next, where it begins, and what a state is of.

::

    iter(loader) ─ draws the seed ─▶ first next(): begin() ─▶ a `Pass`, kept up to date by its
                                        ▲                      iterator ─▶ now() ─▶ a state
    set_epoch(e), load(position) ───────╯

Each pass has an epoch. `set_epoch` chooses it, on the loader or its sampler, until it is called
again; without it the epoch counts up, or stays 0 where ranks share the data. ``repeat`` counts the
earlier passes of the same epoch. The pass's seed is what ``iter(loader)`` has drawn, or follows
from (base, epoch, repeat): see `core/seeding/loader_seeds.py`.

Where to begin is decided at an iterator's first ``next()``, because training loops load a state
after ``iter(loader)``. A state is that of the iterator that yielded last; an iterator that has
yielded a single batch next to a running one does not count yet.

After a resume, passes with a drawn seed are exact only if the program restores torch's generator,
too: a state has a digest of where that was. Otherwise the loaded seed is mixed into what they draw,
so that a program that seeds at its start does not repeat its first epochs.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch.distributed

from lit_loader.context import reading
from lit_loader.core.sampling.batch_plan import BatchPlan, ComputedBatches
from lit_loader.core.seeding.held_generators import Found, OwnSeed, own_seeds
from lit_loader.core.seeding.loader_seeds import LoaderSeeds
from lit_loader.core.seeding.seeds import UNTOLD, PassSeeds, derive
from lit_loader.core.state.position import PassPosition, Position, Root
from lit_loader.describe import program_stacklevel

if TYPE_CHECKING:  # it is loaded for a sampler of the user's
    from lit_loader.core.sampling.sampler_batches import SamplerBatches

__all__ = ["Pass", "Passes"]

PassBatches: TypeAlias = "ComputedBatches | SamplerBatches"

_log: Final = logging.getLogger("lit_loader")


def _nobody() -> None:
    """Stand for a weak reference to an iterator, in a copy of a loader."""


@dataclass(eq=False)
class Pass:
    """One iterator's pass over the data."""

    seeds: PassSeeds  # what is drawn
    batches: PassBatches | None  # from the position on; None for an iterable dataset
    position: PassPosition  # where to begin; the iterator keeps it up to date
    own: dict[str, OwnSeed] = field(default_factory=dict)  # what held generators count from
    resumed: Position | None = None  # the loaded position that it has taken over
    committed: Position | None = None  # where it was at the last commit
    within: bool = False  # whether the training loop's epoch continues after the end of this pass
    iterator: Callable[[], object] = _nobody  # a weak reference
    given: int = 0  # batches that its iterator has yielded
    # The generators that were found in the dataset when it began, until batches are made of it.
    found: Found | None = None

    @property
    def epoch(self) -> int:
        """The number of its epoch."""
        return self.position.start.epoch

    @property
    def start(self) -> Position:
        """Where it has begun, with what a sampler of the user's must remember there."""
        start, batches = self.position.start, self.batches
        if batches is None or isinstance(batches, ComputedBatches) or start.sampler is not None:
            return start
        return replace(start, sampler=batches.at_start)


class Passes:
    """The passes of one loader; ``plan`` is None for an iterable dataset.

    ``shares_data``: several ranks read parts of it, and must have the same order.
    """

    def __init__(self, seeds: LoaderSeeds) -> None:
        self.plan: BatchPlan | None = None  # another one counts from the next pass on
        self.seeds = seeds
        self.shares_data = False
        self.current: Pass | None = None
        self.commits = False  # whether commit() is used at all
        self._set: int | None = None  # the epoch that set_epoch has chosen
        self._next = 0  # the epoch that comes next, if none is set
        self._repeats = defaultdict[int, int](int)  # passes of each epoch that have begun
        self._begun = 0  # passes that have begun
        self._loaded: Position | None = None  # where the next pass begins
        self._left = False  # whether the training loop has ended the loaded pass
        self._own: dict[str, OwnSeed] = {}
        # After a resume: the seed to be mixed into those that are drawn, unless the generator
        # is found where the state says.
        self._mixed: int | None = None
        self._expected = 0
        self._unset_sharded = 0  # passes of shared data since the epoch was set

    def of_copy(self, seeds: LoaderSeeds) -> Passes:
        """Return those of a copy of the loader, which continues from here by itself."""
        copied = copy.copy(self)
        copied.seeds, copied._repeats = seeds, self._repeats.copy()
        if self.current is not None:
            position = copy.deepcopy(self.current.position)
            copied.current = replace(
                self.current, position=position, batches=None, iterator=_nobody, found=None
            )
        return copied

    # --- what the program says ---

    def set_epoch(self, epoch: int, informed: tuple[Any, ...] = ()) -> None:
        """Choose the epoch of the passes that begin from now on."""
        self._set, self._unset_sharded = epoch, 0
        if self.plan is not None:
            self.plan.epochs.set(epoch, informed)

    def load(self, position: Position, generator: int) -> None:
        """Make the next pass begin at a position; ``generator`` is the digest of torch's there."""
        running = self.current
        in_use = running is not None and running.given and self._is_running(running)
        if in_use and not self.commits:
            warnings.warn(
                "lit_loader: load_state_dict() was called while an iterator of this loader is in "
                "use. That iterator continues where it is; the next iter(loader) begins at the "
                "loaded position [LL333]",
                stacklevel=program_stacklevel(),
            )
        self._loaded, self._left, self.current = position, False, None
        self._set, self._next = None, position.epoch
        self._repeats = defaultdict(int, {position.epoch: position.repeat})
        self._mixed, self._expected = None, generator
        if position.root is not None:
            self.seeds.adopt(position.root.seed if position.root.is_base else None)
            self._mixed = position.root.seed
        self.find_generator()
        if self.plan is not None:
            self.plan.epochs.show(position.epoch, resumed=True)

    def find_generator(self) -> None:
        """Find out whether the program has restored torch's generator, after a state was loaded."""
        if self._mixed is not None and self._expected and self.seeds.place() == self._expected:
            self._mixed = None

    def generator_is_restored(self) -> None:
        """Learn that torch's generator is where it was when the loaded state was taken."""
        self._mixed = None

    def commit(self, ahead: bool, within: bool) -> None:
        """Note that all that was given out is used; see ``DataLoader.commit``."""
        self.commits, one = True, self.current
        if one is not None:
            one.within = within
            one.committed = one.position.before_last() if ahead else one.position.now()

    def leave(self) -> None:
        """Note that the training loop has ended the loaded pass, wherever that was."""
        self._left = True

    # --- passes ---

    @property
    def resumes(self) -> bool:
        """Whether the next pass continues one that a state was taken in: its seed is known."""
        loaded = self._loaded
        if loaded is None or not loaded.has_begun or self.epoch() != loaded.epoch:
            return False
        return bool(loaded.delivered) or not _base(loaded)

    def begin(
        self,
        iterator: object,
        drawn: int | None,
        held: Iterable[tuple[str, Any]],
        make_position: Callable[[Position], PassPosition] = PassPosition,
        tells: bool = False,
    ) -> Pass:
        """Begin the pass that comes next, with the seed that was ``drawn`` for it.

        ``held`` are the generators that the dataset holds in this process, and ``make_position``
        makes the position that the iterator keeps. ``tells``: living workers have copies of the
        dataset, which are to be told the epoch.
        """
        nested = reading().maker is not None
        if nested:
            # Within a sample of another loader: what comes follows from that sample alone, and not
            # from the passes that this process has made before.
            self._next = self._begun = 0
            self._repeats.clear()
            self._own = {}
        self._warn_of_used_position()
        found, loaded = list(held), self._taken_over()
        if loaded is None:
            start = self._without_peek(self._start(self.epoch(), drawn))
            self._warn_of_equal_orders(start.epoch)
        else:
            start = loaded
            if not loaded.delivered and self.plan is not None:
                # A pass of which nothing was given out has the order of this loader's sampler.
                start = replace(loaded, distributed=self.plan.distributed)
            self.find_generator()
            self._log_resume(start)
        self._repeats[start.epoch] = max(self._repeats[start.epoch], start.repeat + 1)
        ordinal = self._ordinal(start.epoch)
        start = replace(start, told=start.told or self._set is not None)
        told = start.epoch if start.told and tells else UNTOLD
        is_seeded = self.seeds.seed is not None or nested
        seeds = PassSeeds(start.seed, ordinal, int(is_seeded), told)
        self._own = self._own_seeds(found, seeds)
        if not is_seeded:
            own = [self._own[path] for path, _ in found if path in self._own]
            numbers = tuple((each.number, ordinal - each.since) for each in own)
            start = replace(start, generators=numbers)
        batches: PassBatches | None = None
        if self.plan is not None and self.plan.is_computed:
            batches = ComputedBatches(self.plan, start)
        elif self.plan is not None:
            from lit_loader.core.sampling.sampler_batches import SamplerBatches  # of the user's

            batches = SamplerBatches(self.plan, start, resumed=self._loaded is not None)
        made = Pass(seeds, batches, make_position(start), self._own, loaded)
        made.iterator = weakref.ref(iterator)
        if self.commits and self.current is not None and self.current.committed is not None:
            # A loop that takes a batch ahead may not have used the last ones of the pass before.
            last = self.current.position.now()
            if self.current.committed.delivered < last.delivered:
                made.committed = self.current.committed
        self._loaded, self._left, self._begun = None, False, self._begun + 1
        if self._set is None:
            self._next = start.epoch + 1
        if self.plan is not None:
            self.plan.epochs.show(start.epoch)
        if self.current is None or not self._is_running(self.current):
            self.current = made
        return made

    def consider(self, one: Pass) -> None:
        """Called when an iterator that is not the current one yields a batch."""
        current = self.current
        if current is None or one.given > 1 or not self._is_running(current):
            self.current = one

    def epoch(self) -> int:
        """Return the epoch of the pass that comes next."""
        asked = None if self.plan is None else self.plan.epochs.asked()
        if asked is None:
            asked = self._set
        if asked is not None:
            return asked
        loaded = self._loaded
        if self.shares_data:
            return 0 if loaded is None and not self._begun else self._last_epoch()
        return self._next

    def now(self) -> Position:
        """Return the position that a state taken now has; nothing changes by that."""
        loaded, one = self._loaded, self.current
        if loaded is not None and one is None:
            if not loaded.has_begun or self.epoch() == loaded.epoch:
                return loaded
            return Position(self.epoch(), loaded.root, has_begun=False)
        if one is None:
            root = None if self.seeds.seed is None else Root(self.seeds.seed, True)
            return Position(self.epoch(), root, has_begun=root is not None)
        position = one.position.now()
        if self.commits:
            committed = one.committed
            if committed is None or committed.delivered < position.delivered:
                return committed or one.start
        return self._following(one) if position.ended and not one.within else position

    def foresee(self, one: Pass) -> tuple[PassSeeds, Position] | None:
        """Return seeds and start of the pass after this one; None: nobody knows its seed yet.

        A program that has set the epoch is expected to set the next one.
        """
        if self.seeds.seed is None:
            return None
        epoch = one.epoch + 1
        start = self._start(epoch, None)
        told = one.seeds.dataset_epoch
        told = told if told == UNTOLD else epoch
        ordinal = self._ordinal(epoch)
        return one.seeds._replace(seed=start.seed, ordinal=ordinal, dataset_epoch=told), start

    # --- inside ---

    def _taken_over(self) -> Position | None:
        """Return the loaded position, if the next pass continues it."""
        loaded = self._loaded
        if loaded is None or not loaded.has_begun:
            return None
        epoch = self.epoch()
        if epoch == loaded.epoch:
            return loaded
        is_end = self._left or (self.plan is not None and self.plan.is_end(loaded.batches))
        if loaded.delivered and not is_end:
            warnings.warn(
                f"lit_loader: set_epoch({epoch}) gives up the loaded position, batch "
                f"{loaded.batches} of epoch {loaded.epoch}, so the rest of that epoch is skipped. "
                f"To continue it, call set_epoch({loaded.epoch}) [LL325]",
                stacklevel=program_stacklevel(),
            )
        sampler = None
        if is_end and self.plan is not None and not self.plan.is_computed:
            from lit_loader.core.sampling.sampler_batches import SamplerBatches

            sampler = SamplerBatches(self.plan, loaded, resumed=True).after()
        # What the pass leaves to the next one.
        numbers = tuple((number, passes + 1) for number, passes in loaded.generators)
        self._loaded = Position(
            epoch, loaded.root, has_begun=False, sampler=sampler, generators=numbers
        )
        return None

    def _start(self, epoch: int, drawn: int | None) -> Position:
        """Return the start of a pass of an epoch."""
        base, repeat = self.seeds.base(drawn), self._repeats[epoch]
        if base is None:
            seed = self.seeds.draw(1) if drawn is None else drawn
            assert seed is not None
            if self._mixed is not None:
                seed = derive(self._mixed, seed)
            root = Root(seed & _MASK, False)
        else:
            root = Root(base, True)
        return Position(
            epoch,
            root,
            repeat,
            0 if self.shares_data else repeat,
            sampler=None if self._loaded is None else self._loaded.sampler,
            distributed=None if self.plan is None else self.plan.distributed,
        )

    def _without_peek(self, start: Position) -> Position:
        """Return a start that counts no batch that a loop which commits has fetched in vain."""
        one = self.current
        if one is None or not self.commits or one.committed is not None or one.given > 1:
            return start
        if one.epoch != start.epoch or one.iterator() is not None:
            return start
        before = one.position.start
        return replace(start, repeat=before.repeat, order_repeat=before.order_repeat)

    def _ordinal(self, epoch: int) -> int:
        """Return the number of the pass that comes next, by which held generators vary."""
        # Ranks may begin passes of their own: what they hold must be seeded equally all the same.
        if self.shares_data or (self.plan is None and _is_in_job()):
            return epoch
        return self._begun

    def _own_seeds(self, found: list[tuple[str, Any]], seeds: PassSeeds) -> dict[str, OwnSeed]:
        known, loaded = self._own, self._loaded
        if loaded is not None and loaded.generators and not seeds.held:
            if len(loaded.generators) == len(found):
                known = {
                    path: OwnSeed(number, seeds.ordinal - passes)
                    for (path, _), (number, passes) in zip(found, loaded.generators, strict=True)
                }
            else:
                warnings.warn(
                    "lit_loader: the resume is not exact. The dataset holds "
                    f"{len(found)} random generators, and {len(loaded.generators)} when the state "
                    "was taken, so what they draw differs [LL321]",
                    stacklevel=program_stacklevel(),
                )
        return own_seeds(found, known, seeds)

    def _is_running(self, one: Pass) -> bool:
        """Whether its iterator lives, in the middle of the pass."""
        position = one.position
        if position.ended or one.iterator() is None:
            return False
        return self.plan is None or not self.plan.is_end(position.now().batches)

    def _last_epoch(self) -> int:
        if self.current is not None:
            return self.current.epoch
        return 0 if self._loaded is None else self._loaded.epoch

    def _following(self, one: Pass) -> Position:
        """Return the place before the pass after one that has ended."""
        start = one.position.start
        epoch = start.epoch
        asked = None if self.plan is None else self.plan.epochs.asked()
        if asked not in (None, start.epoch):
            epoch = asked
        elif self._set not in (None, start.epoch):
            epoch = self._set
        elif not self.shares_data or self._set is not None or asked is not None:
            epoch = start.epoch + 1
        return Position(
            epoch,
            start.root,
            self._repeats[epoch],
            0 if self.shares_data else self._repeats[epoch],
            has_begun=_base(start),
            sampler=None if one.batches is None else one.batches.at_end(),
            generators=tuple((number, passes + 1) for number, passes in start.generators),
        )

    # --- what is reported ---

    def _log_resume(self, at: Position) -> None:
        of = ""
        with contextlib.suppress(TypeError, NotImplementedError):
            of = "" if self.plan is None else f" of {len(self.plan):,}"
        _log.info("continues epoch %d at batch %d%s", at.epoch, at.delivered, of)

    def warn_if_empty(self, one: Pass) -> None:
        """Report that a resumed pass had nothing left."""
        if one.resumed is not None and not one.given and one.resumed.batches and not self.commits:
            warnings.warn(
                f"lit_loader: this pass yields no batches, because the loaded state is at the end "
                f"of epoch {one.epoch}. The next pass is epoch {self.epoch()} [LL334]",
                stacklevel=program_stacklevel(),
            )

    def _warn_of_used_position(self) -> None:
        """Report that an iterator which has yielded one batch has used up a loaded position."""
        one = self.current
        if one is None or self.commits or one.resumed is None or not one.resumed.batches:
            return
        if one.given == 1 and one.iterator() is None and not one.position.ended:
            at = one.resumed
            one.resumed = None
            if self.plan is None or not self.plan.is_end(at.batches + 1):
                warnings.warn(
                    f"lit_loader: next(iter(loader)) after load_state_dict() has used up the "
                    f"loaded position (epoch {at.epoch}, batch {at.batches}), so the rest of that "
                    "epoch is skipped. Peek before you load the state, or at another loader "
                    "[LL306]",
                    stacklevel=program_stacklevel(),
                )

    def _warn_of_equal_orders(self, epoch: int) -> None:
        """Report once that ranks which share the data shuffle it in the same way in each pass."""
        if not (self.shares_data and self.plan is not None and self.plan.is_shuffled):
            return
        one = self.current
        if self._set is None and one is not None and one.epoch == epoch and one.given > 1:
            self._unset_sharded += 1
            if self._unset_sharded == 1:
                warnings.warn(
                    f"lit_loader: this pass has the order of the one before, because epoch {epoch} "
                    "is still set. Call loader.set_epoch(epoch) before each pass, as with torch's "
                    "DistributedSampler [LL307]",
                    stacklevel=program_stacklevel(),
                )


def _is_in_job() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _base(place: Position) -> bool:
    """Whether a pass follows from a base, so that its seed is known before it begins."""
    return place.root is not None and place.root.is_base


_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
