"""`merge_states`: one state of those of all ranks, of an iterable dataset with ``num_shards``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import Any

from lit_loader.core.state.loader_state import LoaderState
from lit_loader.core.state.position import COUNT
from lit_loader.core.state.sampler_state import DIGEST
from lit_loader.core.state.state_validation import alike, brief
from lit_loader.describe import public
from lit_loader.errors import StateError
from lit_loader.streams import reader_states

__all__ = ["merge_states"]


@public
def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Make one state of those of all ranks, which any number of ranks can resume from.

    A rank's state of a loader with ``num_shards`` holds the readers that this rank serves. Taken at
    the same step on every rank, gathered and merged, they hold all readers::

        states = [None] * world_size
        torch.distributed.all_gather_object(states, loader.state_dict())
        state = lit_loader.merge_states(states)

    Args:
        states: What ``state_dict()`` gave on each rank, in any order. Those of a map-style dataset
            are the same on all ranks, and so is what is made of them.

    Returns:
        A state for `DataLoader.load_state_dict` on any number of ranks that divides ``num_shards``.

    Raises:
        StateError: They are not the states of all ranks at the same step of the same data.
    """
    if not isinstance(states, Iterable) or isinstance(states, (Mapping, str)):
        raise StateError(
            f"states must be a list of those of all ranks, got {brief(states)} [LL348]"
        )
    given = list(states)
    loaded = [LoaderState.from_dict(state, lambda: reader_states) for state in given]
    if not loaded:
        raise StateError("states must be those of all ranks, got none [LL347]")
    unreadable = max(state.position.unreadable for state in loaded)  # each rank counts its own
    loaded = [
        replace(state, position=replace(state.position, unreadable=unreadable)) for state in loaded
    ]
    first = loaded[0]
    for state in loaded[1:]:
        first.check(state.fingerprint, ())
        for name in ("epoch", "requested"):
            ours, theirs = getattr(first.position, name), getattr(state.position, name)
            if ours != theirs:
                raise StateError(
                    f"states were taken in {name} {brief(ours)} and in {name} {brief(theirs)}: "
                    "merge those that were taken at the same step [LL346]"
                )
    if len(loaded) > 1 and any(
        state.numbers is None and state.position.readers for state in loaded
    ):
        raise StateError(
            "states of an IterableDataset that is read without num_shards are each rank's own: "
            "load each on the rank that it was taken on, or read with num_shards [LL345]"
        )
    if all(state.numbers is None for state in loaded):
        if not all(alike(_common(state), _common(first)) for state in loaded):
            raise StateError(
                f"states differ, which are the same on all ranks (after {first.position.batches} "
                "batches and others): merge those that were taken at the same step [LL344]"
            )
        return reader_states.to_dict(first)
    return reader_states.to_dict(_merged(loaded))


def _common(state: LoaderState) -> dict[str, Any]:
    """What is the same on all ranks: not what a sampler has drawn that takes its rank's share."""
    position = vars(state.position)
    sampler = {k: part for k, part in (state.position.sampler or {}).items() if k != DIGEST}
    return {**vars(state), "position": {**position, "sampler": sampler}}


def _merged(states: list[LoaderState]) -> LoaderState:
    readers = sorted(
        (pair for state in states for pair in reader_states.numbered(state)), key=itemgetter(0)
    )
    fingerprint = states[0].fingerprint
    count, replicas = fingerprint[COUNT], fingerprint["num_replicas"]
    numbers = [number for number, _ in readers]
    if numbers != list(range(count)):  # type: ignore[arg-type]
        have = sorted({number % replicas for number in numbers})  # type: ignore[operator]
        raise StateError(
            f"states must be those of all {replicas} ranks, each once, got {len(states)} states "
            f"with the readers of ranks {brief(have)} [LL343]"
        )
    # One that has come to its end is behind the others, and stays there.
    going = (state.position for state in states if not all(p.ended for p in state.position.readers))
    since = {position.since for position in going}
    if len(since) > 1:
        raise StateError(
            f"states were taken after {brief(min(since))} batches on one rank and after "
            f"{brief(max(since))} on another: merge those that were taken at the same step [LL342]"
        )
    position = replace(states[0].position, readers=tuple(point for _, point in readers))
    merged = replace(states[0], position=position, numbers=numbers)
    batches = reader_states.batches_of_first_rank(merged)
    return replace(merged, position=replace(position, batches=batches), samples=batches)
