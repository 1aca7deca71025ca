"""`Turns`: which of a process's loaders is iterated, and which give way to it meanwhile.

::

    train  ▪▪▪▪▪▪▪▪┊                        ┊▪▪▪▪▪▪▪▪┊             ┊▪▪
    val            ┊▪ ▪ ▪ SECONDS ▪ ▪ BATCHES┊        ┊▪▪▪▪▪▪▪▪▪▪▪▪▪┊
                                 train parks ╯        ╰ train parks at once

A loader whose ``next()`` is called has its turn, until another one's is. One that has had none for
a while, in which another had many batches, is parked: all of its workers but one end. It comes back
at its next ``next()``; what its workers had made ahead is there still, so that is as early as ever.

- **Loaders that are used by turns** (zipped, or some steps of one to one of the other) have no turn
  that is long: none is parked.
- **Who was parked for long, and rightly, is so at once** the next time, if its turn was a long one:
  so training and validation hand over, and have together about as many workers as one of them.
  Who was wanted again soon is given twice the time.

It knows no process and no clock: `tuning/giving_way.py` parks, the moments come from outside.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Final

__all__ = ["BATCHES", "FORKED", "MOST", "STARTED", "TURNS", "Turn", "Turns"]

FORKED: Final = 1_000_000_000
"""Nanoseconds without a turn after which a loader is parked whose workers are forked."""

STARTED: Final = 30_000_000_000
"""The same where each worker starts an interpreter, for seconds."""

MOST: Final = 600_000_000_000
"""The longest time that a loader is given."""

BATCHES: Final = 8
"""Batches in a row that the other one has had besides."""

SOON: Final = 20_000_000
"""Nanoseconds after which it is looked again whether all have left."""

NEVER: Final = 1 << 63


class Turn:
    """A loader as it is seen from here.

    Attributes:
        parked: Since when it is parked; 0: it is not.
        patience: Nanoseconds that it is left in peace; None: as long as is usual.
    """

    def __init__(self) -> None:
        self.parked = 0
        self.patience: int | None = None

    @property
    def usual(self) -> int:
        """Nanoseconds after which it is worth while to park it."""
        return FORKED

    def park(self, now: int) -> bool:
        """End its workers but one, and note that; returns whether it could be: it may be at work.

        Args:
            now: What ``parked`` is to be.
        """
        raise NotImplementedError

    def settle(self) -> bool:
        """See to those that are leaving; returns whether all have left."""
        raise NotImplementedError

    def unpark(self) -> None:
        """Have as many workers as before."""
        raise NotImplementedError

    def come_back(self, now: int) -> None:
        """Be iterated again; learns whether it was worth while to park it."""
        if self.parked:
            worth, self.parked = now - self.parked >= self.usual, 0
            longer = 2 * max(self.patience or 0, self.usual)
            self.patience = 0 if worth else min(longer, MOST)
            self.unpark()


class Turns:
    """Who has the turn. One a process.

    Attributes:
        whose: The loader that was iterated last.
        due: The moment from which on :meth:`look` is to be called though it is the same one.
    """

    def __init__(self) -> None:
        self.whose: Turn | None = None
        self.due = NEVER
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._known: weakref.WeakSet[Turn] = weakref.WeakSet()
        self._leaving: list[Turn] = []
        self._began, self._left = 0, BATCHES

    def look(self, turn: Turn, now: int) -> None:
        """Note that a loader is iterated; do what is due. Never waits.

        Args:
            turn: The loader, which is in ``next()``.
            now: The moment at which it was asked, by ``time.monotonic_ns()``.
        """
        turn.come_back(now)
        if self._pid != os.getpid():  # a fork: the loaders of before are another process's
            Turns.__init__(self)
        if not self._lock.acquire(blocking=False):
            return  # another thread is here, or this one, further up
        try:
            if turn is not self.whose:
                self._change(turn, now)
            else:
                self._go_on(now)
        finally:
            self._lock.release()

    def _change(self, turn: Turn, now: int) -> None:
        before, self.whose = self.whose, turn
        long = not self._left
        self._known.add(turn)
        self._began, self._left = now, BATCHES
        self.due = now + FORKED
        if long and before is not None and before.patience == 0:
            self._park(before, now)

    def _go_on(self, now: int) -> None:
        self._leaving = [each for each in self._leaving if each.parked and not each.settle()]
        due = now + SOON if self._leaving else NEVER
        if now < self._began + FORKED:
            self.due = min(due, self._began + FORKED)
        elif self._left:
            self._left -= 1
            self.due = now  # at the next batch
        else:
            self.due = due
            for other in list(self._known):
                if other is not self.whose and not other.parked:
                    usual = other.usual
                    end = self._began + max(usual, other.patience or 0)
                    if now < end or not self._park(other, now):
                        self.due = min(self.due, max(end, now + usual))

    def _park(self, other: Turn, now: int) -> bool:
        if other.parked or not other.park(now):
            return False
        self._leaving.append(other)
        self.due = min(self.due, now + SOON)
        return True


TURNS: Final = Turns()
"""Those of this process."""
