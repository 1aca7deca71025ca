"""`OutstandingTasks`: what workers were asked for and the consumer has not been given yet.

::

    sent ─▶ tasks ────────────────────────────────────────────────▶ given out
               └─ workers ─▶ buffer ─▶ (pinned) ─▶ ready ─────────────┘

It belongs to one iterator, and outlives the iterator's workers: what is lost with them is asked for
again. Where tasks of the next epoch are among it, they are handed on to the iterator of that epoch,
which adopts them if they are what it would ask for itself.
"""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any

from lit_loader.iteration.delivery import Delivery
from lit_loader.pool.outcome import Outcome
from lit_loader.pool.reorder_buffer import ReorderBuffer
from lit_loader.sampling.epoch_batches import UpcomingBatch
from lit_loader.transport.messages import position_of, task_number

__all__ = ["OutstandingTasks", "is_of"]


class OutstandingTasks:
    """Tasks, and what came of them; refers to neither iterator nor pool.

    Args:
        in_order: Whether batches are given out in the order in which they were asked for.
        turns: Readers, each of which gives its own in order; 0: there are none.

    Attributes:
        tasks: Task number to indices, of what is not given out; those of later epochs come last.
        buffer: Outcomes that wait for their turn.
        ready: What has had its turn and was not given out.
        lookahead: Goes on to the batches of the epochs that follow, as far as they are asked for
            ahead; None: not begun.
        token: The pool's, in which the tasks are valid.
        seed: Base seed of the tasks.
        owed: How many of the tasks are of the iterator's own epoch.
        given: The task whose outcome was given out last, and which is counted until :meth:`settle`.
    """

    def __init__(self, in_order: bool, turns: int = 0) -> None:
        self.in_order, self._turns = in_order, turns
        self.token = 0
        self.seed = 0
        self._begin()

    def _begin(self) -> None:
        self.tasks: dict[int, Any] = {}
        self.buffer: ReorderBuffer[Outcome] = ReorderBuffer(self.in_order, self._turns)
        self.ready: deque[Delivery] = deque()
        self.lookahead: Iterator[UpcomingBatch] | None = None
        self.owed = 0
        self.given: int | None = None

    def settle(self) -> None:
        """Count out what was given out last; may be interrupted, and done again."""
        if self.given is not None:
            self.tasks.pop(self.given, None)
            self.owed -= 1  # at once with this: nothing is called in between
            self.given = None

    def hand_on(self) -> OutstandingTasks:
        """Give all away as another object, to be adopted: it is of later epochs."""
        others = copy.copy(self)
        self._begin()
        return others

    def adopt(self, others: OutstandingTasks) -> None:
        """Take the tasks that another iterator has handed on, and what has come of them."""
        self.tasks, self.buffer, self.ready = others.tasks, others.buffer, others.ready
        self.lookahead = others.lookahead

    def begins(self, epoch: int, batches: Iterator[Any]) -> bool:
        """Whether these tasks begin with the first batches of an epoch, and all of it are right.

        Those of an epoch before it would stay for ever, in the place of others.

        Args:
            epoch: The epoch.
            batches: The indices of its batches, from the first one on.
        """
        if next(iter(self.tasks), None) != task_number(epoch, 0):
            return False
        place = 0
        while (number := task_number(epoch, place)) in self.tasks:
            if next(batches, None) != self.tasks[number]:
                return False
            place += 1
        return place > 0

    def take_ready(self, epoch: int) -> Delivery | None:
        """Take the next batch of an epoch that is ready, if there is one."""
        for place, ready in enumerate(self.ready):
            if is_of(epoch, ready.number):
                del self.ready[place]
                return ready
        return None

    def missing(self) -> list[int]:
        """Give the tasks whose batches are not ready, and forget what is ready before its turn."""
        if self.in_order:
            turns = zip(self.tasks, [ready.number for ready in self.ready], strict=False)
            in_turn = len([*itertools.takewhile(lambda turn: turn[0] == turn[1], turns)])
            self.ready = deque(itertools.islice(self.ready, in_turn))
        taken = {ready.number for ready in self.ready}
        return [number for number in self.tasks if number not in taken]

    def keep_only(self, epoch: int) -> None:
        """Forget what is of later epochs than this one; it will be asked for anew."""
        for number in [number for number in self.tasks if not is_of(epoch, number)]:
            del self.tasks[number]
        self.ready = deque(ready for ready in self.ready if is_of(epoch, ready.number))
        self.lookahead = None

    def forget_results(self) -> None:
        """Forget what has come in, but not that it was asked for."""
        self.buffer = ReorderBuffer(self.in_order, self._turns)
        self.ready.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.tasks.clear()
        self.ready.clear()
        self.buffer.restart([])
        self.lookahead = None
        self.owed = 0
        self.given = None


def is_of(epoch: int, number: int) -> bool:
    """Whether a task belongs to an epoch."""
    return number == task_number(epoch, position_of(number))
