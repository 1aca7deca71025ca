"""`RemoteWorker`: what an actor is an instance of.

It is a `Maker`, that is imported where it works: the relay, which only names it, need not have
torch in its memory.
"""

from __future__ import annotations

from numpy import uint8
from numpy.typing import NDArray

from lit_loader.remote.engine import Hello, Made, Order, Role

__all__ = ["RemoteWorker"]


class RemoteWorker:
    """A remote worker's process.

    Args:
        payload: The dataset and functions (`remote/payload.py`).
        role: Which worker it is.
    """

    def __init__(self, payload: NDArray[uint8], role: Role) -> None:
        from lit_loader.remote.maker import Maker

        self._maker = Maker(payload, role)

    def hello(self) -> Hello:
        """Say what it is."""
        return self._maker.hello()

    def ping(self) -> None:
        """Give a sign of life, in a thread of its own."""

    def make(self, order: Order) -> Made:
        """Make a batch."""
        return self._maker.make(order)
