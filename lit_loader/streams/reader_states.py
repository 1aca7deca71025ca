"""The readers' parts of a loader's state: written, read, and found again in this loader.

A reader is a worker, each in order; or, with ``num_shards``, one of those of all ranks, behind its
number among them. Whatever a file holds is checked before it is used, as the rest of a state is
(`core/state/loader_state.py`).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from lit_loader.core.state.fingerprint import Fingerprint
from lit_loader.core.state.loader_state import VERSION, LoaderState, copied
from lit_loader.core.state.position import COUNT, Mark, Position, ReadPoint, Shards
from lit_loader.core.state.state_validation import PRIMITIVES, brief, damaged, is_count
from lit_loader.core.state.stateful import ITERATOR, checked_parts
from lit_loader.errors import StateError

__all__ = [
    *("adapted", "batches_of_first_rank", "checked", "numbered", "reads_again", "to_dict"),
    "to_position",
]

_DIGITS: Final = 16
"""Of a mark."""

_MAX_READ: Final = 2**32
"""Batches of one reader are below it: their numbers, of all readers, are below `MAX_BATCHES`."""


def to_dict(state: LoaderState) -> dict[str, Any]:
    """Give a state as a new dict of primitives, with the parts of its readers."""
    parts = [_part(point) for point in state.position.readers]
    if state.numbers is None:
        return state.to_dict() | ({"workers": parts} if parts else {})
    readers = [[number, *part] for number, part in zip(state.numbers, parts, strict=True)]
    return state.to_dict() | {"readers": readers, "since": state.position.since}


def to_position(
    loaded: LoaderState, fingerprint: Fingerprint, with_workers: bool, shards: Shards | None
) -> Position:
    """Find the place of a stream's state in a loader; a StateError if it does not fit that.

    ``fingerprint`` is the loader's, ``shards`` the readers of its rank (None: each worker is one).
    """
    loaded.check_kind(fingerprint)
    position, readers, numbers = loaded.position, loaded.position.readers, loaded.numbers
    for name in ("ahead", "sampler"):
        if value := getattr(position, name):
            raise damaged(f"{name} must be empty for an IterableDataset", value)
    whose, read = "workers", sum(point.batches for point in readers)
    if numbers is not None:
        whose, read = "first rank's readers", batches_of_first_rank(loaded)
    if read != position.batches:
        raise damaged(f"batches must be those of its {whose}, {read} in all", position.batches)
    elastic = {"num_replicas"}
    if shards is None:
        elastic = set() if any(point.state is not None for point in readers) else {"rank"}
    lengths = [each.get("dataset_length") for each in (loaded.fingerprint, fingerprint)]
    if not position.delivered and all(map(is_count, lengths)):
        elastic.add("dataset_length")  # at an epoch's start it moves no place
    loaded.check(fingerprint, elastic)
    if shards is None and loaded.fingerprint.get("rank") != fingerprint.get("rank"):
        readers = tuple(replace(point, marks=()) for point in readers)  # of that rank's data
    batches = position.batches
    if shards is not None and numbers is not None:
        readers = _own(shards, dict(numbered(loaded)))
        batches = sum(point.delivered for point in readers)
    if with_workers:
        _check_portable(readers)
    return replace(position, batches=batches, readers=readers, since=0)


def reads_again(loaded: LoaderState) -> bool:
    """Whether samples that were given out are read again, for want of the dataset's state."""
    points = loaded.position.readers
    read = any(point.batches and not point.ended for point in points)
    return read and all(point.state is None for point in points)


def adapted(loaded: LoaderState, dataset: Any, batch_size: int) -> LoaderState:
    """Let the readers of a stream go on by what has changed of it."""
    points = []
    for point in loaded.position.readers:
        if point.state is not None and not point.ended:
            iterator = dataset.adapt_state(point.state.get(ITERATOR), point.behind * batch_size)
            point = replace(point, state={**point.state, ITERATOR: iterator})
        points.append(point)
    return replace(loaded, position=replace(loaded.position, readers=tuple(points)))


def numbered(loaded: LoaderState) -> list[tuple[int, ReadPoint]]:
    """Give the readers with their numbers, where they have some."""
    return [*zip(loaded.numbers or (), loaded.position.readers, strict=False)]


def batches_of_first_rank(loaded: LoaderState) -> int:
    """Count the batches that the first of the ranks in a state has been given."""
    replicas: Any = loaded.fingerprint["num_replicas"]
    found: dict[int, int] = {}
    for number, point in numbered(loaded):
        found[number % replicas] = found.get(number % replicas, 0) + point.delivered
    return found[min(found)]


def _part(point: ReadPoint) -> list[Any]:
    """Give a reader's part: [batches, the dataset's state, whether it has ended].

    And as far as there are any: batches behind that state, before it began again, marks.
    """
    own = pickle.loads(point.state) if type(point.state) is bytes else copied(point.state)
    part = [point.batches, own, point.ended]
    if point.marks:
        return [*part, point.behind, point.before, [list(mark) for mark in point.marks]]
    if point.before:
        return [*part, point.behind, point.before]
    return [*part, point.behind] if point.behind else part


