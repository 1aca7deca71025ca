"""The records of where time goes: of one step, and summed up for a loader.

Each batch has its `Timings`, `insight/recorder.py` sums them up as `LoaderStatistics`, which
``loader.statistics()`` returns to users.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from lit_loader.core.batch.timings import Timings
from lit_loader.describe import public
from lit_loader.sentences import counted, mebibytes

__all__ = [
    "LoaderStatistics",
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
    """

    processors: int | None = None
    persistent_workers: bool = False
    iterable: bool = False
    threads: int = 1
    device: bool = False


@public
@dataclass(frozen=True)
class LoaderStatistics:
    """Where a loader's time went, from its first batch on.

    A stage (``fetch`` to ``step``) has ``total``, ``mean``, ``p50``, ``p90``, ``p99`` and ``max``,
    in seconds.

    Attributes:
        batches: Batches yielded.
        samples: Samples in them.
        nbytes: Bytes of shared memory that they took.
        seconds: Spent in the loops over this loader: waiting for batches, and using them.
        fetch: Reading samples (``__getitem__``), in workers.
        collate: Collating, in workers.
        encode: Writing batches into shared memory, in workers.
        wait: The consumer's wait for the workers. With ``num_workers=0``: for fetch and collate.
        decode: Rebuilding batches, in the training process.
        pin: Copying them into page-locked memory, in the pin-memory thread.
        step: What the consumer did between batches; 0 before an iterator's first one.
        waited: Seconds that the consumer waited for data: ``wait``, and what it did itself (decode
            without a pin-memory thread, pin with ``num_workers=0``).
        wait_fraction: ``waited`` as a fraction of ``seconds``.
        starts: Iterators that have yielded a batch.
        startup: Seconds of ``waited`` for their first batches.
        workers: Each worker's part.
        busy_fraction: Mean of the workers'.
        slowest_samples: The slowest, at most five, slowest first, each index once.
        straggler_seconds: Seconds of ``fetch`` spent in samples that took over five times as long
            as the mean of the others in their batch.
        ready: Batches that were finished and not yielded yet, when this was taken.
        worker_restarts: Workers that were replaced after they crashed or hung.
        worker_growth: Bytes a batch by which the workers' memory, all together, has grown and still
            grows; 0: it does not, or by less than 64 MiB so far.
        sample_errors: Samples that could not be read, and were skipped or replaced.
        sample_retries: Times that a sample was read again.
        shared_memory: Bytes of shared memory that batches have in use now.
        cache_hits: Samples that a `CachedDataset` in the dataset took from memory or disk, since it
            was made and in all processes.
        cache_misses: Samples that it had to make.
        cache_bytes: Bytes of memory that its samples use.
        cache_bytes_missing: Bytes of memory that it lacks to hold all samples; 0 while it has room.
        remote_batches: Those of ``batches`` that were made on other machines.
        remote_nbytes: Their bytes, which came over the network.
        transit: Seconds, summed over them, in which no worker made the batch, between its order
            and its arrival: on the way, or waiting for another one.
        nodes: What each other machine did, by name.
        memory: The memory of the loader's processes; None unless you asked for it.
        num_workers: Worker processes, when this was taken.
        num_workers_reason: Why ``num_workers="auto"`` chose this number; else "".
        processor_fraction: Processor time of the workers, as part of the time in which they made
            batches (with threads of the dataset's it may be more than 1); 0: not measured.
        queued_fraction: Part of that time in which they waited for a processor; 0: not measured.
        read: The part of ``fetch`` in which samples waited for what `lit_loader.reads_ahead` or
            `lit_loader.read_stream` reads; 0 where the dataset uses neither.
        state: The part of ``fetch`` in which the ``state_dict`` of a stream was asked and written
            down; 0 where it has none.
        lock_fraction: Part of the looks at workers, taken while the consumer waited, that found
            them waiting for a lock that processes share (Linux); 0: none, or no look was taken.
        page_fraction: Likewise for memory that comes from a disk: swap, or a mapped file.
        queued_threads: Threads of the training process that waited for a processor, on the mean
            over ``seconds`` (Linux); 0: none, or not measured.
        active_threads: Threads of the training process that ran, or waited for a processor, for a
            fifth of ``seconds`` at least.
        surroundings: What the verdict depends on besides: processors, threads, the dataset's kind.
    """

    batches: int = 0
    samples: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    fetch: StageTimes = field(default_factory=StageTimes)
    collate: StageTimes = field(default_factory=StageTimes)
    encode: StageTimes = field(default_factory=StageTimes)
    wait: StageTimes = field(default_factory=StageTimes)
    decode: StageTimes = field(default_factory=StageTimes)
    pin: StageTimes = field(default_factory=StageTimes)
    step: StageTimes = field(default_factory=StageTimes)
    waited: float = 0.0
    wait_fraction: float = 0.0
    starts: int = 0
    startup: float = 0.0
    workers: tuple[WorkerTimes, ...] = ()
    busy_fraction: float = 0.0
    slowest_samples: tuple[SlowSample, ...] = ()
    straggler_seconds: float = 0.0
    ready: int = 0
    worker_restarts: int = 0
    worker_growth: float = 0.0
    sample_errors: int = 0
    sample_retries: int = 0
    shared_memory: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    cache_bytes: int = 0
    cache_bytes_missing: int = 0
    remote_batches: int = 0
    remote_nbytes: int = 0
    transit: float = 0.0
    nodes: tuple[NodeTimes, ...] = ()
    memory: MemoryUse | None = None
    num_workers: int = 0
    num_workers_reason: str = ""
    processor_fraction: float = 0.0
    queued_fraction: float = 0.0
    read: StageTimes = field(default_factory=StageTimes)
    state: StageTimes = field(default_factory=StageTimes)
    lock_fraction: float = 0.0
    page_fraction: float = 0.0
    queued_threads: float = 0.0
    active_threads: int = 0
    surroundings: Surroundings = field(default_factory=Surroundings)

    if not TYPE_CHECKING:  # which is to find what is misspelt

        def __getattr__(self, name: str) -> Any:
            from lit_loader import old_names  # of which this is one, or it is none

            return old_names.attribute(self, name)

    @property
    def verdict(self) -> str:
        """What limits the loop, and what to do about it, in a line."""
        from lit_loader.insight.verdict import verdict  # which knows this class

        return verdict(self)

    def __str__(self) -> str:
        """Two lines for a reader: figures, verdict; the repr has everything."""
        return f"{self.figures()}\n{self.verdict}"

    def figures(self) -> str:
        """The gist of the figures, in a line."""
        stages = ("fetch", "read", "state", "collate", "encode", "decode", "pin", "step")
        means = {name: getattr(self, name).mean * 1e3 for name in stages}
        shown = ", ".join(f"{name} {mean:.3g}" for name, mean in means.items() if mean)
        makers = counted(len(self.workers), "worker")
        if [made.worker for made in self.workers] == [-1]:
            makers = "this process"
        if self.remote_batches:
            nodes = counted(len(self.nodes), "node")
            makers += f" ({counted(self.remote_batches, 'batch', 'batches')} from {nodes})"
        return (
            f"{counted(self.batches, 'batch', 'batches')} ({counted(self.samples, 'sample')}) in "
            f"{self.seconds:.3g} s; waited {self.wait_fraction:.0%} of it; {makers} "
            f"{self.busy_fraction:.0%} busy; mean ms a batch: {shown or 'none'}; "
            f"{counted(self.worker_restarts, 'restart')}, "
            f"{counted(self.sample_errors, 'bad sample')}{self._cache()}"
            f"{'' if self.memory is None else f'; memory: {self.memory}'}"
        )

    def _cache(self) -> str:
        asked = self.cache_hits + self.cache_misses
        return f"; {self.cache_hits / asked:.0%} from the cache" if asked else ""
