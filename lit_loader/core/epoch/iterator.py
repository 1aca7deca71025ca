"""`LoaderIterator`: what ``iter(loader)`` returns; one pass over the data, as the consumer sees it.

::

    tasks.next_task ─▶ executor.submit … receive ─▶ arrived ─ in order ─▶ tasks.took ─▶ next()
                            [pin-memory thread] ──╯

- Nothing starts before the first ``next()``, or `begin`: an iterator that is thrown away leaves no
  trace but the seed that was drawn. The first ``next()`` fixes where in which epoch to begin.
- The executor (`core/executors/executor.py`) may be lost at any moment: a worker died, Ctrl-C came
  in the middle of something, another iterator got the workers, the process was forked. The next
  ``next()`` asks the core for another one, and sends again what is outstanding (`PassTasks.tasks`).
- An exception that a signal handler raises comes out of ``next()``. The next ``next()`` returns the
  batch that was due; workers may be started again for it.
- When all tasks of a pass are sent, the first ones of the next epoch are (`NextEpochTasks`). The
  object passes to the next iterator, with the workers.

It is a subclass of torch's iterator, of which nothing runs, for programs that are written for that.
What they reach for in it, and for whom it is, an add-on says (`Seams.torch_habits`).
"""

from __future__ import annotations

import functools
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

import numpy as np
from torch.utils.data.dataloader import _BaseDataLoaderIter  # reach: torch: base class

from lit_loader.core.epoch.pass_tasks import MapTasks, PassTasks
from lit_loader.core.epoch.passes import Pass
from lit_loader.core.executors.executor import Executor, FewerWorkers, Outcome, PoolClosed, Workers
from lit_loader.core.executors.inline import Inline
from lit_loader.core.seeding.loader_seeds import GeneratorLock
from lit_loader.core.system.interrupts import HeldBack
from lit_loader.core.transport.messages import POSITION
from lit_loader.core.transport.viewer_page import GIVEN, SINCE
from lit_loader.describe import warn
from lit_loader.errors import ExactnessWarning, LoaderError, WorkerRestartWarning

if TYPE_CHECKING:  # what a plain loader does without
    from lit_loader.accelerator.device_copy import DeviceCopy
    from lit_loader.accelerator.pin_memory import PinMemoryThread, Pinning
    from lit_loader.core.epoch.loader_core import LoaderCore
    from lit_loader.core.epoch.worker_keeper import WorkerKeeper
    from lit_loader.core.executors.pool_executor import Healer
    from lit_loader.core.executors.worker_process import WorkerProcess
    from lit_loader.data.sample_errors import SampleErrorLog

__all__ = ["LoaderIterator"]

T_co = TypeVar("T_co", covariant=True)

_NO_END: Final = (
    "a StopIteration was raised within an epoch, and would have been taken for its end. The "
    "traceback above shows where. Nothing is lost: the next next() returns the batch"
)
_CLOSED: Final = (
    "the loader was closed while this iterator waited for a batch. Iterate the loader again"
)


