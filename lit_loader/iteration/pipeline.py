"""`Pipeline`: what workers were asked for, and its way to the consumer, in order and decoded.

::

    submit ─▶ tasks ──────────────────────────────────────────────────────────────▶ given out
                └─▶ pool … arrived ─in order─▶ unpacked ─▶ [pin-memory thread] ─▶ ready ─┘

One object lives as long as an `EpochRun`, and outlives its workers: what is lost with these is
asked for again, of others. Where tasks of the next epoch are among what is outstanding when a run
ends, the object goes on to that epoch's run. It does not refer to the run, which can be collected
while the pin-memory thread waits here. Without pinning all of it runs in the thread that calls
:meth:`Pipeline.take`; with pinning, in the pin-memory thread. Where neither that thread nor a
reader's position needs the batch itself, it is unpacked last of all, by the run: when the worker
has its next task already.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lit_loader.accelerator.pin_memory import PinMemoryThread
from lit_loader.errors import LoaderError
from lit_loader.sampling.batch_plan import BatchPlan, lookahead
from lit_loader.sampling.epochs import EpochStart
from lit_loader.seeding.bases import PassSeeds
from lit_loader.system.interrupts import HeldBack
from lit_loader.transport.messages import position_of, task_number
from lit_loader.workers.healer import Healer
from lit_loader.workers.outcome import Outcome, WorkerDeath
from lit_loader.workers.pipes import PoolClosed
from lit_loader.workers.worker_pool import WorkerPool

__all__ = ["Pin", "Pipeline", "is_of"]

Pin = Callable[[Any], Any]

Release = Callable[["Pipeline", bool], object]
"""Gives workers back; called with what they were asked for, and whether they may be used again."""


class Pipeline:
    """Tasks, what came of them, and the workers that are at them.

    With ``turns`` readers, each gives its own in order; 0: there are none. ``pin`` pins a batch in
    a thread of its own, in which ``device`` is made the current accelerator.
    """

    healer: Healer

    def __init__(self, in_order: bool, turns: int, pin: Pin | None, device: int | None) -> None:
        self.in_order = in_order
        # All numbers of one line come in order: there is one for all, or one for each reader.
        self._lines = 1 if in_order else turns
        self._turns, self._unpacks = turns, True
        self.pin, self.device = pin, device
        self.pool: WorkerPool | None = None
        self.epoch, self.seeds = 0, PassSeeds(0, 0, 0)  # those of the run
        self.token = 0  # that of the tasks, in the pool
        self.new = False  # whether workers have just been connected, and nothing else has happened
        self.handed_on = False  # whether it is another run's by now, or nobody's yet
        self.own = False  # whether indices are of an order of the loader's own: int64 arrays
        self._stopping = False
        self._thread: PinMemoryThread[Outcome] | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._release: Release | None = None
        # Number to indices, of what is not given out; those of later epochs come last.
        self.tasks: dict[int, Any] = {}
        self.clear()

    def clear(self) -> None:
        """Forget everything that was asked for."""
        self.tasks.clear()
        self.ready: deque[Outcome] = deque()  # what has had its turn and was not given out
        self._arrived: dict[int, Outcome] = {}
        self._expected: list[deque[int]] = [deque() for _ in range(self._lines)]
        self.lookahead: Iterator[tuple[int, int, Any]] | None = None  # epochs to come; not begun
        self.owed = 0  # how many of the tasks are of the run's own epoch
        self.given: int | None = None  # the task given out last; counted until :meth:`settle`

    # --- workers ---

    def connect(self, pool: WorkerPool, run: object, release: Release) -> None:
        """Have workers, until the run ends or is collected."""
        self.pool, self.token, self._release = pool, pool.token, release
        self._stopping = self.handed_on = False
        self._finalizer = weakref.finalize(run, self._end, reusable=True, unnoticed=True)

    def start(self) -> None:
        """Begin to pin, where that is to be done."""
        assert self.pool is not None
        pin = self.pin
        self._unpacks = bool(self._turns) or pin is not None
        if pin is not None:
            with HeldBack():  # a thread that has started is one that is known
                self._thread = PinMemoryThread(
                    self._next, lambda outcome: _pinned(outcome, pin), self.device
                )

    def end(self, reusable: bool) -> None:
        """Give the workers back, keeping what has come in; a second call does nothing."""
        if self._finalizer is not None and self._finalizer.detach() is not None:
            self._end(reusable)

    def _end(self, reusable: bool, unnoticed: bool = False) -> None:
        with HeldBack(unnoticed=unnoticed):
            self.settle()
            pool = self.pool
            if pool is None:  # the run was collected while it was ended
                return
            try:
                self._stop(pool)
            finally:
                self.pool = None
                if self.owed or not reusable:
                    self._keep_only(self.epoch)
                else:
                    self.handed_on = bool(self.tasks)
                if not pool.elsewhere:
                    pool.page.rest()
                release, self._release = self._release, None  # which holds the loader's core
                if release is not None:
                    release(self, reusable)

    def _stop(self, pool: WorkerPool) -> None:
        """End the thread; what it had pinned and was not taken is ready."""
        self._stopping = True
        thread, self._thread = self._thread, None
        if thread is not None and not pool.elsewhere:  # in a forked copy there is no thread
            if not pool.closed:  # else it has ended already, or is about to
                pool.pipes.wake()
            self.ready.extend(thread.left())

    # --- asking ---

    def submit(self, number: int, indices: Any, epoch: int) -> None:
        """Have a task done, which comes after all that were submitted before."""
        if self._lines:
            self._expected[number % self._lines].append(number)
        seeds = self.seeds if epoch == self.epoch else self.seeds.ahead(epoch - self.epoch)
        self.pool.submit(number, indices, epoch, seeds, self.own)  # type: ignore[union-attr]

    def submit_again(self) -> None:
        """Have new workers do what the ones before have not."""
        if self.in_order:  # what is ready before its turn is forgotten
            turns = zip(self.tasks, [each.number for each in self.ready], strict=False)
            in_turn = len([*itertools.takewhile(lambda turn: turn[0] == turn[1], turns)])
            self.ready = deque(itertools.islice(self.ready, in_turn))
        ready = {each.number for each in self.ready}
        self._expected = [deque() for _ in range(self._lines)]
        arrived, self._arrived = self._arrived, {}
        for number, indices in self.tasks.items():
            if number in ready:
                continue
            if number in arrived:
                self._arrived[number] = arrived[number]
                if self._lines:
                    self._expected[number % self._lines].append(number)
            else:
                self.submit(number, indices, self.epoch)

    def begins(self, start: EpochStart, plan: BatchPlan | None) -> bool:
        """Whether these tasks are the first batches of an epoch, and of those that follow it.

        A dataset that has grown meanwhile, say, has more batches in the epoch than were begun of it
        before the next one was.
        """
        seeds = self.seeds.ahead(start.epoch - self.epoch)
        if not self.tasks or plan is None or not plan.is_computed or start.seeds != seeds:
            return False
        expected = lookahead(plan, start.epoch - 1, start.bases)
        for number, indices in self.tasks.items():
            epoch, place, wanted = next(expected, (0, 0, ()))
            if number != task_number(epoch, place) or not np.array_equal(wanted, indices):
                return False
        return True

    def settle(self) -> None:
        """Count out what was given out last; may be interrupted, and done again."""
        if self.given is not None:
            self.tasks.pop(self.given, None)
            self.owed -= 1  # at once with this: nothing is called in between
            self.given = None

    def _keep_only(self, epoch: int) -> None:
        """Forget what is of later epochs than this one; it will be asked for anew."""
        for number in [number for number in self.tasks if not is_of(epoch, number)]:
            del self.tasks[number]
        self.ready = deque(each for each in self.ready if is_of(epoch, each.number))
        self.lookahead = None

    def forget_results(self) -> None:
        """Forget what has come in, but not that it was asked for."""
        self._arrived.clear()
        self.ready.clear()

    # --- taking ---

    def take(self) -> Outcome:
        """Return the next outcome in order; raises if the workers, or the thread, are gone."""
        if self._thread is not None:
            return self._thread.take()
        outcome = self._next()
        if outcome is None:
            raise LoaderError(
                "the loader was closed by another thread while a batch was awaited: iterate the "
                "loader anew"
            )
        return outcome

    def take_ready(self) -> Outcome | None:
        """Return the next outcome of this epoch that has had its turn, if there is one."""
        for place, outcome in enumerate(self.ready):
            if is_of(self.epoch, outcome.number):
                del self.ready[place]
                return outcome
        return None

    def take_at_once(self) -> Outcome | None:
        """Return the next outcome in order if it is there; a death is left to :meth:`take`."""
        if self._thread is not None:
            return self._thread.take_at_once()
        pool = self.pool
        assert pool is not None
        try:
            while (outcome := self._in_turn()) is None:
                came = pool.receive(0.0)
                if came is None:
                    return None
                self._arrived[came.number] = came
        except (WorkerDeath, PoolClosed):
            return None
        outcome.unpack()
        return outcome

    def _next(self) -> Outcome | None:
        pool, healer, began = self.pool, self.healer, 0.0
        assert pool is not None
        while not self._stopping:
            outcome = self._in_turn() if self._arrived else None
            if outcome is None:
                began = began or time.monotonic()
                try:
                    limited = healer.limit is not None
                    outcome = pool.receive(healer.patience(pool, began) if limited else None)
                    if outcome is None and limited:
                        outcome = healer.look(pool, began)
                except WorkerDeath as death:
                    outcome = healer.heal(pool, death)
                finally:
                    if pool.notices:
                        healer.notices.extend(pool.notices)
                        pool.notices.clear()
                if outcome is None:
                    continue
                if self._lines != 1 or self._expected[0][0] != outcome.number:
                    self._arrived[outcome.number] = outcome
                    continue
                self._expected[0].popleft()  # as nearly always
            if self._unpacks:
                outcome.unpack()
            return outcome
        return None

    def _in_turn(self) -> Outcome | None:
        """Take out the outcome whose turn it is, if it has arrived."""
        arrived, lines = self._arrived, self._lines
        if lines == 1:
            line = self._expected[0]
            if not line or line[0] not in arrived:
                return None
            return arrived.pop(line.popleft())
        for number in arrived:
            if not lines:
                return arrived.pop(number)
            line = self._expected[number % lines]
            if line[0] == number:
                return arrived.pop(line.popleft())
        return None

    def was_waiting(self) -> bool:
        """Whether :meth:`take` was in a mere wait when an exception came out of it."""
        if self.pool is None:
            return False
        waits = self._thread or self.pool.pipes
        was, waits.waiting = waits.waiting, False
        new, self.new = self.new, False
        return was or new

    @property
    def made(self) -> int:
        """Batches that have been made and not given out, about."""
        pinned = 0 if self._thread is None else self._thread.pinned
        unread = 0 if self.pool is None else self.pool.unread
        return len(self.ready) + len(self._arrived) + pinned + unread


def is_of(epoch: int, number: int) -> bool:
    """Whether a task belongs to an epoch."""
    return number == task_number(epoch, position_of(number))


def _pinned(outcome: Outcome, pin: Pin) -> Outcome:
    if outcome.error is not None or outcome.ended or (outcome.made and outcome.made.omitted):
        return outcome
    began = time.monotonic_ns()
    try:
        outcome.batch = pin(outcome.batch)
    except Exception as error:
        # This batch's outcome, like an error in a worker: the next one comes after it.
        outcome.batch, outcome.error = None, error
    outcome.pin = time.monotonic_ns() - began
    return outcome
