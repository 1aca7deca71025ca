"""The shared memory that batches travel in: one file, mapped once by every process.

::

    file   ┌───────┬────────┬────────┬───── … ─────┬─────────────┐
           │ board │ slot 0 │ slot 1 │             │ large slots │  appended on demand
           └───────┴────────┴────────┴───── … ─────┴─────────────┘

    slots   cold ─▶ in flight ─▶ leased ─▶ warm ─▶ in flight ─▶ …
             ▲  (acquire)   (lease)  (dies)  │
             └──── its memory given back ────┘

- The parent alone creates, lends and takes back slots (:class:`Arena`). Free slots are kept as a
  stack, so that a slot whose pages are warm is used before one that was never touched.
- Workers map the same file (:class:`ArenaMap`) and write only where a task sends them.
- A batch that is given to the consumer holds its slot through a :class:`Lease`: the slot returns
  to the stack when the last tensor that looks into it dies. That is the only way back. One that
  was out when the program forked (`user_forks`) stays out: the child looks into it, too. Workers of
  our own never look at what the consumer holds.
- Where many batches are held, the next ones are copied out, tensor by tensor.
- Memory of a past peak goes back to the system at an epoch's end: of slots beyond those that tasks
  need, and what a slot has beyond twice the largest batch of late, when it is used next.

The file (`core/system/shared_file.py`) is a memfd where there is one: pages that
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
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from lit_loader.core.system.shared_file import (
    SharedFile,
    address_space_left,
    map_part,
    remedy,
    round_up,
)
from lit_loader.errors import LoaderError

user_forks = 0
"""Another number after each fork of the user's own."""

_unguarded: set[int] = set()
"""The threads that fork a process of our own just now; the others' forks count meanwhile."""


@contextlib.contextmanager
def unguarded_fork() -> Iterator[None]:
    """Fork a process of our own, which needs no batches of the consumer's."""
    thread = threading.get_ident()
    _unguarded.add(thread)
    try:
        yield
    finally:
        _unguarded.discard(thread)


def _count() -> None:
    global user_forks
    if threading.get_ident() not in _unguarded:
        user_forks += 1


# Both before and after: what another thread is given in between is out at the fork, too.
os.register_at_fork(before=_count, after_in_parent=_count, after_in_child=_unguarded.clear)


Bytes = npt.NDArray[np.uint8]

Stretch = tuple[int, int]
"""What a tensor or array lies in: its first byte in the slot, and the byte after the last."""

Pieces = list[tuple[int, Bytes, int]]
"""Where the parts of a batch lie for its consumer, in the order of the slot: the first byte of each
in the slot; what it lies in; the byte of the slot with which that begins."""

HELD_SLOTS: Final = 128
"""Batches that a consumer may hold in slots; what it holds beyond them is copied out."""

_HELD_WHOLE: Final = 16
"""The same for batches of several tensors, of which it may keep one alone: that would hold the
memory of all. Those who collect batches pay a copy; a queue of some batches does not."""

DIVIDED: Final = 64 << 10
"""Bytes; the labels of a smaller batch lie in its slot, as a copy costs more than such slots."""

_TOGETHER: Final = 4 << 10
"""Bytes of small parts that are copied together, at most: who keeps one of them keeps all."""

_SHARE: Final = 16
"""What is copied is at most this part of the batch: one in 16."""

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

_NO_ROOM = OSError, ValueError, OverflowError
"""What a file that cannot be made longer or mapped raises."""


