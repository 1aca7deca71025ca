"""`LoaderState`: a loader's checkpoint state; written, read, checked.

======================  =========================================================================
key                     value
======================  =========================================================================
``version``             `VERSION`, and the release that wrote it
``epoch``, ``pass``     the epoch, and how many earlier passes it had
``seed``, ``base``      one of them: the pass's seed; what all passes follow from; or, where the
or ``after``            next pass has not begun, the seed of the one before
``batches``, ``ahead``  batches that were delivered, in order and beyond
``generators``          a digest of torch's generator, or the state of ``generator=``; then the
                        number of each held generator
``sampler``             what the sampler must remember
``readers``             of an iterable dataset: how far each reader is
``fingerprint``         what the position is a position in
======================  =========================================================================

A state does not depend on how the data is loaded (number of workers, start method, prefetching),
and of a map-style dataset all ranks give the same one. It is a dict of primitives, so that
``torch.load(weights_only=True)`` reads it, and for map-style datasets a few hundred bytes long.
"""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from lit_loader.core.state.position import COUNT, Position, Root
from lit_loader.core.state.state_validation import (
    MAX_BATCHES,
    MAX_PACKED,
    PRIMITIVES,
    Fingerprint,
    brief,
    damaged,
    is_count,
    is_epoch,
)
from lit_loader.errors import StateError

VERSION: Final = 4
"""Raised whenever an older reader would misunderstand a state."""

_WRITERS: Final = {2: "0.2 or 0.3", 3: "0.4"}

ELASTIC: Final = frozenset({"batch_size", "num_replicas"})
"""Fingerprint fields that may differ if the position falls on a batch boundary."""

TOLD: Final = "set_epoch"
"""In a state's fingerprint: whether the program has set the epoch, which the dataset gets."""

STREAM: Final = "EndlessSampler"
"""The order of an iterable dataset in a fingerprint, as torch's loader shows it: none."""


def _is_seed(value: object) -> bool:
    return value is None or is_count(value, 2**64)


def _are_counts(value: object, below: int) -> bool:
    return isinstance(value, (list, tuple)) and all(is_count(number, below) for number in value)


def _are_generators(value: object) -> bool:
    if isinstance(value, (list, tuple)) and value and type(value[0]) is bytes:
        return len(value[0]) <= MAX_PACKED and _are_counts(value[1:], 2**64)
    return _are_counts(value, 2**64)


_SEED: Final = "a whole number below 2**64, or None"
_KEYS: Final[dict[str, tuple[Callable[[object], bool], str, Any]]] = {
    "epoch": (is_epoch, "a whole number", ...),
    "pass": (is_count, "a whole number of at least 0", 0),
    "seed": (_is_seed, _SEED, None),
    "base": (_is_seed, _SEED, None),
    "after": (_is_seed, _SEED, None),
    "batches": (lambda value: is_count(value, MAX_BATCHES), "a number of batches", ...),
    "ahead": (lambda value: _are_counts(value, MAX_BATCHES), "a list of batch numbers", ()),
    "generators": (_are_generators, "a list of numbers, the first one perhaps bytes", ()),
    "fingerprint": (lambda value: isinstance(value, Mapping), "a dict", ...),
}
"""Of each key: what it may hold, in words too, and what it is if it is missing; ...: required."""


