"""`StateMeter`: when a stream's state is due."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_SHARE: Final = 1 / 32
"""Part of the time of making batches that may be spent on states."""


class StateMeter:
    """Says when a stream's state is due: as often as it can be afforded.

    A resume makes the batches since the last state again, so it takes as long as about thirty
    states do. ``made`` are nanoseconds of making batches since then, by ``clock``.
    """

    clock: Callable[[], int] = time.monotonic_ns

    def __init__(self) -> None:
        self.made = 0
        # Nanoseconds of the last two: the machine may have been at something else during one.
        self._costs = 0, 0

    @property
    def due(self) -> bool:
        """Whether the state is to be taken before the next batch."""
        return self.made * _SHARE >= min(self._costs)

    def taken(self, nanoseconds: int) -> None:
        """Note that it was taken, and how long that took."""
        self._costs, self.made = (self._costs[1], nanoseconds), 0
