"""The tasks that are under way, and the slots that somebody may be writing into.

Nobody knows who has taken a task out of the pipe and not announced it on the board yet. So when a
worker is gone, every task that is neither done nor announced gets a new *issue* number and is sent
once more; a worker that finds an older issue in the pipe drops it. One that had just taken such a
copy does it all the same: then a task is done twice, and the slot of the result tells which copy it
is of. Only the one that was sent last counts. The slots of older copies are put aside until every
worker has done a task of a newer issue; so long somebody may write into them.
"""

from __future__ import annotations

from collections.abc import Iterable

from lit_loader.memory.arena import Arena, Slot
from lit_loader.transport.messages import Grow, Result
from lit_loader.transport.status_board import BoardRow, Stage

__all__ = ["InFlightTask", "InFlightTasks"]


class InFlightTask:
    """A task under way.

    Attributes:
        number: Position of the batch in the epoch.
        packed: Its indices.
        epoch: Its epoch.
        seed: Base seed of the epoch.
        worker: Who is to do it, where tasks are assigned.
        slots: The slot it was sent with, and a larger one if that was granted.
        issue: The issue it was sent with.
    """

    __slots__ = ("epoch", "issue", "number", "packed", "seed", "slots", "worker")

    def __init__(
        self, number: int, packed: bytes, epoch: int, seed: int, worker: int | None
    ) -> None:
        self.number = number
        self.packed = packed
        self.epoch = epoch
        self.seed = seed
        self.worker = worker
        self.slots: list[Slot] = []
        self.issue = 0


class InFlightTasks:
    """Keeps account of tasks and their slots; for one thread at a time, or under a lock.

    Args:
        arena: Where the slots come from.
        num_workers: How many workers there are.
        assigned: Whether tasks are sent to a worker by number, so that it is known who had what.

    Attributes:
        issue: Counts how often tasks were issued again.
    """

    def __init__(self, arena: Arena, num_workers: int, assigned: bool) -> None:
        self._arena = arena
        self._assigned = assigned
        self._outstanding: dict[int, InFlightTask] = {}
        self._passed = [0] * num_workers  # the newest issue of which a worker has done a task
        self._aside: list[tuple[int, Slot]] = []  # slots of copies, with their issue
        self.issue = 0

    def begin(self, worker: int) -> None:
        """Note that a worker is started, which finds nothing but the newest issue."""
        self._passed[worker] = self.issue

    def prepare(self, flight: InFlightTask) -> Slot:
        """Give a task a fresh slot with its indices in it, and note that it is under way.

        Raises:
            LoaderError: There is no memory for another slot.
        """
        packed = flight.packed
        slot = self._arena.acquire(len(packed))
        if packed:
            slot.view[: len(packed)] = packed
        flight.slots = [slot]
        flight.issue = self.issue
        self._outstanding[flight.number] = flight
        return slot

    def complete(self, result: Result) -> Slot | None:
        """Note that a task is done; returns the slot of its outcome, None if it does not count."""
        landed = self.slot_of(result)
        if landed is None:
            return None
        flight = self._outstanding.pop(result.number)
        for slot in flight.slots:
            if slot is not landed:
                self._arena.release(slot, used=False)
        self._passed[result.worker] = flight.issue
        if self._aside:
            self._release_aside()
        return landed

    def slot_of(self, result: Result) -> Slot | None:
        """The slot of a task's outcome; None if it does not count, or not any more."""
        flight = self._outstanding.get(result.number)
        if flight is not None:
            for slot in flight.slots:
                if slot.offset == result.offset:
                    return slot
        return None

    def grow(self, message: Grow) -> Slot | None:
        """Take the larger slot that a task needs; None if it does not count any more.

        Raises:
            LoaderError: There is no memory for it.
        """
        flight = self._outstanding.get(message.number)
        if flight is None or flight.slots[0].offset != message.offset:
            return None
        slot = self._arena.acquire(message.nbytes)
        flight.slots.append(slot)
        return slot

    def pending(self, results: Iterable[Result]) -> list[InFlightTask]:
        """Tasks under way, in the order in which they were first sent.

        Args:
            results: Those that have come in and were not landed yet.
        """
        done = {(result.number, result.offset) for result in results}
        return [
            flight
            for number, flight in self._outstanding.items()
            if not any((number, slot.offset) in done for slot in flight.slots)
        ]

    def withdraw(self, number: int) -> None:
        """Give a task up."""
        self._retire(self._outstanding.pop(number))

    def lost_with(
        self, worker: int, rows: Iterable[BoardRow], results: Iterable[Result]
    ) -> list[InFlightTask]:
        """Take away from a worker that is gone what it may have had; to be prepared anew.

        Args:
            worker: Its number; a new process has taken its place, and begins with this issue.
            rows: What all workers were doing after the new issue was put on the board.
            results: Those that have come in and were not landed yet.
        """
        if self._assigned:
            lost = [flight for flight in self.pending(results) if flight.worker == worker]
            lost.sort(key=lambda flight: flight.number)
        else:
            held = {(row.number, row.issue) for row in rows if row.stage in Stage.BUSY}
            lost = [f for f in self.pending(results) if (f.number, f.issue) not in held]
            self.begin(worker)
        for flight in lost:
            self._retire(flight)
        self._release_aside()
        return lost

    def _retire(self, flight: InFlightTask) -> None:
        """Keep the slots of a copy while somebody may write into them."""
        if self._assigned:  # nobody but the worker that is gone has known them
            for slot in flight.slots:
                self._arena.release(slot, used=False)
        else:
            self._aside += [(flight.issue, slot) for slot in flight.slots]
        flight.slots = []

    def _release_aside(self) -> None:
        """Free the slots that no worker can be writing into any more."""
        passed = min(self._passed)
        for issue, slot in self._aside:
            if issue < passed:
                self._arena.release(slot, used=False)
        self._aside = [(issue, slot) for issue, slot in self._aside if issue >= passed]

    def clear(self) -> None:
        """Forget everything: no worker does anything of it any more."""
        for flight in self._outstanding.values():
            for slot in flight.slots:
                self._arena.release(slot, used=False)
        for _, slot in self._aside:
            self._arena.release(slot, used=False)
        self._outstanding.clear()
        self._aside.clear()
