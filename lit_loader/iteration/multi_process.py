"""One pass over the data, made by worker processes: the wiring of sampler, pool and pipeline.

::

    batches ─indices─▶ dispatch ─▶ pool.submit … workers … pipeline.take ─▶ next()
                          │                                                 │
                      under way ◀───────────── delivered ───────────────────┘

- **Sampler and dispatch** run in the thread that calls ``next()``, at most ``depth`` batches ahead.
- **What was promised and not yet delivered** is kept as indices (`iteration/outstanding.py`). So a
  pool can be lost (a worker died, Ctrl-C in the middle of something, another iterator took the pool
  over, the process was forked) and the next ``next()`` goes on: it claims workers and issues again
  what had not come in. The readers of an iterable dataset are then brought to where the last
  delivered batches have left them.
- **The edge of an epoch.** When all of its batches are issued, the first ones of the next epoch
  are, as the loader foresees them. The next epoch's iterator compares them with what it asks for:
  if they are equal it takes over all that is under way, else the workers begin anew.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

from lit_loader.errors import LoaderError, WorkerRestartWarning
from lit_loader.iteration.base import Host, LoaderIterator
from lit_loader.iteration.delivery import Delivery, DeliveryPipeline, Pin
from lit_loader.iteration.device_copy import DeviceCopy, Staged
from lit_loader.iteration.outstanding import OutstandingTasks, is_of
from lit_loader.pool.pipes import PoolClosed
from lit_loader.pool.recovery import Recovery
from lit_loader.pool.worker_pool import WorkerPool
from lit_loader.sampling.batch_plan import UpcomingBatch
from lit_loader.sampling.epochs import EpochStart
from lit_loader.statistics.records import BatchRecord
from lit_loader.system.interrupts import HeldBack, is_interruption, let_handlers_through
from lit_loader.transport.messages import position_of, task_number

__all__ = ["Claim", "MultiProcessIterator", "PoolHost", "Release"]

T_co = TypeVar("T_co", covariant=True)


Release = Callable[[bool, "OutstandingTasks | None"], object]
"""Gives workers back; called with whether they may be used again, and what they are at for the next
epoch (None: nothing)."""


class Claim(NamedTuple):
    """Workers at the disposal of one iterator.

    Attributes:
        pool: The workers.
        release: Gives them back.
        begun: What they are at already, for this iterator's epoch; None: nothing.
    """

    pool: WorkerPool
    release: Release
    begun: OutstandingTasks | None = None


class PoolHost(Host, Protocol):
    """What this iterator needs of its loader besides."""

    def end_idle_workers(self) -> None:
        """End the persistent workers that no iterator has."""

    def claim(
        self, iterator: MultiProcessIterator[Any], recovery: Recovery, start: EpochStart
    ) -> Claim:
        """Give workers that have begun the epoch to ``iterator``, for it alone."""

    def lookahead(self, epoch: int) -> Iterator[UpcomingBatch] | None:
        """Foresee the batches of the epochs after this one; None: nothing is made ahead."""

    def expected_batches(self, epoch: int) -> Iterator[Any]:
        """Foresee the indices of an epoch's batches, as they would be issued now."""