@dataclass(frozen=True)
class LoaderState:
    """A position in a pass, with a fingerprint of everything that the position depends on."""

    position: Position
    # What makes the order of the samples and their random numbers, such as dataset_length and seed;
    # and what samplers and datasets name themselves, as sampler.seed (`state_validation.py`).
    fingerprint: Fingerprint
    # Those of the position's readers among all ranks' readers; None: each worker is one.
    numbers: Sequence[int] | None = None
    # When the state was taken: the state of the loader's own generator, or a digest of torch's.
    generator: int | bytes = 0

    def to_position(self, fingerprint: Fingerprint, plan: Any) -> Position:
        """Find the state's place among a loader's batches; a StateError if it does not fit that.

        ``fingerprint`` is the loader's, ``plan`` its `BatchPlan`; for a loader of an iterable
        dataset see `streams/reader_states.py`.
        """
        self.check_kind(fingerprint)
        position = self.position
        if position.readers:
            raise damaged("readers must be None for a map-style dataset", position.readers)
        size, ranks = (self.fingerprint.get(name) or 1 for name in ("batch_size", "num_replicas"))
        samples = given = position.batches * int(size) * int(ranks)  # up to the pass's end
        length = self.fingerprint.get("dataset_length")
        # Between two passes there is no place that more, or less, data could move.
        between = is_count(length) and (not position.delivered or samples >= length)
        self.check(fingerprint, ELASTIC | {"dataset_length"} if between else ELASTIC)
        if length != fingerprint.get("dataset_length"):
            batches = position.batches and len(plan)  # still at the end
            return position._replace(batches=batches, ahead=())
        if plan.is_computed:
            order = (position.sampler or {}).get("order")  # see `core/sampling/orders.py`
            samples = plan.source.place_in(order, position.epoch, given)
        moved = any(self.fingerprint.get(name) != fingerprint.get(name) for name in ELASTIC)
        if samples == given and not moved:
            batches = position.batches
        elif position.ahead:
            raise StateError(
                "a mid-epoch state saved with in_order=False fits only the batch_size and "
                "num_replicas it was saved with. Resume with those"
            )
        else:
            batches = plan.start_for(samples)
        if plan.is_computed:
            most = -(-len(plan.source) // plan.global_size)  # of the rank that has the most
            if batches > most:
                raise damaged(f"batches must be at most the epoch's {most:,}", batches)
        return position._replace(batches=batches)

    def check_kind(self, fingerprint: Fingerprint) -> None:
        """Make sure that a loader has such a dataset: a map-style, or an iterable one."""
        orders = self.fingerprint.get("order"), fingerprint.get("order")
        if orders[0] != orders[1] and STREAM in orders:
            kinds = ["an iterable" if order == STREAM else "a map-style" for order in orders]
            raise StateError(
                f"state was taken of {kinds[0]} dataset, and this loader has {kinds[1]} one. "
                "Resume with the dataset of the state"
            )

    def to_dict(self) -> dict[str, object]:
        """Return the state as a new dict of primitives that shares nothing with this loader.

        For what is of readers see `streams/reader_states.py`.
        """
        position = self.position
        state: dict[str, object] = {"version": VERSION, "epoch": int(position.epoch)}
        state["pass"] = position.repeat
        if position.root is not None:
            state[position.root.kind] = position.root.seed
        state |= {"batches": int(position.batches), "ahead": list(position.ahead)}
        state["generators"] = [self.generator, *position.generators]
        state["fingerprint"] = self.fingerprint | ({TOLD: True} if position.told else {})
        if position.sampler is not None:
            state["sampler"] = copied(position.sampler)
        return state

    @classmethod
    def from_dict(cls, state: object, reader_states: Callable[[], Any]) -> LoaderState:
        """Read and copy what `to_dict` gave, or a file has; a StateError if it is no state.

        ``reader_states`` returns what reads the parts of readers, if there are any.
        """
        if not isinstance(state, Mapping) or "version" not in state:
            raise StateError(
                "state must be the dict that state_dict() of a lit_loader.DataLoader returned, "
                f"got {brief(state)}"
            )
        version = state["version"]
        if type(version) is not int or version != VERSION:
            writer = _WRITERS.get(version) if type(version) is int else None
            raise StateError(
                f"state has version {brief(version)}"
                f"{f', which lit_loader {writer} wrote' if writer else ''}, and this release reads "
                f"version {VERSION} only. Resume with the release that wrote it [LL324]"
            )
        field = {}
        for name, (fits, wanted, default) in _KEYS.items():
            field[name] = value = state.get(name, default)
            if value is ... or not fits(value):
                raise damaged(f"{name} must be {wanted}", None if value is ... else value)
        fingerprint = _checked_fingerprint(field["fingerprint"])
        told = fingerprint.pop(TOLD, None) is True
        batches, ahead = field["batches"], tuple(field["ahead"])
        if any(after <= before for before, after in itertools.pairwise((batches, *ahead))):
            raise damaged(f"ahead must rise from above batches={batches}", ahead)
        kinds: tuple[Literal["seed", "base", "after"], ...] = ("seed", "base", "after")
        roots = [Root(field[kind], kind) for kind in kinds if field[kind] is not None]
        is_amid = bool(batches or ahead)
        if len(roots) > 1 or (is_amid and [root.kind for root in roots] in ([], ["after"])):
            raise damaged("seed or base must be there mid-epoch, one of them", roots)
        repeat = field["pass"]
        sampler = None
        if state.get("sampler") is not None:
            from lit_loader.core.state.sampler_state import checked_sampler_state

            sampler = checked_sampler_state(state["sampler"])
        readers: tuple[object, ...] = ()
        numbers: Sequence[int] | None = None
        if state.get("readers") is not None:
            readers, numbers = reader_states().checked(state["readers"], fingerprint)
        elif batches and fingerprint.get("order") == STREAM:
            raise damaged("readers must be there mid-epoch of an iterable dataset", None)
        generator, *held = field["generators"] or (0,)
        position = Position(
            field["epoch"],
            roots[0] if roots else None,
            repeat,
            # Ranks that share the data have one order in all passes of an epoch.
            0 if (fingerprint.get("num_replicas") or 1) != 1 else repeat,
            batches,
            ahead,
            sampler,
            readers,
            distributed=(sampler or {}).get("distributed"),
            told=told,
            generators=tuple(held),
        )
        return cls(position, fingerprint, numbers, generator)

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
                from lit_loader.core.state.state_advice import advice_on

                shown = " ".join(name.split())[:80]
                raise StateError(
                    f"state was taken with {shown}={brief(theirs)}, but this loader has "
                    f"{shown}={brief(ours)}: {advice_on(name, shown, theirs, ours)} [LL301]"
                )


def copied(value: Any) -> Any:
    """Copy what readers remember: of many of them that is most of what a state costs.

    By pickle, which takes an eighth of the time of :func:`copy.deepcopy` for small values.
    """
    try:
        return pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    except Exception:  # a lambda, say: it is for who saves the state to complain
        return copy.deepcopy(value)


def _checked_fingerprint(fingerprint: Mapping[Any, Any]) -> Fingerprint:
    for name, value in fingerprint.items():
        if type(name) is not str:
            raise damaged("fingerprint must have names for keys", name)
        if type(value) not in PRIMITIVES:
            raise damaged(
                f"fingerprint[{brief(name)}] must be an int, float, str, bool or None", value
            )
    for name in ELASTIC:
        if not (fingerprint.get(name) is None or is_count(fingerprint[name], 2**32)):
            raise damaged(f"fingerprint[{name!r}] must be a number or None", fingerprint[name])
    return dict(fingerprint)
