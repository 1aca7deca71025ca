"""`ReaderHomes`: which worker serves each reader of an iterable dataset, and whose place is lost.

::

    task ─▶ its reader's home: the worker that has the reader open
              ├─ as always: the reader continues where it is
              ╰─ the reader is new there (it was moved, or its worker died): the task says where
                 it is, and the worker opens it there

Used by `core/executors/worker_pool.py`. A reader moves between two of its tasks. What its old home
was sent before, that finishes; so nobody waits for a move, and nothing is made in vain. A plain
data structure: it knows numbers only.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

_BEGINS: Final = -1
_UNKNOWN: Final = -2


class ReaderHomes:
    """Assigns readers to workers, the same number to each."""

    def __init__(self, readers: int, workers: int) -> None:
        self._homes = [reader % workers for reader in range(readers)]
        self._next = [_BEGINS] * readers  # the turn that each can go on with in its home

    def home(self, turn: int) -> int:
        """Return the worker that a reader's task goes to."""
        return self._homes[turn % len(self._homes)]

    def send(self, turn: int, place: bytes) -> bytes | None:
        """Note that a turn's task is sent; returns what it says of where its reader is.

        That is the ``place`` that the task has, if any, where the reader begins in its home; and
        nothing where it continues. None: it has to be said, and the task has none. It is not sent.
        """
        reader, readers = turn % len(self._homes), len(self._homes)
        expected = self._next[reader]
        if expected == turn:
            place = b""
        elif expected != _BEGINS and not place:
            return None
        self._next[reader] = turn + readers
        return place

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
        """Note that all readers begin again, wherever they are."""
        self._next = [_BEGINS] * len(self._homes)
