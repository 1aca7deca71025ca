"""`StreamTasks`: the tasks of a pass over an iterable dataset, owned by its iterator.

See `PassTasks`, which says what an iterator asks of them. A task is a reader's turn; its number has
the turn in the place of the batch's number.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lit_loader.core.batch.batch_spec import BatchWithReport
from lit_loader.core.epoch.pass_tasks import PassTasks
from lit_loader.core.epoch.passes import Pass
from lit_loader.core.executors.executor import Outcome, Task
from lit_loader.core.transport.messages import POSITION, position_of, task_number
from lit_loader.streams.advice import read_twice
from lit_loader.streams.rank_store import Name, is_read_twice, processes
from lit_loader.streams.stream_position import NOT_TAKEN, ReadPoint, StreamPosition, shares_of

if TYPE_CHECKING:
    from lit_loader.core.epoch.loader_core import LoaderCore

_INEXACT = "[LL321]"
_new = tuple.__new__


class StreamTasks(PassTasks):
    """Turns of the readers, each of which reads one share; those at their end have none.

    Turn ``t`` is that of reader ``t % readers`` in round ``t // readers``, and the number of the
    batch that it yields. In order, readers take turns in rounds, one batch each; a resume begins
    with those that lag.

    Where batches need not come in order, the next task is for the reader with the fewest
    outstanding: so a slow one delays no other, but for those that share its worker.
    """

    reads_streams = True
    place: StreamPosition
    _turns: set[int]  # the next one of each reader that has not ended

    def __init__(self, core: LoaderCore, made: Pass, in_order: bool) -> None:
        super().__init__(made)
        rank, ranks = core.replica
        self._shares = shares_of(core.shards, rank, ranks, core.readers)
        self._num_readers, self._in_order = len(self._shares), in_order
        self._epoch, self._first_task = made.epoch, task_number(made.epoch, 0)
        # By which the ranks of a job compare their first batches, once; None: they need not.
        self._name, self._compared = None, 0
        divided = core.shards is not None or core.given_replica == (0, 1)
        if not divided and processes() > 1 and "compared" not in core.of_process:
            core.of_process["compared"] = True
            if not made.position.start.delivered:
                self._name = Name(f"first batch of {type(core.dataset).__name__}")
        self._is_inexact = False  # whether that was reported: of one reader, not of each
        self.restart_all()

    def next_task(self) -> Task | None:
        """Return the next turn; with its reader's place, where the executor does not know that."""
        if self.again:
            turn = position_of(self.again.popleft())
            point: ReadPoint | None = self.place.reader(turn % self._num_readers)
        else:
            if not self._turns:
                self.is_drawn = True
                return None
            turn = min(self._turns) if self._in_order else self._turn_of_quickest()
            point = self._first.pop(turn % self._num_readers, None)
        number, whose = self._first_task + turn, self._shares[turn % self._num_readers]
        # Without the call of a constructor that is written in Python.
        task = _new(Task, (number, point, self._epoch, self.made.seeds, False, whose))
        # Stored before the turn is taken: a signal handler that raises in between loses none.
        self.tasks[number] = task
        if turn in self._turns:  # else it is given again
            self._turns ^= {turn, turn + self._num_readers}
        return task

    def _turn_of_quickest(self) -> int:
        """Return the next turn of the reader with the fewest batches outstanding."""
        readers = self._num_readers
        asked = Counter(position_of(number) % readers for number in self.tasks)
        return min(self._turns, key=lambda turn: (asked[turn % readers], turn))

    def took(self, outcome: Outcome) -> None:
        """Note that a reader's batch, its end, or an error in its place is about to be given."""
        place, made = self.place, outcome.made
        reader = (outcome.number & POSITION) % self._num_readers
        if outcome.ended:
            place.exhausted(reader)
            self._turns = {turn for turn in self._turns if turn % self._num_readers != reader}
        elif outcome.error is not None or made is None:  # no state came with it
            place.read(reader, NOT_TAKEN, 0)
        else:
            place.read(reader, made.state, made.digest)
            if made.notes or self._name is not None:
                outcome.made = made._replace(notes=tuple(self._notes_of(made)))
        self.given = outcome.number

    def _notes_of(self, made: BatchWithReport) -> Iterator[str]:
        """Yield what the user is to be told; of a resume that is not exact, of one reader only."""
        for note in made.notes:
            if not (self._is_inexact and note.endswith(_INEXACT)):
                yield note
            self._is_inexact = self._is_inexact or note.endswith(_INEXACT)
        if self._name is not None:
            self._compared += 1
            twice = is_read_twice(self._name, self._compared, made.digest)
            if twice is not None:
                self._name = None
            if twice:
                yield read_twice()

    def restart(self, number: int) -> None:
        """Send a turn again, from where its reader is according to what was delivered."""
        self.again = deque(sorted({*self.again, number}))

    def restart_all(self) -> None:
        """Begin where the batches delivered last have left the readers, or where they begin again.

        What had come in and is not delivered is rebuilt: a reader has one place only.
        """
        self.arrived.clear()
        self.tasks.clear()
        self.again.clear()
        self.is_drawn, place, readers = False, self.place, range(self._num_readers)
        points = [place.reader(reader) for reader in readers]
        self._turns = {
            points[reader].batches * self._num_readers + reader
            for reader in readers
            if not place.passes_over(reader)
        }
        self._first: dict[int, ReadPoint] = {  # where readers are to begin
            reader: point
            for reader, point in enumerate(points)
            if point.batches or point.before  # it has ended where it is now
        }
