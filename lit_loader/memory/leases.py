"""The slots that batches in the consumer's hands look into, and how they come back.

A batch holds its slot through a :class:`Lease`, which dies with the last that looks into it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lit_loader.memory.slots import Slot
from lit_loader.system import fork_guard

__all__ = ["Lease", "LeaseRef", "Leases"]


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


class Leases:
    """All leases of an arena. Its methods may be called in any thread at any time.

    Attributes:
        given: Those of batches that the consumer was given; others wait for their turn.
    """

    def __init__(self) -> None:
        self._held: set[LeaseRef] = set()
        self.given: set[LeaseRef] = set()

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
        reference.slot = slot  # last: a signal handler may raise here, and the lease dies at once
        self._held.add(reference)
        return lease

    def give(self, lease: Lease) -> None:
        """Note that the consumer has the batch from now on, and so has a process that it forks."""
        lease.reference.forks = fork_guard.user_forks
        self.given.add(lease.reference)

    def forget(self, reference: LeaseRef) -> bool:
        """Note that a lease is dead; returns whether its slot may be used again.

        If the program has forked since it was given, the child looks into it: it stays among those
        held.
        """
        if getattr(reference, "slot", None) is None:
            return False
        if reference in self.given and reference.forks != fork_guard.user_forks:
            return False
        self._held.discard(reference)
        self.given.discard(reference)
        return True
