"""`ReaderHomes`: which worker serves each reader of an iterable dataset, and whose place is lost.

::

    task ─▶ its reader's home: the worker that has the reader open
              ├─ as always: the reader goes on where it is
              ╰─ the reader is new there (it was moved, or its worker died): the task says where
                 it is, and the worker opens it there

Used by `pool/dispatcher.py`. A reader moves between two of its tasks. What its old home was sent
before, that finishes; so nobody waits for a move, and nothing is made in vain. A plain data
structure: it knows numbers only.
"""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["ReaderHomes"]


class ReaderHomes:
    """Gives each reader a worker, as many readers to one as to another.

    Args:
        readers: How many readers there are.
        workers: How many workers there are at first.
    """

    def __init__(self, readers: int, workers: int) -> None:
        self._homes = [reader % workers for reader in range(readers)]
        self._newest = [-1] * readers  # the last task of each that was sent
        self._astray: set[int] = set()

    def whose(self, turn: int) -> int:
        """Give the reader whose turn a batch is."""
        return turn % len(self._homes)

    def send(self, turn: int) -> tuple[int, bool]:
        """Note that a reader's next task is sent.

        Args:
            turn: Position of the batch in the epoch.

        Returns:
            The worker that it goes to, and whether it has to say where the reader is.
        """
        reader = turn % len(self._homes)
        self._newest[reader] = turn
        if reader in self._astray:
            self._astray.discard(reader)
            return self._homes[reader], True
        return self._homes[reader], False

    def send_again(self, turns: Collection[int]) -> list[tuple[int, bool]]:
        """Note that tasks are sent once more which a worker that is gone had, in their order.

        A reader that has been moved meanwhile may be ahead of them in its new home: then it is
        brought back to them, and forth again with its next task.

        Returns:
            For each what :meth:`send` does.
        """
        last, found = {}, []
        for turn in turns:
            reader = turn % len(self._homes)
            found.append((self._homes[reader], reader not in last))
            last[reader] = turn
        for reader, turn in last.items():
            if self._newest[reader] == turn:
                self._astray.discard(reader)
            else:
                self._astray.add(reader)
        return found

    def lose(self, worker: int) -> None:
        """Note that a worker is gone, with the places of its readers."""
        self._astray |= {reader for reader, home in enumerate(self._homes) if home == worker}

    def settle(self, workers: Collection[int], wanted: int) -> list[tuple[int, int]]:
        """Move as few readers as will give each of these workers its fair share.

        Args:
            workers: Those that can take tasks; not empty. Of several that have as few readers the
                first is given one.
            wanted: How many there are to be. Readers that are to move to those which are not up yet
                stay where they are until then.

        Returns:
            The readers that moved, each with the worker that it left, if that goes on.
        """
        before = [*self._homes]
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
        moved = enumerate(zip(before, self._homes, strict=True))
        return [(reader, old) for reader, (old, new) in moved if old != new and old in served]

    def _move(self, reader: int, worker: int, served: dict[int, list[int]]) -> None:
        served[worker].append(reader)
        self._homes[reader] = worker
        self._astray.add(reader)

    def forget_places(self) -> None:
        """Note that all readers begin anew, wherever they are."""
        self._astray.clear()
        self._newest = [-1] * len(self._homes)