class Slot:
    """A stretch of the arena that holds one batch at a time."""

    __slots__ = (
        "capacity",
        "forks",
        "mapping",
        "memory",
        "offset",
        "start",
        "touched",
        "view",
        "watch",
    )

    def __init__(self, mapping: mmap.mmap, start: int, offset: int, capacity: int) -> None:
        self.mapping, self.start = mapping, start  # in this process
        self.offset = offset  # in the arena's file
        self.capacity = capacity
        self.memory: Bytes = np.frombuffer(mapping, np.uint8, capacity, start)
        self.view = self.memory.data  # the quicker way to write a few bytes
        # Bytes from the first one on, whole pages, that may have been written since their memory
        # was given back, and so cost some.
        self.touched = 0
        self.watch: weakref.ref[Lease] | None = None  # sees its lease die
        self.forks = 0  # `user_forks` when its batch was given to the consumer

    def punch(self, keep: int = 0) -> None:
        """Free the memory after the first ``keep`` bytes (whole pages); it reads as zeros."""
        if self.touched > keep:
            self.mapping.madvise(mmap.MADV_REMOVE, self.start + keep, self.touched - keep)
            self.touched = keep


class Lease(np.ndarray[tuple[int, ...], np.dtype[np.uint8]]):
    """The bytes of a slot while a batch that was given out looks into them.

    NumPy shortens chains of views: a view refers to the last array before the owner of the memory
    if types allow. An instance of a subclass that lies directly over the mapping (over no other
    array) always stays in the chain, and so lives as long as any view or tensor made of it. Its
    death is what gives the slot back.
    """

    __slots__ = ("arena", "slot")  # a dictionary takes longer than all the rest of it

    slot: Slot
    arena: Arena  # whose the slot is; and so who says how the batch is to lie


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
    """Copy the parts of a batch, each into memory of its own."""
    return [(start, np.array(memory[start:end]), start) for start, end in stretches]


def small_copied(memory: Bytes, stretches: Iterable[Stretch]) -> Pieces | None:
    """Copy the small parts of a batch; None: there are none, and all stay where they are.

    A batch holds its slot as long as anything of it lives. So a consumer that collects the labels
    of an epoch, or the boxes, is given copies of these, and holds no slot. Those of a few bytes
    that lie side by side are copied together: that takes a third of the time of a copy each.
    """
    runs: list[tuple[int, int, bool]] = []
    spare = memory.size // _SHARE
    for start, end in stretches:
        is_small = end - start <= spare
        if is_small:
            spare -= end - start
            if runs and runs[-1][2] and end - runs[-1][0] <= _TOGETHER:
                runs[-1] = runs[-1][0], end, True
                continue
        runs.append((start, end, is_small))
    if not any([is_small for _, _, is_small in runs]):
        return None
    whole = over(memory)
    return [
        (start, np.array(memory[start:end]), start) if is_small else (start, whole, 0)
        for start, end, is_small in runs
    ]


