"""`merge_states`: one state of those of all ranks, of an iterable dataset with ``num_shards``."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

from lit_loader.core.state.loader_state import LoaderState
from lit_loader.core.state.position import COUNT
from lit_loader.core.state.state_validation import brief
from lit_loader.describe import public
from lit_loader.errors import StateError
from lit_loader.streams import reader_states


@public
def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Make one state of those of all ranks; any number of ranks that divides num_shards loads it.

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
    several = isinstance(states, Iterable) and not isinstance(states, (Mapping, str))
    given = [*states] if several else []
    if not given:
        raise StateError(f"states must be a list of those of all ranks, got {brief(states)}")
    loaded = [LoaderState.from_dict(state, lambda: reader_states) for state in given]
    first = loaded[0]
    for state in loaded[1:]:
        first.check(state.fingerprint, ())
    steps = {*filter(None, map(_step, loaded, given))}
    if len(steps) > 1:
        raise StateError(
            f"states were taken at different steps: {'; '.join(sorted(steps))}. Merge those of the "
            "same step"
        )
    if not first.position.readers:
        return first.to_dict()
    if first.numbers is None and len(loaded) > 1:
        raise StateError(
            "states of an IterableDataset without num_shards are each rank's own. Load each on the "
            "rank that it was taken on, or pass num_shards"
        )
    parts = sorted((part for state in given for part in state["readers"]), key=itemgetter(0))
    numbers = [part[0] for part in parts]
    if first.numbers is not None and numbers != [*range(int(first.fingerprint[COUNT] or 0))]:
        raise StateError(
            f"states must be those of all {first.fingerprint['num_replicas']} ranks, each once, "
            f"got {len(given)} states with shards {brief(numbers)}"
        )
    return copy.deepcopy({**given[0], "readers": parts})


def _step(loaded: LoaderState, given: Mapping[str, object]) -> str | None:
    """Name a state's step; None: it is of a stream that has ended on its rank, and says nothing."""
    position = loaded.position
    if position.readers and all(point.ended for point in position.readers):
        return None
    batches = given.get("since") if position.readers else position.batches
    return f"pass {position.repeat} of epoch {position.epoch} after {brief(batches)} batches"
