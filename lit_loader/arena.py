"""The shared memory that batches travel in: one file, mapped once by every process.

::

    file   ┌───────┬────────┬────────┬───── … ─────┬─────────────┐
           │ board │ slot 0 │ slot 1 │             │ large slots │  appended on demand
           └───────┴────────┴────────┴───── … ─────┴─────────────┘

- The parent alone creates, lends and takes back slots (:class:`Arena`). Free slots are kept as a
  stack, so that a slot whose pages are warm is used before one that was never touched.
- Workers map the same file (:class:`ArenaMap`) and write only where a task sends them.
- A batch that is given to the consumer holds its slot through a :class:`Lease`: the slot returns
  to the stack when the last tensor that looks into it dies. That is the only way back.

On Linux the file is a memfd: it has no name that could be left behind, no share of ``/dev/shm`` to
exhaust, one file descriptor, and pages that were never touched cost nothing. So slots are made far
larger than any batch and their size needs no guessing. Elsewhere (:func:`_create_file` is the one
place that chooses) an unlinked temporary file takes its place, with small slots whose blocks are
allocated beforehand, because a sparse file on a full disk would end the process with SIGBUS.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import tempfile
import threading
import weakref
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lit_loader.errors import LoaderError
from lit_loader.fork_guard import ForkGuard

__all__ = ["HELD_SLOTS", "Arena", "ArenaMap", "Lease", "Slot"]

HELD_SLOTS: Final = 128
"""Batches that a consumer may hold in slots; what it holds beyond them is copied out."""

_LARGEST_SLOT: Final = 4 << 30
"""Bytes of virtual memory a slot where nothing limits it (128 slots: half a TiB, untouched)."""

_SMALLEST_SLOT: Final = 64 << 10
"""Bytes; room for any failure message and for a few thousand indices."""

_DISK_SLOT: Final = 1 << 20
"""Bytes a slot where the arena is an ordinary file, every block of it allocated."""

_ADDRESS_SPACE_SHARE: Final = 8
"""The first mapping takes at most one part in eight of what ``RLIMIT_AS`` leaves."""


def _round_up(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


def _create_file() -> tuple[int, bool]:
    """Open the nameless file behind an arena; returns (descriptor, whether it is sparse memory)."""
    if hasattr(os, "memfd_create"):
        try:
            return os.memfd_create("lit_loader", os.MFD_CLOEXEC), True
        except OSError:
            pass  # a kernel or a sandbox without it
    with tempfile.TemporaryFile(prefix="lit_loader-") as file:
        return os.dup(file.fileno()), False


def _allocate(fd: int, offset: int, nbytes: int) -> None:
    """Give ``nbytes`` of an ordinary file real blocks, so that writing there cannot fail later."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, offset, nbytes)
        return
    zeros = bytes(1 << 20)
    for start in range(offset, offset + nbytes, len(zeros)):
        os.pwrite(fd, zeros[: offset + nbytes - start], start)


def _address_space_left() -> int | None:
    """Bytes that ``RLIMIT_AS`` still allows to be mapped, or None where nothing limits it."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        with open("/proc/self/statm") as statm:
            return max(0, limit - int(statm.read().split()[0]) * mmap.PAGESIZE)
    except OSError:
        return limit // 2


class Lease(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of a slot while a batch that was given out looks into them.

    NumPy shortens chains of views: a view refers to the last array before the owner of the memory
    if types allow. An instance of a subclass that lies directly over the mapping (over no other
    array) always stays in the chain, and so lives as long as any view or tensor made of it. Its
    death is what gives the slot back.
    """


