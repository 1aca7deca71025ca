"""`LoaderState`: a loader's checkpoint state; written, read, checked.

======================  =========================================================================
key                     value
======================  =========================================================================
``version``             `VERSION`
``epoch``, ``pass``     the epoch, and how many earlier passes it had
``seed``                a number, and what it is: the ``"seed"`` of the pass; the ``"base"`` that
                        all passes follow from; or, where the next pass has not begun, the seed of
                        the pass that it comes ``"after"``
``batches``, ``ahead``  batches that were delivered, in order and beyond
``generators``          a digest of torch's generator, or the state of ``generator=``; then the
                        number of each held generator
``sampler``             what the sampler must remember (`sampler_state.py`)
``readers``, ``since``  of an iterable dataset: how far each reader is, and the rank
``fingerprint``         what the position is a position in
======================  =========================================================================

A state does not depend on how the data is loaded (number of workers, start method, prefetching),
and of a map-style dataset all ranks give the same one. It is a dict of primitives, so that
``torch.load(weights_only=True)`` reads it, and for map-style datasets a few hundred bytes long.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

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
    own_part,
)
from lit_loader.errors import StateError

VERSION: Final = 4
"""Raised whenever an older reader would misunderstand a state."""

_WRITERS: Final = {"2": "lit_loader 0.2 or 0.3", "3": "lit_loader 0.4"}

TOLD: Final = "set_epoch"
"""In a state's fingerprint: whether the program has set the epoch, which the dataset gets."""

STREAM: Final = "EndlessSampler"
"""The order of an iterable dataset in a fingerprint, as torch's loader shows it: none."""

_ADVICE: Final = {
    "dataset_length": "resume with the dataset that the state was taken from, or from a state of "
    "an epoch's end; without the state, call set_epoch(state['epoch']) to begin that epoch again",
    "num_workers": "an IterableDataset without num_shards is read in one part per worker: resume "
    "with the same number of workers, or pass num_shards from the beginning",
    "rank": "an IterableDataset's state is one rank's: save one on each rank, and load it there",
    "order": "resume with the same dataset (an IterableDataset has an EndlessSampler), and the "
    "same sampler or shuffle option. Lightning changes the order when it divides the data among "
    "several ranks: resume with the same number of ranks, or pass shuffle=True, or num_replicas= "
    "and rank=, from the beginning",
    "shares": "weights of past draws are fixed. Keep them, and let others begin at a later draw, "
    "as in weights=[(0, {'web': 3, 'books': 1}), (5000, {'web': 1, 'books': 1})]",
}
"""What to do where a part of the fingerprint differs."""

# --- what a state may hold ---


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple))


def _is_named(value: object) -> bool:
    return isinstance(value, dict) and all(type(name) is str for name in value)


def _is_packed(value: object) -> bool:
    return type(value) is bytes and len(value) <= MAX_PACKED


def _are_counts(value: Any, below: int = 2**64) -> bool:
    return _is_list(value) and all(is_count(number, below) for number in value)


def _are_generators(value: Any) -> bool:
    if not _is_list(value) or not value:
        return False
    return _are_counts(value[1:] if _is_packed(value[0]) else value)


def _is_root(value: Any) -> bool:
    if not (_is_list(value) and len(value) == 2 and type(value[1]) is str):
        return False
    return is_count(value[0], 2**64) and value[1] in ("seed", "base", "after")


_Row = tuple[Callable[[Any], bool], str]  # what a value must be, and that in words

_FIELDS: Final[dict[str, _Row]] = {
    "epoch": (is_epoch, "a whole number from -2**62 to 2**62"),
    "pass": (is_count, "a whole number of at least 0"),
    "seed": (_is_root, "a number below 2**64, with 'seed', 'base' or 'after'"),
    "batches": (lambda value: is_count(value, MAX_BATCHES), "a number of batches"),
    "ahead": (lambda value: _are_counts(value, MAX_BATCHES), "a list of batch numbers"),
    "generators": (_are_generators, "a list of numbers, the first one perhaps bytes"),
    "sampler": (_is_named, "a dict of what the sampler must remember"),
    "fingerprint": (_is_named, "a dict with names for keys"),
}
_REQUIRED: Final = "epoch", "pass", "batches", "ahead", "generators", "fingerprint"

_OF_SAMPLER: Final[dict[str, _Row]] = {
    "drawn": (lambda value: _are_counts(value) and len(value) == 3, "a list of 3 numbers"),
    "head": (_is_list, "a list"),
    "due": (_is_list, "a list"),
    "generator": (_is_packed, "a random generator's state, as bytes"),
    "distributed": (lambda value: type(value) is int, "a whole number"),
}
_PRIMITIVE: Final[_Row] = (
    lambda value: type(value) in PRIMITIVES,
    "an int, float, str, bool or None",
)
_NUMBER: Final[_Row] = lambda value: value is None or is_count(value, 2**32), "a number or None"