class MultiProcessIterator(LoaderIterator[T_co]):
    """``num_workers > 0``: batches made by worker processes.

    Args:
        host: The loader.
        depth: Batches that may be under way at the same time.
        num_workers: Worker processes.
        in_order: Whether batches come in the sampler's order, or as they are finished.
        assigned: Whether batch ``n`` is made by worker ``n % num_workers``, and by no other.
        timeout: Seconds without progress after which a worker hangs; 0: never.
        max_restarts: Workers that may be replaced after they died or hung.
        budgeted: Whether the workers have a memory budget, which is to be asked before a task.
        copy: Copies batches to an accelerator, or None.
        pin: Pins a batch, or None.
        device: Accelerator to make current in the pin-memory thread.
    """

    def __init__(
        self,
        host: PoolHost,
        depth: int,
        num_workers: int,
        in_order: bool,
        assigned: bool,
        timeout: float,
        max_restarts: int,
        budgeted: bool,
        copy: DeviceCopy | None,
        pin: Pin | None,
        device: int | None,
    ) -> None:
        super().__init__(host)
        self._host: PoolHost = host
        self._depth = depth
        self._num_workers = num_workers
        self._in_order = in_order
        self._assigned = assigned
        self._timeout = timeout or None
        self._max_restarts = max_restarts
        self._pin = pin
        self._device = device
        self._pid = os.getpid()
        self._next_position: int | None = None
        self._outstanding = OutstandingTasks(in_order)
        self._indices: Any = None  # of the batch given out last
        self._sampler_error: Exception | None = None
        self._all_issued = False
        self._closed = False
        self._pipeline: DeliveryPipeline | None = None
        self.recovery: Recovery | None = None
        """Sees to workers that die or hang, from the first ``next()`` on."""
        self._restarts_told = 0
        self._budgeted = budgeted
        self._copy = copy
        self.superseded = False
        """Whether another iterator has taken this one's workers."""

    def _next(self, start: EpochStart) -> T_co:
        if self._closed:
            raise LoaderError(
                "the loader was closed while this iterator was in use: iterate the loader anew"
            )
        if self._pid != os.getpid():
            self._leave_behind()
        asked = time.monotonic_ns()
        while True:
            try:
                ready = self._advance(start)
            except BaseException as error:
                # Noted as given out, perhaps; but it does not come out.
                start.position.take_back()
                self._outstanding.given = None
                closed = self._pipeline is not None and self._pipeline.pool.closed
                # Also Ctrl-C in mid-message: nobody knows what the pool's pipes then hold.
                self.disconnect(reusable=False)
                _end_with_the_program()
                if isinstance(error, LoaderError):  # what was healed before it comes first
                    self._tell_of_restarts(4)
                elif isinstance(error, PoolClosed) or (closed and not is_interruption(error)):
                    raise LoaderError(
                        "the loader was closed while a batch was awaited: iterate the loader anew"
                    ) from None
                raise
            if ready is None:
                self.disconnect(reusable=True)
                # Only now the pin-memory thread cannot replace another worker.
                self._tell_of_restarts(4)
                raise self._end(start)
            if ready.error is not None:
                try:
                    raise ready.error
                finally:
                    del ready  # or its traceback would hold this frame, and this frame it
            if start.batches is None:
                self._count(ready.samples)
            made = ready.made
            if made is not None:
                if made.ignores_share:
                    self._host.warn_of_ignored_share()
                self._note_errors(position_of(ready.number), made)
                if made.omitted:
                    self._outstanding.settle()
                    continue
            if self.observer is not None:
                staged = isinstance(ready.batch, Staged)
                shown = ready.batch.source if staged else ready.batch
                self._show(start, position_of(ready.number), self._indices, shown)
            batch = ready.batch if self._copy is None else self._on_device(start, ready.batch)
            self._clock(start, ready, asked)
            return batch  # type: ignore[no-any-return]

    def _on_device(self, start: EpochStart, batch: Any) -> Any:
        """Give the batch on the device; and before that, queue the copy of the next one."""
        assert self._copy is not None
        staged = batch if isinstance(batch, Staged) else self._copy.stage(batch)
        coming = self._outstanding.ready
        if not coming and self._pipeline is not None:
            following = self._pipeline.take_at_once()
            if following is not None:
                coming.append(following)
        # One of the next epoch is left to that one's iterator.
        if coming and coming[0].result is not None and is_of(start.epoch, coming[0].number):
            following = coming[0]
            if not isinstance(following.batch, Staged):
                coming[0] = following._replace(batch=self._copy.stage(following.batch))
        return self._copy.take(staged)

    def _clock(self, start: EpochStart, ready: Delivery, asked: int) -> None:
        """Record what the batch has cost, at the moment at which it is given out."""
        result = ready.result
        assert result is not None
        given = time.monotonic_ns()
        wait = given - asked
        if self._pin is None:  # else the pin-memory thread has decoded it meanwhile
            wait -= ready.decode
        indices, at = self._indices, result.slowest_at
        self._host.recorder.add(
            BatchRecord(
                start.epoch,
                position_of(ready.number),
                result.worker,
                ready.samples,
                result.at + result.nbytes,
                result.began,
                result.fetch,
                result.collate,
                result.encode,
                ready.arrived,
                asked,
                wait,
                ready.decode,
                ready.pin,
                asked - self._given if self._given else 0,
                result.slowest,
                indices[at] if type(indices) is list and at < len(indices) else indices,
            )
        )
        self._given = given

    def _advance(self, start: EpochStart) -> Delivery | None:
        """Keep the workers busy until the next batch, or error, is there; None: all are out."""
        while True:
            if not self._all_issued or self._outstanding.owed:
                pipeline = self._connect(start)
                self._dispatch(start, pipeline.pool)
            outstanding = self._outstanding
            if not outstanding.owed:
                error, self._sampler_error = self._sampler_error, None
                return None if error is None else Delivery(-1, None, error)
            ready = outstanding.take_ready(start.epoch) if outstanding.ready else None
            if ready is None:
                ready = pipeline.take()
                if not is_of(start.epoch, ready.number):  # only where batches come unordered
                    outstanding.ready.append(ready)
                    continue
            recovery = pipeline.recovery
            if self._budgeted or recovery.notices or recovery.restarts > self._restarts_told:
                # Not lost where warnings are errors.
                outstanding.ready.appendleft(ready)
                self._tell(pipeline)
                outstanding.ready.popleft()
            self._indices = outstanding.tasks[ready.number]
            self._note(start, ready)
            outstanding.given = ready.number
            if not ready.ended:
                self._dispatch(start, pipeline.pool)
                return ready
            outstanding.settle()

    def _note(self, start: EpochStart, ready: Delivery) -> None:
        """Keep the position up to date."""
        position = position_of(ready.number)
        reader = position % self._num_workers
        if ready.ended:
            start.position.exhausted(reader)
        elif ready.error is not None:
            start.position.failed(position, reader)
        elif start.batches is None:
            start.position.read(reader, None if ready.made is None else ready.made.state)
        else:
            start.position.delivered(position)

    def _connect(self, start: EpochStart) -> DeliveryPipeline:
        """Have workers that know the epoch and hold everything outstanding."""
        if self._pipeline is not None:
            return self._pipeline
        if self.recovery is None:
            point = start.position.reader if start.batches is None else None
            self.recovery = Recovery(self._max_restarts, self._timeout, point)
        _end_with_the_program()
        pool, release, begun = self._host.claim(self, self.recovery, start)
        try:
            with HeldBack():
                pipeline = self._take_over(start, self.recovery, pool, release, begun)
        except BaseException:
            if self._pipeline is None:
                release(False, None)
            raise
        outstanding = self._outstanding
        if start.batches is None:
            self._bring_up(start)
        elif begun is None:
            for number in outstanding.window.restart(outstanding.missing()):
                self._submit(number, outstanding.tasks[number], start.epoch, start.seed, pool)
        if self._next_position is None:
            self._next_position = start.position.start.batches if start.batches is not None else 0
        # Begun by the iterator of the epoch before, and perhaps for another pool than this one.
        while not self._all_issued and (
            task_number(start.epoch, self._next_position) in outstanding.tasks
        ):
            self._dispatch_next(start, pool)
        if begun is not None and begun.owed == len(begun.tasks):
            begun.lookahead = None  # else this epoch is all issued, and the next begun
        pipeline.start()
        return pipeline

    def _take_over(
        self,
        start: EpochStart,
        recovery: Recovery,
        pool: WorkerPool,
        release: Release,
        begun: OutstandingTasks | None,
    ) -> DeliveryPipeline:
        """Have the workers for one's own: from now on :meth:`disconnect` gives them back."""
        if begun is not None:
            self._outstanding = begun
        outstanding = self._outstanding
        outstanding.generation, outstanding.seed = pool.generation, start.seed
        recovery.assigned = outstanding.tasks
        pipeline = DeliveryPipeline(pool, outstanding.window, self._pin, self._device, recovery)
        self._finalizer = weakref.finalize(self, _let_go, pipeline, release, outstanding)
        self._pipeline = pipeline
        return pipeline

    def matches(self, outstanding: OutstandingTasks, start: EpochStart) -> bool:
        """Whether what is under way is what this iterator's epoch begins with."""
        return (
            self._next_position is None
            and start.position.start.batches == 0
            and not start.position.start.ahead
            and start.seed == outstanding.seed
            and outstanding.begins(start.epoch, self._host.expected_batches(start.epoch))
        )

    def _bring_up(self, start: EpochStart) -> None:
        """Begin an iterable dataset's readers where the batches delivered last have left them.

        What had come in and is not delivered is made again: a reader has one place only.
        """
        self._outstanding.clear()
        self._all_issued = False
        points = [start.position.reader(reader) for reader in range(self._num_workers)]
        rounds = min((point.batches for point in points if not point.ended), default=0)
        self._next_position = rounds * self._num_workers
        self._first = {reader: point for reader, point in enumerate(points) if point.batches}

    def _dispatch(self, start: EpochStart, pool: WorkerPool) -> None:
        """Issue tasks until ``depth`` are under way or there are no more."""
        tasks, given = self._outstanding.tasks, 0 if self._outstanding.given is None else 1
        while (outstanding := len(tasks) - given) < self._depth and not (
            self._budgeted and pool.room(outstanding) <= 0
        ):
            if self._all_issued:
                if self._sampler_error is not None or not self._dispatch_coming(start, pool):
                    return
            elif start.batches is None:
                self._dispatch_to_reader(start, pool)
            else:
                self._dispatch_next(start, pool)

    def _dispatch_coming(self, start: EpochStart, pool: WorkerPool) -> bool:
        """Issue the next batch of the epochs to come; returns whether there was one."""
        outstanding = self._outstanding
        if outstanding.lookahead is None:
            outstanding.lookahead = self._host.lookahead(start.epoch)
            if outstanding.lookahead is None:
                return False
        coming = next(outstanding.lookahead, None)
        if coming is None:
            return False
        number = task_number(coming.epoch, coming.position)
        outstanding.tasks[number] = coming.indices
        self._send(number, coming.indices, coming.epoch, start, pool)
        return True

    def _dispatch_to_reader(self, start: EpochStart, pool: WorkerPool) -> None:
        """Issue the next batch of the readers, who take turns; those at their end are left out."""
        position = self._next_position or 0
        round_, reader = divmod(position, self._num_workers)
        point = start.position.reader(reader)
        if not point.ended and round_ >= point.batches:
            self._issue(position, self._first.pop(reader, None), start, pool)
            return
        if all(start.position.reader(r).ended for r in range(self._num_workers)):
            self._all_issued = True
        self._next_position = position + 1

    def _dispatch_next(self, start: EpochStart, pool: WorkerPool) -> None:
        """Issue the sampler's next batch, if it is not under way already."""
        assert start.batches is not None and self._next_position is not None
        position = self._next_position
        if start.batches.at != position:
            start.batches.go_to(position, start.position.sampler_at(position))
        try:
            indices = next(start.batches)
        except StopIteration:
            self._all_issued = True
        except Exception as error:
            let_handlers_through(error)
            # Comes out in its turn, after the batches before it.
            self._sampler_error = error
            self._all_issued = True
        else:
            start.position.drawn(position, start.batches.state())
            if position not in start.position.start.ahead:
                self._issue(position, indices, start, pool)
            else:
                self._next_position = position + 1

    def _issue(self, position: int, task: Any, start: EpochStart, pool: WorkerPool) -> None:
        """Note a task of the epoch, and send it unless it is under way already."""
        number, outstanding = task_number(start.epoch, position), self._outstanding
        noted = None if start.batches is None else task
        begun = number in outstanding.tasks
        # Noted before it is sent: whatever goes wrong then, it will be issued again. And at once:
        # nothing is called in between that a signal handler could raise in.
        if not begun:
            outstanding.tasks[number] = noted
        outstanding.owed += 1
        self._next_position = position + 1
        if not begun:
            self._send(number, task, start.epoch, start, pool)

    def _send(
        self, number: int, task: Any, epoch: int, start: EpochStart, pool: WorkerPool
    ) -> None:
        self._outstanding.window.expect(number)
        self._submit(number, task, epoch, start.seed, pool)

    def _submit(self, number: int, task: Any, epoch: int, seed: int, pool: WorkerPool) -> None:
        worker = position_of(number) % self._num_workers if self._assigned else None
        pool.submit(number, task, epoch, seed, worker)

    def _tell(self, pipeline: DeliveryPipeline) -> None:
        """Warn of workers that were replaced, and of a budget that cannot be kept."""
        self._tell_of_restarts(6)
        overrun = pipeline.pool.overrun()
        if overrun is not None:
            warnings.warn(overrun, RuntimeWarning, stacklevel=5)

    def _tell_of_restarts(self, stacklevel: int) -> None:
        recovery = self.recovery
        assert recovery is not None
        self._host.recorder.worker_restarts += recovery.restarts - self._restarts_told
        self._restarts_told = recovery.restarts
        while recovery.notices:
            notice = recovery.notices.popleft()
            warnings.warn(notice, WorkerRestartWarning, stacklevel=stacklevel)

    def disconnect(self, reusable: bool) -> None:
        """Give the workers back, keeping what has come in.

        Args:
            reusable: Whether the workers may be used again.
        """
        with HeldBack():
            pipeline, outstanding = self._pipeline, self._outstanding
            if pipeline is None:
                return
            outstanding.settle()
            self._pipeline = None
            detached = self._finalizer.detach()
            if detached is None:  # it has run: the program exits
                return
            release = detached[2][1]
            assert self._start is not None
            try:
                outstanding.ready.extend(pipeline.stop())
            finally:
                if outstanding.owed or not reusable:
                    outstanding.keep_only(self._start.epoch)
                    release(reusable, None)
                else:  # the rest is of later epochs, and another iterator's
                    self._outstanding = OutstandingTasks(self._in_order)
                    release(reusable, outstanding)

    def _settle(self, start: EpochStart) -> None:
        start.position.settle()
        outstanding = self._outstanding
        if outstanding.given is not None:  # its settle(), spelled out
            outstanding.tasks.pop(outstanding.given, None)
            outstanding.owed -= 1
            outstanding.given = None

    def _take_back(self) -> None:
        with self._host.lock:
            super()._take_back()
            self._outstanding.given = None
            # What was not given has left the pool, or is somewhere on the way.
            self.disconnect(reusable=False)

    def close(self) -> None:
        """End the iterator: its workers are given back, and it gives no more batches."""
        self._closed = not self._ended
        self.disconnect(reusable=True)
        self._outstanding.clear()

    def _shutdown_workers(self) -> None:
        """End the workers, persistent ones too; torch's name, which programs call."""
        self.close()
        self._host.end_idle_workers()

    def _leave_behind(self) -> None:
        """After a fork: the workers, and the memory of what has come in, are the parent's."""
        self._pid = os.getpid()
        tasks, owed = self._outstanding.tasks, self._outstanding.owed
        self._outstanding = OutstandingTasks(self._in_order)
        self._outstanding.tasks, self._outstanding.owed = tasks, owed
        if self._start is not None:
            self._outstanding.keep_only(self._start.epoch)
        if self._pipeline is not None:
            self._finalizer.detach()
            self._pipeline = None

    @property
    def ready(self) -> int:
        """Batches that have been made and not asked for."""
        ready = len(self._outstanding.ready)
        return ready + (0 if self._pipeline is None else self._pipeline.ready)

    @property
    def shared_memory(self) -> int:
        """Bytes of the arena that are in use."""
        return 0 if self._pipeline is None else self._pipeline.pool.shared_memory

    @property
    def connected(self) -> bool:
        """Whether workers are at this iterator's disposal."""
        return self._pipeline is not None


def _let_go(pipeline: DeliveryPipeline, release: Release, outstanding: OutstandingTasks) -> None:
    """Give an pipeline's workers back when its iterator has been collected."""
    with HeldBack(unnoticed=True):
        outstanding.settle()
        try:
            outstanding.ready.extend(pipeline.stop())
        finally:
            release(True, None if outstanding.owed else outstanding)


def _end_with_the_program() -> None:
    """End a daemon's thread, quietly, when the program exits: the workers are gone, or going."""
    if not threading.main_thread().is_alive() and threading.current_thread().daemon:
        raise SystemExit