def _own(shards: Shards, points: Mapping[int, ReadPoint]) -> tuple[ReadPoint, ...]:
    """Choose a rank's readers of those in a state; a StateError if some are missing."""
    if any(number not in points for number in shards.mine):
        raise StateError(
            f"state has the readers of one rank, {brief(list(points))} of {shards.count}, but "
            f"rank {shards.rank} of {shards.replicas} reads {brief(list(shards.mine))}: load what "
            "lit_loader.merge_states makes of the states of all ranks [LL303]"
        )
    return tuple(points[number] for number in shards.mine)


def _check_portable(points: Iterable[ReadPoint]) -> None:
    """Make sure that what a dataset must remember can travel to the workers: be pickled."""
    for point in points:
        if type(point.state) in PRIMITIVES:
            continue
        try:
            pickle.dumps(point.state, pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise StateError(
                f"state's part for the dataset cannot be pickled ({type(error).__name__}), as it "
                "must be for workers: resume with a state as state_dict() gave it"
                " [LL350]"
            ) from error


def checked(
    state: Mapping[str, Any], fingerprint: Fingerprint, version: int
) -> tuple[tuple[ReadPoint, ...], Sequence[int] | None]:
    """Take in the readers of a state, and their numbers, if they have some; or a StateError."""
    points = _checked_workers(state.get("workers"), fingerprint.get("num_workers"), version)
    readers = _checked_readers(state.get("readers"), fingerprint, version)
    if readers is None:
        return tuple(points or ()), None
    if points is not None:
        raise damaged("workers must be None beside readers", state["workers"])
    return tuple(readers.values()), [*readers]


def _checked_readers(
    readers: Any, fingerprint: Fingerprint, version: int
) -> dict[int, ReadPoint] | None:
    """Take in a state's readers, each behind its number; a StateError if they are none."""
    if readers is None:
        return None
    count, replicas = fingerprint.get(COUNT), fingerprint.get("num_replicas")
    if not (is_count(count) and is_count(replicas) and replicas >= 1):
        raise damaged(f"readers need {COUNT} and num_replicas in the fingerprint", fingerprint)
    if not isinstance(readers, (list, tuple)) or not readers:
        raise damaged("readers must be a list, and not empty", readers)
    points: dict[int, ReadPoint] = {}
    last = -1
    for place, part in enumerate(readers):
        if not (isinstance(part, (list, tuple)) and part and is_count(part[0], count)):
            raise damaged(f"readers[{place}] must begin with a reader's number", part)
        if part[0] <= last:
            raise damaged(f"readers[{place}] must have a higher number than that before", part)
        last = part[0]
        points[last] = _checked_part(f"readers[{place}]", list(part[1:]), version)
    return points


def _checked_workers(workers: Any, expected: Any, version: int) -> list[ReadPoint] | None:
    """Take in each worker's part of a state; a StateError if it is none, or not as many."""
    if workers is None:
        return None
    if not isinstance(workers, (list, tuple)):
        raise damaged("workers must be a list", workers)
    if not workers and expected is None:
        raise damaged("workers must be None for a map-style dataset", workers)
    if expected is not None and len(workers) != expected:
        raise StateError(
            f"state's workers must have a part for each of its num_workers={brief(expected)}, got "
            f"{len(workers)}: resume with a state as state_dict() gave it"
            " [LL349]"
        )
    return [_checked_part(f"workers[{n}]", part, version) for n, part in enumerate(workers)]


def _checked_part(name: str, part: Any, version: int) -> ReadPoint:
    """Take in one reader's part, which stands at ``name``."""
    whole = isinstance(part, (list, tuple)) and len(part) in (3, 4, 5, 6)
    if (
        not (whole and is_count(part[0], _MAX_READ) and type(part[2]) is bool)
        or not all(map(is_count, part[3:5]))
        or any(behind > part[0] for behind in part[3:4])
        or not all(isinstance(marks, (list, tuple)) for marks in part[5:])
    ):
        raise damaged(f"{name} must be [batches, the dataset's state, whether it has ended]", part)
    own = checked_parts(f"{name}[1]", part[1], "dataset")
    behind = part[3] if part[3:] else 0
    # A state that is noted is that before a batch which was given out; an empty one, the first.
    if own is not None and not (behind >= 1 and (own or behind == part[0])):
        raise damaged(f"{name} must have the dataset's state of a batch that was given out", part)
    marks = (_marks(name, each, part[0], version) for each in part[5:])
    return ReadPoint(part[0], own, *part[2:5], *marks)


def _marks(name: str, marks: Any, batches: int, version: int) -> tuple[Mark, ...]:
    """Take in what a reader's batches are known by: each with the first and last of its batches.

    In older versions with one number, or as one of the last batches; and the digest is of a process
    that is not known: it is empty here, and nothing is compared.
    """
    found = []
    for place, mark in enumerate(marks, batches - len(marks)):
        part = (place, mark) if type(mark) is str else mark
        if not (
            isinstance(part, (list, tuple))
            and len(part) in (2, 3)
            and all(is_count(number, batches) for number in part[:-1])
            and part[0] <= part[-2]
            and type(part[-1]) is str
        ):
            raise damaged(f"{name} must have marks of batches that were given out", marks)
        found.append(Mark(part[0], part[-2], part[-1][:_DIGITS] if version == VERSION else ""))
    return tuple(found)
