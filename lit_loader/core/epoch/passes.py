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

`PassOptions` is what ``iter(loader)`` has found as the loader's options.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.context import BaseContext
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import torch.distributed

from lit_loader.context import reading, reading_apart
from lit_loader.core.sampling.batch_plan import BatchPlan, ComputedBatches
from lit_loader.core.seeding import loader_seeds
from lit_loader.core.seeding.held_generators import Found, own_seeds
from lit_loader.core.seeding.loader_seeds import LoaderSeeds
from lit_loader.core.seeding.seeds import UNTOLD, PassSeeds, derive
from lit_loader.core.state.position import PassPosition, Position, Root
from lit_loader.describe import warn

if TYPE_CHECKING:
    from lit_loader.core.epoch.iterator import LoaderIterator
    from lit_loader.core.sampling.sampler_batches import SamplerBatches  # for one of the user's

__all__ = ["Pass", "PassOptions", "Passes"]

PassBatches: TypeAlias = "ComputedBatches | SamplerBatches"

_log: Final = logging.getLogger("lit_loader")


def _nobody() -> None:
    """Stand for a weak reference to an iterator that is gone, or has not been made."""


@dataclass(eq=False)
class Pass:
    """One iterator's pass over the data."""

    seeds: PassSeeds  # what is drawn
    batches: PassBatches | None  # from the position on; None for an iterable dataset
    position: PassPosition  # where to begin; the iterator keeps it up to date
    own: dict[str, int]  # what held generators count from
    resumed: Position | None  # the loaded position that it has taken over
    iterator: Callable[[], object]  # a weak reference
    committed: Position | None = None  # where it was at the last commit
    within: bool = False  # whether the training loop's epoch continues after the end of this pass
    given: int = 0  # batches that its iterator has yielded
    # The generators that were found in the dataset when it began, until batches are made of it.
    found: Found | None = None

    @property
    def epoch(self) -> int:
        """The number of its epoch."""
        return self.position.start.epoch

    @property
    def is_ahead(self) -> bool:
        """Whether it has yielded more than was committed."""
        committed = self.committed
        return committed is None or committed.delivered < self.position.now().delivered

    @property
    def is_in_vain(self) -> bool:
        """Whether it is a batch that a loop which commits has fetched and has not used."""
        return self.committed is None and self.given <= 1 and self.iterator() is None

    @property
    def start(self) -> Position:
        """Where it has begun, with what a sampler of the user's must remember there."""
        start, batches = self.position.start, self.batches
        if batches is None or start.sampler is not None:
            return start
        return start._replace(sampler=batches.at_start)


