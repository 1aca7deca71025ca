"""How much memory the next batch is expected to take: at most what recent ones took.

The arena (`memory/arena.py`) reports every batch to a `Forecast`, and asks it how much memory a
slot may keep; the budget (`memory/memory_budget.py`), how much a task in flight will take.
"""

from __future__ import annotations

import sys
from typing import Final

__all__ = ["WINDOW", "Forecast"]

WINDOW: Final = 128
"""Tasks in a window; what was not needed during one is taken to be needed no more. As many as the
batches that a consumer may hold: if it gathers some and drops them all, a window sees it whole."""


class Forecast:
    """Expects batches no larger than the largest of this window of tasks and the one before.

    Nothing here is locked: two threads at once may make a forecast too small by one batch, until
    the next one is seen.

    Args:
        least: Bytes that a slot may keep in any case.
        slack: How many times the expected size a slot may keep.

    Attributes:
        largest: Bytes of the largest batch in this window.
        ever: Bytes of the largest batch of all, at least ``least``.
        expected: Bytes that a batch is expected to take at most; 0: none has been seen yet.
        excess: A slot with more memory than this gives back what it has beyond ``expected``.
    """

    def __init__(self, least: int, slack: int) -> None:
        self._least = least
        self._slack = slack
        self._left = WINDOW
        self._before = 0
        self.largest = 0
        self.ever = least
        self.expected = 0
        self.excess = sys.maxsize

    def tick(self) -> bool:
        """Count a task; returns whether a new window begins with it."""
        self._left -= 1
        if self._left > 0:
            return False
        self._left = WINDOW
        self._before, self.largest = self.largest, 0
        self._judge()
        return True

    def see(self, nbytes: int) -> None:
        """Take note of a batch that is larger than ``largest``."""
        self.largest = nbytes
        self.ever = max(self.ever, nbytes)
        self._judge()

    def _judge(self) -> None:
        self.expected = max(self.largest, self._before)
        # Without a batch there is nothing to judge by.
        self.excess = (
            max(self._slack * self.expected, self._least) if self.expected else sys.maxsize
        )
