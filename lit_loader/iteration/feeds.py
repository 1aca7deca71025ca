"""`TaskFeed`: the tasks that a run has workers do, in the order in which they are sent.

Used by `iteration/epoch_run.py`, which takes a task whenever there is room for one. The feed notes
it in the pipeline, so that it is sent again if the workers are lost.

- :class:`SamplerFeed` gives what the sampler draws, leaving out what is delivered already; then the
  first batches of the epochs that follow, as far as the loader gives them.
- :class:`ReaderFeed` gives turns to the readers of an iterable dataset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from lit_loader.checkpoint.position import first_turn, next_turn
from lit_loader.checkpoint.reader_states import Shards
from lit_loader.errors import LoaderError
from lit_loader.iteration.pipeline import Pipeline
from lit_loader.sampling.epoch_batches import EpochBatches, UpcomingBatch
from lit_loader.sampling.epochs import EpochStart
from lit_loader.system.interrupts import let_handlers_through
from lit_loader.transport.messages import position_of, task_number
from lit_loader.transport.remote_error import ReaderShare

__all__ = ["ReaderFeed", "SamplerFeed", "Task", "TaskFeed"]

Task = tuple[int, Any, int]
"""A task's number, its epoch, and the indices; or where to begin, for a reader's first task."""


class SamplerFeed:
    """Tasks of a map-style dataset.

    Args:
        start: Where the epoch begins.
        batches: What the sampler draws.
        lookahead: Gives the batches of the epochs after one; None: nothing is made ahead.

    Attributes:
        epoch_issued: Whether all tasks of the iterator's own epoch have been taken.
        error: What the sampler has raised in the place of a batch; it comes out in its turn, after
            the batches before it.
    """

    def __init__(
        self,
        start: EpochStart,
        batches: EpochBatches,
        lookahead: Callable[[int], Iterator[UpcomingBatch] | None],
    ) -> None:
        self._start = start
        self._batches = batches
        self._lookahead = lookahead
        self._own = batches.computed  # by the loader's own order, which has no state
        self._position = start.position.start.batches
        self.epoch_issued = False
        self.error: Exception | None = None

    @property
    def from_start(self) -> bool:
        """Whether nothing has been taken yet, and the first task is the epoch's first batch."""
        return self._position == 0 and not self._start.position.start.ahead

    def take(self, line: Pipeline) -> Task | None:
        """Give the next task to be sent, which is outstanding from now on; None: there is none."""
        while not self.epoch_issued:
            task = self._draw(line)
            if task is not None:
                return task
        return None if self.error is not None else self._look_ahead(line)

    def adopt(self, line: Pipeline) -> None:
        """Take those tasks of the epoch that are outstanding already: they are not sent again."""
        epoch = self._start.epoch
        while not self.epoch_issued and task_number(epoch, self._position) in line.tasks:
            self._draw(line)
        if line.owed == len(line.tasks):
            line.lookahead = None  # else this epoch is all issued, and the next begun

    def restart(self, line: Pipeline) -> None:
        """Begin anew after an end that was none: there is no such."""

    def check_end(self) -> None:
        """Make sure that an epoch that is about to end has been given out whole.

        Raises:
            LoaderError: It has not: better no end than one that loses batches without a word.
        """
        given = self._start.position.now().delivered
        if not self.epoch_issued or given < self._position:
            issued = f"{self._position} {'' if self.epoch_issued else 'or more '}batches"
            raise LoaderError(
                f"epoch {self._start.epoch} would have ended after {given} of {issued}: this is a "
                "fault of the loader; load_state_dict(state_dict()) goes on with the next batch"
            )

    def _draw(self, line: Pipeline) -> Task | None:
        """Draw the sampler's next batch; None: it is not to be sent, or there is none."""
        start, batches, position = self._start, self._batches, self._position
        if batches.at != position:
            batches.go_to(position, start.position.sampler_at(position))
        try:
            indices = next(batches)
        except StopIteration:
            self.epoch_issued = True
            return None
        except Exception as error:
            let_handlers_through(error)
            self.error = error
            self.epoch_issued = True
            return None
        if not self._own:
            start.position.drawn(position, batches.state(), batches.marks())
        if position in start.position.start.ahead:
            self._position = position + 1
            return None
        number = task_number(start.epoch, position)
        begun = number in line.tasks
        # At once: nothing is called in between that a signal handler could raise in.
        if not begun:
            line.tasks[number] = indices
        line.owed += 1
        self._position = position + 1
        return None if begun else (number, indices, start.epoch)

    def _look_ahead(self, line: Pipeline) -> Task | None:
        """Give the next batch of the epochs to come."""
        if line.lookahead is None:
            line.lookahead = self._lookahead(self._start.epoch)
            if line.lookahead is None:
                return None
        coming = next(line.lookahead, None)
        if coming is None:
            return None
        number = task_number(coming.epoch, coming.position)
        line.tasks[number] = coming.indices
        return number, coming.indices, coming.epoch


class ReaderFeed:
    """Tasks of the readers of an iterable dataset; those at their end have none.

    They take turns. Where batches need not come in order, the next task is for the reader with the
    fewest under way instead: so a slow one delays no other, but for those that share its worker.

    Args:
        start: Where the epoch begins.
        num_readers: How many readers there are.
        shards: Which of all ranks' readers they are; None: they have no numbers among these.

    Attributes:
        epoch_issued: Whether all readers have come to their end.
        error: None: there is no sampler that could raise one.
    """

    from_start = False

    def __init__(
        self,
        start: EpochStart,
        num_readers: int,
        shards: Shards | None,
    ) -> None:
        self._shares: list[ReaderShare | None] = [None] * num_readers
        if shards is not None:
            self._shares = [ReaderShare(shard, shards.count) for shard in shards.mine]
        self._start = start
        self._num_readers = num_readers
        self._turn = 0
        self._rounds: list[int] = []  # the next one of each reader, where each goes at its own pace
        self._first: dict[int, Any] = {}  # where readers are to begin
        self.epoch_issued = False
        self.error: Exception | None = None

    def restart(self, line: Pipeline) -> None:
        """Begin where the batches delivered last have left the readers, or where they begin again.

        What had come in and is not delivered is made again: a reader has one place only.
        """
        line.clear()
        self.epoch_issued = False
        position = self._start.position
        points = [position.reader(reader) for reader in range(self._num_readers)]
        self._turn = first_turn(points, position.padding)
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
            return next_turn(position, self._turn)
        asked = Counter(position_of(number) % readers for number in line.tasks)
        found = None
        for reader in ((self._turn + place) % readers for place in range(readers)):
            point = position.reader(reader)
            if point.ended or (point.before and not position.padding):
                continue
            if found is None or asked[reader] < asked[found]:
                found = reader
                if not asked[found]:
                    break
        return None if found is None else self._rounds[found] * readers + found


TaskFeed = SamplerFeed | ReaderFeed
