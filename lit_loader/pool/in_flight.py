"""`InFlightTasks`: the tasks that were sent and are not done, and the slots they were sent with.

Used by `pool/dispatcher.py`, which sends the tasks and reads the results. A task is sent with a
slot; its result names the slot that it is in.

A worker may have taken a task out of the pipe and not have announced it on the board yet. So when a
worker is gone, every task that is neither done nor announced gets a new *issue* number and is sent
once more; a worker that finds an older issue in the pipe drops it. One that had just taken such a
copy does it all the same: then a task is done twice, and the slot of the result tells which copy it
is of. Only the one that was sent last counts. The slots of older copies are retired, since a worker
may be writing into them: `pool/retired_slots.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from lit_loader.memory.arena import Arena, Slot
from lit_loader.pool.retired_slots import RetiredSlots
from lit_loader.transport.messages import Grow, Result
from lit_loader.transport.status_board import BoardRow, Stage

__all__ = ["InFlightTask", "InFlightTasks"]


class InFlightTask:
    """A task that was sent and is not done.

    Attributes:
        number: The task's (:func:`lit_loader.transport.messages.task_number`).
        packed: Its indices, as they are written into its slot.
        epoch: Its epoch.
        seed: Base seed of the epoch.
        worker: Which worker is to do it, where tasks are assigned; else None.
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
        assigned: Whether tasks are sent to a worker by number, so that it is known which had what.

    Attributes:
        issue: Counts how often tasks were issued again.
    """

    def __init__(self, arena: Arena, assigned: bool) -> None:
        self._arena = arena
        self._assigned = assigned
        self._tasks: dict[int, InFlightTask] = {}  # by number, in the order of their first sending
        self._retired = RetiredSlots(arena)
        self.issue = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def _free(self, slot: Slot) -> None:
        self._arena.release(slot, used=False)

    def begin(self, worker: int) -> None:
        """Note that a worker is started, which finds nothing but the newest issue."""
        self._retired.begin(worker, self.issue)

    def leave(self, worker: int) -> None:
        """Note that a worker is gone, and no other in its place."""
        self._retired.leave(worker)

    def prepare(self, task: InFlightTask) -> Slot:
        """Give a task a fresh slot with its indices in it, and note that it is in flight.

        Raises:
            LoaderError: There is no memory for another slot.
        """
        packed = task.packed
        slot = self._arena.acquire(len(packed))
        if packed:
            slot.view[: len(packed)] = packed
        task.slots = [slot]
        task.issue = self.issue
        self._tasks[task.number] = task
        return slot

    def complete(self, result: Result) -> Slot | None:
        """Note that a task is done; returns the slot of its outcome, None if it does not count."""
        filled = self.slot_of(result)
        if filled is None:
            return None
        task = self._tasks.pop(result.number)
        for slot in task.slots:
            if slot is not filled:
                self._free(slot)
        self._retired.reached(result.worker, task.issue)
        return filled

    def slot_of(self, result: Result) -> Slot | None:
        """The slot of a task's outcome; None if it does not count, or not any more."""
        task = self._tasks.get(result.number)
        if task is not None:
            for slot in task.slots:
                if slot.offset == result.offset:
                    return slot
        return None

    def grow(self, message: Grow) -> Slot | None:
        """Take the larger slot that a task needs; None if it does not count any more.

        Raises:
            LoaderError: There is no memory for it.
        """
        task = self._tasks.get(message.number)
        if task is None or task.slots[0].offset != message.offset:
            return None
        slot = self._arena.acquire(message.nbytes)
        task.slots.append(slot)
        return slot

    def pending(self, results: Iterable[Result]) -> list[InFlightTask]:
        """Tasks without a result, in the order in which they were first sent.

        Args:
            results: Those that have come in and were not completed yet.
        """
        done = {(result.number, result.offset) for result in results}
        return [
            task
            for number, task in self._tasks.items()
            if not any((number, slot.offset) in done for slot in task.slots)
        ]

    def withdraw(self, number: int) -> None:
        """Give a task up."""
        self._retire(self._tasks.pop(number))

    def take_lost(
        self, worker: int, rows: Iterable[BoardRow], results: Iterable[Result], succeeded: bool
    ) -> list[InFlightTask]:
        """Take away from a worker that is gone what it may have had; to be prepared anew.

        Args:
            worker: Its number.
            rows: What all workers were doing after the new issue was put on the board.
            results: Those that have come in and were not completed yet.
            succeeded: Whether a new process has taken its place, and begins with this issue.
        """
        if self._assigned:
            lost = [task for task in self.pending(results) if task.worker == worker]
            lost.sort(key=lambda task: task.number)
        else:
            held = {(row.number, row.issue) for row in rows if row.stage in Stage.BUSY}
            lost = [task for task in self.pending(results) if (task.number, task.issue) not in held]
        for task in lost:
            self._retire(task)
        if succeeded:
            self.begin(worker)
        else:
            self.leave(worker)
        return lost

    def _retire(self, task: InFlightTask) -> None:
        """Keep the slots of a copy while a worker may write into them."""
        if self._assigned:  # no worker but the one that is gone has known them
            for slot in task.slots:
                self._free(slot)
        else:
            self._retired.add(task.issue, task.slots)
        task.slots = []

    def clear(self) -> None:
        """Forget everything: no worker does anything of it any more."""
        for task in self._tasks.values():
            for slot in task.slots:
                self._free(slot)
        self._tasks.clear()
        self._retired.clear()
