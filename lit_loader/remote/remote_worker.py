"""`RemoteWorker`: what an actor is an instance of.

It is a `Maker`, that is imported where it works: the relay, which only names it, need not have
torch in its memory.
"""

from __future__ import annotations

import threading
from typing import Final

from numpy import uint8
from numpy.typing import NDArray

from lit_loader.remote.engine import Hello, Made, Order, Role

__all__ = ["RemoteWorker"]

_SMALL: Final = 64 << 10
"""Bytes of a batch that goes with the answer, and not through object stores."""


class RemoteWorker:
    """A remote worker's process.

    Args:
        payload: The dataset and functions, pickled.
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

    def stay(self) -> None:
        """Never return, in a thread of its own: who waits for it is told when the process ends."""
        threading.Event().wait()

    def make(self, order: bytes) -> Made | bytes:
        """Make a batch; a small one is packed, and a large one travels as it lies in memory."""
        made = self._maker.make(Order.unpack(order))
        return made.pack() if made.content.size <= _SMALL else made
