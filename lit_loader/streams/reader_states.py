"""The readers' parts of a loader's state: written, checked, and found again in this loader.

====================  ======================================================================
place in a part       value
====================  ======================================================================
0                     the reader's number: among the shards of all ranks (``num_shards``), or
                      the worker's
1, 2, 3, 4, 5, 6      the fields of its `ReadPoint`: batches, the stream's own state, whether
                      it has ended, behind, before, digests
====================  ======================================================================

``since`` is the number of batches since the rank's pass began or was resumed, by which
`merge_states` knows states of the same step. Whatever a file holds is checked before it is used, as
the rest of a state is (`core/state/loader_state.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lit_loader.core.state.loader_state import LoaderState
from lit_loader.core.state.position import COUNT, Position, Shards
from lit_loader.core.state.state_validation import Fingerprint, brief, damaged, is_count
from lit_loader.core.state.stateful import checked_parts
from lit_loader.errors import StateError
from lit_loader.streams.other_streams import advice_on_replay
from lit_loader.streams.stream_position import ReadPoint, unpickled

_MAX_READ: Final = 2**32
"""Batches of one reader are below it: their numbers, of all readers, are below `MAX_BATCHES`."""

_PART: Final = (
    "[number, batches, the dataset's state, whether it has ended, behind, before, digests]"
)


def to_dict(state: LoaderState) -> dict[str, object]:
    """Return a state as a new dict of primitives, with the parts of its readers."""
    points = state.position.readers
    numbers = range(len(points)) if state.numbers is None else state.numbers
    parts = []
    for number, (batches, own, *counts, digests, _) in zip(numbers, points, strict=True):
        own = unpickled(own) if type(own) is bytes else copy.deepcopy(own)
        parts.append([number, batches, own, *counts, [*digests]])
    return state.to_dict() | {"readers": parts, "since": state.position.since}


def to_position(loaded: LoaderState, fingerprint: Fingerprint, shards: Shards | None) -> Position:
    """Find the place of a stream's state in a loader; a StateError if it does not fit that.

    ``fingerprint`` is the loader's, ``shards`` those of its rank (None: each worker reads one).
    """
    position, readers = loaded.position, loaded.position.readers
    elastic = {"num_replicas"}
    if shards is None:
        elastic = set() if any(point.state is not None for point in readers) else {"rank"}
    lengths = [each.get("dataset_length") for each in (loaded.fingerprint, fingerprint)]
    if not position.delivered and all(map(is_count, lengths)):
        elastic.add("dataset_length")  # at an epoch's start it moves no place
    loaded.check(fingerprint, elastic)
    if shards is not None and readers:
        readers = _of_rank(shards, dict(zip(loaded.numbers or (), readers, strict=True)))
    elif loaded.fingerprint.get("rank") != fingerprint.get("rank"):
        readers = tuple(point._replace(digests=()) for point in readers)  # of that rank's data
    batches = sum(point.delivered for point in readers)
    return position._replace(batches=batches, ahead=(), sampler=None, readers=readers)


def advice(loaded: LoaderState, dataset: object) -> str | None:
    """Say that a resume replays what was delivered, because the dataset has no state; or None."""
    points = loaded.position.readers
    read = any(point.batches and not point.ended for point in points)
    if not read or any(point.state is not None for point in points):
        return None
    return advice_on_replay(dataset)


def _of_rank(shards: Shards, points: Mapping[int, ReadPoint]) -> tuple[ReadPoint, ...]:
    """Choose a rank's readers of those in a state; a StateError if some are missing."""
    if any(number not in points for number in shards.mine):
        raise StateError(
            f"the state has the shards of one rank, {brief(list(points))} of {shards.count}, but "
            f"rank {shards.rank} of {shards.replicas} reads {brief(list(shards.mine))}. Load what "
            "lit_loader.merge_states makes of the states of all ranks [LL303]"
        )
    return tuple(points[number] for number in shards.mine)


# --- reading what a file holds ---


def checked(
    readers: object, fingerprint: Fingerprint
) -> tuple[tuple[ReadPoint, ...], Sequence[int] | None]:
    """Take in the readers of a state, and their numbers, if they are shards'; or a StateError."""
    shards, workers = fingerprint.get(COUNT), fingerprint.get("num_workers")
    count = workers if shards is None else shards
    if not (is_count(count) and isinstance(readers, (list, tuple)) and fingerprint["num_replicas"]):
        raise damaged(f"readers must be a list, and {COUNT} or num_workers their number", readers)
    points: dict[int, ReadPoint] = {}
    for place, part in enumerate(readers):
        is_part = isinstance(part, (list, tuple)) and len(part) == 7 and is_count(part[0], count)
        if not is_part or part[0] in points:
            raise damaged(f"readers[{place}] must be {_PART}, each number once", part)
        points[part[0]] = _checked_point(f"readers[{place}]", part)
    if not points or (shards is None and len(points) != workers):
        raise damaged(f"readers must be those of num_workers={brief(workers)}", list(points))
    points = dict(sorted(points.items()))
    return tuple(points.values()), None if shards is None else [*points]


def _checked_point(name: str, part: Sequence[Any]) -> ReadPoint:
    _, batches, state, ended, behind, before, digests = part
    if not (
        is_count(batches, _MAX_READ)
        and type(ended) is bool
        and is_count(behind, batches + 1)
        and is_count(before, _MAX_READ)
        and isinstance(digests, (list, tuple))
        and len(digests) <= batches
        and all(is_count(digest, 2**32) for digest in digests)
    ):
        raise damaged(f"{name} must be {_PART}", part)
    own = checked_parts(f"{name}[2]", state, "dataset")
    # A state that is noted is that before a batch which was delivered; an empty one, the first.
    if own is not None and not (behind >= 1 and (own or behind == batches)):
        raise damaged(f"{name} must have the dataset's state of a batch that was delivered", part)
    return ReadPoint(batches, own, ended, behind, before, tuple(digests))