class Slot:
    """A stretch of the arena that holds one batch at a time.

    Attributes:
        offset: First byte in the arena's file.
        capacity: Bytes.
        memory: The bytes, shape ``(capacity,)``, uint8, in this process's mapping.
        view: The same bytes, as the quicker way to write a few.
        touched: Upper bound of the bytes that were ever written, and so cost real memory.
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

    def over(self, nbytes: int) -> Lease:
        """The first ``nbytes`` bytes, as an array that nothing but its views refers to."""
        lease: Lease = Lease((nbytes,), np.uint8, self._mapping, self._start)
        return lease

    def punch(self) -> None:
        """Give the slot's memory back to the system; it reads as zeros afterwards."""
        if self.touched:
            self._mapping.madvise(mmap.MADV_REMOVE, self._start, _round_up(self.touched))
            self.touched = 0


class _LeaseRef(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to a lease that knows the slot which the lease's death gives back."""

    __slots__ = ("slot",)
    slot: Slot

    # By identity: an ndarray has no hash that the reference could borrow.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class Arena:
    """The parent's side: owns the file, lends the slots.

    Safe to use from several threads: the free slots are a list of which only ``append`` and
    ``pop`` are used, both of them atomic, and a lease may die in any thread. Only the end of the
    file has a lock, which nothing that the garbage collector may run takes.

    Args:
        board_bytes: Bytes reserved at the start of the file for the status board.
        in_flight: Slots needed for tasks under way, besides those that a consumer may hold.
        held: Slots that a consumer may hold.
        slot_bytes: Bytes a slot; None takes as much as costs nothing.

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
    ) -> None:
        self._pid = os.getpid()
        self.fd, self._sparse = _create_file()
        start = _round_up(board_bytes)
        try:
            self._map, capacity = self._reserve(start, in_flight + held, slot_bytes)
        except BaseException:
            os.close(self.fd)
            raise
        self.mapped = len(self._map)
        self.board = memoryview(self._map)[:board_bytes]
        self._file_end = self.mapped
        self._held = held
        self._appending = threading.Lock()
        self._leases: set[_LeaseRef] = set()
        self._closed = False
        self._guard = ForkGuard(self._held_memory)
        self._parked: list[Slot] = []
        self._fullest = _SMALLEST_SLOT
        self._free = [
            Slot(self._map, offset, offset, capacity)
            for offset in range(self.mapped - capacity, start - 1, -capacity)
        ]

    def _reserve(self, start: int, slots: int, slot_bytes: int | None) -> tuple[mmap.mmap, int]:
        """Map ``slots`` slots of the largest size to be had."""
        if slot_bytes is None:
            slot_bytes = _LARGEST_SLOT if self._sparse else _DISK_SLOT
            left = _address_space_left()
            if left is not None:
                slot_bytes = min(slot_bytes, left // _ADDRESS_SPACE_SHARE // slots)
        capacity = max(_SMALLEST_SLOT, _round_up(slot_bytes))
        while True:
            length = start + slots * capacity
            try:
                return self._map_range(0, length), capacity
            except (OSError, ValueError, OverflowError) as error:
                if capacity == _SMALLEST_SLOT:
                    raise LoaderError(
                        f"no shared memory for the loader: mapping {slots} slots of {capacity} "
                        f"bytes failed ({error}); raise the limit (ulimit -v), or lower "
                        "num_workers or prefetch_factor"
                    ) from error
                capacity = max(_SMALLEST_SLOT, _round_up(capacity // 2))

    def _map_range(self, offset: int, length: int) -> mmap.mmap:
        if self._sparse:
            os.ftruncate(self.fd, offset + length)
        else:
            _allocate(self.fd, offset, length)
        return mmap.mmap(self.fd, length, offset=offset)

    def acquire(self, capacity: int = 0) -> Slot:
        """Take a free slot of at least ``capacity`` bytes, or make one.

        Raises:
            LoaderError: The memory for a new one cannot be had; names the size and the limit.
        """
        self._unpark()
        passed_over = []
        try:
            while True:
                slot = self._free.pop()
                if slot.capacity >= capacity:
                    return slot
                passed_over.append(slot)
        except IndexError:
            return self._append(max(capacity, _SMALLEST_SLOT))
        finally:
            self._free.extend(reversed(passed_over))

    def _append(self, capacity: int) -> Slot:
        """Add one slot at the end of the file."""
        capacity = _round_up(capacity)
        with self._appending:  # the consumer submits while the pin-memory thread grants
            offset = self._file_end
            try:
                mapping = self._map_range(offset, capacity)
            except (OSError, ValueError, OverflowError) as error:
                raise LoaderError(
                    f"a batch needs {capacity} bytes of shared memory, which cannot be had "
                    f"({error}); raise the limit (ulimit -v, or the disk behind the temporary "
                    "directory), or make the batches smaller"
                ) from error
            self._file_end = offset + capacity
        return Slot(mapping, 0, offset, capacity)

    def release(self, slot: Slot, used: bool = True) -> None:
        """Put a slot back that was acquired and is not leased.

        Args:
            slot: The slot.
            used: Whether ``slot.touched`` is known; else it is taken to be as full as any was.
        """
        if not used:
            slot.touched = min(slot.capacity, max(slot.touched, self._fullest))
        (self._parked if self._guard.pending() else self._free).append(slot)
        if self._closed:
            self.trim(0)

    def _unpark(self) -> None:
        """Free the slots given back while a forked process still needed their content."""
        if self._parked and not self._guard.pending():
            with contextlib.suppress(IndexError):  # until there are none; another thread may help
                while True:
                    self._free.append(self._parked.pop())

    def _held_memory(self) -> list[tuple[int, int]]:
        """Address and bytes of what batches in the consumer's hands look into."""
        slots = [reference.slot for reference in list(self._leases)]
        return [(slot.memory.ctypes.data, _round_up(slot.touched)) for slot in slots]

    def lease(self, slot: Slot, nbytes: int) -> NDArray[np.uint8]:
        """Hand a slot's first ``nbytes`` bytes to the consumer.

        Returns:
            The bytes, uint8, shape ``(nbytes,)``. The slot is free again when the last view of the
            array is gone. Where the consumer holds many slots already it is a private copy and the
            slot is free at once, so that a kept batch never stops the loader.
        """
        slot.touched = max(slot.touched, nbytes)
        self._fullest = max(self._fullest, nbytes)
        if len(self._leases) >= self._held:
            private: NDArray[np.uint8] = slot.memory[:nbytes].copy()
            self.release(slot)
            return private
        lease = slot.over(nbytes)
        reference = _LeaseRef(lease, self._returned)
        reference.slot = slot
        self._leases.add(reference)
        return lease

    def _returned(self, reference: _LeaseRef) -> None:
        self._leases.discard(reference)
        self.release(reference.slot)

    @property
    def leased(self) -> int:
        """Slots that batches in the consumer's hands look into."""
        return len(self._leases)

    def trim(self, keep: int) -> None:
        """Give the memory of all but the ``keep`` free slots used last back to the system."""
        if not self._sparse or os.getpid() != self._pid:
            return  # a forked copy would take the memory from its parent
        for slot in self._free[: max(0, len(self._free) - keep)]:
            slot.punch()

    def close(self) -> None:
        """Close the descriptor and give all memory back that no batch looks into.

        Batches given out stay whole; the last of them takes the mapping along. The memory is given
        back by name, because a process forked meanwhile may have inherited the mapping.
        """
        if self._closed:
            return
        self._closed = True
        self.trim(0)
        self.board.release()
        os.close(self.fd)


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
        """The bytes of a slot, shape ``(capacity,)``, uint8."""
        memory = self._slots.get(offset)
        if memory is None:
            if offset < len(self._map):
                memory = np.frombuffer(self._map, np.uint8, capacity, offset)
            else:
                memory = np.frombuffer(mmap.mmap(self._fd, capacity, offset=offset), np.uint8)
            self._slots[offset] = memory
        return memory
