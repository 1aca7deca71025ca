"""An epoch as a value, owned by its iterator: `MapEpoch`; and `Ahead`, what follows.

::

    next_task() ─▶ Task ─▶ executor … ─▶ outcome ─▶ took(outcome) ─▶ settle(): the consumer has it
         ╰──────── tasks: outstanding, until they are settled ──────────╯
    restart(number): a task that was lost is given again

- What was drawn and is not given out is kept as tasks. So workers can be lost at any moment, and
  what they had is sent again.
- What is given out is noted by storing an attribute, and counted when the consumer asks for more
  (`settle`): until then `undo` takes it back.
- Where the epoch is, for a state, is in its `EpochPosition`.

That of a stream is `StreamEpoch` (`streams/stream_epoch.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lit_loader.core.epoch.epochs import EpochBatches, EpochStart
from lit_loader.core.executors.executor import Task
from lit_loader.core.executors.outcome import Outcome
from lit_loader.core.sampling.batch_plan import BatchPlan, ComputedBatches, lookahead
from lit_loader.core.seeding.bases import Bases
from lit_loader.core.state.position import Position
from lit_loader.core.system.interrupts import let_handlers_through
from lit_loader.core.transport.messages import POSITION, position_of, task_number
from lit_loader.errors import LoaderError

__all__ = ["Ahead", "Epoch", "MapEpoch"]

_new = tuple.__new__

Foresee = Callable[[int, Bases], Iterator[tuple[int, int, Any]]]


class Epoch:
    """What the epochs of map-style datasets and of streams have in common.

    Attributes:
        start: What the iterator has learned at its first ``next()``.
        place: How far it is.
        tasks: What is outstanding, by number, in the order in which it was asked for.
        given: The number of the task that was given out last, until it is settled.
        again: Those of the tasks that are to be given again.
        is_drawn: Whether there are no more tasks than these.
        error: What the sampler has raised in the place of a batch; it comes behind those before it.
    """

    reads_streams = False
    again: deque[int]
    next_task: Callable[[], Task | None]  # which is outstanding from now on; None: there is none
    took: Callable[[Outcome], None]  # notes that an outcome is about to be given out
    restart: Callable[[int], None]  # gives a task that was lost again
    restart_all: Callable[[dict[int, Outcome]], None]  # … what is outstanding and has not arrived
    adopt: Callable[[Ahead], None]  # takes those tasks of the epoch that workers have begun

    @property
    def is_new(self) -> bool:
        """Whether nothing was drawn yet, since the epoch was begun or resumed."""
        return not self.tasks and not self.place.since

    def __init__(self, start: EpochStart) -> None:
        self.start, self.place = start, start.position
        self.tasks: dict[int, Task] = {}
        self.given: int | None = None
        self.is_drawn = False
        self.error: Exception | None = None
        self.again = deque()

    def settle(self) -> None:
        """Count what was given out last: the consumer has it. May be done again."""
        self.place.settle()
        if self.given is not None:
            self.tasks.pop(self.given, None)
            self.given = None

    def undo(self) -> None:
        """Forget that something was given out: it has not come to the consumer."""
        self.place.take_back()
        self.given = None

    def position(self) -> Position:
        """Give where the epoch is."""
        return self.place.now()

    def fault(self) -> Exception | None:
        """Give what is to be raised where the epoch would end; None: it is over.

        Better no end than one that loses batches without a word: a LoaderError.
        """
        return None


class MapEpoch(Epoch):
    """Tasks of a map-style dataset: what the sampler draws."""

    def __init__(self, start: EpochStart, batches: EpochBatches) -> None:
        super().__init__(start)
        self._batches, self._own = batches, batches.computed
        self._at, self._first = start.position.start.batches, task_number(start.epoch, 0)
        self._before = start.position.start.ahead  # given out before, by whoever took the state

    def next_task(self) -> Task | None:
        """Draw the next task, unless one is to be given again."""
        while self.again:
            task = self.tasks.get(self.again.popleft())
            if task is not None:
                return task
        start = self.start
        while not self.is_drawn:
            at = self._at
            try:
                indices = self._batches.draw(at, self.place)
            except StopIteration:
                self.is_drawn = True
                break
            except Exception as error:
                let_handlers_through(error)
                self.error, self.is_drawn = error, True
                break
            if at in self._before:
                self._at = at + 1
                continue
            number = self._first + at
            # Without the call of a constructor that is written in Python.
            task = _new(Task, (number, indices, start.epoch, start.seeds, self._own, None))
            # At once: nothing is called in between that a signal handler could raise in.
            self.tasks[number] = task
            self._at = at + 1
            return task
        return None

    def took(self, outcome: Outcome) -> None:
        """Note that a batch, or an exception in its place, is about to be given out."""
        self.place.latest = outcome.number & POSITION
        self.given = outcome.number

    def restart(self, number: int) -> None:
        """Give a task again."""
        self.again.append(number)

    def restart_all(self, arrived: dict[int, Outcome]) -> None:
        """Give again what has not arrived."""
        self.again = deque(number for number in self.tasks if number not in arrived)

    def adopt(self, ahead: Ahead) -> None:
        """Take those tasks of the epoch that workers have begun; they are of a computed order."""
        assert isinstance(self._batches, ComputedBatches)
        self._batches.begin()
        ahead.start, behind = self.start, task_number(self.start.epoch + 1, 0)
        for number in [number for number in ahead.tasks if number < behind]:
            self.tasks[number] = ahead.tasks.pop(number)
            self._at = position_of(number) + 1
        if ahead.tasks:  # of the epoch after this one, so this one is drawn
            self.is_drawn = True
        else:
            ahead.clear()

    def fault(self) -> Exception | None:
        """Give what the sampler has raised; see `Epoch.fault`."""
        error, self.error = self.error, None
        if error is not None:
            self.is_drawn = False  # what it does when it is asked again decides
            return error
        given = self.position().delivered
        if not self.is_drawn or given < self._at:
            issued = f"{self._at} {'' if self.is_drawn else 'or more '}batches"
            return LoaderError(
                f"epoch {self.start.epoch} would have ended after {given} of {issued}: this is a "
                "fault of the loader; load_state_dict(state_dict()) goes on with the next batch"
                " [LL044]"
            )
        return None


class Ahead:
    """The first batches of the epochs that follow, which workers make when they have nothing else.

    It outlives the epoch: the next iterator takes it over if it `fits`, else it is called off.

    Attributes:
        start: The start of the epoch that these follow.
        tasks: What is outstanding of them.
        arrived: Outcomes that wait for their turn, of this epoch too.
        token: That of the tasks, where they are handed over.
    """

    def __init__(self, start: EpochStart) -> None:
        self.start = start
        self.tasks: dict[int, Task] = {}
        self.arrived: dict[int, Outcome] = {}
        self.token = 0
        self._coming: Iterator[tuple[int, int, Any]] | None = None

    def next_task(self, foresee: Foresee) -> Task | None:
        """Give the next batch of the epochs to come; None: none may be begun.

        ``foresee`` gives epoch, batch number and indices of those that may be.
        """
        start = self.start
        if self._coming is None:
            self._coming = foresee(start.epoch, start.bases)
        for epoch, batch, indices in self._coming:
            seeds = start.following.ahead(epoch - start.epoch)
            task = Task(task_number(epoch, batch), indices, epoch, seeds, own=True)
            self.tasks[task.number] = task
            return task
        return None

    def fits(self, start: EpochStart, plan: BatchPlan | None) -> bool:
        """Whether these are the next batches of an epoch, and of those that follow it.

        A dataset that has grown meanwhile, say, has more batches in the epoch than were begun of it
        before the next one was.
        """
        at, foreseen = start.position.start, self.start.position.start
        if start.seeds != self.start.following.ahead(start.epoch - self.start.epoch):
            return False
        if plan is None:  # the readers' turns follow from where these are
            return (start.epoch, at.readers) == (self.start.epoch, foreseen.readers)
        if not plan.is_computed:
            return False
        expected = lookahead(plan, start.epoch - 1, start.bases, at.batches, at.ahead)
        for number, task in self.tasks.items():
            epoch, batch, wanted = next(expected, (0, 0, ()))
            if number != task_number(epoch, batch) or not np.array_equal(wanted, task.indices):
                return False
        return True

    def clear(self) -> None:
        """Forget what was begun."""
        for number in self.tasks:
            self.arrived.pop(number, None)
        self.tasks.clear()
        self._coming = None