ELASTIC: Final = {"batch_size": _NUMBER, "num_replicas": _NUMBER}
"""Fingerprint fields that may differ if the position falls on a batch boundary."""


def _check(found: Mapping[Any, Any], rows: Mapping[str, _Row], of: str = "") -> None:
    """Raise a StateError that names the first value which is not what a table says."""
    for name, (fits, wanted) in rows.items():
        if name in found and not fits(found[name]):
            shown = f"{of}[{brief(name)}]" if of else name
            raise damaged(f"{shown} must be {wanted}", found[name])


# --- a state ---


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
        position = self.position
        size, ranks = (self.fingerprint.get(name) or 1 for name in ("batch_size", "num_replicas"))
        samples = given = position.batches * int(size) * int(ranks)  # up to the pass's end
        length = self.fingerprint.get("dataset_length")
        # Between two passes there is no place that more, or less, data could move.
        between = is_count(length) and (not position.delivered or samples >= length)
        self.check(fingerprint, {*ELASTIC, "dataset_length"} if between else ELASTIC)
        if position.readers:
            raise damaged("readers must be None for a map-style dataset", position.readers)
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

    def to_dict(self) -> dict[str, object]:
        """Return the state as a new dict of primitives that shares nothing with this loader.

        For what is of readers see `streams/reader_states.py`.
        """
        position = self.position
        state: dict[str, object] = {
            "version": VERSION,
            "epoch": position.epoch,
            "pass": position.repeat,
            "batches": position.batches,
            "ahead": [*position.ahead],
            "generators": [self.generator, *position.generators],
            "fingerprint": self.fingerprint | {TOLD: position.told},
        }
        if position.root is not None:
            state["seed"] = [*position.root]
        if position.sampler is not None:
            state["sampler"] = copy.deepcopy(position.sampler)
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
            shown = brief(version)
            raise StateError(
                f"state has version {shown}, of {_WRITERS.get(shown, 'another release')}, and this "
                f"release reads version {VERSION} only. Resume with the release that wrote it "
                "[LL324]"
            )
        # From here on it is ours: nobody else can change it.
        state = {name: own_part(brief(name), part) for name, part in state.items()}
        state = dict.fromkeys(_REQUIRED) | state
        _check(state, _FIELDS)
        fingerprint, sampler = state["fingerprint"], state.get("sampler")
        _check(fingerprint, dict.fromkeys(fingerprint, _PRIMITIVE) | ELASTIC, "fingerprint")
        told = fingerprint.pop(TOLD, None) is True
        if sampler is not None:
            _check(sampler, _OF_SAMPLER, "sampler")
        batches, ahead, repeat = state["batches"], tuple(state["ahead"]), state["pass"]
        if any(after <= before for before, after in itertools.pairwise((batches, *ahead))):
            raise damaged(f"ahead must rise from above batches={batches}", ahead)
        root = Root(*state["seed"]) if "seed" in state else None
        if (batches or ahead) and (root is None or root.kind == "after"):
            raise damaged("seed must be that of a pass or a base, mid-epoch", root)
        readers: tuple[object, ...] = ()
        numbers: Sequence[int] | None = None
        if state.get("readers") is not None:
            readers, numbers = reader_states().checked(state["readers"], fingerprint)
        elif batches and fingerprint.get("order") == STREAM:
            raise damaged("readers must be there mid-epoch of an iterable dataset", None)
        generator, *held = state["generators"]
        # Ranks that share the data have one order in all passes of an epoch.
        order_repeat = 0 if (fingerprint.get("num_replicas") or 1) != 1 else repeat
        position = Position(state["epoch"], root, repeat, order_repeat, batches, ahead, sampler)
        position = position._replace(
            readers=readers,
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
        # The kind of dataset first, then num_shards: without it, the ranks differ too.
        for name in sorted(names, key=lambda name: (name != "order", name != COUNT, name)):
            theirs, ours = saved.get(name), fingerprint.get(name)
            are_both_nan = theirs != theirs and ours != ours
            if theirs != ours and not are_both_nan:
                shown = " ".join(name.split())[:80]
                known = "shares" if name.endswith(".shares") else name
                advice = _ADVICE.get(known, f"resume with the same {shown}")
                raise StateError(
                    f"state was taken with {shown}={brief(theirs)}, but this loader has "
                    f"{shown}={brief(ours)}: {advice} [LL301]"
                )
