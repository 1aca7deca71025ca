"""The order in which the readers of an iterable dataset take turns: in rounds, one batch each.

Turn ``t`` is that of reader ``t % readers`` in round ``t // readers``, and the number of the batch
that it gives. A reader that has come to its end is passed over, and so is one that is ahead of the
others where a resume begins. One that has begun again (``shard_tail="pad"``) takes its turn once
all have come to their end.
"""

from __future__ import annotations

from collections.abc import Sequence

from lit_loader.checkpoint.position import EpochPosition, ReadPoint

__all__ = ["first_turn", "next_turn"]


def first_turn(points: Sequence[ReadPoint], padding: bool = False) -> int:
    """Give the turn before which there is none to be taken.

    Args:
        points: How far each reader is.
        padding: Whether readers begin again.
    """
    going = (p.batches for p in points if not (p.ended or (p.before and not padding)))
    return min(going, default=0) * len(points)


def next_turn(position: EpochPosition, turn: int) -> int | None:
    """Give the first turn, from one on, that a reader is to take; None: all have ended."""
    readers, passed = position.num_readers, 0
    while passed < readers:
        point = position.reader(turn % readers)
        if point.ended or (point.before and not position.padding):
            passed += 1
        elif turn // readers >= point.batches:
            return turn
        else:
            passed = 0
        turn += 1
    return None
