"""The rows of the status board that stand for workers on other machines, and for their relay.

The relay writes them, viewers in other processes read them. Instead of where the indices of its
batch lie, such a worker's row has its machine's name, and the relay's at how many tasks it can be.
Imports neither torch nor NumPy.
"""

from __future__ import annotations

from typing import Final

from lit_loader.core.transport.status_board import (
    INDICES,
    NUM_DONE,
    ROW,
    ROW_WORDS,
    STACKS,
    Stage,
    StatusBoard,
)

_NODE_BYTES: Final = 8 * (ROW_WORDS - INDICES)
# In the place of a descriptor for stacks: a name follows, and no indices; or a relay's credit.
_REMOTE, _RELAY = -1, -2


def show(board: StatusBoard, worker: int, node: str, number: int) -> None:
    """Write on which machine ``worker`` is ("": it is not up), and at which task (-1: none)."""
    row = (worker + 1) * ROW_WORDS
    name = node.encode(errors="replace")[:_NODE_BYTES].ljust(_NODE_BYTES, b"\0")
    board.words[row + INDICES : row + ROW_WORDS] = memoryview(name).cast("q")
    board.words[row + STACKS] = _REMOTE
    idle = Stage.IDLE if node else Stage.STARTING
    board.enter(worker, idle if number < 0 else Stage.FETCHING, number)


def show_credit(board: StatusBoard, worker: int, credit: int) -> None:
    """Write that ``worker`` hands tasks over to others, and at how many it can be together."""
    row = (worker + 1) * ROW_WORDS
    board.words[row + INDICES] = credit
    board.words[row + STACKS] = _RELAY


def count(board: StatusBoard, worker: int) -> None:
    """Count a task that ``worker`` has sent the result of."""
    board.words[(worker + 1) * ROW_WORDS + NUM_DONE] += 1


def node_of(row: bytes) -> str | None:
    """Read, out of a copy of a row, which machine it stands for; None: this one."""
    words = ROW.unpack_from(row)
    if words[STACKS] != _REMOTE:
        return None
    return row[8 * INDICES :].rstrip(b"\0").decode(errors="replace")


def credit_of(row: bytes) -> int | None:
    """Read, out of a copy of a relay's row, at how many tasks it can be; None: it is no relay's."""
    words = ROW.unpack_from(row)
    return words[INDICES] if words[STACKS] == _RELAY else None
