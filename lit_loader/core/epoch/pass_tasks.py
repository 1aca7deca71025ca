"""The tasks of a pass, owned by its iterator: `MapTasks`; and `NextEpochTasks`, what follows.

::

    next_task() ─▶ Task ─▶ executor … ─▶ outcome ─▶ took(outcome) ─▶ settle(): the consumer has it
         ╰──────── tasks: outstanding, until they are settled ──────────╯
    restart(number): a task that was lost is given again

- What was drawn and is not given out is kept as tasks. So workers can be lost at any moment, and
  what they had is sent again.
- What is given out is noted by storing an attribute, and counted when the consumer asks for more
  (`settle`): until then `undo` takes it back.
- How far the pass is, for a state, is in its `PassPosition`.

Those of a stream are `StreamTasks` (`streams/stream_tasks.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from lit_loader.core.epoch.passes import Pass
from lit_loader.core.executors.executor import Outcome, Task
from lit_loader.core.sampling.batch_plan import BatchPlan, ComputedBatches
from lit_loader.core.seeding.seeds import PassSeeds
from lit_loader.core.state.position import Position
from lit_loader.core.transport.messages import POSITION, position_of, task_number
from lit_loader.errors import LoaderError

__all__ = ["MapTasks", "NextEpochTasks", "PassTasks"]

_new = tuple.__new__


class PassTasks:
    """What the passes over map-style datasets and over streams have in common.

    Attributes:
        made: The pass.
        place: How far it is.
        tasks: What is outstanding, by number, in the order in which it was asked for.
        arrived: Outcomes that wait for their turn, of ``ahead``, too.
        ahead: The tasks of the next epoch; None: none may be made ahead.
        given: The number of the task that was given out last, until it is settled.
        again: Those of the tasks that are to be given again.
        is_drawn: Whether there are no more tasks than these.
        error: What the sampler has raised in the place of a batch; it comes after those before it.
    """

    reads_streams = False
    given: int | None = None
    is_drawn = False
    error: Exception | None = None
    next_task: Callable[[], Task | None]  # which is outstanding from now on; None: there is none
    took: Callable[[Outcome], None]  # notes that an outcome is about to be given out
    restart: Callable[[int], None]  # gives a task that was lost again
    restart_all: Callable[[], None]  # … what is outstanding and has not arrived

    def __init__(self, made: Pass, ahead: NextEpochTasks | None = None) -> None:
        self.made, self.place, self.ahead = made, made.position, ahead
        self.tasks: dict[int, Task] = {}
        self.arrived: dict[int, Outcome] = {}
        self.again: deque[int] = deque()

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

    def hand_on(self, reusable: bool) -> NextEpochTasks | None:
        """End what is made ahead; return it if it is to go to the next iterator."""
        ahead, self.ahead = self.ahead, None
        if ahead is None:
            return None
        if ahead.tasks and reusable and not self.tasks:
            ahead.arrived, self.arrived = self.arrived, {}
            return ahead
        for number in ahead.tasks:
            self.arrived.pop(number, None)
        return None

    def fault(self) -> Exception | None:
        """Return what is to be raised where the pass would end; None: it is over.

        Better no end than one that loses batches without a word: a LoaderError.
        """
        return None


class MapTasks(PassTasks):
    """Tasks of a map-style dataset: what the sampler draws."""

    _failed_at = -1  # the batch in whose place the sampler raised last

    def __init__(self, made: Pass, ahead: NextEpochTasks | None) -> None:
        super().__init__(made, ahead)
        assert made.batches is not None
        start = made.position.start
        self._batches, self._own = made.batches, made.batches.computed
        self._at, self._epoch = start.batches, made.epoch
        self._first = task_number(self._epoch, 0)
        self._before = start.ahead  # given out before, by whoever took the state

    def next_task(self) -> Task | None:
        """Draw the next task, unless one is to be given again."""
        while self.again:
            task = self.tasks.get(self.again.popleft())
            if task is not None:
                return task
        made = self.made
        while not self.is_drawn:
            at = self._at
            try:
                indices = self._batches.draw(at, self.place)
            except StopIteration:
                self.is_drawn = True
                break
            except Exception as error:
                self.error, self.is_drawn = error, True
                break
            if at in self._before:
                self._at = at + 1
                continue
            number = self._first + at
            # Without the call of a constructor that is written in Python.
            task = _new(Task, (number, indices, self._epoch, made.seeds, self._own, None))
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
        """Send a task again."""
        self.again.append(number)

    def restart_all(self) -> None:
        """Send again what has not arrived."""
        self.again = deque(number for number in self.tasks if number not in self.arrived)

    def adopt(self, begun: NextEpochTasks) -> None:
        """Take over tasks of this pass that workers have begun before it."""
        self.tasks.update(begun.tasks)
        self.arrived.update(begun.arrived)
        self._at = position_of(max(begun.tasks)) + 1

    def fault(self) -> Exception | None:
        """Return what the sampler has raised; see `PassTasks.fault`."""
        error, self.error = self.error, None
        if error is not None:
            # It may have been a signal handler's, so the sampler is tried once more for that batch.
            # If it fails again, the pass is over, as with torch.
            self.is_drawn, self._failed_at = self._failed_at == self._at, self._at
            return error
        given = self.place.delivered
        if not self.is_drawn or given < self._at:
            issued = f"{self._at} {'' if self.is_drawn else 'or more '}batches"
            return LoaderError(
                f"epoch {self.made.epoch} would have ended after {given} of {issued}. This is a "
                "bug in lit_loader: please report it. load_state_dict(state_dict()) continues with "
                "the next batch"
            )
        return None


class NextEpochTasks:
    """The first batches of the next epoch, which workers make when they have nothing else.

    ``seeds`` is what that pass draws from, and ``start`` where it starts. The tasks outlive the
    pass: the next iterator takes them over if they `fit`, else they are called off.

    Attributes:
        tasks: What is outstanding of them.
        arrived: Their outcomes, where they are passed on.
        token: That of the tasks, where they are passed on.
    """

    token = 0

    def __init__(self, plan: BatchPlan, seeds: PassSeeds, start: Position) -> None:
        self.tasks: dict[int, Task] = {}
        self.arrived: dict[int, Outcome] = {}
        self._plan, self._seeds, self._start = plan, seeds, start
        self._batches: ComputedBatches | None = None

    def next_task(self) -> Task | None:
        """Return the next batch of the epoch to come; None: there is none."""
        at, epoch = len(self.tasks), self._start.epoch
        if self._batches is None:
            self._batches = ComputedBatches(self._plan, self._start)
        try:
            indices = self._batches.draw(at)
        except StopIteration:
            return None
        task = Task(task_number(epoch, at), indices, epoch, self._seeds, own=True)
        self.tasks[task.number] = task
        return task

    def fits(self, made: Pass) -> bool:
        """Whether these are the first batches of a pass that begins now.

        The program may have set another epoch meanwhile, or have changed the dataset's length.
        """
        if made.position.start.delivered or self._seeds != made.seeds:
            return False
        if not isinstance(made.batches, ComputedBatches):
            return False
        try:
            return all(
                np.array_equal(made.batches.at(position_of(number)), task.indices)
                for number, task in self.tasks.items()
            )
        except IndexError:
            return False
