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
- Where many batches are held, the next ones are copied out, tensor by tensor.
- Memory of a past peak goes back to the system at an epoch's end: of slots beyond those that tasks
  need, and what a slot has beyond twice the largest batch of late, when it is used next.
- Under a budget (the memory_budget option), free slots give their memory back first; then batches
  are copied out; and :meth:`Arena.room` says how many more tasks may be in flight. Sizes are known
  only once batches are made: a task in flight counts as much as the largest batch of this epoch and
  the one before.

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
import weakref
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from lit_loader.errors import LoaderError
from lit_loader.system import fork_guard
from lit_loader.system.shared_file import (
    SharedFile,
    address_space_left,
    map_part,
    remedy,
    round_up,
)

__all__ = [
    "Arena",
    "ArenaMap",
    "DIVIDED",
    "HELD_SLOTS",
    "Lease",
    "LeaseRef",
    "Pieces",
    "Slot",
    "Stretch",
    "copied",
    "divided",
    "over",
]

# --- slots: the stretches of an arena, in use, held by a batch, or free ---


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


def _memory_of(slots: Iterable[Slot]) -> int:
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


# --- leases: what a batch in the consumer's hands holds of its slot ---

# It dies with the last that looks into the slot, and so gives it back.


class Lease(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of a slot while a batch that was given out looks into them.

    NumPy shortens chains of views: a view refers to the last array before the owner of the memory
    if types allow. An instance of a subclass that lies directly over the mapping (over no other
    array) always stays in the chain, and so lives as long as any view or tensor made of it. Its
    death is what gives the slot back.
    """

    reference: LeaseRef


class LeaseRef(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to a lease that knows the slot which the lease's death gives back.

    Attributes:
        slot: The slot.
        forks: `fork_guard.user_forks` when its batch was given to the consumer.
    """

    __slots__ = ("forks", "slot")
    forks: int
    slot: Slot

    # By identity: an ndarray has no hash that the reference could borrow.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


# --- how a batch is handed to the consumer ---

#     the first batches held   slot │ labels │ images ............................ │ descriptor │
#                                     copied   as they lie
#     those beyond             each tensor copied, and the slot is free at once
#
# A batch that is given out looks into its slot, and holds it as long as anything of it lives. So
# its few small parts are copied: a consumer that collects the labels of an epoch holds no slot.
# Large parts are not copied, until so many batches are held that it is plain that the consumer
# collects: from then on all are, each for itself, and what it drops of one is free.
#
# A part is a *stretch* of the slot: what one tensor or array lies in, or several that overlap.


Bytes = npt.NDArray[np.uint8]

Stretch = tuple[int, int]
"""First byte in the slot, and the byte behind the last."""

DIVIDED: Final = 64 << 10
"""Bytes; the labels of a smaller batch lie in its slot, as a copy costs more than such slots."""

_COPIES: Final = 16
"""Small parts that are copied, at most."""

_SHARE: Final = 16
"""What is copied is at most one part in so many of the batch."""


class Pieces:
    """Where the parts of a batch lie for its consumer."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._pieces: list[tuple[Bytes, int]] = []

    def add(self, start: int, memory: Bytes, first: int) -> None:
        """Note where a part lies; in the order of the slot.

        Args:
            start: Its first byte in the slot.
            memory: What it lies in.
            first: The byte of the slot with which ``memory`` begins.
        """
        self._starts.append(start)
        self._pieces.append((memory, first))

    def at(self, byte: int) -> tuple[Bytes, int]:
        """Return what holds this byte of the slot, and the byte with which that begins."""
        return self._pieces[bisect_right(self._starts, byte) - 1]


def over(memory: Bytes | memoryview) -> Bytes:
    """Return an array over all of ``memory`` that views of it refer to.

    NumPy replaces the base of an array by the base's base as long as those are arrays, so that a
    view would keep the mapping alive and not ``memory``. A memoryview as the base ends the chain.

    Nothing here may export the memoryview's buffer for longer than a call (a PickleBuffer would):
    an exception at any moment may leave both in a cycle, of which CPython's collector would tear
    the memoryview down first and the process with it. NumPy exports a memoryview only to look at
    it, and keeps another one on the same memory.
    """
    return np.frombuffer(memory if isinstance(memory, memoryview) else memory.data, np.uint8)


def copied(memory: Bytes, stretches: Iterable[Stretch]) -> Pieces:
    """Copy every part into memory of its own.

    Args:
        memory: The slot.
        stretches: Of the batch, in the order of the slot.
    """
    pieces = Pieces()
    for start, end in stretches:
        pieces.add(start, np.array(memory[start:end]), start)
    return pieces


def divided(memory: Bytes, stretches: Iterable[Stretch]) -> Pieces | None:
    """Copy a few small parts, and leave the rest where it is.

    Args:
        memory: The slot.
        stretches: Of the batch, in the order of the slot.

    Returns:
        Where the parts lie; None: all where they are.
    """
    if memory.size < DIVIDED:
        return None
    pieces, whole = Pieces(), over(memory)
    copies, spare = _COPIES, memory.size // _SHARE
    for start, end in stretches:
        nbytes = end - start
        if copies and nbytes <= spare:
            pieces.add(start, np.array(memory[start:end]), start)
            copies, spare = copies - 1, spare - nbytes
        else:
            pieces.add(start, whole, 0)
    return None if copies == _COPIES else pieces


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
        budget: Bytes of real memory to stay within, None for no limit.

    Attributes:
        slots: Number of all slots.
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
        self._limit = sys.maxsize if budget is None else budget
        self._too_large = 0  # bytes of a batch larger than the budget; -1: it was warned of
        self._appending = threading.Lock()
        self._is_finalizing = sys.is_finalizing
        self._closed = False
        self._leases: set[LeaseRef] = set()
        self._given: set[LeaseRef] = set()  # of batches that the consumer has; others wait
        offsets = range(self.mapped - capacity, start - 1, -capacity)
        self.slots = len(offsets)
        self._free = FreeSlots(
            [Slot(self._map, offset, offset, capacity) for offset in offsets], self._file.sparse
        )
        self._largest = 0  # bytes of the largest batch in this epoch
        self._ever = _SMALLEST_SLOT  # and of all
        self._expected = 0  # bytes that a batch takes at most; 0: none has been seen yet
        self._excess = sys.maxsize  # a slot with more gives back what it has beyond that

    def _expect(self, nbytes: int) -> None:
        # Under a budget, what a slot keeps beyond what is expected is taken from the others.
        most = nbytes if self._budgeted else 2 * nbytes
        self._expected, self._excess = nbytes, max(most, _SMALLEST_SLOT)

    def acquire(self, capacity: int = 0) -> Slot:
        """Take a free slot of at least ``capacity`` bytes, or make one.

        Args:
            capacity: Bytes that are certainly going to be written, if more than none.

        Raises:
            LoaderError: The memory for a new one cannot be had; names the size and the limit.
        """
        slot = self._free.pop(capacity) or self._append(capacity)
        if slot.touched > self._excess and slot.touched > 2 * capacity and self._file.sparse:
            slot.punch(max(self._expected, round_up(capacity)))
        if self._budgeted and slot.touched < self._expected:
            self._trim(self._affordable_free_slots())
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
            self.slots += 1
        return Slot(mapping, 0, offset, capacity)

    def release(self, slot: Slot, used: bool = True) -> None:
        """Put a slot back that was acquired and is not leased.

        Args:
            slot: The slot.
            used: Whether ``slot.touched`` is known; else it is taken to be as full as any was.
        """
        if not used:
            slot.touched = min(slot.capacity, max(slot.touched, self._ever))
        self._free.warm.append(slot)
        if self._closed:
            self._trim(0)

    def lease(self, slot: Slot, nbytes: int) -> Lease:
        """Lend a slot's first ``nbytes`` bytes; it is free again when their last view is gone."""
        if nbytes > slot.touched:
            slot.touched = round_up(nbytes)
        if nbytes > self._largest:
            self._largest = largest = round_up(nbytes)
            self._ever = max(self._ever, largest)
            self._expect(max(largest, self._expected))
        lease: Lease = Lease((nbytes,), np.uint8, *slot.place)
        reference = lease.reference = LeaseRef(lease, self._returned)
        reference.slot = slot  # last: a signal handler may raise here, and the lease dies at once
        self._leases.add(reference)
        return lease

    def _returned(self, reference: LeaseRef) -> None:
        """Take a slot back whose lease is dead; in any thread, wherever the last view dies."""
        if self._is_finalizing():
            return  # of all memory the process is about to let go, and modules are empty already
        if getattr(reference, "slot", None) is None:
            return
        if reference in self._given:
            if reference.forks != fork_guard.user_forks:
                return  # the program has forked since, and the child looks into it
            self._given.discard(reference)
        self._leases.discard(reference)
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
        lease.reference.forks = fork_guard.user_forks
        self._given.add(lease.reference)
        held = len(self._given)
        if held <= _HELD_WHOLE and lease.size < DIVIDED and not self._budgeted:
            return None  # as it lies, and nothing is so large that it would pay to divide it
        if (
            held > self._held
            or (held > _HELD_WHOLE and len(stretches) > 1)
            or (self._budgeted and self._crowded())
        ):
            return copied(lease, stretches)
        return divided(lease, stretches)

    @property
    def leased(self) -> int:
        """Slots that batches in the consumer's hands look into."""
        return len(self._leases)

    # --- the memory_budget option: what slots take of it, how much is left for tasks ---

    @property
    def resident(self) -> int:
        """Bytes of real memory, at most; slots in flight count as the largest recent batch."""
        return self.kept + self.in_flight * self._expected + _memory_of(self._free.warm)

    @property
    def in_flight(self) -> int:
        """Slots that are neither free nor kept: those of tasks that are being worked on."""
        return max(0, self.slots - len(self._free) - len(self._leases))

    @property
    def kept(self) -> int:
        """Bytes that can neither be given back nor used: of batches held, here or in a fork."""
        return _memory_of([reference.slot for reference in list(self._leases)])

    def room(self, undelivered: int) -> int:
        """How many more tasks may be sent now; to be asked before each of them.

        Until the first batch is in, one at a time; and always one where no task is in flight, so
        that the consumer never waits in vain.

        Args:
            undelivered: Tasks sent whose batches the consumer has not been given. Those that came
                in and wait (for their turn; in page-locked memory) count like those in flight.
        """
        if not self._budgeted:
            return sys.maxsize
        least, expected = 0 if undelivered else 1, self._expected
        if not expected:
            return least
        if expected > self._limit and self._too_large == 0:
            self._too_large = expected
        fitting = (self._limit - self.kept) // expected
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

    def _crowded(self) -> bool:
        """Whether the slots in the consumer's hands leave too little to the workers."""
        return self.kept > min(self._limit // 2, self._limit - self._expected)

    def _affordable_free_slots(self) -> int:
        """How many free slots, those used last, can keep their memory within the budget."""
        left = self._limit - self.kept - self.in_flight * self._expected
        affordable = 0
        for slot in reversed(self._free.warm[:]):
            left -= slot.touched
            if left < 0:
                break
            affordable += 1
        return affordable

    # --- giving memory back ---

    def trim(self, keep: int) -> None:
        """Give memory back to the system that a new epoch will not need.

        Args:
            keep: Free slots that keep theirs, those used last.
        """
        if self._largest:
            self._expect(self._largest)  # and no more what the epoch before that had
            self._largest = 0
        self._trim(keep, self._excess)

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
