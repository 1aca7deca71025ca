"""The readers of an iterable dataset in a state: written down, checked, dealt out to the ranks.

A reader's part is ``[batches, the dataset's state, whether it has ended]``; then the number of
batches behind that state, of those before it began again, and the marks of the first (`ReadPoint`),
where there are any. Where each
worker is a reader they stand in the order of the workers; else each behind its number among all
readers, so that those of several ranks can be put together (`checkpoint/loader_state.py`) and
dealt out to others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lit_loader.checkpoint.fingerprint import Fingerprint
from lit_loader.checkpoint.position import ReadPoint
from lit_loader.checkpoint.stateful import checked_parts
from lit_loader.checkpoint.untrusted_state import brief, damaged, is_count
from lit_loader.errors import StateError

__all__ = ["COUNT", "Shards", "checked_readers", "checked_workers"]

COUNT: Final = "num_shards"
"""Their number among what a fingerprint has, where it is given."""

_MAX_READ: Final = 2**32
"""Batches of one reader are below it: their numbers, of all readers, are below `MAX_BATCHES`."""


@dataclass(frozen=True)
class Shards:
    """The readers that a rank serves, of ``count`` that all ranks have."""

    rank: int
    replicas: int
    count: int

    @property
    def mine(self) -> range:
        """The numbers of this rank's readers, in the order in which they take turns."""
        return range(self.rank, self.count, self.replicas)

    def own(self, points: Mapping[int, ReadPoint]) -> tuple[ReadPoint, ...]:
        """Choose this rank's readers of those in a state; a StateError if some are missing."""
        if any(number not in points for number in self.mine):
            raise StateError(
                f"state has the readers of one rank, {brief(list(points))} of {self.count}, but "
                f"rank {self.rank} of {self.replicas} reads {brief(list(self.mine))}: load what "
                "lit_loader.merge_states makes of the states of all ranks"
            )
        return tuple(points[number] for number in self.mine)


def checked_readers(readers: Any, fingerprint: Fingerprint) -> dict[int, ReadPoint] | None:
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
        points[last] = _checked_part(f"readers[{place}]", list(part[1:]))
    return points


def checked_workers(workers: Any, expected: Any) -> list[ReadPoint] | None:
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
        )
    return [_checked_part(f"workers[{number}]", part) for number, part in enumerate(workers)]


def _checked_part(name: str, part: Any) -> ReadPoint:
    """Take in one reader's part, which stands at ``name``."""
    whole = isinstance(part, (list, tuple)) and len(part) in (3, 4, 5, 6)
    if (
        not (whole and is_count(part[0], _MAX_READ) and type(part[2]) is bool)
        or not all(map(is_count, part[3:5]))
        or any(behind > part[0] for behind in part[3:4])
        or not all(_are_marks(marks, part[1], part[3]) for marks in part[5:])
    ):
        raise damaged(f"{name} must be [batches, the dataset's state, whether it has ended]", part)
    own = checked_parts(f"{name}[1]", part[1], "dataset")
    behind = part[3] if part[3:] else 0
    # A state that is noted is that before a batch which was given out; an empty one, the first.
    if own is not None and not (behind >= 1 and (own or behind == part[0])):
        raise damaged(f"{name} must have the dataset's state of a batch that was given out", part)
    return ReadPoint(part[0], own, *part[2:5], *map(tuple, part[5:]))


def _are_marks(marks: Any, own: Any, behind: int) -> bool:
    """Whether these may be marks of the batches behind a state, or of the last one without."""
    if not (isinstance(marks, (list, tuple)) and all(type(mark) is str for mark in marks)):
        return False
    return len(marks) <= (1 if own is None else behind)