class LoaderIterator(_BaseDataLoaderIter, Generic[T_co]):
    """An iterator over the batches of one pass.

    ``drawn`` is the seed that was drawn for it, or None. ``here``: this process makes the batches,
    and not workers. ``pin`` pins them, those of workers in a thread of its own; None: nothing does.

    Attributes:
        made: The pass, once it has begun.
        superseded: Whether another iterator has got its workers.
        healer: Replaces workers; None without any.
    """

    made: Pass | None = None
    superseded = _ended = _closed = False
    healer: Healer | None = None
    _tasks: PassTasks | None = None
    _executor: Executor | None = None
    _thread: PinMemoryThread[Outcome] | None = None
    _finalizer: weakref.finalize[..., LoaderIterator[T_co]] | None = None
    _tail: Any = None  # decides, with the other ranks, where a stream ends
    _copy: DeviceCopy | None = None
    _sample_errors: SampleErrorLog | None = None  # of the epoch so far, if there are some
    _restarts_noted = 0
    _given = 0  # when the last batch was given out
    _samples = 0
    _noted = -1  # the batch whose errors were noted last

    def __init__(
        self, core: LoaderCore, drawn: int | None, here: bool, pin: Pinning | None
    ) -> None:
        self._core, self.drawn = core, drawn
        self._data_loader = loader = core.loader  # which lives as long as it is iterated
        self._here, self._pin, self._pid = here, pin, core.pid
        self._draws = here  # whether other threads wait for a turn at the generators
        # Readers, each of which gives its own in order; 0: whichever batch comes first. With
        # ``in_order`` there is one line.
        self._lines = 1
        # What len(loader) has promised so far: list(loader) asks for the length after this.
        self._promised = core.promised
        if not here:
            from lit_loader.core.executors.pool_executor import Healer

            self._lines = 1 if loader.in_order else core.readers
            self._copy = core.seams.device_copy(core)
            limits = loader.max_worker_restarts, loader.timeout or None
            self.healer = Healer(*limits, core.iterable, core.seams)

    # --- the way of a batch ---

    def __next__(self) -> T_co:
        own: BaseException | None = None  # what is given in a batch's place, or at the end
        asked, turn = False, GeneratorLock() if self._draws else None
        # A signal handler may raise at any instruction; all that follow the asking, up to the one
        # that returns, are in this block: what comes out otherwise is taken back.
        try:
            try:
                # Before the loader's own lock: a dataset that iterates this loader has that order.
                if turn is not None:
                    turn.take()
                with self._core.lock:
                    if self._ended:
                        raise StopIteration
                    began, tasks = time.monotonic_ns(), self._tasks
                    if tasks is None:
                        tasks = self._begin()
                    tasks.settle()
                    asked = True
                    while True:
                        outcome = self._make(tasks) if self._here else self._await(tasks, began)
                        if outcome is None:
                            break
                        own = outcome.error
                        if own is None and outcome.made is not None:
                            own = self._report(outcome)
                        if own is not None:
                            outcome.error = None  # its traceback has frames that hold the outcome
                            raise own
                        if outcome.made is None or not outcome.made.omitted:
                            return self._hand_out(tasks, outcome, began)
                        tasks.settle()
                    own = tasks.fault() or self._end(tasks)
                    raise own
            finally:
                if turn is not None:
                    turn.end()
        except BaseException as error:
            if turn is not None:
                turn.end()  # that may have been interrupted, too
            if asked and error is not own:
                self._broken_off(error)
            if self._executor is not None and self._executor.page is not None:
                self._executor.page.rest()  # the program continues
            own = None  # whose traceback holds this frame
            raise

    def begin(self) -> None:
        """Begin the pass now, and let workers make its first batches."""
        tasks = self._begin()
        tasks.next_task()
        self._fill(self._connect(tasks), tasks)

    def begin_pass(self) -> Pass:
        """Fix where the pass begins."""
        self.made = self.made or self._core.begin_pass(self)
        return self.made

    def _begin(self) -> PassTasks:
        """Begin the pass."""
        core, made = self._core, self.begin_pass()
        if made.batches is None:
            self._tail = core.seams.end_policy(core, made)
            self._tasks = core.seams.stream_tasks(core, made, self._lines == 1)
        else:
            self._tasks = MapTasks(made, core.next_epoch_tasks(made))
        return self._tasks

    def _make(self, tasks: PassTasks) -> Outcome | None:
        """Make the next batch here; None: all are out."""
        tail = self._tail
        while True:
            if self._closed or self._pid != self._core.pid:
                self._check_closed()
            executor: Any = self._executor
            # The task is drawn first: that may change the dataset.
            if executor is None and (tasks.tasks or tasks.next_task() is not None):
                executor = self._connect(tasks)
            task = tasks.next_task()
            if task is None:
                if tail and tail.begins_again(tasks.place):
                    tasks.restart_all()
                    continue
                return None
            if tail and not tail.admits(tasks.place):
                self._let_go(reusable=True)
                tasks.tasks.clear()
                return None
            outcome: Outcome = executor.make(task)
            tasks.took(outcome)
            if not outcome.ended:
                break
            tasks.settle()
        if tail:
            tail.given(tasks.place)
        return outcome

    def _await(self, tasks: PassTasks, began: int) -> Outcome | None:
        """Keep the workers busy until the next outcome is there; None: all are out."""
        tail = self._tail
        while True:
            if self._closed or self._pid != self._core.pid:
                self._check_closed()
            executor = self._executor
            if executor is None and not tasks.tasks:
                tasks.next_task()  # before workers are started or told: it may change the dataset
            if tasks.tasks or not tasks.is_drawn:
                if executor is None:
                    executor = self._connect(tasks)
                if executor.page is not None:
                    executor.page.row[SINCE] = began
                if not tasks.tasks or tasks.again:
                    self._fill(executor, tasks, least=1)
            if not tasks.tasks:
                if tail and tail.begins_again(tasks.place):
                    tasks.restart_all()
                    continue
                return None
            assert executor is not None
            if tail and not tail.admits(tasks.place):
                self._let_go(reusable=True)
                tasks.tasks.clear()
                return None
            arrived = tasks.arrived
            outcome = self._in_turn(tasks) if arrived else None
            while outcome is None:
                came = executor.receive() if self._thread is None else self._thread.take()
                if came is None:
                    raise LoaderError(_CLOSED)
                if came.lost:
                    tasks.restart(came.number)
                    self._fill(executor, tasks)
                    continue
                if came.number == next(iter(tasks.tasks)):  # as nearly always
                    outcome = came
                else:
                    arrived[came.number] = came
                    outcome = self._in_turn(tasks)
            if (self.healer is not None and self.healer.notices) or outcome.error is not None:
                arrived[outcome.number] = outcome  # not lost where warnings are errors
                self._report_events()
                del arrived[outcome.number]
            if tasks.reads_streams and (outcome.memory is not None or outcome.failure is not None):
                outcome.unpack()  # the report is of its place
            tasks.took(outcome)
            if not outcome.ended:
                break
            tasks.settle()
        self._fill(executor, tasks)  # before the batch is unpacked: no worker is to wait
        if tail:
            tail.given(tasks.place)
        if outcome.memory is not None or outcome.failure is not None:
            outcome.unpack()
        return outcome

    def _fill(self, executor: Executor, tasks: PassTasks, least: int = 0) -> None:
        """Submit tasks as long as there is room for them, and there are some.

        ``least`` tasks of the pass are to be outstanding, room or not. Resubmitted tasks ignore the
        limit: the others may be waiting for the first of them.
        """
        ahead = tasks.ahead
        known = len(tasks.tasks) - len(tasks.again) - (tasks.given is not None)
        if ahead is not None:
            known += len(ahead.tasks)
        room = executor.room(known)
        while tasks.again or room > 0 or known < least:
            task = tasks.next_task()
            if task is None and ahead is not None and room > 0 and tasks.error is None:
                task = ahead.next_task()
            if task is None:
                return
            executor.submit(task)
            known += 1
            room -= 1

    def _in_turn(self, tasks: PassTasks) -> Outcome | None:
        """Take out the outcome whose turn it is, if it has arrived."""
        arrived, lines = tasks.arrived, self._lines
        waited_for: set[int] = set()  # the lines whose first has not arrived
        for number in tasks.tasks:
            line = number % lines if lines else number
            if line not in waited_for and number in arrived:
                return arrived.pop(number)
            waited_for.add(line)
            if lines == 1:
                break
        return None

    def _report(self, outcome: Outcome) -> Exception | None:
        """Note what came with a batch; return what is to be raised in the batch's place."""
        made, number, core = outcome.made, outcome.number & POSITION, self._core
        assert made is not None
        try:
            if made.divided is not None:
                core.warn_once(core.seams.words().ignored_share(core, made.divided))
            if number != self._noted:  # else it has been taken back, and is given again
                self._noted = number
                if made.errors or made.retries or made.omitted:
                    self.sample_errors.note(number, made)
                for note in made.notes:
                    core.warn_once(f"{type(core.dataset).__name__}: {note}", ExactnessWarning)
        except Exception as error:  # too many samples cannot be read, say
            return error
        return None

    def _hand_out(self, tasks: PassTasks, outcome: Outcome, began: int) -> T_co:
        """Return the batch; and note what it has cost."""
        core, batch, timings = self._core, outcome.batch, outcome.timings
        executor, made, again = self._executor, tasks.made, False
        assert executor is not None
        if tasks.reads_streams:
            again = outcome.made is not None and outcome.made.state is None
            self._count(timings.samples)
        elif timings.slowest:
            indices = tasks.tasks[outcome.number].indices
            timings.slowest_index = _item(indices, timings.slowest_at)
        if self._copy is not None:
            batch = self._on_device(self._copy, executor, tasks, batch)
        given = time.monotonic_ns()
        timings.number, timings.asked = outcome.number, began
        timings.wait = given - began
        if self._thread is None:  # which has done that meanwhile
            timings.wait -= timings.pin or timings.decode
        if self._given:
            timings.step = began - self._given
        self._given = given
        core.note(timings, executor.workers, again)
        page = executor.page
        if page is not None:
            page.row[GIVEN] += 1
            page.row[SINCE] = -given
            if given >= page.due:
                core.show(page, self)
        made.given += 1
        if core.passes.current is not made:
            core.passes.consider(made)
        return batch  # type: ignore[no-any-return]

    def _on_device(
        self, copier: DeviceCopy, executor: Executor, tasks: PassTasks, batch: object
    ) -> object:
        """Return the batch on the device; before that, queue the copy of the next one."""
        staged, thread, arrived = copier.stage(batch), self._thread, tasks.arrived
        due = next((number for number in tasks.tasks if number != tasks.given), None)
        while due is not None and due not in arrived:
            came = executor.receive(0.0) if thread is None else thread.take_at_once()
            if came is None:
                break
            if came.lost:
                tasks.restart(came.number)
            else:
                arrived[came.number] = came
        following = None if due is None else arrived.get(due)
        if following is not None:
            following.unpack()
            omitted = following.made is not None and following.made.omitted
            if not (following.error or following.ended or omitted):
                following.batch = copier.stage(following.batch)
        return copier.take(staged)

    # --- the executor: acquired, lost, given back ---

    def _connect(self, tasks: PassTasks) -> Executor:
        """Attach an executor and resubmit all outstanding tasks."""
        core, made = self._core, tasks.made
        if self._here:
            found, made.found = made.found, None  # later the dataset may hold others
            spec = core.spec(made)
            inline = self._executor = Inline(spec, self._pin, made.seeds, found, core)
            self._draws = inline.draws
            tasks.restart_all()
            return inline
        _end_with_the_program()
        with HeldBack():  # what a handler raises comes when the workers are started, and are kept
            pin, resizes = self._pin, core.keeper.resizes
            executor, begun = core.keeper.acquire(self, made)
            try:
                thread = None
                if pin is not None:
                    thread = pin.thread(executor.receive, functools.partial(_pinned, pin))
                if begun is None:
                    tasks.restart_all()
                else:
                    assert isinstance(tasks, MapTasks)
                    tasks.adopt(begun)
            except BaseException:
                executor.close()
                raise
            args = core.keeper, tasks, executor, thread
            self._finalizer = weakref.finalize(self, _give_back, *args, unnoticed=True)
            self._executor, self._thread = executor, thread
            if resizes != core.keeper.resizes:  # meanwhile, and these were not found
                self.resize(*core.size)
            page = executor.page
            if page is not None and not page.due:  # one that hangs at its first batch is seen, too
                core.show(page, self)
        return executor

    def _let_go(self, reusable: bool, exits: Callable[[], bool] = sys.is_finalizing) -> None:
        """Return the executor, keeping what has come in; a second call does nothing."""
        finalizer, executor = self._finalizer, self._executor
        if executor is None or exits():  # then the names of this module may be gone
            return
        if finalizer is None:
            self._executor = None
            executor.close()
            return
        with HeldBack():
            self._executor = self._thread = self._finalizer = None
            lent = finalizer.detach()
            if lent is not None:
                _give_back(*lent[2], reusable=reusable)

    def _broken_off(self, error: BaseException) -> None:
        """Bring things in order after an exception that is no batch's outcome."""
        with self._core.lock:
            tasks = self._tasks
            if tasks is not None:
                tasks.undo()
                self._let_go(reusable=False)  # it is not known what the executor was at
            _end_with_the_program()
            if isinstance(error, LoaderError):  # what was healed before it comes first
                self._report_events()
            elif isinstance(error, StopIteration):
                raise LoaderError(_NO_END) from error
            elif isinstance(error, PoolClosed) or (self._closed and isinstance(error, OSError)):
                raise LoaderError(_CLOSED) from None

    def _check_closed(self) -> None:
        """Refuse to go on after `close`; after a fork, leave what is the parent's."""
        if self._closed:
            raise LoaderError(_CLOSED)
        self._pid = self._core.pid
        if not self._here and self._tasks is not None:
            self._let_go(reusable=False)
            self._tasks.arrived.clear()

    def revoke(self) -> None:
        """Pass the workers to another iterator."""
        if self._executor is not None:
            self.superseded = True
            self._let_go(reusable=True)

    def close(self) -> None:
        """End the iterator: its workers are given back, and it yields no more batches."""
        self._closed = not self._ended
        self._let_go(reusable=True)
        if self._tasks is not None:
            self._tasks.tasks.clear()
            self._tasks.arrived.clear()

    def resize(self, num_workers: int, depth: int) -> None:
        """Change the number of workers and of batches that may be outstanding; from any thread."""
        executor = self._executor
        if executor is not None:
            executor.resize(num_workers, depth)

    @property
    def sample_errors(self) -> SampleErrorLog:
        """The samples of the epoch that could not be read, so far."""
        if self._sample_errors is None:
            self._sample_errors = self._core.seams.sample_errors(self._core)
        return self._sample_errors

    @property
    def ready(self) -> int:
        """Batches that have been made and not asked for."""
        pinned = 0 if self._thread is None else self._thread.pinned
        unread = 0 if self.workers is None else self.workers.unread
        return (0 if self._tasks is None else len(self._tasks.arrived)) + pinned + unread

    @property
    def workers(self) -> Workers | None:
        """The workers at this iterator's disposal."""
        return None if self._executor is None else self._executor.workers

    # --- what is reported ---

    def _end(self, tasks: PassTasks) -> Exception:
        """Note that the pass is over; return what is to be raised."""
        self._let_go(reusable=True)
        # Only now the pin-memory thread cannot replace another worker.
        self._report_events()
        place, core, made = tasks.place, self._core, tasks.made
        place.end()
        self._ended = True
        if self._tail is not None:
            self._tail.end()
        errors, nothing = self._sample_errors, None
        if errors is not None and not place.start.delivered:  # a resumed one had batches before
            nothing = errors.end(made.epoch, place.now().delivered)
        core.passes.warn_if_empty(made)
        if tasks.reads_streams and not (errors and errors.count):
            delivered = place.now().delivered
            core.warn_once(core.seams.words().short_epoch(core, self._promised, delivered))
        return nothing or StopIteration()

    def _report_events(self) -> None:
        """Warn of workers that were replaced."""
        core, healer = self._core, self.healer
        if healer is None:
            return
        core.log.worker_restarts += healer.restarts - self._restarts_noted
        self._restarts_noted = healer.restarts
        while healer.notices:
            notice = healer.notices.popleft()
            core.log.note("restart", str(notice))
            if isinstance(notice, FewerWorkers):
                core.cap_workers(notice.workers)
            warn(str(notice), WorkerRestartWarning)

    def _count(self, samples: int) -> None:
        """Note the samples of a batch of an iterable dataset that is about to be given out."""
        self._samples += samples
        padding = self._tasks is not None and self._tasks.place.padding
        if self._promised is not None and self._samples > self._promised and not padding:
            # Once for an iterator; torch warns of it again at every batch that follows.
            promised, self._promised = self._promised, None
            args = self._core.dataset, promised, self._samples, self._data_loader.num_workers
            warn(self._core.seams.words().broken_promise(*args))

    # --- what it looks like ---

    def __iter__(self) -> LoaderIterator[T_co]:
        return self

    def __len__(self) -> int:
        return len(self._data_loader)

    def __repr__(self) -> str:
        where = "not begun"
        if self.made is not None:
            given = f"batch {self.made.position.now().delivered:,}"
            where = f"epoch {self.made.epoch}, {'ended' if self._ended else given}"
        return f"<{type(self).__name__} of {self._data_loader!r}: {where}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an iterator over a loader cannot be pickled or copied: pickle the loader, and its "
            "state_dict()"
        )

    def as_ended(self) -> LoaderIterator[T_co]:
        """Yield no batches; return itself."""
        self._ended = True
        return self

    # --- what programs reach for in torch's iterators ---

    @property
    def _num_yielded(self) -> int:
        """Batches of the epoch that the consumer has had, has left out, or has resumed after."""
        return 0 if self.made is None else self.made.position.now().delivered

    @_num_yielded.setter
    def _num_yielded(self, value: int) -> None:
        self._core.seams.torch_habits().set_num_yielded(self, value)

    @property
    def _sampler_iter(self) -> object:
        """The indices of the batches to come; those that are taken are left out."""
        return self._core.seams.torch_habits().sampler_iter(self)

    @_sampler_iter.setter
    def _sampler_iter(self, value: object) -> None:
        self._core.seams.torch_habits().sampler_iter(self, value)

    _next_index = _next_data = _reset = property()  # they mean nothing here: an AttributeError

    def run_patches(self) -> None:
        """Run what SpeechBrain has put in the place of torch's ``__init__``, if it has."""
        if hasattr(_BaseDataLoaderIter, "__old_init__"):
            _BaseDataLoaderIter.__init__(self, self._data_loader)

    def __old_init__(self, *_: object) -> None:
        """Do nothing: it is what SpeechBrain's patch calls torch's ``__init__`` by."""

    @property
    def _workers(self) -> list[WorkerProcess]:
        """The processes that make batches for it, if there are some now."""
        return self._core.keeper.processes(self)

    def _shutdown_workers(self) -> None:
        """End the workers, persistent ones too."""
        if not self._here:
            self.close()
        self._core.keeper.end_idle_workers()


