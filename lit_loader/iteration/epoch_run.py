"""`EpochRun`: one pass over the data, whose batches worker processes make.

::

    sampler ─▶ feed ─tasks─▶ pipeline.submit … workers … pipeline.take ─▶ next()

- **The feed** is drawn from in ``next()``, at most ``depth`` batches ahead. `SamplerFeed` gives
  what the sampler draws, leaving out what is delivered already; then the first batches of the
  epochs that follow. `ReaderFeed` gives turns to the readers of an iterable dataset.
- **The pipeline** (`iteration/pipeline.py`) has what is outstanding as indices. So workers can be
  lost (a worker died, Ctrl-C in the middle of something, another iterator got them, the process was
  forked) and the next ``next()`` goes on: it asks the loader for workers again and sends again what
  had not come in; readers of an iterable dataset go back to their last batches.
- **The edge of an epoch.** When all of its batches are sent, the first ones of the next epoch are,
  as the loader expects them. The next epoch's run is given the pipeline as it is, if that begins
  with what the run would send; else the workers begin anew.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from lit_loader.accelerator.device_copy import DeviceCopy, Staged
from lit_loader.checkpoint.position import Shards
from lit_loader.describe import program_stacklevel
from lit_loader.errors import LoaderError, WorkerRestartWarning
from lit_loader.iteration.base import LoaderIterator
from lit_loader.iteration.pipeline import Pin, Pipeline, is_of
from lit_loader.sampling.batch_plan import ComputedBatches
from lit_loader.sampling.epochs import EpochBatches, EpochStart
from lit_loader.seeding.bases import Bases
from lit_loader.statistics.records import BatchRecord
from lit_loader.system.interrupts import HeldBack, is_interruption, let_handlers_through
from lit_loader.transport.loader_page import GIVEN, SINCE
from lit_loader.transport.messages import POSITION, listed, position_of, task_number
from lit_loader.transport.remote_error import ReaderShare
from lit_loader.workers.healer import Healer
from lit_loader.workers.outcome import FewerWorkers, Outcome
from lit_loader.workers.pipes import PoolClosed
from lit_loader.workers.worker_pool import WorkerPool

if TYPE_CHECKING:
    from lit_loader.iteration.core import LoaderCore

__all__ = ["EpochRun"]

# --- the feeds: the tasks that a run has workers do, in the order of sending ---

Task = tuple[int, Any, int]
"""A task's number, its epoch, and the indices; or where to begin, for a reader's first task."""


class SamplerFeed:
    """Tasks of a map-style dataset: what the sampler draws, and then epochs that follow."""

    def __init__(
        self,
        start: EpochStart,
        batches: EpochBatches,
        lookahead: Callable[[int, Bases], Iterator[tuple[int, int, Any]]],
    ) -> None:
        self._start = start
        self._batches = batches
        self._lookahead = lookahead
        self._position = start.position.start.batches
        self.epoch_issued = False  # whether all tasks of the iterator's own epoch have been taken
        # What the sampler has raised in the place of a batch; it comes out behind those before it.
        self.error: Exception | None = None

    @property
    def from_start(self) -> bool:
        """Whether nothing has been taken yet, and the first task is the epoch's first batch."""
        return self._position == 0 and not self._start.position.start.ahead

    def take(self, line: Pipeline) -> Task | None:
        """Give the next task to be sent, which is outstanding from now on; None: there is none."""
        start = self._start
        while not self.epoch_issued:
            position = self._position
            try:
                indices = self._batches.draw(position, start.position)
            except StopIteration:
                self.epoch_issued = True
                break
            except Exception as error:
                let_handlers_through(error)
                self.error = error
                self.epoch_issued = True
                break
            if position in start.position.start.ahead:
                self._position = position + 1
                continue
            number = task_number(start.epoch, position)
            # At once: nothing is called in between that a signal handler could raise in.
            line.tasks[number] = indices
            line.owed += 1
            self._position = position + 1
            return number, indices, start.epoch
        return None if self.error is not None else self._look_ahead(line)

    def adopt(self, line: Pipeline) -> None:
        """Take those tasks of the epoch that are outstanding already: they are not sent again.

        They are of an order of the loader's own, of which any batch can be drawn next.
        """
        if isinstance(self._batches, ComputedBatches):
            self._batches.begin()
        while task_number(self._start.epoch, self._position) in line.tasks:
            line.owed += 1
            self._position += 1
        if line.owed == len(line.tasks):
            line.lookahead = None
        else:
            self.epoch_issued = True  # for the next one is begun

    def restart(self, line: Pipeline) -> None:
        """Begin anew after an end that was none: there is no such."""

    def check_end(self) -> None:
        """Make sure that an epoch that is about to end has been given out whole.

        Better no end than one that loses batches without a word: a LoaderError.
        """
        given = self._start.position.now().delivered
        if not self.epoch_issued or given < self._position:
            issued = f"{self._position} {'' if self.epoch_issued else 'or more '}batches"
            raise LoaderError(
                f"epoch {self._start.epoch} would have ended after {given} of {issued}: this is a "
                "fault of the loader; load_state_dict(state_dict()) goes on with the next batch"
            )

    def _look_ahead(self, line: Pipeline) -> Task | None:
        """Give the next batch of the epochs to come."""
        if line.lookahead is None:
            line.lookahead = self._lookahead(self._start.epoch, self._start.bases)
        for epoch, position, indices in line.lookahead:
            number = task_number(epoch, position)
            line.tasks[number] = indices
            return number, indices, epoch
        return None


