"""`StreamTasks`: the tasks of a pass over an iterable dataset, owned by its iterator.

See `PassTasks`, which says what an iterator asks of them. A task is a reader's turn; its number has
the turn in the place of the batch's number.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from lit_loader.core.batch.batch_spec import BatchWithReport
from lit_loader.core.epoch.pass_tasks import PassTasks
from lit_loader.core.epoch.passes import Pass
from lit_loader.core.executors.executor import Outcome, Task
from lit_loader.core.transport.messages import POSITION, position_of, task_number
from lit_loader.core.transport.worker_exception import ReaderShare
from lit_loader.streams.advice import read_twice
from lit_loader.streams.rank_store import Name, is_read_twice, processes
from lit_loader.streams.read_point import NOT_TAKEN, ReadPoint, shares_of
from lit_loader.streams.stream_position import StreamPosition

_INEXACT = "[LL321]"
_new = tuple.__new__


class StreamTasks(PassTasks):
    """Turns of the readers, each of which reads one of ``shares``; those at their end have none.

    Where batches need not come in order, the next task is for the reader with the fewest
    outstanding: so a slow one delays no other, but for those that share its worker.
    """

    reads_streams = True
    place: StreamPosition

    def __init__(
        self, made: Pass, shares: list[tuple[int, int]], in_order: bool, name: Name | None = None
    ) -> None:
        super().__init__(made)
        # By which the ranks of a job compare their first batches; None: they need not.
        self._name, self._compared = name, 0
        self._num_readers, self._in_order = len(shares), in_order
        self._shares = [ReaderShare(*share) for share in shares]
        self._epoch, self._first_task = made.epoch, task_number(made.epoch, 0)
        self._turn: int = 0  # that of the next task
        self._is_inexact = False  # whether that was reported: of one reader, not of each
        self.restart_all({})

    def next_task(self) -> Task | None:
        """Return the next turn; with its reader's place, where the executor does not know that."""
        point: ReadPoint | None
        if self.again:
            turn = position_of(self.again.popleft())
            reader = turn % self._num_readers
            point = self.place.reader(reader)
        else:
            found = None
            if not self.is_drawn:
                found = self.place.next_turn(self._turn) if self._in_order else self._quickest()
            if found is None:
                self.is_drawn = True
                return None
            turn, reader = found, found % self._num_readers
            point = self._first.pop(reader, None)
            self._rounds[reader] += 1
            self._turn = turn + 1
        number, whose = self._first_task + turn, self._shares[reader]
        # Without the call of a constructor that is written in Python.
        task = _new(Task, (number, point, self._epoch, self.made.seeds, False, whose))
        self.tasks[number] = task
        return task

    def took(self, outcome: Outcome) -> None:
        """Note that a reader's batch, its end, or an error in its place is about to be given."""
        place, made = self.place, outcome.made
        reader = (outcome.number & POSITION) % self._num_readers
        if outcome.ended:
            place.exhausted(reader)
        elif outcome.error is not None or made is None:  # no state came with it
            place.read(reader, NOT_TAKEN, 0)
        else:
            place.read(reader, made.state, made.digest)
            if made.notes or self._name is not None:
                outcome.made = self._said(made)
        self.given = outcome.number

    def _said(self, made: BatchWithReport) -> BatchWithReport:
        """Return a report with what the user is to be told: of one reader, not of each."""
        notes = made.notes
        if notes and self._is_inexact:
            notes = tuple(note for note in notes if not note.endswith(_INEXACT))
        self._is_inexact = self._is_inexact or any(note.endswith(_INEXACT) for note in notes)
        if self._name is not None:
            self._compared += 1
            twice = is_read_twice(self._name, self._compared, made.digest)
            if twice is not None:
                self._name = None
            if twice:
                notes = (*notes, read_twice())
        return made._replace(notes=notes)

    def restart(self, number: int) -> None:
        """Send a turn again, from where its reader is according to what was delivered."""
        self.again = deque(sorted({*self.again, number}))

    def restart_all(self, arrived: dict[int, Outcome]) -> None:
        """Begin where the batches delivered last have left the readers, or where they begin again.

        What had come in and is not delivered is rebuilt: a reader has one place only.
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

    def _quickest(self) -> int | None:
        """Return the next turn of the reader with the fewest batches outstanding."""
        place, readers = self.place, self._num_readers
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


def tasks_of(core: Any, made: Pass, in_order: bool) -> StreamTasks:
    """Return the tasks of a pass of a loader."""
    (rank, ranks), kept, name = core.replica, core.of_process, None
    divided = core.shards is not None or core.given_replica == (0, 1)
    if not divided and processes() > 1 and "compared" not in kept:
        kind = f"first batch of {type(core.dataset).__name__}"
        name = kept["compared"] = None if made.position.start.delivered else Name(kind)
    return StreamTasks(made, shares_of(core.shards, rank, ranks, core.readers), in_order, name)
