"""`MultiProcessIterator`: one pass over the data, whose batches worker processes make.

::

    sampler ─▶ feed ─tasks─▶ dispatch ─▶ pool.submit … workers … pipeline.take ─▶ next()
                 │                                                                  │
                 ╰───────▶ outstanding ◀─────────────── given out ──────────────────╯

- **Feed and dispatch** (`iteration/task_feed.py`) run in ``next()``, at most ``depth`` ahead.
- **What is outstanding** is kept as indices (`iteration/outstanding.py`). So workers can be lost (a
  worker died, Ctrl-C in the middle of something, another iterator got them, the process was
  forked) and the next ``next()`` goes on: it begins another session (`iteration/session.py`) and
  sends again what had not come in; readers of an iterable dataset go back to their last batches.
- **The edge of an epoch.** When all of its batches are sent, the first ones of the next epoch are,
  as the loader expects them. The next epoch's iterator compares them with what it would send: if
  they are equal it adopts all that is outstanding, else the workers begin anew.
"""

from __future__ import annotations

import os
import time
import warnings
from typing import Any, TypeVar

from lit_loader.accelerator.device_copy import DeviceCopy, Staged
from lit_loader.errors import LoaderError, WorkerRestartWarning
from lit_loader.iteration.base import LoaderIterator
from lit_loader.iteration.claims import Claim, PoolHost, WorkerRequest
from lit_loader.iteration.delivery import Delivery, DeliveryPipeline, Pin
from lit_loader.iteration.outstanding import OutstandingTasks, is_of
from lit_loader.iteration.session import Session, end_with_the_program
from lit_loader.iteration.task_feed import ReaderFeed, SamplerFeed, TaskFeed
from lit_loader.pool.healer import Healer
from lit_loader.pool.outcome import FewerWorkers
from lit_loader.pool.pipes import PoolClosed
from lit_loader.pool.worker_pool import WorkerPool
from lit_loader.sampling.epochs import EpochStart
from lit_loader.system.interrupts import HeldBack, is_interruption
from lit_loader.transport.loader_page import GIVEN, SINCE
from lit_loader.transport.messages import position_of

__all__ = ["MultiProcessIterator"]

T_co = TypeVar("T_co", covariant=True)


