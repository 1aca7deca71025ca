"""`RetiredSlots`: slots of void copies of a task, kept until no worker can be writing into them.

The states of a slot, and what moves it from one to the next (`pool/in_flight.py` does)::

              prepare                 complete: the result is in this slot
      free ─────────────▶ in flight ────────────────────────────▶ batch ─▶ free, when let go of
        ▲                    │    │
        │                    │    ╰─ complete: the result is in a larger slot ────────▶ free
        │                    │ its task is sent again, or given up
        │                    ▼
        ╰─────────────── retired, under the issue that it was sent with
          every worker has since done a task of a newer issue: none holds this copy any more
"""

from __future__ import annotations

from collections.abc import Iterable

from lit_loader.memory.arena import Arena, Slot

__all__ = ["RetiredSlots"]


class RetiredSlots:
    """Holds slots, each under an issue, until every worker has done a task of a newer one.

    Args:
        arena: Where the slots come from, and go back to.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._reached: dict[int, int] = {}  # the newest issue of which a worker has done a task
        self._slots: list[tuple[int, Slot]] = []

    def begin(self, worker: int, issue: int) -> None:
        """Note that a worker is started, which can find nothing older than ``issue``."""
        self._reached[worker] = issue
        self._free()

    def reached(self, worker: int, issue: int) -> None:
        """Note that a worker holds nothing older than ``issue``."""
        if worker in self._reached:  # else it has left since
            self._reached[worker] = issue
            self._free()

    def leave(self, worker: int) -> None:
        """Note that a worker is gone, and no other in its place."""
        self._reached.pop(worker, None)
        self._free()

    def _free(self) -> None:
        """Free what no worker can be writing into any more."""
        if self._slots:
            oldest = min(self._reached.values())
            for retired_at, slot in self._slots:
                if retired_at < oldest:
                    self._arena.release(slot, used=False)
            self._slots = [entry for entry in self._slots if entry[0] >= oldest]

    def add(self, issue: int, slots: Iterable[Slot]) -> None:
        """Take slots that were sent with ``issue``."""
        self._slots += [(issue, slot) for slot in slots]

    def clear(self) -> None:
        """Free all: no worker does anything older any more."""
        for _, slot in self._slots:
            self._arena.release(slot, used=False)
        self._slots.clear()
