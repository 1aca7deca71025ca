"""`Resizer`: brings about the number of workers that is wanted, while they are at work.

::

    wanted ─▶ adapt ─ more ──▶ start_more: those that are missing, as at first
                 ╰── fewer ─▶ board: "n workers", Attend ─▶ workers n, n+1 … finish what they have
    part_with ◀── its process ends ◀── "has left", on the board ◀──╯

Used by `pool/worker_pool.py`. A worker that has left holds nothing: it writes so on the board when
it would take the next task, and takes none. One that dies instead, or hangs, is treated as any
other that does (`pool/recovery.py`), but that no process takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from lit_loader.errors import LoaderError
from lit_loader.pool.dispatcher import Dispatcher
from lit_loader.pool.handshake import Handshake
from lit_loader.pool.outcome import FewerWorkers
from lit_loader.pool.pipes import Pipes
from lit_loader.pool.worker_set import WorkerSet
from lit_loader.system.interrupts import HeldBack
from lit_loader.transport.messages import ALL, Part, Proceed
from lit_loader.transport.status_board import Stage, StatusBoard

__all__ = ["Resizer"]


class Resizer:
    """Starts the workers that are missing, lets those leave that are too many.

    Args:
        board: Tells workers how many there are to be.
        pipes: Wake those that are to leave.
        workers: The processes.
        dispatcher: Sends again what a worker had that is gone.
        handshake: Waits for workers.

    Attributes:
        wanted: How many workers there are to be; set from any thread.
        due: Whether :meth:`adapt` has something to do; set after ``wanted``.
    """

    def __init__(
        self,
        board: StatusBoard,
        pipes: Pipes,
        workers: WorkerSet,
        dispatcher: Dispatcher,
        handshake: Handshake,
    ) -> None:
        self._board = board
        self._pipes = pipes
        self._workers = workers
        self._dispatcher = dispatcher
        self._handshake = handshake
        self._changed = False  # whether it is another number than at first
        self.wanted = board.workers = workers.num_workers
        self.due = False

    def adapt(self) -> bool:
        """Do what is to be done now; for the thread that receives.

        Returns:
            Whether it has parted with a worker, for which a handshake may have waited.
        """
        self.due = False  # and is True again, if another number is wanted from here on
        workers, wanted = self._workers, self.wanted
        if wanted != workers.num_workers:
            self._changed = True
            with HeldBack(), self._dispatcher.lock:
                self._board.workers = workers.num_workers = wanted
                self.settle()  # who is to leave is sent no task from here on
                self._call_away()
            self.start_more()
        left = [worker for worker in workers.leaving if workers.has_left(worker)]
        for worker in left:
            self.part_with(worker)
        if workers.leaving:
            self.due = True
        return bool(left)

    def came_up(self, worker: int) -> None:
        """Note that a worker has come up: others may be started, and it can take tasks."""
        self._workers.came_up(worker)
        self.settle()
        self.start_more()

    def settle(self) -> None:
        """Divide the readers of an iterable dataset among the workers that are up and stay."""
        workers = self._workers
        with HeldBack(), self._dispatcher.lock:
            able = workers.able
            wanted = workers.num_workers + sum(worker in workers.lanes for worker in able)
            self._dispatcher.settle(able, wanted)
            for worker in workers.take_unborn():
                self._send_elsewhere(worker)

    def _call_away(self) -> None:
        """Wake those that are to leave: behind the tasks of its own that each still has."""
        if self._pipes.shared_queue:
            self._pipes.announce(len(self._workers.leaving))
            return
        for worker in self._workers.leaving:
            self._pipes.send(Proceed(), worker)

    def start_more(self) -> None:
        """Start the workers that come next; not while a new epoch is announced to the others."""
        workers = self._workers
        with HeldBack(), self._dispatcher.lock:
            if self._handshake.missing is not None:
                return
            try:
                started = workers.start_more(self._handshake.generation)
            except (LoaderError, OSError) as error:
                # More than there were at first are a wish; the epoch can do without.
                if not self._changed or 0 not in workers.started:
                    raise
                self._make_do(error)
                return
            for worker in started:
                self._dispatcher.begin(worker)

    def _make_do(self, error: Exception) -> None:
        """Go on with the workers that there are: others were wanted, and cannot be started."""
        workers, wanted = self._workers, self._workers.num_workers
        started = workers.started
        there = next((n for n in range(wanted) if n not in started), wanted)
        if there == wanted:  # none is missing: fewer are wanted meanwhile
            return
        self._board.workers = workers.num_workers = self.wanted = there
        self.settle()
        text = f"num_workers stays at {there} instead of {wanted}, and nothing is lost: {error}"
        workers.notices.append(FewerWorkers.of(text, there))

    def part_with(self, worker: int) -> None:
        """Clear away what is left of a worker that has left."""
        dispatcher = self._dispatcher
        with HeldBack(), dispatcher.lock:
            dispatcher.drop_void(worker)
            self._workers.bury(worker)
            self._handshake.leave(worker)
            self.settle()
            self._send_elsewhere(worker)
        self.start_more()  # it may be wanted again

    def gave_up(self, lane: int) -> None:
        """Hear that a lane has lost the places of its readers, and gives back all that it has.

        It takes nothing until it is answered: so none of its tasks, wherever on its way, is done
        by it, and their slots are free.
        """
        with HeldBack(), self._dispatcher.lock:
            self.settle()  # the board shows that it is not able
            self._pipes.send(Part(ALL), lane)
            if self._handshake.missing is None:
                self._dispatcher.send_again(lane, (), succeeded=True)

    def _send_elsewhere(self, worker: int) -> None:
        """Send tasks of its own to others that a worker which is gone has left.

        It has some if it was wanted again when it was about to leave, or was never started.
        """
        if self._pipes.shared_queue or self._handshake.missing is not None:
            self._dispatcher.leave(worker)
        else:
            self._dispatcher.send_again(worker, (), succeeded=False)

    @property
    def waited_for(self) -> bool:
        """Whether one of those that are to leave waits for a task; others see for themselves."""
        board = self._board
        return any(board.read(worker).stage == Stage.IDLE for worker in self._workers.leaving)

    def replace(self, gone: Sequence[int], skip_task: int | None) -> None:
        """Put a process in the place of one that has ended; see :meth:`WorkerPool.replace`.

        Args:
            gone: The workers that were in it.
            skip_task: Number of a task that is not to be done again.
        """
        workers, dispatcher, handshake = self._workers, self._dispatcher, self._handshake
        worker = gone[0]
        with HeldBack(), dispatcher.lock:
            for each in gone:
                dispatcher.drop_void(each)
                workers.bury(each)
            if worker in workers.lanes:  # their readers need not wait for other lanes to open
                self.settle()
            succeeded = workers.is_wanted(worker)
            resuming = handshake.missing is not None  # then all tasks are void
            if not resuming:
                dispatcher.begin_issue()
            if succeeded:
                for each in gone:
                    self._pipes.open(each)
                    if resuming:  # before there is a new process: it may take messages at once
                        handshake.join(each)
                workers.launch(gone, handshake.generation)
                workers.take_tasks(gone)
                for other in gone[1:]:
                    dispatcher.begin(other)
            elif resuming:
                handshake.leave(worker)
                dispatcher.leave(worker)
            if not resuming:
                if skip_task is not None:
                    dispatcher.withdraw(skip_task)
                for each in gone[:1] if self._pipes.shared_queue else gone:
                    dispatcher.send_again(each, workers.rows().values(), succeeded)
                for _ in gone:  # perhaps each had just taken what was for one that is to leave
                    self.not_needed()
        if not succeeded:
            self.start_more()  # it may have been starting, and there is room for another now

    def not_needed(self) -> None:
        """Send another Attend, for one came to a worker that it meant nothing to."""
        if self.waited_for:
            self._pipes.announce(1)
