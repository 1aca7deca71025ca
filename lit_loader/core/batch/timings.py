"""`Timings`: what a batch has cost; `BatchLog`: what a loader keeps of them, and of what happened.

::

    worker    fetch ▶ collate ▶ encode ─▶╮          (clocked there; travels in the Reply)
    parent           wait ▶ decode ▶ pin ─▶ step    (clocked where it happens)
                                          ╰─▶ BatchLog ─▶ who sums up, when the log is full

All clocks are ``time.monotonic_ns()``, which is the same in all processes.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any, Final

from lit_loader.core.system.worker_waits import WorkerWaits

WINDOW: Final = 1024
"""Batches whose timings are kept until they are summed up."""

EVENTS: Final = 7
"""Restarts, and bad samples, that are remembered: the latest ones."""

_TEXT: Final = 450

MEASURED: Final = 6
"""The place in a `Reply` from which on it is what was measured."""


@dataclass(slots=True, eq=False)
class Timings:
    """What one batch has cost: filled on its way, and read by all that shows figures.

    Durations in nanoseconds, moments by ``time.monotonic_ns()``. The first fields, to ``tokens``,
    are measured where the batch is made, in the order of a `Reply` (`core/transport/messages.py`);
    the others where it comes in, and is given out.
    """

    worker: int = -1  # that made it; -1: the consumer's own process
    nbytes: int = 0  # of shared memory that it takes; 0 in the consumer's own process
    samples: int = 0
    began: int = 0  # when the worker took it up
    fetch: int = 0  # reading its samples
    collate: int = 0
    encode: int = 0  # writing what is not there yet into shared memory
    slowest: int = 0  # reading its slowest sample; 0: not known
    slowest_at: int = 0  # that sample's place in the batch
    processor: int = 0  # time of the worker's process, all threads, for it; 0: not measured
    queued: int = 0  # how long the worker waited for a CPU core meanwhile; 0: not measured
    state: int = 0  # how much of ``fetch`` the state of a stream was taken
    tokens: int = 0  # that its samples have noted
    number: int = 0  # in the epoch
    arrived: int = 0  # when its result came in at the parent
    asked: int = 0  # when the consumer asked for a batch
    wait: int = 0  # how long the consumer waited for the workers then
    decode: int = 0  # rebuilding it in the parent
    pin: int = 0  # copying it into pinned memory
    step: int = 0  # how long the consumer was busy since the batch before; 0 for the first
    epoch: int = 0
    slowest_index: Any = None  # the slowest sample's index; None: not known

    @property
    def waited(self) -> int:
        """How long the consumer was kept from its own work, in nanoseconds."""
        if self.pin:  # a pin-memory thread has decoded it meanwhile: that is in the wait
            return self.wait + (self.pin if self.worker < 0 else 0)
        return self.wait + self.decode

    @property
    def making(self) -> dict[str, int]:
        """The stages of making it, in their order."""
        own = {"taking the state": self.state, "fetch": self.fetch - self.state}
        return {**own, "collate": self.collate, "encode": self.encode}

    @property
    def taking(self) -> dict[str, int]:
        """What ``waited`` is the sum of."""
        if self.worker < 0:
            return {"wait": self.wait, "pin": self.pin}
        return {"wait": self.wait, "decode": 0 if self.pin else self.decode}

    @property
    def given(self) -> int:
        """The moment at which the batch was given out."""
        return self.asked + self.waited


class BatchLog:
    """Collects the timings of a loader's batches; for one thread at a time. A copy begins empty.

    Attributes:
        records: Of the batches given out last, which nobody has summed up.
        counts: What add-ons count, by their names.
        last: Of the batch given out last.
        events: Of restarts and bad samples: moment, kind and text.
        first_remote: The number of the first worker elsewhere.
        waits: What workers slept at while the consumer waited for them.
        resized: When the number of workers was changed last, by ``time.monotonic_ns()``.
        summary: What sums up the records (`Recorder`); None: nobody has asked yet.
    """

    def __init__(self) -> None:
        self.worker_restarts = self.resized = 0
        self.counts = defaultdict[str, int](int)
        self.records: list[Timings] = []
        self.last: Timings | None = None
        self.events: deque[tuple[float, str, str]] = deque(maxlen=EVENTS)
        self.first_remote = math.inf
        self.waits = WorkerWaits()
        self.summary: Any = None

    def __reduce__(self) -> tuple[type[BatchLog], tuple[()]]:
        # Records belong to the loader that made them.
        return BatchLog, ()

    def note(self, kind: str, text: str) -> None:
        """Remember, for viewers, what has happened."""
        self.events.append((time.time(), kind, text[:_TEXT]))
