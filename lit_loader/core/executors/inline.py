"""`Inline`: ``num_workers=0``, batches are made in the consumer's thread, when it asks for them."""

from __future__ import annotations

import time
import weakref
from collections import deque
from typing import Any, Final

from lit_loader.context import reading
from lit_loader.core.batch.batch_builder import maker_of
from lit_loader.core.batch.batch_spec import BatchSpec, BatchWithReport
from lit_loader.core.batch.fetch import EndOfData
from lit_loader.core.batch.progress import Progress
from lit_loader.core.batch.timings import Timings
from lit_loader.core.batch.worker_info import show, shown
from lit_loader.core.executors.executor import Executor, Task
from lit_loader.core.executors.outcome import Outcome, Pin, failure
from lit_loader.core.seeding.generator_state import OwnStreams
from lit_loader.core.transport.messages import POSITION, listed
from lit_loader.core.transport.worker_exception import describe_batch

_NOT_YET: Final = Timings()


class Inline(Executor):
    """Makes each batch in `receive`, in the thread that calls it.

    The global random generators are, after that, as they were before. Loaders in other threads wait
    meanwhile, unless they read tables: the generators are one resource of the process.
    """

    def __init__(self, spec: BatchSpec, seed: int, pin: Pin | None, known: dict[str, Any]) -> None:
        """``known``: what one pass of a loader leaves to the next."""
        self._pin, self._iterable = pin, spec.iterable
        self._tasks: deque[Task] = deque()
        self._progress = Progress()
        self._progress.each = False  # nobody looks at the time
        self._maker = maker_of(spec)
        self._streams = OwnStreams(seed) if spec.seeding == "worker" else None
        self._known = known
        if not spec.iterable:
            self._maker.go_on_from(known.get("learned"))
        self.draws = not self._maker.reads_table
        if self._maker.reads is not None:  # threads that read ahead end with this pass
            weakref.finalize(self, self._maker.reads.background.end)
        if spec.iterable:  # a stream that is left is closed at once: the maker is in cycles
            weakref.finalize(self, self._maker.begin_epoch).atexit = False

    def submit(self, task: Task) -> None:
        """Keep the task until it is asked for."""
        self._tasks.append(task)

    def receive(self, timeout: float | None = None) -> Outcome | None:
        """Make a batch."""
        if not self._tasks:
            return None
        task, progress, maker = self._tasks.popleft(), self._progress, self._maker
        indices = listed(task.indices) if task.own else task.indices
        outcome = Outcome(task.number, _NOT_YET)
        progress.begin(-1)
        batch = maker.take(indices, progress) if maker.reads_table else None
        if batch is None:
            batch, error = self._load(task, indices)
            outcome.ended = isinstance(error, EndOfData)
            outcome.error = None if outcome.ended else error
            del error  # whose traceback is to hold no frame that holds it
            if not self._iterable:
                self._known["learned"] = maker.learned
        now = time.monotonic_ns()
        outcome.timings = timings = Timings(-1, 0, maker.samples, *progress.stages(now))
        timings.arrived = now
        if type(batch) is BatchWithReport:
            outcome.made, batch = batch, batch.batch
        outcome.batch = batch
        if self._pin is not None:
            outcome.pin(self._pin)
        return outcome

    def _load(self, task: Task, indices: Any) -> tuple[Any, BaseException | None]:
        """Make a batch by the user's code, with the generators lent; or return what it raises."""
        maker, number = self._maker, task.number & POSITION
        place, info, loan = reading.leave(), shown(), maker.lend(self._streams)
        try:
            loan.begin()
            return maker.load(indices, number, task.epoch, task.seeds, self._progress), None
        except EndOfData:  # which holds the frames that it came through, and they this executor
            return None, EndOfData()
        except Exception as error:
            # What an exception from a worker has in its message.
            read = maker.whose(number) if self._iterable else indices
            return None, failure(error, f"in {describe_batch(number, read, self._progress)}")
        finally:
            reading.return_to(place)
            show(info)
            loan.end()

    def close(self, keep_workers: bool = False) -> None:
        """Forget the tasks, and close the stream that is being read."""
        self._tasks.clear()
        if self._iterable:
            self._maker.begin_epoch()
