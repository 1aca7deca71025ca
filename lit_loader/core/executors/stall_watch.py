"""`StallWatch`: how long the consumer waits while no worker answers, and who reports it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Protocol

LONGEST_LOOK: Final = 1.0
"""Seconds between two looks while nothing comes; one that comes later was held up itself."""

_SECOND: Final = 10
"""Times ``stall_warning`` after which a stall is reported once more."""


class Stall(Protocol):
    """A wait in which nothing has come so far (`diagnostics/stall.py`)."""

    def tell(self, workers: Any, seconds: float) -> None:
        """Warn; ``seconds`` is how long nothing has come."""


class StallWatch:
    """Adds up the seconds of a wait without an answer.

    ``begin`` is called with the workers at half of ``limit`` seconds, and what it returns reports
    the stall: at the limit, and once more later. A limit of 0: nothing is reported.
    """

    def __init__(self, limit: float, begin: Callable[[Any], Stall | None] | None) -> None:
        self.seconds = self._looked = 0.0
        self._limits = [limit, _SECOND * limit] if limit and begin is not None else []
        self._begin = begin
        self._stall: Stall | None = None
        self._answered = -1

    def look(self, workers: object, answered: int) -> None:
        """Note that nothing has come for a while, and how many answers there were before."""
        now = time.monotonic()
        if answered != self._answered:
            self._answered, self.seconds, self._stall = answered, 0.0, None
        else:
            self.seconds += min(now - self._looked, LONGEST_LOOK)  # not the time of a Ctrl-Z
        self._looked = now
        limit = self._limits[0] if self._limits else float("inf")
        if self.seconds >= limit / 2 and self._begin is not None:
            self._stall = self._stall or self._begin(workers)
            if self.seconds >= limit:
                del self._limits[0]
                if self._stall is not None:
                    self._stall.tell(workers, self.seconds)
