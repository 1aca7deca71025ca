"""The ``memory_budget`` option: what the arena's slots take of it, and how much is left for tasks.

The arena (`memory/arena.py`) asks before it takes a slot and before it gives out a batch; the pool
asks, through the arena, how many more tasks may be sent. Sizes are known only once batches are
made: a task in flight counts as much as the largest recent batch (`Forecast`).
"""

from __future__ import annotations

import sys

from lit_loader.memory.leases import Leases
from lit_loader.memory.slots import FreeSlots, memory_of

__all__ = ["Forecast", "MemoryBudget"]


class Forecast:
    """Expects batches no larger than the largest of this epoch and the one before.

    Nothing here is locked: two threads at once may make a forecast too small by one batch, until
    the next one is seen.

    Args:
        least: Bytes that a slot may keep in any case.
        slack: How many times the expected size a slot may keep.

    Attributes:
        largest: Bytes of the largest batch in this epoch.
        ever: Bytes of the largest batch of all, at least ``least``.
        expected: Bytes that a batch is expected to take at most; 0: none has been seen yet.
        excess: A slot with more memory than this gives back what it has beyond ``expected``.
    """

    def __init__(self, least: int, slack: int) -> None:
        self._least, self._slack = least, slack
        self.largest = self.expected = 0
        self.ever = least
        self.excess = sys.maxsize

    def see(self, nbytes: int) -> None:
        """Take note of a batch that is larger than ``largest``."""
        self.largest = nbytes
        self.ever = max(self.ever, nbytes)
        self._expect(max(nbytes, self.expected))

    def begin_epoch(self) -> None:
        """Forget the epoch before the one that ends."""
        if self.largest:
            self._expect(self.largest)
            self.largest = 0

    def _expect(self, nbytes: int) -> None:
        self.expected, self.excess = nbytes, max(self._slack * nbytes, self._least)


class MemoryBudget:
    """Adds up the memory behind all slots and compares it with the budget.

    Args:
        limit: Bytes of real memory to stay within, None for no limit.
        forecast: How large a batch is expected to be.
        free: Slots that nothing uses.
        leases: Slots that the consumer's batches look into.
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
        slots: int,
    ) -> None:
        self.slots = slots
        self._limit = sys.maxsize if limit is None else limit
        self._forecast = forecast
        self._free = free
        self._leases = leases
        self._too_large = 0  # bytes of a batch larger than the budget; -1: it was warned of

    @property
    def resident(self) -> int:
        """Bytes of real memory, at most; slots in flight count as the largest recent batch."""
        return self.kept() + self.in_flight * self._forecast.expected + memory_of(self._free.warm)

    @property
    def in_flight(self) -> int:
        """Slots that are neither free nor kept: those of tasks that are being worked on."""
        return max(0, self.slots - len(self._free) - len(self._leases))

    def kept(self) -> int:
        """Bytes that can neither be given back nor used: of batches held, here or in a fork."""
        return memory_of([reference.slot for reference in self._leases])

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