class Passes:
    """The passes of one loader; ``plan`` is None for an iterable dataset.

    ``shares_data``: several ranks read parts of it, and must have the same order.
    """

    plan: BatchPlan | None = None  # another one counts from the next pass on
    shares_data = False
    current: Pass | None = None
    commits = False  # whether commit() is used at all
    _set: int | None = None  # the epoch that set_epoch has chosen
    _next = 0  # the epoch that comes next, if none is set
    _loaded: Position | None = None  # where the next pass begins
    _left = False  # whether the training loop has ended the loaded pass
    # After a resume: the seed to be mixed into those that are drawn, unless the generator is found
    # where the state says.
    mixed: int | None = None
    _expected = 0
    _unset_sharded = 0  # passes of shared data since the epoch was set

    def __init__(self, seeds: LoaderSeeds) -> None:
        self.seeds = seeds
        # Passes of each epoch that have begun.
        self._repeats: defaultdict[int, int] = defaultdict(int)
        self._own: dict[str, int] = {}
        self.newest: Callable[[], LoaderIterator[Any] | None] = _nobody  # which may not have begun

    def of_copy(self, seeds: LoaderSeeds) -> Passes:
        """Return those of a copy of the loader, which continues from here by itself."""
        copied = copy.copy(self)
        copied.seeds, copied._repeats, copied.newest = seeds, self._repeats.copy(), _nobody
        if self.current is not None:
            current = copied.current = copy.copy(self.current)
            current.position = copy.deepcopy(current.position)
            current.batches, current.iterator, current.found = None, _nobody, None
        return copied

    # --- what the program says ---

    def set_epoch(self, epoch: int, informed: tuple[object, ...] = ()) -> None:
        """Choose the epoch of the passes that begin from now on."""
        self._set, self._unset_sharded = epoch, 0
        if self.plan is not None:
            self.plan.epochs.set(epoch, informed)

    def load(self, position: Position, generator: int) -> None:
        """Make the next pass begin at a position; ``generator`` is the digest of torch's there."""
        running = self.current
        if running is not None and running.given and self._is_running(running) and not self.commits:
            warn(
                "load_state_dict() was called while an iterator of this loader is in use. That "
                "iterator continues where it is; the next iter(loader) begins at the loaded "
                "position [LL333]"
            )
        self._loaded, self._left, self.current = position, False, None
        self._set, self._next = None, position.epoch
        self._repeats = defaultdict(int, {position.epoch: position.repeat})
        self.mixed, self._expected = None, generator
        if position.root is not None:
            seed, kind = position.root
            self.seeds.adopt(seed if kind == "base" else None)
            self.mixed = seed
        self.find_generator()
        if self.plan is not None:
            self.plan.epochs.show(position.epoch, resumed=True)

    def find_generator(self) -> None:
        """Find out whether the program has restored torch's generator, after a state was loaded."""
        if self.mixed is not None and self._expected and self.seeds.place() == self._expected:
            self.mixed = None

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

    def epoch(self) -> int:
        """Return the epoch of the pass that comes next."""
        asked = self._asked()
        return self._next if asked is None else asked

    def _asked(self) -> int | None:
        """Return the epoch that the program has set, on a sampler or the loader; None: none."""
        shown = None if self.plan is None else self.plan.epochs.asked()
        return self._set if shown is None else shown

    @property
    def resumes(self) -> bool:
        """Whether the next pass continues one that a state was taken in: its seed is known."""
        loaded = self._loaded
        return loaded is not None and loaded.has_begun and self.epoch() == loaded.epoch

    def begin(
        self,
        iterator: LoaderIterator[Any],
        held: Sequence[tuple[str, object]],
        make_position: Callable[[Position], PassPosition],
        tells: bool,
    ) -> Pass:
        """Begin the pass that comes next, with the seed that the iterator has drawn.

        ``held`` are the generators that the dataset holds in this process, and ``make_position``
        makes the position that the iterator keeps. ``tells``: living workers have copies of the
        dataset, which are to be told the epoch.
        """
        nested = _is_nested()
        if nested:
            # Within a sample of another loader: what comes follows from that sample alone, and not
            # from the passes that this process has made before.
            self._next, self.current, self._own = 0, None, {}
            self._repeats.clear()
        before, epoch = self.current, self.epoch()
        if before is not None:
            self._warn_of_used_position(before)
            if self.commits and before.is_in_vain:
                self._repeats[before.epoch] = before.position.start.repeat
        # Whether the pass's seed takes the place of held generators' own ones.
        seeded = nested or self.seeds.seed is not None
        own = self._own = self._own_seeds(held, seeded)
        resumed = None if self._loaded is None else self._taken_over(self._loaded, epoch)
        if resumed is None:
            start = self._start(epoch, iterator.drawn, own)
            self._warn_of_equal_orders(epoch)
        else:
            start = resumed
            self.find_generator()
            self._log_resume(start)
        seeds = self._seeds_of(start, tells, seeded)
        if not seeded and (held or start.generators):
            numbers = tuple(own[path] for path, _ in held if path in own)
            start = start._replace(generators=numbers)
        batches: PassBatches | None = None
        plan = self.plan
        if plan is not None and plan.is_computed:
            batches = ComputedBatches(plan, start)
        elif plan is not None:
            from lit_loader.core.sampling.sampler_batches import SamplerBatches  # of the user's

            batches = SamplerBatches(plan, start, resumed=self._loaded is not None)
        made = Pass(seeds, batches, make_position(start), own, resumed, weakref.ref(iterator))
        if before is not None and before.committed is not None and before.is_ahead:
            # A loop that takes a batch ahead has not used the last ones of the pass before.
            made.committed = before.committed
        if plan is not None:
            plan.epochs.show(epoch)
        # Last: what raised in the user's code leaves the pass to the next try.
        self._repeats[epoch] = max(self._repeats[epoch], start.repeat + 1)
        # A generator that is not found in its place by now was not restored.
        self._loaded, self._left, self._expected = None, False, 0
        if self._set is None:
            self._next = epoch if self.shares_data else epoch + 1
        if before is None or not self._is_running(before):
            self.current = made
        return made

    def consider(self, one: Pass) -> None:
        """Called when an iterator that is not the current one yields a batch."""
        current = self.current
        if current is None or one.given > 1 or not self._is_running(current):
            self.current = one

    def now(self) -> Position:
        """Return the position that a state taken now has; nothing changes by that."""
        position, newest = self._now(), self.newest()
        if newest is None or newest.made is not None or newest.drawn is None:
            return position
        if self.seeds.replicas > 1 or (position.root and position.root.kind != "after"):
            return position
        root = self._drawn_root(newest.drawn)  # which the next pass has
        return position._replace(root=root, **self._known())

    def _now(self) -> Position:
        loaded, one = self._loaded, self.current
        if one is not None:
            if self.commits and one.is_ahead:
                return one.committed or one.start
            position = one.position.now()
            return self._following(one) if position.ended and not one.within else position
        if loaded is None:
            seed = self.seeds.seed
            return self._before(self.epoch(), None if seed is None else Root(seed, "base"), None)
        if self.epoch() == loaded.epoch:
            return loaded
        return self._before(self.epoch(), _after(loaded), None, generators=loaded.generators)

    def foresee(self, one: Pass) -> tuple[PassSeeds, Position] | None:
        """Return seeds and start of the pass after this one; None: nobody knows its seed yet.

        A program that has set the epoch is expected to set the next one.
        """
        if self.seeds.seed is None:
            return None
        start = self._start(one.epoch + 1, None, {})
        return self._seeds_of(start, one.seeds.dataset_epoch != UNTOLD, seeded=True), start

    # --- inside ---

    def _taken_over(self, loaded: Position, epoch: int) -> Position | None:
        """Return the loaded position, if the next pass, of this epoch, continues it."""
        if not loaded.has_begun:
            return None
        if epoch == loaded.epoch:
            return loaded
        is_end = self._left or (self.plan is not None and self.plan.is_end(loaded.batches))
        if loaded.delivered and not is_end:
            warn(
                f"set_epoch({epoch}) gives up the loaded position, batch {loaded.batches} of epoch "
                f"{loaded.epoch}, so the rest of that epoch is skipped. To continue it, call "
                f"set_epoch({loaded.epoch}) [LL325]"
            )
        sampler = None
        if is_end and self.plan is not None and not self.plan.is_computed:
            from lit_loader.core.sampling.sampler_batches import SamplerBatches

            sampler = SamplerBatches(self.plan, loaded, resumed=True).after()
        self._loaded = self._before(epoch, _after(loaded), sampler, generators=loaded.generators)
        return None

    def _start(self, epoch: int, drawn: int | None, held: dict[str, int]) -> Position:
        """Return the start of a pass of an epoch; ``held``: see `LoaderSeeds.base`."""
        base, loaded = self.seeds.base(drawn, held), self._loaded
        root = self._drawn_root(drawn) if base is None else Root(base, "base")
        sampler = None if loaded is None else loaded.sampler
        return self._before(epoch, root, sampler, **self._known())

    def _drawn_root(self, drawn: int | None) -> Root:
        seed = self.seeds.draw(1) if drawn is None else drawn
        assert seed is not None
        if self.mixed is not None:
            seed = derive(self.mixed, seed)
        return Root(seed & _MASK, "seed")

    def _known(self) -> dict[str, Any]:
        """Return what is known of the next pass besides its seed, for a `Position`."""
        plan, loaded = self.plan, self._loaded
        told = self._set is not None or (loaded is not None and loaded.told)
        return {"distributed": None if plan is None else plan.distributed, "told": told}

    def _before(
        self, epoch: int, root: Root | None, sampler: Mapping[str, object] | None, **parts: Any
    ) -> Position:
        """Return the start of an epoch's next pass, or the place before it, as ``root`` says."""
        repeat = self._repeats[epoch]
        order_repeat = 0 if self.shares_data else repeat
        return Position(epoch, root, repeat, order_repeat, sampler=sampler, **parts)

    def _following(self, one: Pass) -> Position:
        """Return the place before the pass after one that has ended."""
        start, epoch = one.position.start, self._asked()
        if epoch is None:
            epoch = start.epoch if self.shares_data else start.epoch + 1
        elif epoch == start.epoch:  # a program that has set it is expected to set the next one
            epoch += 1
        sampler = None if one.batches is None else one.batches.at_end()
        return self._before(epoch, _after(start), sampler, generators=start.generators)

    def _seeds_of(self, start: Position, tells: bool, seeded: bool) -> PassSeeds:
        """Return what a pass draws from; see `begin`."""
        distributed = torch.distributed
        # Ranks may begin passes of their own: what they hold must be seeded equally all the same.
        shared = self.shares_data
        if self.plan is None and distributed.is_available() and distributed.is_initialized():
            shared = True
        number = _ordinal(start.epoch, 0 if shared else start.repeat) >> 1
        told = start.epoch if start.told and tells else UNTOLD
        return PassSeeds(start.seed, number, int(seeded), told)

    def _own_seeds(self, found: Sequence[tuple[str, object]], seeded: bool) -> dict[str, int]:
        known, loaded = self._own, self._loaded
        if not found and loaded is None:
            return known
        if loaded is not None and loaded.generators and not seeded:
            if len(loaded.generators) == len(found):
                known = dict(zip((path for path, _ in found), loaded.generators, strict=True))
            else:
                warn(
                    f"the resume is not exact. The dataset holds {len(found)} random generators, "
                    f"and {len(loaded.generators)} when the state was taken, so what they draw "
                    "differs [LL321]"
                )
        return own_seeds(found, known, seeded)

    def _is_running(self, one: Pass) -> bool:
        """Whether its iterator lives, in the middle of the pass."""
        position = one.position
        if position.ended or one.iterator() is None:
            return False
        return self.plan is None or not self.plan.is_end(position.now().batches)

    # --- what is reported ---

    def _log_resume(self, at: Position) -> None:
        of = ""
        with contextlib.suppress(TypeError, NotImplementedError):
            of = "" if self.plan is None else f" of {len(self.plan):,}"
        _log.info("continues epoch %d at batch %d%s", at.epoch, at.delivered, of)

    def warn_if_empty(self, one: Pass) -> None:
        """Report that a resumed pass had nothing left."""
        if one.resumed is not None and not one.given and one.resumed.batches and not self.commits:
            warn(
                f"this pass yields no batches, because the loaded state is at the end of epoch "
                f"{one.epoch}. The next pass yields batches again [LL334]"
            )

    def _warn_of_used_position(self, one: Pass) -> None:
        """Report that an iterator which has yielded one batch has used up a loaded position."""
        if self.commits or one.resumed is None or not one.resumed.batches:
            return
        if self._asked() not in (None, one.epoch):
            return  # the program continues with another epoch
        if one.given == 1 and one.iterator() is None and not one.position.ended:
            at, one.resumed = one.resumed, None
            if self.plan is None or not self.plan.is_end(at.batches + 1):
                warn(
                    f"next(iter(loader)) after load_state_dict() has used up the loaded position "
                    f"(epoch {at.epoch}, batch {at.batches}), so the rest of that epoch is "
                    "skipped. Peek before you load the state, or at another loader [LL306]"
                )

    def _warn_of_equal_orders(self, epoch: int) -> None:
        """Report once that ranks which share the data shuffle it in the same way in each pass."""
        if not (self.shares_data and self.plan is not None and self.plan.is_shuffled):
            return
        one = self.current
        if self._set is None and one is not None and one.epoch == epoch and one.given > 1:
            self._unset_sharded += 1
            if self._unset_sharded == 1:
                warn(
                    f"this pass has the order of the one before, because epoch {epoch} is still "
                    "set. Call loader.set_epoch(epoch) before each pass, as with torch's "
                    "DistributedSampler [LL307]"
                )