class Arena:
    """The parent's side: owns the file, lends the slots.

    Any thread may do anything here at any time, also within the garbage collector: of lists and
    sets only operations that are atomic are used, and a slot is in one thread's hands alone while
    its memory is given back. What is counted without a lock (the largest batch) may be off for a
    moment, and decides of nothing but when memory is given back or copied. Only the end of the file
    has a lock, which nothing that the garbage collector may run takes.

    The file begins with ``board_bytes`` for the status board. There are slots for the tasks
    ``in_flight`` and for what the consumer holds. A LoaderError that names the limit, if not even
    the smallest slots are available.
    """

    def __init__(self, board_bytes: int, in_flight: int) -> None:
        self._pid = os.getpid()
        self.slots, start = in_flight + HELD_SLOTS, round_up(board_bytes)
        self._map = self._reserve(start)
        self.fd = self._file.fd
        self.mapped = len(self._map)  # the board and equal slots
        self.board = memoryview(self._map)[:board_bytes]
        self._appending = threading.Lock()
        self._is_finalizing = sys.is_finalizing
        self._closed = False
        self._leased: set[Slot] = set()
        self._given: set[Slot] = set()  # those whose batches the consumer has; others wait
        capacity = self._slot_bytes
        # Where slots are that were never used: most loaders need few, and an object takes time.
        self._unused = list(range(self.mapped - capacity, start - 1, -capacity))
        # Free slots that cost no memory, and that do; the one used last is the last.
        self._cold: list[Slot] = []
        self._warm: list[Slot] = []
        self._largest = 0  # bytes of the largest batch in this epoch
        self._ever = _SMALLEST_SLOT  # and of all
        self._expected = 0  # bytes that a batch takes at most; 0: none has been seen yet
        self._excess = sys.maxsize  # a slot with more gives back what it has beyond that

    def _reserve(self, start: int) -> mmap.mmap:
        """Make the file, and map it: slots of the largest size available, after ``start``."""
        try:
            self._file = file = SharedFile()
        except OSError as error:
            text = f"no shared memory for the loader ({error}). {remedy(error)} [LL102]"
            raise LoaderError(text) from error
        nbytes = min(_LARGEST_SLOT, _LARGEST_MAP // self.slots) if file.sparse else _DISK_SLOT
        left = address_space_left()
        if left is not None:
            nbytes = min(nbytes, left // _ADDRESS_SPACE_SHARE // self.slots)
        while True:
            self._slot_bytes = capacity = max(_SMALLEST_SLOT, round_up(nbytes))
            try:
                file.extend(start + self.slots * capacity)
                return map_part(file.fd, 0, file.end)
            except _NO_ROOM as error:
                file.cut(0)
                if capacity == _SMALLEST_SLOT:
                    file.close()
                    raise LoaderError(
                        f"no shared memory for the loader: mapping {self.slots} parts of {capacity}"
                        f" bytes each failed ({error}). {remedy(error)}, or lower num_workers or "
                        "prefetch_factor [LL102]"
                    ) from error
                nbytes = capacity // 2

    # --- lending slots ---

    def acquire(self, capacity: int = 0) -> Slot:
        """Take a free slot for ``capacity`` bytes, which will certainly be written, or make one.

        Raises:
            LoaderError: The memory for a new one cannot be had; names the size and the limit.
        """
        try:
            slot = self._warm.pop()
        except IndexError:
            slot = self._other(capacity)
        else:
            if slot.capacity < capacity:
                self._warm.append(slot)
                slot = self._other(capacity)
        if slot.touched > self._excess and slot.touched > 2 * capacity and self._file.sparse:
            slot.punch(max(self._expected, round_up(capacity)))
        if capacity > slot.touched:
            slot.touched = round_up(capacity)
        return slot

    def _other(self, capacity: int) -> Slot:
        """Take the slot that is large enough and was used last, or make one."""
        for stack in (self._warm, self._cold):
            for slot in reversed(stack[:]):
                if slot.capacity >= capacity and _take_out(stack, slot):
                    return slot
        if capacity <= self._slot_bytes:
            with contextlib.suppress(IndexError):
                offset = self._unused.pop()
                return Slot(self._map, offset, offset, self._slot_bytes)
        return self._append(capacity)

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
                except _NO_ROOM as error:
                    self._file.cut(offset)
                    if capacity == least:
                        raise LoaderError(
                            f"not enough shared memory for a batch of {capacity} bytes ({error}). "
                            f"{remedy(error)}, or make the batches smaller [LL102]"
                        ) from error
                    capacity = max(least, round_up(capacity // 2))
            self.slots += 1
        return Slot(mapping, 0, offset, capacity)

    def release(self, slot: Slot, used: bool = True) -> None:
        """Put a slot back that was acquired and is not leased.

        Unless it is known how much of it was ``used``, it is taken to be as full as any was.
        """
        if not used:
            slot.touched = min(slot.capacity, max(slot.touched, self._ever))
        self._warm.append(slot)
        if self._closed:
            self._cool(0)

    def lease(self, slot: Slot, nbytes: int) -> Lease:
        """Lend a slot's first ``nbytes`` bytes; it is free again when their last view is gone."""
        if nbytes > slot.touched:
            slot.touched = round_up(nbytes)
        if nbytes > self._largest:
            self._largest = largest = round_up(nbytes)
            self._ever = max(self._ever, largest)
            self._expect(max(largest, self._expected))
        self._leased.add(slot)
        lease: Lease = Lease((nbytes,), np.uint8, slot.mapping, slot.start)
        lease.slot, lease.arena = slot, self
        slot.watch = weakref.ref(lease, partial(self._returned, slot))
        return lease

    def _returned(self, slot: Slot, _: object) -> None:
        """Take a slot back whose lease is dead; in any thread, wherever the last view dies."""
        if self._is_finalizing():
            return  # of all memory the process is about to let go, and modules are empty already
        slot.watch = None
        if slot in self._given:
            if slot.forks != user_forks:
                return  # the program has forked since, and the child looks into it
            self._given.discard(slot)
        self._leased.discard(slot)
        self._warm.append(slot)
        if self._closed:
            self._cool(0)

    def divide(self, lease: Lease, stretches: list[Stretch]) -> Pieces | None:
        """Say where the parts of a batch that is given now are to lie; None: where they do.

        Where the consumer holds many slots already, they are copies, so that a kept batch never
        stops the loader. It is plain then that it collects batches; what it drops of one is free.
        """
        slot, given = lease.slot, self._given
        slot.forks = user_forks
        given.add(slot)
        held = len(given)
        if held > HELD_SLOTS or (held > _HELD_WHOLE and len(stretches) > 1):
            return copied(lease, stretches)
        return small_copied(lease, stretches) if lease.size >= DIVIDED else None

    # --- what it costs ---

    @property
    def resident(self) -> int:
        """Bytes of real memory, at most; slots in flight count as the largest recent batch."""
        held = [*self._leased, *self._warm]
        return self.in_flight * self._expected + sum([slot.touched for slot in held])

    @property
    def in_flight(self) -> int:
        """Slots that are neither free nor kept: those of tasks that are being worked on."""
        free = len(self._warm) + len(self._cold) + len(self._unused)
        return max(0, self.slots - free - len(self._leased))

    # --- giving memory back ---

    def _expect(self, nbytes: int) -> None:
        self._expected, self._excess = nbytes, max(2 * nbytes, _SMALLEST_SLOT)

    def trim(self, keep: int) -> None:
        """Free memory that a new epoch will not need; the ``keep`` slots used last keep theirs."""
        if self._largest:
            self._expect(self._largest)  # and no more what the epoch before that had
            self._largest = 0
        self._cool(keep, self._excess)

    def _cool(self, keep: int, most: int = sys.maxsize) -> None:
        """Free memory of free slots, except of the ``keep`` used last, within a limit."""
        if not self._file.sparse or os.getpid() != self._pid:  # a fork would take its parent's
            return
        warm = self._warm[:]
        for place, slot in enumerate(warm):
            beyond = place < len(warm) - keep or slot.touched > most
            if beyond and _take_out(self._warm, slot):
                slot.punch()
                self._cold.append(slot)

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
            steps.callback(self._cool, 0)


def _take_out(stack: list[Slot], slot: Slot) -> bool:
    """Take a free slot for oneself; False: another thread has it."""
    try:
        stack.remove(slot)
    except ValueError:
        return False
    return True


class ArenaMap:
    """A worker's side: the same file, mapped as far as tasks need it; ``mapped`` bytes at once."""

    def __init__(self, fd: int, mapped: int, board_bytes: int) -> None:
        self._fd = fd
        self._map = mmap.mmap(fd, mapped)
        self._slots: dict[int, Bytes] = {}
        self.board = memoryview(self._map)[:board_bytes]

    def memory(self, offset: int, capacity: int) -> Bytes:
        """The bytes of a slot; LoaderError: one made on demand, for which there is no room here."""
        memory = self._slots.get(offset)
        if memory is None:
            mapping, start = self._map, offset
            try:
                if offset >= len(mapping):
                    mapping, start = map_part(self._fd, offset, capacity), 0
            except OSError as error:
                raise LoaderError(
                    f"not enough shared memory in a worker for a batch of {capacity} bytes "
                    f"({error}). {remedy(error)}, or make the batches smaller [LL102]"
                ) from error
            memory = self._slots[offset] = np.frombuffer(mapping, np.uint8, capacity, start)
        return memory
