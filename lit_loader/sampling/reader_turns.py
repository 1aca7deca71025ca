"""The order in which the readers of an iterable dataset take turns: in rounds, one batch each.

Turn ``t`` is that of reader ``t % readers`` in round ``t // readers``, and the number of the batch
that it gives. A reader that has come to its end is passed over, and so is one that is ahead of the
others where a resume begins.
"""

from __future__ import annotations

from collections.abc import Sequence

from lit_loader.checkpoint.position import EpochPosition, ReadPoint

__all__ = ["first_turn", "next_turn"]


def first_turn(points: Sequence[ReadPoint]) -> int:
    """Give the turn before which there is none to be taken.

    Args:
        points: How far each reader is.
    """
    rounds = min((point.batches for point in points if not point.ended), default=0)
    return rounds * len(points)


def next_turn(position: EpochPosition, turn: int) -> int | None:
    """Give the first turn, from one on, that a reader is to take; None: all have ended."""
    readers, passed = position.num_readers, 0
    while passed < readers:
        point = position.reader(turn % readers)
        if point.ended:
            passed += 1
        elif turn // readers >= point.batches:
            return turn
        else:
            passed = 0
        turn += 1
    return None