class ReaderFeed:
    """Tasks of the readers of an iterable dataset; those at their end have none.

    They take turns. Where batches need not come in order, the next task is for the reader with the
    fewest under way instead: so a slow one delays no other, but for those that share its worker.
    """

    from_start = False

    def __init__(self, start: EpochStart, num_readers: int, shards: Shards | None) -> None:
        self._shares: list[ReaderShare | None] = [None] * num_readers
        if shards is not None:
            self._shares = [ReaderShare(shard, shards.count) for shard in shards.mine]
        self._start = start
        self._num_readers = num_readers
        self._turn = 0
        self._rounds: list[int] = []  # the next one of each reader, where each goes at its own pace
        self._first: dict[int, Any] = {}  # where readers are to begin
        self.epoch_issued = False  # whether all readers have come to their end
        self.error: Exception | None = None  # there is no sampler that could raise one

    def restart(self, line: Pipeline) -> None:
        """Begin where the batches delivered last have left the readers, or where they begin again.

        What had come in and is not delivered is made again: a reader has one place only.
        """
        line.clear()
        self.epoch_issued = False
        position = self._start.position
        points = [position.reader(reader) for reader in range(self._num_readers)]
        self._turn = position.first_turn()
        self._rounds = [point.batches for point in points]
        self._first = {
            reader: point
            for reader, point in enumerate(points)
            if point.batches or point.before  # it has ended where it is now
        }

    def check_end(self) -> None:
        """Readers end by themselves: nobody knows beforehand when."""

    def take(self, line: Pipeline) -> Task | None:
        """Give the next task to be sent, which is outstanding from now on; None: there is none."""
        start = self._start
        turn = None if self.epoch_issued else self._next_turn(line)
        if turn is None:
            self.epoch_issued = True
            return None
        reader = turn % self._num_readers
        first = self._first.pop(reader, None)
        number = task_number(start.epoch, turn)
        # At once: nothing is called in between that a signal handler could raise in.
        line.tasks[number] = self._shares[reader]  # for messages
        line.owed += 1
        self._rounds[reader] += 1
        self._turn = turn + 1
        return number, first, start.epoch

    def _next_turn(self, line: Pipeline) -> int | None:
        """The next turn in the order of the readers, or of one that has few batches under way."""
        position, readers = self._start.position, self._num_readers
        if line.in_order:
            return position.next_turn(self._turn)
        asked = Counter(position_of(number) % readers for number in line.tasks)
        found = None
        for reader in ((self._turn + place) % readers for place in range(readers)):
            if position.passes_over(position.reader(reader)):
                continue
            if found is None or asked[reader] < asked[found]:
                found = reader
                if not asked[found]:
                    break
        return None if found is None else self._rounds[found] * readers + found


TaskFeed = SamplerFeed | ReaderFeed


T_co = TypeVar("T_co", covariant=True)


