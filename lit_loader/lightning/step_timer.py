"""Clocks the steps of one Lightning loop, and how long each batch took to come to the device.

Used by `lightning/loop_monitor.py`, which calls it when a step starts and ends; its times go into
the reports of `lightning/loader_history.py`, its records into timeline and picture. A step costs
two readings of the clock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from lit_loader.statistics.recorder import WINDOW, Recorder, Stopwatch
from lit_loader.statistics.records import StageTimes, StepRecord

__all__ = ["StepTimer"]


class StepTimer:
    """The steps of one loop, and the transfers before them.

    Args:
        keep: How many of the last steps' records are kept.

    Attributes:
        kept: These records.
    """

    def __init__(self, keep: int) -> None:
        self.kept: deque[StepRecord] = deque(maxlen=keep)
        self._stopwatch = Stopwatch(2)
        self._new: list[StepRecord] = []
        self._given = self._last_given = self._started = 0

    def start(self, recorders: Sequence[Recorder]) -> None:
        """Note that a step starts, with batches of these recorders' loaders."""
        self._started = time.monotonic_ns()
        given = 0
        for recorder in recorders:
            if recorder.last is not None:
                given = max(given, recorder.last.given)
        # Without a new batch, Lightning has had this one for a while: its transfer is not known.
        self._given = given if given > self._last_given else 0
        self._last_given = given

    def end(self) -> None:
        """Note that the step has ended."""
        self._new.append(
            StepRecord(given=self._given, start=self._started, end=time.monotonic_ns())
        )
        if len(self._new) >= WINDOW:
            self.sum_up()

    def times(self) -> list[StageTimes]:
        """Returns the times of transfers, and those of steps."""
        self.sum_up()
        return self._stopwatch.times()

    def sum_up(self) -> None:
        """Add the new records to the times and to those kept."""
        new, self._new = self._new, []
        if not new:
            return
        given, start, end = np.array(new, np.int64).T
        self._stopwatch.add(np.stack([np.where(given > 0, start - given, 0), end - start]))
        if self.kept.maxlen:
            self.kept.extend(new)