def _pinned(pin: Pinning, outcome: Outcome) -> Outcome:
    """Unpack and pin a batch, in a thread that does not hold the iterator."""
    outcome.unpack()
    outcome.pin(pin)
    return outcome


def _give_back(
    keeper: WorkerKeeper,
    tasks: PassTasks,
    executor: Executor,
    thread: PinMemoryThread[Outcome] | None,
    *,
    reusable: bool = True,
    unnoticed: bool = False,
) -> None:
    """End an executor, or leave it to the next iterator, with what is made ahead.

    Also when an iterator is collected: then none of its methods can be called any more.
    """
    with HeldBack(unnoticed=unnoticed):
        try:
            tasks.settle()
            executor.wake()
            if thread is not None:
                tasks.arrived.update((each.number, each) for each in thread.left() if not each.lost)
        finally:
            if executor.page is not None:
                executor.page.rest()
            keeper.give_back(executor, tasks.hand_on(reusable), reusable)


def _item(indices: Any, place: int) -> object:
    """Return one of a batch's indices; the batch's only one, or what it has in their place."""
    if type(indices) in (list, np.ndarray) and place < len(indices):
        index = indices[place]
        return int(index) if isinstance(index, np.int64) else index
    return indices


def _end_with_the_program() -> None:
    """End a daemon's thread, quietly, when the program exits: the workers are gone, or going."""
    if not threading.main_thread().is_alive() and threading.current_thread().daemon:
        raise SystemExit
