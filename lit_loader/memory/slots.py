"""The stretches of an arena, each for one batch at a time: in use, held by a batch, or free."""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

__all__ = ["FreeSlots", "Slot", "memory_of"]


class Slot:
    """A stretch of the arena that holds one batch at a time.

    Attributes:
        offset: First byte in the arena's file.
        capacity: Bytes.
        memory: The bytes, shape ``(capacity,)``, uint8, in this process's mapping.
        view: The same bytes, as the quicker way to write a few.
        touched: Bytes, from the first one on, that may have been written since their memory was
            given back, and so cost some; whole pages.
    """

    __slots__ = ("_mapping", "_start", "capacity", "memory", "offset", "touched", "view")

    def __init__(self, mapping: mmap.mmap, start: int, offset: int, capacity: int) -> None:
        self._mapping = mapping
        self._start = start
        self.offset = offset
        self.capacity = capacity
        self.memory: NDArray[np.uint8] = np.frombuffer(mapping, np.uint8, capacity, start)
        self.view = self.memory.data
        self.touched = 0

    @property
    def place(self) -> tuple[mmap.mmap, int]:
        """The mapping, and the slot's first byte in it."""
        return self._mapping, self._start

    def punch(self, keep: int = 0) -> None:
        """Give the memory behind the first ``keep`` bytes (whole pages) back to the system.

        It reads as zeros afterwards.
        """
        if self.touched > keep:
            self._mapping.madvise(mmap.MADV_REMOVE, self._start + keep, self.touched - keep)
            self.touched = keep


class FreeSlots:
    """The slots that are not in use: a stack of warm ones, and cold ones for when that is empty.

    Any thread may do anything here at any time, also within the garbage collector: of the lists
    only operations that are atomic are used, and a slot is in this thread's hands alone while its
    memory is given back.

    Args:
        slots: Slots that were never used.
        punch: Whether memory may be given back.

    Attributes:
        warm: Slots that cost memory; the one used last is the last.
        cold: Slots that cost none.
    """

    def __init__(self, slots: Iterable[Slot], punch: bool) -> None:
        self.warm: list[Slot] = []
        self.cold = list(slots)
        self._punch = punch

    def __len__(self) -> int:
        return len(self.warm) + len(self.cold)

    def pop(self, capacity: int) -> Slot | None:
        """Take the slot of at least ``capacity`` bytes that was used last; None: there is none."""
        warm = self.warm
        try:
            slot: Slot | None = warm.pop()
        except IndexError:
            slot = None
        if slot is None or slot.capacity < capacity:
            slot = _pop(warm, capacity, slot) or _pop(self.cold, capacity)
        return slot

    def trim(self, keep: int, most: int = sys.maxsize) -> None:
        """Give memory back to the system.

        Args:
            keep: So many slots, those used last, keep theirs.
            most: Unless it is more than so many bytes.
        """
        if not self._punch:
            return
        for slot in self.warm[: max(0, len(self.warm) - keep)]:
            self._cool(slot)
        for slot in self.warm[:]:
            if slot.touched > most:
                self._cool(slot)

    def _cool(self, slot: Slot) -> None:
        with contextlib.suppress(ValueError):  # another thread has taken it
            self.warm.remove(slot)
            slot.punch()
            self.cold.append(slot)


def memory_of(slots: Iterable[Slot]) -> int:
    """Bytes of real memory behind slots, at most."""
    return sum([slot.touched for slot in slots])


def _pop(stack: list[Slot], capacity: int, too_small: Slot | None = None) -> Slot | None:
    passed_over = [] if too_small is None else [too_small]
    try:
        while True:
            slot = stack.pop()
            if slot.capacity >= capacity:
                return slot
            passed_over.append(slot)
    except IndexError:
        return None
    finally:
        if passed_over:
            stack.extend(reversed(passed_over))
