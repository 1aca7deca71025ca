"""`AutoWorkers`: ``num_workers="auto"``: measures, has it decided, and says what is to be done.

One a loader, from iterator to iterator. The records of its batches come in, and once a window of
them is full, the setting that the controller (`tuning/controller.py`) decides on goes out; the
iterator resizes its workers::

    record ─▶ Window ─Load─▶ Controller ─Setting─▶ resize
                               ▲
                 Bounds: processors, memory (looked at where something may be to be done)
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import Final, Protocol

from lit_loader.statistics.records import BatchRecord
from lit_loader.system.process_memory import memory_left, own_memory
from lit_loader.system.processors import processors_of_this_rank
from lit_loader.tuning.controller import Controller, Setting
from lit_loader.tuning.estimate import Bounds
from lit_loader.tuning.window import Window

__all__ = ["AutoWorkers"]

FIRST: Final = 2
"""Workers to begin with: so few that they do not wait for each other."""

LEAST: Final = 50_000_000
"""Nanoseconds that a window has at least: of quick batches it takes more, to be true."""

REST: Final = 4
"""Windows that are not looked at after one that was as those before."""

MOST: Final = 32
"""Workers that there may be on a small machine; on a larger one, eight for each processor."""

FRESH: Final = 5_000_000_000
"""Nanoseconds for which processors and memory are taken to be as they were."""

SPARE: Final = 0.8
"""The part of the memory left that more workers may take."""

_LOG: Final = logging.getLogger("lit_loader.tuning")


class Workers(Protocol):
    """What is asked of the workers."""

    @property
    def settled(self) -> bool:
        """Whether there are as many as there are to be, all of them up."""

    @property
    def num_workers(self) -> int:
        """How many there are to be on this machine."""

    @property
    def pids(self) -> Sequence[int]:
        """Their process ids, by number."""


class AutoWorkers:
    """Sets a loader's number of workers. A copy of it begins with the number of the moment.

    Args:
        workers: Workers to begin with; None: few.

    Attributes:
        ranks: Processes of the job on this machine; None: as the launcher says.
        reads_again: Whether a reader that moves to another worker reads again what it has given.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.ranks: int | None = None
        self.reads_again = False
        self._controller = Controller(FIRST if workers is None else workers)
        self._window = Window()
        self._measures = False
        self._latest = self._changed = (-1, 0)  # epoch and batch: given out, decided at
        self._rest = 0  # batches that are not looked at
        self._due = 0  # batches in the window at which something is to be done
        self._before = (0, 0)  # moment, and this process's processor time, when the window began
        self._processors = 0.0
        self._most = 1 << 20  # workers that could be started
        self._looked = -FRESH  # at the following, by time.monotonic_ns()
        self._left: int | None = None
        self._each: int | None = None

    def __reduce__(self) -> tuple[type[AutoWorkers], tuple[int]]:
        return AutoWorkers, (self.setting.workers,)

    @property
    def setting(self) -> Setting:
        """How many workers there are to be, and why."""
        return self._controller.setting

    @property
    def measured(self) -> bool:
        """Whether the setting is one that was found."""
        return self._processors > 0

    def begin_with(self, workers: int) -> None:
        """Begin with so many, if nothing was found yet; they may be those of a larger machine."""
        if not self.measured and workers > 0:
            most = _most_on(processors_of_this_rank(self.ranks))
            self._controller = Controller(min(workers, most))

    def make_do(self, workers: int) -> None:
        """Have no more workers than these, from now on: no more can be started."""
        self._most = workers
        self._controller.bound(workers)

    def unsettle(self) -> None:
        """Note that there are other workers: what comes in is theirs only once they are all up."""
        self._measures, self._due = False, 0

    def add(self, record: BatchRecord, again: bool = False) -> bool:
        """Take in a batch that is given out; returns whether :meth:`decide` is to be called.

        Args:
            record: What it has cost.
            again: What ``reads_again`` is. Then an epoch's next change waits until there are twice
                as many batches: all that is read again is in proportion to what is read.
        """
        self.reads_again = again
        self._latest = record.epoch, record.number
        if again and record.epoch == self._changed[0] and record.number < 2 * self._changed[1]:
            return False
        if self._rest:
            self._rest -= 1
            return False
        self._window.add(record)
        return len(self._window) >= self._due

    def decide(
        self, workers: Workers, name: str, budget: int | None, readers: int = 0
    ) -> Setting | None:
        """Say how many workers there are to be from now on; None: as many as before.

        Args:
            workers: Those that there are.
            name: The loader's, for the log.
            budget: Bytes that batches may take; None: any.
            readers: Readers of an iterable dataset: no more workers have something to do; 0: any.
        """
        window, controller = self._window, self._controller
        if not self._measures:
            if workers.settled:
                self._measures = True
                self._begin()
            return None
        if len(window) < controller.window or window.seconds * 1e9 < LEAST:
            self._due = len(window) + max(4, controller.window // 4)
            return None
        moment, used = self._before
        elapsed = max(1, time.monotonic_ns() - moment)
        nbytes = window.nbytes
        load = window.take(workers.num_workers, (time.process_time_ns() - used) / elapsed)
        self._begin()
        if not load.processor or controller.is_quiet(load):
            self._rest = REST * controller.window
            return None
        before = controller.setting
        now = controller.decide(load, self._bounds(workers, nbytes, budget, readers))
        if (now.workers, now.prefetch) == (before.workers, before.prefetch):
            return None
        _LOG.info(
            "%s: %d -> %d workers, %d -> %d batches ahead for each: %s (a batch takes a worker "
            "%.3g ms, %.3g of them computing and %.3g waiting for a processor; the consumer is "
            "busy for %.3g ms and waits for %.3g)",
            *(name, before.workers, now.workers, before.prefetch, now.prefetch, now.reason),
            *(1e3 * load.worker, 1e3 * load.processor, 1e3 * load.queued),
            *(1e3 * load.step, 1e3 * load.wait),
        )
        self._changed = self._latest
        self.unsettle()
        return now

    def _begin(self) -> None:
        """Begin a window."""
        now = time.monotonic_ns()
        if not self._due:
            self._window.begin(now)
        self._before = now, time.process_time_ns()
        self._due = self._controller.window

    def _bounds(
        self, workers: Workers, nbytes: int, budget: int | None, readers: int = 0
    ) -> Bounds:
        """What may be used now; looked up anew where it is some seconds old."""
        now = time.monotonic_ns()
        if now - self._looked > FRESH:
            self._looked, self._left = now, memory_left()
            self._processors = processors_of_this_rank(self.ranks)
            self._each = own_memory(workers.pids[0]) if workers.pids else None
        processors, left, each = self._processors, self._left, self._each
        most = min(self._most, _most_on(processors))
        if readers:
            most = min(most, readers)
        batches = 1 << 20
        if budget is not None and nbytes:
            batches = max(1, int(budget // nbytes))
            most = min(most, batches)
        if left is not None and each:
            most = min(most, workers.num_workers + int(SPARE * left / each))
        return Bounds(processors, max(1, most), batches)


def _most_on(processors: float) -> int:
    """Workers that there may be on so many processors."""
    return max(MOST, 8 * math.ceil(processors))
