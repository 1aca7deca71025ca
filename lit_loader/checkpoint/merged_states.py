"""`merge_states`: one state out of those that the ranks of a job have taken."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from lit_loader.checkpoint.alike import alike
from lit_loader.checkpoint.loader_state import LoaderState
from lit_loader.checkpoint.reader_states import batches_of_first_rank
from lit_loader.checkpoint.sampler_state import DIGESTS
from lit_loader.checkpoint.untrusted_state import brief
from lit_loader.describe import public
from lit_loader.errors import StateError

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
        raise StateError(f"states must be a list of those of all ranks, got {brief(states)}")
    given = list(states)
    loaded = [LoaderState.from_dict(state) for state in given]
    if not loaded:
        raise StateError("states must be those of all ranks, got none")
    first = loaded[0]
    for state in loaded[1:]:
        first.check(state.fingerprint, ())
        for name in ("epoch", "requested"):
            ours, theirs = getattr(first, name), getattr(state, name)
            if ours != theirs:
                raise StateError(
                    f"states were taken in {name} {brief(ours)} and in {name} {brief(theirs)}: "
                    "merge those that were taken at the same step"
                )
    if len(loaded) > 1 and any(state.workers for state in loaded):
        raise StateError(
            "states of an IterableDataset that is read without num_shards are each rank's own: "
            "load each on the rank that it was taken on, or read with num_shards"
        )
    if not any(state.readers for state in loaded):
        if not all(alike(_common(state), _common(first)) for state in loaded):
            raise StateError(
                f"states differ, which are the same on all ranks (after {first.batches} batches "
                "and others): merge those that were taken at the same step"
            )
        return first.to_dict()
    return _merged(loaded).to_dict()


def _common(state: LoaderState) -> dict[str, Any]:
    """What is the same on all ranks: not what a sampler has drawn that takes its rank's share."""
    sampler = {name: part for name, part in (state.sampler or {}).items() if name not in DIGESTS}
    return {**vars(state), "sampler": sampler}


def _merged(states: list[LoaderState]) -> LoaderState:
    readers = sorted((part for state in states for part in state.readers or ()), key=_number)
    fingerprint = states[0].fingerprint
    count, replicas = fingerprint["num_shards"], fingerprint["num_replicas"]
    if list(map(_number, readers)) != list(range(count)):  # type: ignore[arg-type]
        have = sorted({part[0] % replicas for part in readers})
        raise StateError(
            f"states must be those of all {replicas} ranks, each once, got {len(states)} states "
            f"with the readers of ranks {brief(have)}"
        )
    # One that has come to its end is behind the others, and stays there.
    since = {state.since for state in states if not all(part[3] for part in state.readers)}
    if len(since) > 1:
        raise StateError(
            f"states were taken after {brief(min(since))} batches on one rank and after "
            f"{brief(max(since))} on another: merge those that were taken at the same step"
        )
    batches = batches_of_first_rank(readers, replicas)
    return dataclasses.replace(states[0], readers=readers, batches=batches, samples=batches)


def _number(part: list[Any]) -> int:
    number: int = part[0]
    return number
