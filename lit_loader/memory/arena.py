"""The shared memory that batches travel in: one file, mapped once by every process.

::

    file   ┌───────┬────────┬────────┬───── … ─────┬─────────────┐
           │ board │ slot 0 │ slot 1 │             │ large slots │  appended on demand
           └───────┴────────┴────────┴───── … ─────┴─────────────┘

    slots   cold ─▶ in flight ─▶ leased ─▶ free ─▶ in flight ─▶ …
             ▲  (acquire)   (lease)  (dies)  │
             └──── its memory given back ────┘

- The parent alone creates, lends and takes back slots (:class:`Arena`). Free slots are kept as a
  stack, so that a slot whose pages are warm is used before one that was never touched.
- Workers map the same file (:class:`ArenaMap`) and write only where a task sends them.
- A batch that is given to the consumer holds its slot through a :class:`Lease`: the slot returns
  to the stack when the last tensor that looks into it dies. That is the only way back. One that
  was out when the program forked stays out: the child looks into it, too.
- Where many batches are held, the next ones are copied out, tensor by tensor
  (`memory/held_tensors.py`).
- Memory of a past peak goes back to the system at an epoch's end: of slots beyond those that tasks
  need, and what a slot has beyond twice the largest batch of late, when it is used next.
- Under a budget (`memory/memory_budget.py`), free slots give their memory back first; then batches
  are copied out; and :meth:`Arena.room` says how many more tasks may be in flight.

The file (`system/shared_file.py`) is a memfd where there is one: pages that
were never touched cost nothing, so slots are made far larger than any batch and their size needs no
guessing. Where it is a file on a disk, slots are small and all of their blocks are allocated.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lit_loader.errors import LoaderError
from lit_loader.memory.held_tensors import DIVIDED, Pieces, Stretch, copied, divided
from lit_loader.memory.leases import Lease, LeaseRef, Leases
from lit_loader.memory.memory_budget import Forecast, MemoryBudget
from lit_loader.memory.slots import FreeSlots, Slot
from lit_loader.system.shared_file import (
    SharedFile,
    address_space_left,
    map_part,
    remedy,
    round_up,
)

__all__ = ["HELD_SLOTS", "Arena", "ArenaMap", "Lease", "Slot"]

HELD_SLOTS: Final = 128
"""Batches that a consumer may hold in slots; what it holds beyond them is copied out."""

_HELD_WHOLE: Final = 16
"""The same for batches of several tensors, of which it may keep one alone: that would hold the
memory of all. Those who collect batches pay a copy; a queue of some batches does not."""

_LARGEST_SLOT: Final = 4 << 30
"""Bytes of virtual memory a slot where nothing limits it (128 slots: half a TiB, untouched)."""

_LARGEST_MAP: Final = 4 << 40
"""Bytes of virtual memory that all slots take at first. A process has 128 TiB on most machines, and
a forked worker has the parent's mapping besides its own."""

_SMALLEST_SLOT: Final = 64 << 10
"""Bytes; room for any exception's message and for a few thousand indices."""

_DISK_SLOT: Final = 1 << 20
"""Bytes a slot where the arena is an ordinary file, every block of it allocated."""

_ADDRESS_SPACE_SHARE: Final = 8
"""The first mapping takes at most one part in eight of what ``RLIMIT_AS`` leaves."""


