"""`StreamEpoch`: an epoch of an iterable dataset as a value, owned by its iterator.

See `Epoch`, which says what an iterator asks of one. A task is a reader's turn; its number has the
turn in the place of the batch's number.
"""

from __future__ import annotations

from collections import Counter, deque

from lit_loader.core.epoch.epoch import Ahead, Epoch
from lit_loader.core.epoch.epochs import EpochStart
from lit_loader.core.executors.executor import Task
from lit_loader.core.executors.outcome import Outcome
from lit_loader.core.state.position import ReadPoint, Shards
from lit_loader.core.transport.messages import position_of, task_number
from lit_loader.core.transport.worker_exception import ReaderShare
from lit_loader.streams.stream_position import StreamPosition

__all__ = ["StreamEpoch"]


class StreamEpoch(Epoch):
    """Tasks of the readers of an iterable dataset; those at their end have none.

    They take turns. Where batches need not come in order, the next task is for the reader with the
    fewest under way instead: so a slow one delays no other, but for those that share its worker.
    """

    reads_streams = True
    place: StreamPosition

    def __init__(self, start: EpochStart, shards: Shards | None, in_order: bool) -> None:
        super().__init__(start)
        self._num_readers, self._in_order = self.place.num_readers, in_order
        self._shares: list[ReaderShare | None] = [None] * self._num_readers
        if shards is not None:
            self._shares = [ReaderShare(shard, shards.count) for shard in shards.mine]
        self.restart_all({})

    def next_task(self) -> Task | None:
        """Give the next turn; with its reader's place, where the executor does not know that."""
        if self.again:
            number = self.again.popleft()
            reader = position_of(number) % self._num_readers
            point: ReadPoint | None = self.place.reader(reader)
        else:
            turn = None if self.is_drawn else self._next_turn()
            if turn is None:
                self.is_drawn = True
                return None
            reader = turn % self._num_readers
            number, point = task_number(self.start.epoch, turn), self._first.pop(reader, None)
            self._rounds[reader] += 1
            self._turn = turn + 1
        start = self.start
        task = Task(number, point, start.epoch, start.seeds, whose=self._shares[reader])
        self.tasks[number] = task
        return task

    def adopt(self, ahead: Ahead) -> None:
        """Take the first turns, which workers have begun."""
        for _ in ahead.tasks:
            self.next_task()
        ahead.start = self.start
        ahead.clear()

    def took(self, outcome: Outcome) -> None:
        """Note that a reader's batch, its end, or an error in its place is about to be given."""
        number, place = position_of(outcome.number), self.place
        reader, made = number % self._num_readers, outcome.made
        if outcome.error is not None:
            place.failed(reader)
        elif outcome.ended:
            place.exhausted(reader)
        elif made is None:
            place.read(reader, None)
        else:
            place.read(reader, made.state, made.mark)
        self.given = outcome.number

    def restart(self, number: int) -> None:
        """Give a turn again, from where its reader is by what was given out."""
        self.again = deque(sorted({*self.again, number}))

    def restart_all(self, arrived: dict[int, Outcome]) -> None:
        """Begin where the batches delivered last have left the readers, or where they begin again.

        What had come in and is not delivered is made again: a reader has one place only.
        """
        arrived.clear()
        self.tasks.clear()
        self.again.clear()
        self.is_drawn, place = False, self.place
        points = [place.reader(reader) for reader in range(self._num_readers)]
        self._turn = place.first_turn()
        self._rounds: list[int] = [point.batches for point in points]  # the next one of each reader
        self._first: dict[int, ReadPoint] = {  # where readers are to begin
            reader: point
            for reader, point in enumerate(points)
            if point.batches or point.before  # it has ended where it is now
        }

    def _next_turn(self) -> int | None:
        """The next turn in the order of the readers, or of one that has few batches under way."""
        place, readers = self.place, self._num_readers
        if self._in_order:
            return place.next_turn(self._turn)
        asked = Counter(position_of(number) % readers for number in self.tasks)
        found = None
        for reader in ((self._turn + step) % readers for step in range(readers)):
            if place.passes_over(place.reader(reader)):
                continue
            if found is None or asked[reader] < asked[found]:
                found = reader
                if not asked[found]:
                    break
        return None if found is None else self._rounds[found] * readers + found
