"""The records of where time goes: of one step, and summed up for a loader.

Each batch has its `Timings`, `profiling/recorder.py` sums them up as `LoaderStatistics`, which
``loader.statistics()`` returns to users.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lit_loader.core.batch.timings import Timings
from lit_loader.diagnostics.sentences import mebibytes

__all__ = [
    "LoaderTrace",
    "MemoryUse",
    "NodeTimes",
    "SlowSample",
    "StageTimes",
    "StepRecord",
    "Surroundings",
    "WorkerTimes",
]


class StepRecord(NamedTuple):
    """What the consumer did with a batch; moments by ``time.monotonic_ns()``."""

    given: int  # when the loader gave the batch out; 0: not known
    start: int  # when the step with it began: between the two it was brought to its device
    end: int


class LoaderTrace(NamedTuple):
    """The records of one loader that a timeline or picture is made of."""

    name: str
    records: Sequence[Timings]  # in the order in which the batches were given out
    steps: Sequence[StepRecord] = ()  # what was done with them, in order
    left_out: int = 0  # how many earlier batches there were, whose records were not kept


@dataclass(frozen=True)
class StageTimes:
    """Durations of one stage, in seconds.

    Attributes:
        total: Sum over all batches.
        mean: Per batch.
        p50: Median of the last batches (1,024, if there were as many).
        p90: Nine in ten of them took no longer.
        p99: 99 in a hundred.
        max: The longest of them.
    """

    total: float = 0.0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    max: float = 0.0


@dataclass(frozen=True)
class WorkerTimes:
    """What one worker did.

    Attributes:
        worker: Its number; -1: the consumer's own process. Those of remote workers begin at 1024.
        batches: Batches it made.
        samples: Samples in them.
        busy: Seconds that it was making them.
        busy_fraction: ``busy`` as part of the statistics' ``seconds``.
        node: The machine of a remote worker, the last one if it was on several; "": this machine.
        nbytes: Bytes of its batches.
        transit: Seconds that a remote worker's batches were in transit, summed up (as in
            `LoaderStatistics`).
    """

    worker: int
    batches: int
    samples: int
    busy: float
    busy_fraction: float
    node: str = ""
    nbytes: int = 0
    transit: float = 0.0


@dataclass(frozen=True)
class NodeTimes:
    """What the remote workers of one machine did.

    Attributes:
        node: Its name.
        workers: How many of them have made batches.
        batches: Batches they made.
        samples: Samples in them.
        nbytes: Bytes of them, which came over the network.
        busy: Seconds that they were making them, summed up.
        transit: Seconds that these were in transit, summed up (as in `LoaderStatistics`).
    """

    node: str
    workers: int
    batches: int
    samples: int
    nbytes: int
    busy: float
    transit: float


@dataclass(frozen=True)
class SlowSample:
    """One of the slowest samples.

    Attributes:
        index: Its index; None for an iterable dataset.
        seconds: How long it took to read.
        epoch: In which epoch.
        batch: In which batch.
    """

    index: Any
    seconds: float
    epoch: int
    batch: int


@dataclass(frozen=True)
class MemoryUse:
    """What memory a loader takes now, in bytes; None: the system does not say.

    Attributes:
        parent: Of the training process itself, its own copy of the dataset and all else.
        arena: In use for batches.
        shared_data: Large arrays of the dataset that workers share under spawn and forkserver.
        workers: Of each worker for itself, by number. What forked workers share with each other is
            divided among them.
    """

    parent: int | None = None
    arena: int = 0
    shared_data: int = 0
    workers: tuple[int | None, ...] = ()

    def __str__(self) -> str:
        """One line for a reader."""
        shared = f", shared data {mebibytes(self.shared_data)}" if self.shared_data else ""
        alone = f", workers {' + '.join(map(mebibytes, self.workers))}" if self.workers else ""
        return f"parent {mebibytes(self.parent)}, arena {mebibytes(self.arena)}{shared}{alone}"


@dataclass(frozen=True)
class Surroundings:
    """What a loader works in, as far as the verdict depends on it.

    Attributes:
        processors: Those that this process and its workers may use, rounded up; None: not known.
        persistent_workers: Whether workers live from epoch to epoch.
        iterable: Whether the dataset is an IterableDataset.
        threads: Threads that torch computes with in the training process.
        device: Whether the training process uses a CUDA device.
        worker_method: Whether workers are processes ("multiprocessing") or threads ("thread").
    """

    processors: int | None = None
    persistent_workers: bool = False
    iterable: bool = False
    threads: int = 1
    device: bool = False
    worker_method: str = "multiprocessing"