def _after(place: Position) -> Root | None:
    """Return what the place before the next pass has for its root, behind a pass with this one."""
    root = place.root
    return root if root is None or root.kind != "seed" else Root(root.seed, "after")


def _is_nested() -> bool:
    """Whether a sample of another loader, which this thread is building, iterates this one.

    Without workers a batch is built for the whole process, as far as a thread that a sample has
    started can tell. So whether it is built by this thread is known by the lock.
    """
    if reading().maker is None:
        return False
    # reach: python: as threading.Condition asks an RLock
    return reading_apart() is not None or loader_seeds.lock._is_owned()


_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF

# Most passes are the first one of an early epoch.
_ordinal: Final = lru_cache(maxsize=64)(derive)


class PassOptions(NamedTuple):
    """The options that batches and workers of a pass are made with.

    Read once in ``iter(loader)``, because subclasses return other values there. The first ones are
    also part of the `BatchSpec`.
    """

    dataset: Any
    batch_size: int | None
    drop_last: bool
    collate_fn: Callable[[Any], Any]
    worker_init_fn: Callable[[int], object] | None
    seeding: str
    reseed_fn: Callable[[Any, int], object] | None
    read_threads: int
    multiprocessing_context: BaseContext | None
    timeout: float
    on_sample_error: str
    max_sample_errors: int | None
    sample_retries: Any

    @classmethod
    def of(cls, loader: Any) -> PassOptions:
        """Read the options of a loader."""
        return tuple.__new__(cls, _read(loader))

    @property
    def of_batches(self) -> dict[str, Any]:
        """Those that are part of the `BatchSpec`, by name."""
        return dict(zip(self._fields[:_OF_BATCHES], self, strict=False))

    def suits_workers_of(self, other: PassOptions) -> bool:
        """Whether workers that were started with other options may serve with these.

        Persistent workers keep their dataset, and what a batch sampler decides.
        """
        pairs = zip(self[_OF_WORKERS:], other[_OF_WORKERS:], strict=True)
        return all(mine is theirs or mine == theirs for mine, theirs in pairs)


_read = attrgetter(*PassOptions._fields)
_OF_BATCHES = PassOptions._fields.index("read_threads") + 1
_OF_WORKERS = PassOptions._fields.index("collate_fn")