def _reserve(start: int, slots: int, slot_bytes: int | None) -> tuple[SharedFile, mmap.mmap, int]:
    """Make the file, and map ``slots`` slots of the largest size to be had behind ``start``.

    Returns:
        The file, its mapping, the bytes of a slot.

    Raises:
        LoaderError: Not even the smallest slots are to be had; names the limit.
    """
    try:
        file = SharedFile()
    except OSError as error:
        raise LoaderError(f"no shared memory for the loader ({error}); {remedy(error)}") from error
    if slot_bytes is None:
        slot_bytes = min(_LARGEST_SLOT, _LARGEST_MAP // slots) if file.sparse else _DISK_SLOT
        left = address_space_left()
        if left is not None:
            slot_bytes = min(slot_bytes, left // _ADDRESS_SPACE_SHARE // slots)
    capacity = max(_SMALLEST_SLOT, round_up(slot_bytes))
    while True:
        try:
            file.extend(start + slots * capacity)
            return file, mmap.mmap(file.fd, file.end), capacity
        except (OSError, ValueError, OverflowError) as error:
            file.cut(0)
            if capacity == _SMALLEST_SLOT:
                file.close()
                raise LoaderError(
                    f"no shared memory for the loader: mapping {slots} parts of {capacity} "
                    f"bytes each failed ({error}); {remedy(error)}, or lower num_workers or "
                    "prefetch_factor"
                ) from error
            capacity = max(_SMALLEST_SLOT, round_up(capacity // 2))


class Arena:
    """The parent's side: owns the file, lends the slots.

    Safe to use from several threads: of the lists of slots only atomic operations are used, and a
    lease may die in any thread. What is counted without a lock (the largest batch) may be off for a
    moment, and decides of nothing but when memory is given back or copied.
    Only the end of the file has a lock, which nothing that the garbage collector may run takes.

    Args:
        board_bytes: Bytes reserved at the start of the file for the status board.
        in_flight: Slots needed for tasks in flight, besides those that a consumer may hold.
        held: Slots that a consumer may hold.
        slot_bytes: Bytes a slot; None takes as much as costs nothing.
        budget: Bytes of real memory to stay within, None for no limit. Sizes are known only once
            batches are made: those in flight count as much as the largest recent one.

    Attributes:
        fd: Descriptor of the file, for the workers.
        mapped: Bytes of the first mapping (board and equal slots).
        board: The bytes of the status board.
    """

    def __init__(
        self,
        board_bytes: int,
        in_flight: int,
        held: int = HELD_SLOTS,
        slot_bytes: int | None = None,
        budget: int | None = None,
    ) -> None:
        self._pid = os.getpid()
        start = round_up(board_bytes)
        self._file, self._map, capacity = _reserve(start, in_flight + held, slot_bytes)
        self._slot_bytes = capacity
        self.fd = self._file.fd
        self.mapped = len(self._map)
        self.board = memoryview(self._map)[:board_bytes]
        self._held = held
        self._budgeted = budget is not None
        self._appending = threading.Lock()
        self._is_finalizing = sys.is_finalizing
        self._closed = False
        self._leases = Leases()
        offsets = range(self.mapped - capacity, start - 1, -capacity)
        self._free = FreeSlots(
            [Slot(self._map, offset, offset, capacity) for offset in offsets], self._file.sparse
        )
        # Under a budget, what a slot keeps beyond what is expected is taken from the others.
        self._forecast = Forecast(_SMALLEST_SLOT, slack=1 if self._budgeted else 2)
        self._budget = MemoryBudget(budget, self._forecast, self._free, self._leases, len(offsets))

    def acquire(self, capacity: int = 0) -> Slot:
        """Take a free slot of at least ``capacity`` bytes, or make one.

        Args:
            capacity: Bytes that are certainly going to be written, if more than none.

        Raises:
            LoaderError: The memory for a new one cannot be had; names the size and the limit.
        """
        forecast = self._forecast
        slot = self._free.pop(capacity) or self._append(capacity)
        if slot.touched > forecast.excess and slot.touched > 2 * capacity and self._file.sparse:
            slot.punch(max(forecast.expected, round_up(capacity)))
        if self._budgeted and slot.touched < forecast.expected:
            self._trim(self._budget.affordable_free_slots())
        if capacity > slot.touched:
            slot.touched = round_up(capacity)
        return slot

    def _append(self, capacity: int) -> Slot:
        """Add one slot at the end of the file.

        It is as large as those at the beginning, if it can be and that is enough: more tasks may be
        in flight by now. Else its size is one of four between a power of two and the next: batches
        that grow little by little need few slots.
        """
        step = 1 << max(capacity.bit_length() - 3, 0)
        least = round_up(max(-(-capacity // step) * step, _SMALLEST_SLOT))
        capacity = max(least, self._slot_bytes)
        with self._appending:  # the consumer submits while the pin-memory thread grants
            offset = self._file.end
            while True:
                try:
                    self._file.extend(capacity)
                    mapping = map_part(self.fd, offset, capacity)
                    break
                except (OSError, ValueError, OverflowError) as error:
                    self._file.cut(offset)
                    if capacity > least:
                        capacity = max(least, round_up(capacity // 2))
                        continue
                    raise LoaderError(
                        f"a batch needs {capacity} bytes of shared memory, which cannot be had "
                        f"({error}); {remedy(error)}, or make the batches smaller"
                    ) from error
            self._budget.slots += 1
        return Slot(mapping, 0, offset, capacity)

    def release(self, slot: Slot, used: bool = True) -> None:
        """Put a slot back that was acquired and is not leased.

        Args:
            slot: The slot.
            used: Whether ``slot.touched`` is known; else it is taken to be as full as any was.
        """
        if not used:
            slot.touched = min(slot.capacity, max(slot.touched, self._forecast.ever))
        self._free.warm.append(slot)
        if self._closed:
            self._trim(0)

    def lease(self, slot: Slot, nbytes: int) -> Lease:
        """Lend a slot's first ``nbytes`` bytes; it is free again when their last view is gone."""
        if nbytes > slot.touched:
            slot.touched = round_up(nbytes)
        if nbytes > self._forecast.largest:
            self._forecast.see(round_up(nbytes))
        return self._leases.lend(slot, nbytes, self._returned)

    def _returned(self, reference: LeaseRef) -> None:
        if self._is_finalizing():
            return  # of all memory the process is about to let go, and modules are empty already
        if self._leases.forget(reference):
            self.release(reference.slot)

    def divide(self, lease: Lease, stretches: list[Stretch]) -> Pieces | None:
        """Say how the consumer is to hold a batch that it is given now.

        Args:
            lease: What the batch lies in.
            stretches: Where its parts lie in there.

        Returns:
            Where they are to lie; None: where they do. Where the consumer holds many slots already,
            or too much of the budget, they are copies, so that a kept batch never stops the loader.
        """
        self._leases.give(lease)
        held = len(self._leases.given)
        if held <= _HELD_WHOLE and lease.size < DIVIDED and not self._budgeted:
            return None  # as it lies, and nothing is so large that it would pay to divide it
        if (
            held > self._held
            or (held > _HELD_WHOLE and len(stretches) > 1)
            or (self._budgeted and self._budget.crowded())
        ):
            return copied(lease, stretches)
        return divided(lease, stretches)

    @property
    def leased(self) -> int:
        """Slots that batches in the consumer's hands look into."""
        return len(self._leases)

    @property
    def resident(self) -> int:
        """Bytes of real memory, at most; slots in flight count as the largest recent batch."""
        return self._budget.resident

    def room(self, undelivered: int) -> int:
        """How many more tasks the budget allows to be sent now; see `MemoryBudget.room`."""
        return self._budget.room(undelivered)

    def overrun(self) -> str | None:
        """A warning, once, if a single batch is larger than the budget; None: nothing to say."""
        return self._budget.overrun()

    def trim(self, keep: int) -> None:
        """Give memory back to the system that a new epoch will not need.

        Args:
            keep: Free slots that keep theirs, those used last.
        """
        self._forecast.begin_epoch()
        self._trim(keep, self._forecast.excess)

    def _trim(self, keep: int, most: int = sys.maxsize) -> None:
        if os.getpid() == self._pid:  # a forked copy would take the memory from its parent
            self._free.trim(keep, most)

    def close(self) -> None:
        """Close the descriptor and give all memory back that no batch looks into.

        Batches given out stay whole; the last of them takes the mapping along. The memory is given
        back by name, because a process forked meanwhile may have inherited the mapping.
        """
        if self._closed:
            return
        self._closed = True
        with contextlib.ExitStack() as steps:  # each is taken, the last one first
            steps.callback(self._file.close)
            steps.callback(self.board.release)
            steps.callback(self._trim, 0)


class ArenaMap:
    """A worker's side: the same file, mapped as far as tasks need it.

    Args:
        fd: Descriptor of the arena's file.
        mapped: Bytes to map at once, as in :class:`Arena`.
        board_bytes: Bytes of the status board.
    """

    def __init__(self, fd: int, mapped: int, board_bytes: int) -> None:
        self._fd = fd
        self._map = mmap.mmap(fd, mapped)
        self._slots: dict[int, NDArray[np.uint8]] = {}
        self.board = memoryview(self._map)[:board_bytes]

    def memory(self, offset: int, capacity: int) -> NDArray[np.uint8]:
        """The bytes of a slot, shape ``(capacity,)``, uint8.

        Raises:
            LoaderError: It was made on demand, and this process has no room for it.
        """
        memory = self._slots.get(offset)
        if memory is None:
            if offset < len(self._map):
                memory = np.frombuffer(self._map, np.uint8, capacity, offset)
            else:
                memory = np.frombuffer(self._mapped_on_demand(offset, capacity), np.uint8)
            self._slots[offset] = memory
        return memory

    def _mapped_on_demand(self, offset: int, capacity: int) -> mmap.mmap:
        try:
            return map_part(self._fd, offset, capacity)
        except OSError as error:
            raise LoaderError(
                f"a worker cannot map the {capacity} bytes of shared memory that a batch needs "
                f"({error}); {remedy(error)}, or make the batches smaller"
            ) from error
