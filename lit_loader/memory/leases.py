"""The slots that batches in the consumer's hands look into, and how they come back.

- A batch holds its slot through a :class:`Lease`, which dies with the last that looks into it.
- Its large parts (`memory/held_tensors.py`) are watched. When one is dropped and the batch is still
  held when some more have been given out, the memory of that part goes back to the system. Not at
  once: nearly always the rest of a batch dies a moment later, and then warm memory is worth having.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lit_loader.memory.slots import Slot
from lit_loader.system.fork_guard import user_forks

__all__ = ["PATIENCE", "Lease", "LeaseRef", "Leases"]

PATIENCE = 16
"""Batches given out before the memory of a dropped part goes: as many may be kept for a moment."""


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
        parts: What is watched of it.
        forks: `user_forks` when it was lent.
    """

    __slots__ = ("forks", "parts", "slot")
    forks: int
    slot: Slot
    parts: list[PartRef]

    # By identity: an ndarray has no hash that the reference could borrow.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class PartRef(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to what a part of a leased batch looks into.

    Attributes:
        lease: The lease.
        start: First byte in the slot whose memory the part's death makes needless; on a page.
        end: The byte behind the last; on a page.
    """

    __slots__ = ("end", "lease", "start")
    lease: LeaseRef
    start: int
    end: int

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class Leases:
    """All leases of an arena. Its methods may be called in any thread at any time.

    Args:
        sparse: Whether memory can be given back.
    """

    def __init__(self, sparse: bool) -> None:
        self._pid = os.getpid()
        self._sparse = sparse
        self._held: set[LeaseRef] = set()
        self._given = 0
        self._dropped: deque[tuple[int, PartRef]] = deque()
        self._is_finalizing = sys.is_finalizing
        self.closed = False

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[LeaseRef]:
        return iter(list(self._held))

    def lend(self, slot: Slot, nbytes: int, returned: Callable[[LeaseRef], object]) -> Lease:
        """Hand out the first ``nbytes`` bytes of a slot.

        Args:
            slot: The slot.
            nbytes: Bytes.
            returned: Called with the reference to the lease, wherever the last that looks into it
                dies; it is for the callee to :meth:`forget` it.
        """
        lease: Lease = Lease((nbytes,), np.uint8, *slot.place)
        reference = lease.reference = LeaseRef(lease, returned)
        reference.slot, reference.parts, reference.forks = slot, [], user_forks()
        self._held.add(reference)
        return lease

    def forget(self, reference: LeaseRef) -> bool:
        """Note that a lease is dead; returns whether its slot may be used again.

        If the program has forked since, the child looks into it: it stays among those held.
        """
        if reference.forks != user_forks():
            return False
        self._held.discard(reference)
        reference.slot.holes = ()
        return True

    def watch(self, lease: Lease, piece: NDArray[np.uint8], start: int, end: int) -> None:
        """Give memory back when a part of a batch is dropped, and the batch is not.

        Args:
            lease: The batch's.
            piece: What the part, and nothing else, looks into.
            start: First byte of it in the slot.
            end: The byte behind the last.
        """
        part = PartRef(piece, self._part_dropped)
        part.lease = lease.reference
        page = mmap.PAGESIZE
        part.start, part.end = -(-start // page) * page, end // page * page
        part.lease.parts.append(part)

    def _part_dropped(self, part: PartRef) -> None:
        if not self._is_finalizing():
            self._dropped.append((self._given, part))
            if self.closed:
                self.thin(0)

    def give(self) -> None:
        """Note that a batch is given out, and let go of what was dropped some batches ago."""
        self._given += 1
        if self._dropped:
            self.thin(PATIENCE)

    def thin(self, patience: int) -> None:
        """Give the memory of those parts back that were dropped ``patience`` batches ago."""
        if os.getpid() != self._pid:
            return  # a forked copy would take it from its parent
        with contextlib.suppress(IndexError):  # until there are none; another thread may help
            while True:
                when, part = self._dropped.popleft()
                if self._given - when < patience:
                    self._dropped.appendleft((when, part))
                    return
                # While it lives, the slot cannot be lent again.
                lease = part.lease()
                forked = part.lease.forks != user_forks()  # it would be taken from the child
                if lease is not None and self._sparse and not forked:
                    part.lease.slot.punch_hole(part.start, part.end)
                del lease
