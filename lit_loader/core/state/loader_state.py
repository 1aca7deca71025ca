"""The loader's checkpoint state: a position and what it is a position in.

A state is independent of the rank and of how the data is loaded (number of workers, start method,
prefetching): all ranks give the same one. It is a plain dict of primitives, so that
``torch.load(weights_only=True)`` reads it, and for map-style datasets a few hundred bytes long.
"""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from lit_loader.core.seeding.bases import Bases
from lit_loader.core.state.fingerprint import Fingerprint
from lit_loader.core.state.position import COUNT, Position, ReadPoint
from lit_loader.core.state.state_validation import (
    MAX_BATCHES,
    PRIMITIVES,
    brief,
    damaged,
    is_count,
    is_epoch,
)
from lit_loader.core.system.interrupts import let_handlers_through
from lit_loader.errors import StateError

VERSION = 3
"""Raised whenever an older reader would misunderstand a state."""

_READABLE: Final = (2, VERSION)  # of releases since 0.2

ELASTIC = frozenset({"batch_size", "num_replicas"})
"""Fingerprint fields that may differ, if the position in samples falls on a batch boundary."""

_OF_STREAMS: Final = "EndlessSampler"
"""The order of an iterable dataset in a fingerprint, as torch's loader shows it: none."""


@dataclass(frozen=True)
class LoaderState:
    """A position in an epoch, with a fingerprint of everything that the position depends on."""

    position: Position  # whose seed is the fingerprint's
    samples: int  # of the epoch, delivered on all ranks together
    # What makes the order of the samples and their random numbers, such as dataset_length and seed;
    # and what samplers and datasets name themselves, as sampler.seed (`core/state/fingerprint.py`).
    fingerprint: Fingerprint
    # Those of the position's readers among all ranks' readers; None: each worker is one.
    numbers: Sequence[int] | None = None

    def to_position(self, fingerprint: Fingerprint, plan: Any) -> Position:
        """Find the state's place among a loader's batches; a StateError if it does not fit that.

        ``fingerprint`` is the loader's, ``plan`` its `BatchPlan`; for a loader of an iterable
        dataset see `streams/reader_states.py`.
        """
        self.check_kind(fingerprint)
        position, samples = self.position, self.samples
        if position.readers:
            name = "workers" if self.numbers is None else "readers"
            raise damaged(f"{name} must be None for a map-style dataset", position.readers)
        # Between two epochs there is no place that more, or less, data could move.
        between = is_count(fingerprint.get("dataset_length")) and self._is_between(plan)
        self.check(fingerprint, ELASTIC | {"dataset_length"} if between else ELASTIC)
        grown = self.fingerprint.get("dataset_length") != fingerprint.get("dataset_length")
        if plan.is_computed and not grown:
            samples = plan.source.place_in(self.order, position.epoch, samples)
        batches = position.batches
        if grown and between:
            batches = batches and len(plan)  # still behind the last one
        elif samples != self.samples or any(
            self.fingerprint.get(name) != fingerprint.get(name) for name in ELASTIC
        ):
            if position.ahead:
                raise StateError(
                    "a state taken with in_order=False in mid-epoch fits only the batch_size and "
                    "num_replicas it was taken with: resume with those"
                    " [LL351]"
                )
            batches = _checked_batches(plan.start_for(samples))
        elif not plan.fits(batches, self.samples):
            raise damaged(f"samples must be those of {batches:,} batches", self.samples)
        if plan.is_computed:
            most = -(-len(plan.source) // plan.global_size)  # of the rank that has the most
            if batches > most:
                raise damaged(f"batches must be at most the epoch's {most:,}", batches)
        return replace(position, batches=batches, since=0)

    def check_kind(self, fingerprint: Fingerprint) -> None:
        """Make sure that a loader has such a dataset: a map-style, or an iterable one."""
        orders = self.fingerprint.get("order"), fingerprint.get("order")
        if orders[0] != orders[1] and _OF_STREAMS in orders:
            kinds = ["an iterable" if order == _OF_STREAMS else "a map-style" for order in orders]
            raise StateError(
                f"state was taken of {kinds[0]} dataset, and this loader has {kinds[1]} one: "
                "resume with the dataset that the state was taken from [LL332]"
            )

    def _is_between(self, plan: Any) -> bool:
        """Whether this is the start of an epoch, or the end of one of the loader's own orders."""
        if not self.position.delivered:
            return is_count(self.fingerprint.get("dataset_length"))
        length = self.fingerprint.get("dataset_length")
        sizes = [self.fingerprint.get(name) for name in ELASTIC]
        if not plan.is_computed or not all(map(is_count, (length, *sizes))):
            return False
        left: int = min(length, plan.shard.assigned(length)) - self.samples
        return left < math.prod(sizes) if plan.drop_last else left <= 0  # type: ignore[arg-type]

    @property
    def bases(self) -> Bases | None:
        """What it was taken with; None if that is nothing a loader could have."""
        return self.position.bases if is_count(self.fingerprint.get("seed"), 2**64) else None

    @property
    def order(self) -> Any:
        """What a computed order has put into it (`core/sampling/orders.py`); None: nothing."""
        return (self.position.sampler or {}).get("order")

    def to_dict(self) -> dict[str, Any]:
        """Give the state as a new dict of primitives that shares nothing with this loader.

        But for what is of readers: see `streams/reader_states.py`.
        """
        position = self.position
        state: dict[str, Any] = {"version": VERSION, "epoch": int(position.epoch)}
        state |= {"batches": int(position.batches), "samples": int(self.samples)}
        state |= {"fingerprint": dict(self.fingerprint), "ahead": list(position.ahead)}
        if position.sampler is not None:
            state["sampler"] = copied(position.sampler)
        # Of a sampler it is to be known that the program has told it this epoch.
        known = position.epoch if position.sampler is None else None
        if position.requested not in (None, known):
            state["requested"] = position.requested
        if position.told is not None:
            state["told"] = position.told
        if position.repeats:
            state["repeats"] = position.repeats
        if position.passed != position.epoch - 1:
            state["passed"] = position.passed
        if position.unreadable:
            state["unreadable"] = position.unreadable
        if position.looked:
            state["looked"] = True
        if position.look:
            state["look"] = position.look
        if position.later is not None:
            state["later"] = list(position.later)
        bases = position.bases
        if bases != Bases.of(bases.order):
            state["bases"] = [*bases.drawn, bases.first, bases.older]
        return state

    @classmethod
    def from_dict(cls, state: Any, reader_states: Callable[[], Any]) -> LoaderState:
        """Read and copy what `to_dict` gave, or a file has; a StateError if it is no state.

        ``reader_states`` gives what reads the parts of readers, if there are any.
        """
        if not isinstance(state, Mapping) or "version" not in state:
            raise StateError(
                f"state must be the dict that state_dict() of a lit_loader.DataLoader gave, "
                f"got {brief(state)} [LL323]"
            )
        version = state["version"]
        if type(version) is not int or version not in _READABLE:
            raise StateError(
                f"state has version {brief(version)}, but only version {VERSION} is known here: "
                "resume with the release of lit_loader that the state was taken with [LL324]"
            )

        def field(name: str, fits: Callable[[Any], bool], wanted: str, default: Any = None) -> Any:
            value = state.get(name, default)
            if not fits(value):
                raise damaged(f"{name} must be {wanted}", value)
            return value

        count = "a whole number of at least 0"
        epoch = field("epoch", is_epoch, "a whole number")
        batches, samples = field("batches", is_count, count), field("samples", is_count, count)
        fingerprint = _checked_fingerprint(state.get("fingerprint"))
        asked = "an epoch's number or None"
        requested = field("requested", lambda value: value is None or is_epoch(value), asked)
        since = field("since", is_count, count, 0)
        bases = _checked_bases(state.get("bases"), fingerprint.get("seed"), version)
        repeats = field("repeats", is_count, count, 0)
        passed = field("passed", lambda value: value == -1 or is_epoch(value), asked, epoch - 1)
        # Releases before 0.4 told a dataset each epoch.
        told = field("told", lambda value: value is None or is_epoch(value), asked)
        told = epoch if version < VERSION else told
        unreadable = field("unreadable", is_count, count, 0)
        looked = field("looked", lambda value: type(value) is bool, "True or False", False)
        look = field("look", lambda value: is_count(value, 2**64), count, 0)
        later = field("later", _is_later, "a count and an epoch")
        batches = _checked_batches(batches)
        ahead = _checked_ahead(state.get("ahead", ()), batches)
        sampler = state.get("sampler")
        if sampler is not None:
            from lit_loader.core.state.sampler_state import checked_sampler_state  # of the user's

            sampler = checked_sampler_state(sampler)
        readers: tuple[ReadPoint, ...] = ()
        numbers: Sequence[int] | None = None
        if state.get("workers") is not None or state.get("readers") is not None:
            readers, numbers = reader_states().checked(state, fingerprint, version)
        position = Position(
            *(epoch, bases, batches, ahead, sampler, readers, False),
            *(requested, since, repeats, passed, told, unreadable, looked, look),
            None if later is None else (later[0], later[1]),
        )
        return cls(position, samples, fingerprint, numbers)

    def check(self, fingerprint: Fingerprint, elastic: Collection[str] = ELASTIC) -> None:
        """Make sure that the state is one of a loader like this one.

        ``elastic`` fields are not compared: whether the position fits them is the batch plan's to
        say. A StateError names the first field, by name, that differs, and both values.
        """
        saved = self.fingerprint
        names = (saved.keys() | fingerprint.keys()) - set(elastic)
        # num_shards first: without it, the ranks differ too.
        for name in sorted(names, key=lambda name: (name != COUNT, name)):
            theirs, ours = saved.get(name), fingerprint.get(name)
            both_nan = theirs != theirs and ours != ours
            if theirs != ours and not both_nan:
                shown = " ".join(name.split())[:80]
                from lit_loader import state_advice

                advice = state_advice.advice(name, shown, theirs, ours)
                raise StateError(
                    f"state was taken with {shown}={brief(theirs)}, but this loader has "
                    f"{shown}={brief(ours)}: {advice} [LL301]"
                )


def _checked_batches(batches: int) -> int:
    """Make sure that so many batches of an epoch can be counted, and give them."""
    if batches >= MAX_BATCHES:
        raise damaged(f"batches must be less than {MAX_BATCHES:,}", batches)
    return batches


def copied(value: Any) -> Any:
    """Copy what readers remember: of many of them that is most of what a state costs.

    By pickle, which takes an eighth of the time of :func:`copy.deepcopy` for small values.
    """
    try:
        return pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    except Exception as error:  # a lambda, say: it is for who saves the state to complain
        let_handlers_through(error)
        return copy.deepcopy(value)


def _checked_fingerprint(fingerprint: Any) -> Fingerprint:
    if not isinstance(fingerprint, Mapping):
        raise damaged("fingerprint must be a dict", fingerprint)
    for name, value in fingerprint.items():
        if type(name) is not str:
            raise damaged("fingerprint must have names for keys", name)
        if type(value) not in PRIMITIVES:
            raise damaged(
                f"fingerprint[{brief(name)}] must be an int, float, str, bool or None", value
            )
    return dict(fingerprint)


def _checked_bases(bases: Any, seed: Any, version: int) -> Bases:
    """Take in what a state's random numbers follow from; without, it is all the seed."""
    order = seed if is_count(seed, 2**64) else 0
    if bases is None:
        return replace(Bases.of(order), older=version < VERSION)
    if not (
        isinstance(bases, (list, tuple))
        and len(bases) == 5
        and all(is_count(base, 2**64) for base in bases[:3])
        and is_epoch(bases[3])
        and type(bases[4]) is bool
    ):
        raise damaged("bases must be three seeds, an epoch and a bool", bases)
    return Bases(order, *bases)


def _is_later(value: Any) -> bool:
    if isinstance(value, (list, tuple)) and len(value) == 2:
        return is_count(value[0]) and (value[1] == -1 or is_epoch(value[1]))
    return value is None


def _checked_ahead(ahead: Any, batches: int) -> tuple[int, ...]:
    if not (isinstance(ahead, (list, tuple)) and all(is_count(n, MAX_BATCHES) for n in ahead)):
        raise damaged("ahead must be a list of batch numbers", ahead)
    if any(after <= before for before, after in itertools.pairwise((batches, *ahead))):
        raise damaged(f"ahead must rise from above batches={batches}", ahead)
    return tuple(ahead)
