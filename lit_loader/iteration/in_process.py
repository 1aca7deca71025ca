"""`InProcessIterator`: makes each batch when it is asked for, in the consumer's own process.

Used by the loader where ``num_workers=0``, and where workers would only be in the way
(`batch/tensor_table.py`).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from lit_loader.batch.batch_loader import BatchLoader
from lit_loader.batch.batch_spec import BatchSpec, BatchWithReport
from lit_loader.batch.fetch import EndOfData
from lit_loader.batch.sample_errors import annotate
from lit_loader.batch.worker_info import show, shown
from lit_loader.context import reading
from lit_loader.errors import WorkerError
from lit_loader.iteration.base import LoaderIterator
from lit_loader.sampling.epochs import EpochStart
from lit_loader.seeding.generator_state import Loan, OwnStreams
from lit_loader.statistics.records import BatchRecord
from lit_loader.streams.readers import Readers, maker_of
from lit_loader.system.interrupts import let_handlers_through
from lit_loader.transport.messages import listed
from lit_loader.transport.remote_error import describe_batch
from lit_loader.transport.status_board import Progress

if TYPE_CHECKING:
    from lit_loader.iteration.core import LoaderCore

__all__ = ["InProcessIterator"]

T_co = TypeVar("T_co", covariant=True)
_Making = BatchLoader | Readers


class InProcessIterator(LoaderIterator[T_co]):
    """``num_workers=0``: makes each batch when it is asked for, in the calling thread.

    The global random generators are, after each ``next()``, as they were before. Loaders in other
    threads wait meanwhile, unless they read tables: the generators are one resource of the process.
    """

    def __init__(
        self,
        core: LoaderCore,
        pin: Callable[[Any], Any] | None,
        spec: Callable[[], BatchSpec],
    ) -> None:
        super().__init__(core)
        self._pin, self._spec = pin, spec
        self._progress = Progress()
        self._progress.each = False  # nobody looks at the time
        self._loader: _Making | None = None
        self._begun: set[int] = set()  # readers of an iterable dataset that go on by themselves
        self._streams: OwnStreams | None = None
        self._number = 0
        self._task: Any = None
        self._drawn = -1  # the batch that the task is of
        self._draws = True

    def _next(self, start: EpochStart) -> T_co:
        asked = time.monotonic_ns()
        loader, tail, position = self._loader or self._begin(start), self._tail, start.position
        while True:
            if tail is not None and not tail.admits(position):
                raise self._end(start)
            number, batch, error, samples = self._make(loader, start)
            reader = number % (position.num_readers or 1)
            if error is not None:
                if isinstance(error, EndOfData):
                    position.exhausted(reader)
                    continue
                position.failed(number, reader)
                try:
                    raise error
                finally:
                    del error  # whose traceback holds this frame
            if type(batch) is not BatchWithReport:
                position.latest = number
                break
            made, batch = batch, batch.batch
            if start.batches is None:
                position.read(reader, made.state, made.mark)
                if made.divided is not None:
                    self._warn_of_ignored_share(made.divided)
                self._count(samples)
            else:
                position.latest = number
            self._note_errors(number, made)
            if not made.omitted:
                break
            position.settle()
        if tail is not None:
            tail.given(position)
        if self.observer is not None:
            self._show(start, number, self._task, batch)
        progress, indices, arrived = self._progress, self._task, time.monotonic_ns()
        fetched, given = progress.fetched, arrived
        if self._pin is not None:
            batch = self._pin(batch)
            given = time.monotonic_ns()
        at = progress.slowest_at
        self._core.note(
            BatchRecord(
                start.epoch,
                number,
                worker=-1,
                samples=samples,
                nbytes=0,
                began=asked,
                fetch=fetched - asked,
                collate=arrived - fetched,
                encode=0,
                arrived=arrived,
                asked=asked,
                wait=arrived - asked,
                decode=0,
                pin=given - arrived,
                step=asked - self._given if self._given else 0,
                slowest=progress.slowest,
                slowest_index=indices[at] if type(indices) is list and at < len(indices) else None,
                read=progress.waited,
                state=progress.state,
            )
        )
        if not self._given:
            self._core.hear(start)  # it may count its epochs itself
        self._given = given
        return batch  # type: ignore[no-any-return]

    def _make(self, loader: _Making, start: EpochStart) -> tuple[int, Any, Exception | None, int]:
        """Make the next batch: its number; it, or what is raised in its place; its samples."""
        task = self._next_task(start)
        self._progress.begin(-1)
        number = self._number
        self._number += 1
        batch = loader.take(task, self._progress)
        if batch is not None:
            return number, batch, None, loader.samples
        place, loan = (reading.leave(), shown()), loader.lend(self._streams)
        try:
            loan.begin()
            batch = loader.load(task, number, start.epoch, start.seeds, self._progress)
            return number, batch, None, loader.samples
        except EndOfData:  # which holds the frames that it came through, and they this iterator
            return number, None, EndOfData(), 0
        except StopIteration as error:
            # As it is, it would end the consumer's loop as if the epoch were over.
            failure = WorkerError(
                f"the dataset or collate_fn raised StopIteration({error}), which would end the "
                "loop over the loader: raise another exception there"
            )
            failure.__cause__ = error
            return number, None, failure, 0
        except Exception as error:
            let_handlers_through(error)
            # What an exception from a worker has in its message.
            indices = loader.whose(number) if start.batches is None else task
            annotate(error, f"in {describe_batch(number, indices, self._progress)}")
            return number, None, error, 0
        finally:
            try:
                _return(loan, place)
            except BaseException:  # out of a signal handler, which has broken into it
                _return(loan, place)
                raise

    def _begin(self, start: EpochStart) -> _Making:
        spec = self._spec()
        self._loader = loader = maker_of(spec)
        self._end_reads(loader)
        self._draws = not loader.reads_table
        if spec.seeding == "worker":
            self._streams = OwnStreams(self._core.worker_seed(start))  # those of a single worker
        self._number = self._reached(start)
        return loader

    def _end_reads(self, loader: _Making) -> None:
        """Have the threads that read ahead end with this pass."""
        if loader.reads is not None:
            weakref.finalize(self, loader.reads.background.end)

    @staticmethod
    def _reached(start: EpochStart) -> int:
        """The batch that comes next, by the position."""
        position = start.position
        return position.first_turn() if start.batches is None else position.now().batches

    def _take_back(self) -> None:
        super()._take_back()
        if self._loader is not None and self._start is not None:
            self._number = self._reached(self._start)
            self._loader.forget_reads()
            self._end_reads(self._loader)
            if self._start.batches is None:
                self._begun.clear()
                self._loader.begin_epoch()  # an iterator that was interrupted has often ended

    def _next_task(self, start: EpochStart) -> Any:
        """The indices of the next batch; for a reader's first one, where it is to begin."""
        if start.batches is None:
            turn = start.position.next_turn(self._number)
            if turn is None:
                if self._tail is None or not self._tail.begins_again(start.position):
                    raise self._end(start)
                self._begun.clear()
                turn = start.position.next_turn(self._reached(start))
                assert turn is not None
            self._number, reader = turn, turn % start.position.num_readers
            if reader in self._begun:
                return None
            self._begun.add(reader)
            return start.position.reader(reader)
        while True:
            number = self._number
            if number == self._drawn:
                return self._task
            try:
                # A sampler's exception ends nothing: what it does when asked again decides.
                indices = start.batches.draw(number, start.position)
                if start.batches.computed:
                    indices = listed(indices)
            except StopIteration:
                raise self._end(start) from None
            if number not in start.position.start.ahead:
                self._task, self._drawn = indices, number
                return indices
            self._number = number + 1


def _return(loan: Loan, place: tuple[Any, Any]) -> None:
    """Put back what was changed in this process to make a batch; may be called again."""
    reading.return_to(place[0])
    show(place[1])
    loan.end()
