"""The ``memory_budget`` option: what the arena's slots take of it, and how much is left for tasks.

The arena (`memory/arena.py`) asks before it takes a slot and before it gives out a batch; the pool
asks, through the arena, how many more tasks may be sent. Sizes are known only once batches are
made: a task in flight counts as much as the largest recent batch (`memory/size_forecast.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lit_loader.memory.leases import Leases
from lit_loader.memory.size_forecast import Forecast
from lit_loader.memory.slots import FreeSlots, Slot, memory_of

__all__ = ["MemoryBudget"]


class MemoryBudget:
    """Adds up the memory behind all slots and compares it with the budget.

    Args:
        limit: Bytes of real memory to stay within, None for no limit.
        forecast: How large a batch is expected to be.
        free: Slots that nothing uses.
        leases: Slots that the consumer's batches look into.
        parked: Slots given back while a forked process still needs their content.
        slots: Number of all slots.

    Attributes:
        slots: Number of all slots; the arena counts those that it adds.
    """

    def __init__(
        self,
        limit: int | None,
        forecast: Forecast,
        free: FreeSlots,
        leases: Leases,
        parked: Sequence[Slot],
        slots: int,
    ) -> None:
        self.slots = slots
        self._limit = sys.maxsize if limit is None else limit
        self._forecast = forecast
        self._free = free
        self._leases = leases
        self._parked = parked
        self._too_large = 0  # bytes of a batch larger than the budget; -1: it was warned of

    @property
    def resident(self) -> int:
        """Bytes of real memory, at most; slots in flight count as the largest recent batch."""
        return self.kept() + self.in_flight * self._forecast.expected + memory_of(self._free.warm)

    @property
    def in_flight(self) -> int:
        """Slots that are neither free nor kept: those of tasks that are being worked on."""
        return max(0, self.slots - len(self._free) - len(self._parked) - len(self._leases))

    def kept(self) -> int:
        """Bytes that can neither be given back nor used: of batches held, here or in a fork."""
        return memory_of([*(reference.slot for reference in self._leases), *self._parked])

    def room(self, undelivered: int) -> int:
        """How many more tasks may be sent now; to be asked before each of them.

        Until the first batch is in, one at a time; and always one where no task is in flight, so
        that the consumer never waits in vain.

        Args:
            undelivered: Tasks sent whose batches the consumer has not been given. Those that came
                in and wait (for their turn; in page-locked memory) count like those in flight.
        """
        if self._limit == sys.maxsize:
            return sys.maxsize
        least = 0 if undelivered else 1
        expected = self._forecast.expected
        if not expected:
            return least
        if expected > self._limit and self._too_large == 0:
            self._too_large = expected
        fitting = (self._limit - self.kept()) // expected
        return max(least, fitting - max(undelivered, self.in_flight))

    def overrun(self) -> str | None:
        """A warning, once, if a single batch is larger than the budget; None: nothing to say."""
        if self._too_large <= 0:
            return None
        nbytes, self._too_large = self._too_large, -1
        return (
            f"a batch of {nbytes} bytes is larger than memory_budget={self._limit}: batches are "
            "made one at a time and the budget is exceeded; raise memory_budget or make the "
            "batches smaller"
        )

    def crowded(self) -> bool:
        """Whether the slots in the consumer's hands leave too little to the workers."""
        return self.kept() > min(self._limit // 2, self._limit - self._forecast.expected)

    def affordable_free_slots(self) -> int:
        """How many free slots, those used last, can keep their memory within the budget."""
        left = self._limit - self.kept() - self.in_flight * self._forecast.expected
        affordable = 0
        for slot in reversed(self._free.warm[:]):
            left -= slot.touched
            if left < 0:
                break
            affordable += 1
        return affordable