class EpochRun(LoaderIterator[T_co]):
    """``num_workers > 0``: batches made by worker processes; pinned, if ``pin`` does that."""

    def __init__(self, core: LoaderCore, pin: Pin | None, device: int | None) -> None:
        super().__init__(core)
        loader = core.loader
        self._depth, self._turns, self._in_order = core.depth, core.turns, loader.in_order
        self._timeout, self._max_restarts = loader.timeout, loader.max_worker_restarts
        self._budgeted = loader.memory_budget is not None  # which is to be asked before a task
        self._copy = loader._copies_to and DeviceCopy(*loader._copies_to)
        self._pin, self._device = pin, device
        self._pid = core.pid
        self._feed: TaskFeed | None = None
        self._indices: Any = None  # of the batch given out last
        self._closed, self._restarts_noted = False, 0
        self._steady = False  # an exception has come, and nothing is in disorder
        self._healer: Healer | None = None
        self.line = Pipeline(self._in_order, self._turns, pin, device)
        self.superseded = False  # whether another iterator has got its workers

    def _next(self, start: EpochStart) -> T_co:
        if self._closed:
            raise LoaderError(
                "the loader was closed while this iterator was in use: iterate the loader anew"
            )
        if self._pid != self._core.pid:
            self._leave_behind()
        asked, pool = time.monotonic_ns(), self.line.pool
        if pool is not None:
            pool.page.row[SINCE] = asked
        while True:
            try:
                ready = self._advance(start)
                if ready is not None and (ready.memory is not None or ready.failure is not None):
                    ready.unpack()
            except BaseException as error:
                self._broken_off(start, error)
                raise
            if ready is None:
                self.disconnect(reusable=True)
                # Only now the pin-memory thread cannot replace another worker.
                self._note_restarts()
                raise self._end(start)
            if ready.error is not None:
                try:
                    raise ready.error
                finally:
                    del ready  # or its traceback would hold this frame, and this frame it
            reply, made = ready.reply, ready.made
            assert reply is not None
            if start.batches is None:
                self._count(reply.samples)
            if made is not None:
                if made.divided is not None:
                    self._warn_of_ignored_share(made.divided)
                self._note_errors(ready.number & POSITION, made)
                if made.omitted:
                    start.position.settle()
                    self.line.settle()
                    continue
            if self.observer is not None:
                staged = isinstance(ready.batch, Staged)
                shown = ready.batch.source if staged else ready.batch
                indices = None if start.batches is None else listed(self._indices)
                self._show(start, ready.number & POSITION, indices, shown)
            batch = ready.batch if self._copy is None else self._on_device(start, ready.batch)
            # What the batch has cost, at the moment at which it is given out.
            given, pool, slowest = time.monotonic_ns(), self.line.pool, None
            if reply.slowest:
                slowest = _item(self._indices, reply.slowest_at)
            record = BatchRecord(
                start.epoch,
                ready.number & POSITION,
                reply.worker,
                reply.samples,
                reply.at + reply.nbytes,
                reply.began,
                reply.fetch,
                reply.collate,
                reply.encode,
                ready.arrived,
                asked,
                given - asked - (0 if self._pin else ready.decode),  # or its thread has decoded it
                ready.decode,
                ready.pin,
                asked - self._given if self._given else 0,
                reply.slowest,
                reply.processor,
                reply.queued,
                reply.read,
                reply.state,
                slowest,
            )
            again = start.batches is None and made is not None and made.state is None
            self._core.note(record, pool, again)
            self._given = given
            if pool is not None:
                page = pool.page
                page.row[GIVEN] += 1
                page.row[SINCE] = -given
                if given >= page.due:
                    self._core.show(page, self)
            return batch  # type: ignore[no-any-return]

    def _broken_off(self, start: EpochStart, error: BaseException) -> None:
        """Bring things in order after an exception that is no batch's outcome."""
        line = self.line
        if is_interruption(error) and not self._tail and line.was_waiting():
            # Nothing was broken into: the next ``next()`` goes on waiting.
            self._steady = True
            return
        # Noted as given out, perhaps; but it does not come out.
        start.position.take_back()
        line.given = None
        closed = line.pool is not None and line.pool.closed
        # Also Ctrl-C in mid-message: it is not known what the pool's pipes then hold.
        self.disconnect(reusable=False)
        _end_with_the_program()
        if isinstance(error, LoaderError):  # what was healed before it comes first
            self._note_restarts()
        elif isinstance(error, PoolClosed) or (closed and not is_interruption(error)):
            raise LoaderError(
                "the loader was closed while a batch was awaited: iterate the loader anew"
            ) from None

    def _on_device(self, start: EpochStart, batch: Any) -> Any:
        """Give the batch on the device; and before that, queue the copy of the next one."""
        assert self._copy is not None
        staged = batch if isinstance(batch, Staged) else self._copy.stage(batch)
        line = self.line
        if not line.ready and line.pool is not None:
            following = line.take_at_once()
            if following is not None:
                line.ready.append(following)
        # One of the next epoch is left to that one's iterator.
        if line.ready and (following := line.ready[0]).reply and following.error is None:
            ended = following.ended or (following.made and following.made.omitted)
            done = ended or isinstance(following.batch, Staged)
            if is_of(start.epoch, following.number) and not done:
                following.batch = self._copy.stage(following.batch)
        return self._copy.take(staged)

    def _advance(self, start: EpochStart) -> Outcome | None:
        """Keep the workers busy until the next batch, or error, is there; None: all are out."""
        while True:
            line, feed, tail = self.line, self._feed, self._tail
            if feed is None or not feed.epoch_issued or line.owed:
                if line.pool is None:
                    self._connect(start)
                    line, feed = self.line, self._feed
                if len(line.tasks) < self._depth:
                    self._dispatch(start)
            assert feed is not None
            if not line.owed:
                if tail and tail.begins_again(start.position):
                    feed.restart(line)
                    continue
                error, feed.error = feed.error, None
                if error is not None:
                    return Outcome(-1, error=error)
                feed.check_end()
                return None
            if tail and not tail.admits(start.position):
                self.disconnect(reusable=True)
                line.clear()
                return None
            ready = line.take_ready() if line.ready else None
            if ready is None:
                ready = line.take()
                if not self._in_order and not is_of(start.epoch, ready.number):
                    line.ready.append(ready)
                    continue
            healer = line.healer
            if self._budgeted or healer.notices or healer.restarts > self._restarts_noted:
                # Not lost where warnings are errors.
                line.ready.appendleft(ready)
                self._warn()
                line.ready.popleft()
            self._indices = line.tasks[ready.number]
            if start.batches is not None:
                start.position.latest = ready.number & POSITION
            else:
                self._note(start, ready)
            line.given = ready.number
            if not ready.ended:
                if len(line.tasks) <= self._depth:
                    self._dispatch(start)
                if tail:
                    tail.given(start.position)
                return ready
            line.settle()

    def _note(self, start: EpochStart, ready: Outcome) -> None:
        """Note in the position that a reader's batch, or an error in its place, is given out."""
        number, position = position_of(ready.number), start.position
        reader = number % self._turns
        if ready.error is not None:
            position.failed(number, reader)
        elif ready.ended:
            position.exhausted(reader)
        elif ready.made is None:
            position.read(reader, None)
        else:
            position.read(reader, ready.made.state, ready.made.mark)

    def _dispatch(self, start: EpochStart) -> None:
        """Send tasks until ``depth`` are outstanding or there are no more."""
        line, feed = self.line, self._feed
        pool = line.pool
        assert feed is not None and pool is not None
        tasks, given = line.tasks, 0 if line.given is None else 1
        while (undelivered := len(tasks) - given) < self._depth and not (
            self._budgeted and pool.arena.room(undelivered) <= 0
        ):
            task = feed.take(line)
            if task is None:
                return
            line.submit(*task)

    def _connect(self, start: EpochStart) -> None:
        """Have workers that know the epoch, and are at all that is outstanding."""
        if self._feed is None:
            # Before the feed, by which it is seen that there are both: a signal handler may raise.
            self._healer = Healer(self._max_restarts, self._timeout or None, start.batches is None)
            if start.batches is None:
                self._feed = ReaderFeed(start, self._turns, self._core.shards)
            else:
                self._feed = SamplerFeed(start, start.batches, self._core.lookahead)
        feed, healer = self._feed, self._healer
        assert healer is not None
        _end_with_the_program()
        with HeldBack():  # what a handler raises comes when the workers are started, and are kept
            resizes, before = self._core.resizes, self.line
            pool, release, line = self._core.claim(self, start, feed.from_start)
            try:
                line = self.line = line or before
                line.connect(pool, self, release)
            except BaseException:
                release(line, False)
                raise
            line.epoch, line.seeds, line.healer = start.epoch, start.seeds, healer
            line.pin, line.device = self._pin, self._device
            line.own = start.batches is not None and start.batches.computed
            healer.assigned = line.tasks
            pool.patient = bool(self._timeout)
            pool.page.begin_epoch(start.epoch, start.position.now().delivered)
            if resizes != self._core.resizes:  # meanwhile, and these were not found
                self.resize(*self._core.size)
            if isinstance(feed, ReaderFeed):
                pool.point = start.position.reader
                feed.restart(line)
            else:
                if line is before:
                    line.submit_again()
                feed.adopt(line)
            line.start()
            if not pool.page.due:  # one that hangs at its first batch is seen, too
                self._core.show(pool.page, self)
            line.new = True
        line.new = False

    def _warn(self) -> None:
        """Warn of workers that were replaced, and of a budget that cannot be kept."""
        self._note_restarts()
        overrun = None if self.line.pool is None else self.line.pool.arena.overrun()
        if overrun is not None:
            warnings.warn(overrun, RuntimeWarning, stacklevel=program_stacklevel())

    def _note_restarts(self) -> None:
        """Count the workers that were replaced, and warn of them."""
        healer = self._healer
        if healer is None:
            return
        self._core.recorder.worker_restarts += healer.restarts - self._restarts_noted
        self._restarts_noted = healer.restarts
        while healer.notices:
            notice = healer.notices.popleft()
            self._core.recorder.note("restart", str(notice))
            if isinstance(notice, FewerWorkers):
                self._core.make_do(notice.workers)
            warnings.warn(notice, WorkerRestartWarning, stacklevel=program_stacklevel())

    def disconnect(self, reusable: bool) -> None:
        """Give the workers back, if there are any; what has come in is kept."""
        with HeldBack():
            self.line.end(reusable)
            if self.line.handed_on:
                self.line = Pipeline(self._in_order, self._turns, self._pin, self._device)

    def resize(self, num_workers: int, depth: int) -> None:
        """Change the number of workers and of batches that may be outstanding; from any thread."""
        self._depth, pool = depth, self.line.pool
        if pool is not None:
            pool.resize(num_workers, depth)

    @property
    def unattended(self) -> WorkerPool | None:
        """The workers, if there are some that only :meth:`__next__` receives from."""
        return None if self._pin is not None else self.line.pool

    def revoke(self) -> None:
        """Give the workers to another iterator."""
        if self.line.pool is not None:
            self.superseded = True
            self.disconnect(reusable=True)

    def _settle(self, start: EpochStart) -> None:
        start.position.settle()
        line = self.line
        if line.given is not None:  # its settle(), spelled out
            line.tasks.pop(line.given, None)
            line.owed -= 1
            line.given = None

    def _take_back(self) -> None:
        with self._core.lock:
            super()._take_back()
            if self._steady:
                self._steady = False
                return
            self.line.given = None
            # What was not given has left the pool, or is somewhere on the way.
            self.disconnect(reusable=False)

    def close(self) -> None:
        """End the iterator: its workers are given back, and it gives no more batches."""
        self._closed = not self._ended
        self.disconnect(reusable=True)
        self.line.clear()

    def _shutdown_workers(self) -> None:
        self.close()
        super()._shutdown_workers()

    def _leave_behind(self) -> None:
        """After a fork: the workers, and the memory of what has come in, are the parent's."""
        self._pid = self._core.pid
        self.disconnect(reusable=False)
        self.line.forget_results()

    @property
    def ready(self) -> int:
        """Batches that have been made and not asked for."""
        return self.line.made

    @property
    def pool(self) -> WorkerPool | None:
        """The workers at this iterator's disposal."""
        return self.line.pool


def _item(indices: Any, place: int) -> Any:
    """One of a batch's indices; the batch's only one, or what it has in their place."""
    indices = listed(indices)
    return indices[place] if type(indices) is list and place < len(indices) else indices


def _end_with_the_program() -> None:
    """End a daemon's thread, quietly, when the program exits: the workers are gone, or going."""
    if not threading.main_thread().is_alive() and threading.current_thread().daemon:
        raise SystemExit
