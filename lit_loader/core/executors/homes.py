"""`ReaderHomes`: which worker serves each reader of an iterable dataset, and whose place is lost.

::

    task ─▶ its reader's home: the worker that has the reader open
              ├─ as always: the reader goes on where it is
              ╰─ the reader is new there (it was moved, or its worker died): the task says where
                 it is, and the worker opens it there

Used by `core/executors/worker_pool.py`. A reader moves between two of its tasks. What its old home
was sent before, that finishes; so nobody waits for a move, and nothing is made in vain. A plain
data structure: it knows numbers only.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Final

__all__ = ["Place", "ReaderHomes"]

_BEGINS: Final = -1
_UNKNOWN: Final = -2


class Place(Enum):
    """Where a reader is in its home, before a task."""

    BEGINS = 0  # at its start, or where the task says
    GOES_ON = 1  # at this very task
    LOST = 2  # not there, or elsewhere: the task has to say where it is


class ReaderHomes:
    """Gives each of so many readers a worker, as many readers to one as to another."""

    def __init__(self, readers: int, workers: int) -> None:
        self._homes = [reader % workers for reader in range(readers)]
        self._next = [_BEGINS] * readers  # the turn that each can go on with in its home

    def whose(self, turn: int) -> int:
        """Give the reader whose turn a batch is."""
        return turn % len(self._homes)

    def home(self, turn: int) -> int:
        """Give the worker that a reader's task goes to."""
        return self._homes[turn % len(self._homes)]

    def place(self, turn: int) -> Place:
        """Say what is known, in its home, of where a reader is before a turn."""
        expected = self._next[turn % len(self._homes)]
        if expected == turn:
            return Place.GOES_ON
        return Place.BEGINS if expected == _BEGINS else Place.LOST

    def send(self, turn: int) -> None:
        """Note that a turn's task is sent, which says where its reader is if it has to."""
        self._next[turn % len(self._homes)] = turn + len(self._homes)

    def lose(self, worker: int) -> None:
        """Note that a worker is gone, with the places of its readers."""
        for reader, home in enumerate(self._homes):
            if home == worker:
                self._next[reader] = _UNKNOWN

    def settle(self, workers: Collection[int], wanted: int) -> None:
        """Move as few readers as will give each of these workers its fair share.

        Of several that have as few readers the first is given one. Readers that are to move to
        workers which are ``wanted`` and not up yet stay where they are until then.
        """
        served: dict[int, list[int]] = {worker: [] for worker in workers}
        homeless: list[int] = []
        for reader, home in enumerate(self._homes):
            served.get(home, homeless).append(reader)

        def load(worker: int) -> int:
            return len(served[worker])

        for reader in homeless:
            self._move(reader, min(served, key=load), served)
        fewest, most = len(self._homes) // wanted, -(-len(self._homes) // wanted)
        while True:
            least, busiest = min(served, key=load), max(served, key=load)
            if not (load(least) < fewest < load(busiest) or load(least) < most < load(busiest)):
                break
            self._move(served[busiest].pop(), least, served)

    def _move(self, reader: int, worker: int, served: dict[int, list[int]]) -> None:
        served[worker].append(reader)
        self._homes[reader] = worker
        self._next[reader] = _UNKNOWN

    def forget_places(self) -> None:
        """Note that all readers begin anew, wherever they are."""
        self._next = [_BEGINS] * len(self._homes)