class MultiProcessIterator(LoaderIterator[T_co]):
    """``num_workers > 0``: batches made by worker processes.

    Args:
        host: The loader.
        depth: Batches that may be outstanding at the same time.
        in_order: Whether batches come in the sampler's order, or as they are finished.
        turns: Batch ``n`` is for reader ``n % turns``, or the worker of that number; 0: for any.
        timeout: Seconds without progress after which a worker hangs; 0: never.
        max_restarts: Workers that may be replaced after they died or hung.
        budgeted: Whether the workers have a memory budget, which is to be asked before a task.
        copy: Copies batches to an accelerator, or None.
        pin: Pins a batch, or None.
        device: Accelerator to make current in the pin-memory thread.

    Attributes:
        healer: Sees to workers that die or hang; None before the first ``next()``.
        superseded: Whether another iterator has got this one's workers.
    """

    def __init__(
        self,
        host: PoolHost,
        depth: int,
        in_order: bool,
        turns: int,
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
        self._turns = turns
        self._timeout = timeout
        self._max_restarts = max_restarts
        self._budgeted = budgeted
        self._copy, self._pin, self._device = copy, pin, device
        self._pid = os.getpid()
        self._outstanding = OutstandingTasks(in_order, turns)
        self._feed: TaskFeed | None = None
        self._session: Session | None = None
        self._indices: Any = None  # of the batch given out last
        self._closed, self._restarts_noted = False, 0
        self._steady = False  # an exception has come, and nothing is in disorder
        self.healer: Healer | None = None
        self.superseded = False

    def _next(self, start: EpochStart) -> T_co:
        if self._closed:
            raise LoaderError(
                "the loader was closed while this iterator was in use: iterate the loader anew"
            )
        if self._pid != os.getpid():
            self._leave_behind()
        asked = time.monotonic_ns()
        if self._session is not None:
            self._session.page.row[SINCE] = asked
        while True:
            try:
                ready = self._advance(start)
            except BaseException as error:
                if is_interruption(error) and self._was_waiting():
                    self._steady = True
                    raise
                # Noted as given out, perhaps; but it does not come out.
                start.position.take_back()
                self._outstanding.given = None
                closed = self._session is not None and self._session.pool.closed
                # Also Ctrl-C in mid-message: it is not known what the pool's pipes then hold.
                self.disconnect(reusable=False)
                end_with_the_program()
                if isinstance(error, LoaderError):  # what was healed before it comes first
                    self._note_restarts(4)
                elif isinstance(error, PoolClosed) or (closed and not is_interruption(error)):
                    raise LoaderError(
                        "the loader was closed while a batch was awaited: iterate the loader anew"
                    ) from None
                raise
            if ready is None:
                self.disconnect(reusable=True)
                # Only now the pin-memory thread cannot replace another worker.
                self._note_restarts(4)
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
                indices = None if start.batches is None else self._indices
                self._show(start, position_of(ready.number), indices, shown)
            batch = ready.batch if self._copy is None else self._on_device(start, ready.batch)
            self._clock(start, ready, asked)
            return batch  # type: ignore[no-any-return]

    def _was_waiting(self) -> bool:
        """Whether an exception came in a mere wait, for workers that are at all that is asked for.

        Then nothing was broken into: the next ``next()`` goes on waiting.
        """
        session = self._session
        if session is None or self._tail:
            return False
        new, session.new = session.new, False
        return session.pipeline.was_waiting() or new

    def _on_device(self, start: EpochStart, batch: Any) -> Any:
        """Give the batch on the device; and before that, queue the copy of the next one."""
        assert self._copy is not None
        staged = batch if isinstance(batch, Staged) else self._copy.stage(batch)
        coming = self._outstanding.ready
        if not coming and self._session is not None:
            following = self._session.pipeline.take_at_once()
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
        given = time.monotonic_ns()
        wait = given - asked
        if self._pin is None:  # else the pin-memory thread has decoded it meanwhile
            wait -= ready.decode
        step = asked - self._given if self._given else 0
        record = ready.record(start.epoch, asked, wait, step, self._indices)
        again = start.batches is None and ready.made is not None and ready.made.state is None
        self._host.note(record, self.pool, again)
        self._given = given
        if self._session is not None:
            page = self._session.page
            page.row[GIVEN] += 1
            page.row[SINCE] = -given
            if given >= page.due:
                self._host.show(page, self)

    def _advance(self, start: EpochStart) -> Delivery | None:
        """Keep the workers busy until the next batch, or error, is there; None: all are out."""
        outstanding = self._outstanding
        while True:
            feed = self._feed
            if feed is None or not feed.epoch_issued or outstanding.owed:
                session = self._session or self._connect(start)
                self._dispatch(start, session.pool)
                feed = self._feed
            assert feed is not None
            tail = self._tail
            if not outstanding.owed:
                if tail and tail.begins_again(start.position):
                    feed.restart()
                    continue
                error, feed.error = feed.error, None
                if error is not None:
                    return Delivery(-1, None, error)
                feed.check_end()
                return None
            if tail and not tail.admits(start.position, session.hold):
                self.disconnect(reusable=True)
                outstanding.clear()
                return None
            ready = outstanding.take_ready(start.epoch) if outstanding.ready else None
            if ready is None:
                ready = session.pipeline.take()
                if not is_of(start.epoch, ready.number):  # only where batches come unordered
                    outstanding.ready.append(ready)
                    continue
            healer = session.pipeline.healer
            if self._budgeted or healer.notices or healer.restarts > self._restarts_noted:
                # Not lost where warnings are errors.
                outstanding.ready.appendleft(ready)
                self._warn(session.pool)
                outstanding.ready.popleft()
            self._indices = outstanding.tasks[ready.number]
            ready.note(start, self._turns)
            outstanding.given = ready.number
            if not ready.ended:
                self._dispatch(start, session.pool)
                if tail:
                    tail.given(start.position)
                return ready
            outstanding.settle()

    def _connect(self, start: EpochStart) -> Session:
        """Begin a session with workers that know the epoch, and are at all that is outstanding."""
        if self._feed is None or self.healer is None:
            self._prepare(start)
        assert self._feed is not None and self.healer is not None
        end_with_the_program()
        fresh, resizes = self._feed.from_start, self._host.resizes
        request = WorkerRequest(start.epoch, start.seed, fresh, self.superseded, self._revoked)
        with HeldBack():  # what a handler raises comes when the workers are started, and are kept
            claim = self._host.claim(request)
            try:
                session = self._begin_session(start, self.healer, claim)
            except BaseException:
                claim.release(False, None)
                raise
            if resizes != self._host.resizes:  # meanwhile, and these were not found
                self.resize(*self._host.size)
            if isinstance(self._feed, ReaderFeed):
                session.pool.read_from(start.position.reader)
                self._feed.restart()
                if self._tail:
                    self._tail.restarted(start.position)
            else:
                if claim.begun is None:
                    self._reissue(start, session.pool)
                self._feed.adopt()
            session.start()
            if not session.page.due:  # one that hangs at its first batch is seen, too
                self._host.show(session.page, self)
            session.new = True
        session.new = False
        return session

    def _prepare(self, start: EpochStart) -> None:
        """Make, for the first session, what all others go on with."""
        outstanding, iterable = self._outstanding, start.batches is None
        if start.batches is None:
            self._feed = ReaderFeed(start, outstanding, self._turns, self._host.shards)
        else:
            self._feed = SamplerFeed(start, start.batches, outstanding, self._host.lookahead)
        self.healer = Healer(self._max_restarts, self._timeout or None, iterable)

    def _begin_session(self, start: EpochStart, healer: Healer, claim: Claim) -> Session:
        """Take the workers over: from now on :meth:`disconnect` gives them back."""
        outstanding, pool = self._outstanding, claim.pool
        if claim.begun is not None:
            outstanding.adopt(claim.begun)
        outstanding.token, outstanding.seed = pool.token, start.seed
        healer.assigned = outstanding.tasks
        pool.patient = bool(self._timeout)
        pool.page.begin_epoch(start.epoch, start.position.now().delivered)
        pipeline = DeliveryPipeline(pool, outstanding.buffer, self._pin, self._device, healer)
        self._session = Session(self, pool, pipeline, claim.release, outstanding, start.epoch)
        return self._session

    def _reissue(self, start: EpochStart, pool: WorkerPool) -> None:
        """Send the outstanding tasks whose batches have not come in."""
        outstanding = self._outstanding
        for number in outstanding.buffer.restart(outstanding.missing()):
            pool.submit(number, outstanding.tasks[number], start.epoch, start.seed)

    def _dispatch(self, start: EpochStart, pool: WorkerPool) -> None:
        """Send tasks until ``depth`` are outstanding or there are no more."""
        outstanding, feed = self._outstanding, self._feed
        assert feed is not None
        tasks, given = outstanding.tasks, 0 if outstanding.given is None else 1
        while (undelivered := len(tasks) - given) < self._depth and not (
            self._budgeted and pool.room(undelivered) <= 0
        ):
            task = feed.take()
            if task is None:
                return
            number, epoch, indices = task
            outstanding.buffer.expect(number)
            pool.submit(number, indices, epoch, start.seed)

    def _warn(self, pool: WorkerPool) -> None:
        """Warn of workers that were replaced, and of a budget that cannot be kept."""
        self._note_restarts(6)
        overrun = pool.overrun()
        if overrun is not None:
            warnings.warn(overrun, RuntimeWarning, stacklevel=5)

    def _note_restarts(self, stacklevel: int) -> None:
        """Count the workers that were replaced, and warn of them."""
        healer = self.healer
        if healer is None:
            return
        self._host.recorder.worker_restarts += healer.restarts - self._restarts_noted
        self._restarts_noted = healer.restarts
        while healer.notices:
            notice = healer.notices.popleft()
            self._host.recorder.note("restart", str(notice))
            if isinstance(notice, FewerWorkers):
                self._host.make_do(notice.workers)
            warnings.warn(notice, WorkerRestartWarning, stacklevel=stacklevel)

    def disconnect(self, reusable: bool) -> None:
        """Give the workers back, if there are any; what has come in is kept.

        Args:
            reusable: Whether the workers may be used again.
        """
        with HeldBack():
            session, self._session = self._session, None
            if session is not None:
                session.end(reusable)

    def resize(self, num_workers: int, depth: int) -> None:
        """Change the number of workers and of batches that may be outstanding; from any thread."""
        self._depth, session = depth, self._session
        if session is not None:
            session.pool.resize(num_workers, depth)

    @property
    def unattended(self) -> WorkerPool | None:
        """The workers, if there are some that only :meth:`__next__` receives from."""
        session = self._session
        return None if session is None or self._pin is not None else session.pool

    def _revoked(self) -> None:
        """Give the workers to another iterator."""
        if self._session is not None:
            self.superseded = True
            self.disconnect(reusable=True)

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
            if self._steady:
                self._steady = False
                return
            self._outstanding.given = None
            # What was not given has left the pool, or is somewhere on the way.
            self.disconnect(reusable=False)

    def close(self) -> None:
        """End the iterator: its workers are given back, and it gives no more batches."""
        self._closed = not self._ended
        self.disconnect(reusable=True)
        self._outstanding.clear()

    def _shutdown_workers(self) -> None:
        self.close()
        super()._shutdown_workers()

    def _leave_behind(self) -> None:
        """After a fork: the workers, and the memory of what has come in, are the parent's."""
        self._pid = os.getpid()
        self.disconnect(reusable=False)
        self._outstanding.forget_results()

    @property
    def ready(self) -> int:
        """Batches that have been made and not asked for."""
        ready = len(self._outstanding.ready)
        return ready + (0 if self._session is None else self._session.pipeline.ready)

    @property
    def pool(self) -> WorkerPool | None:
        """The workers at this iterator's disposal."""
        return None if self._session is None else self._session.pool

    @property
    def connected(self) -> bool:
        """Whether workers are at this iterator's disposal."""
        return self._session is not None
