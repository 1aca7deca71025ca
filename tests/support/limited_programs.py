"""Programs whose bottleneck is known, for they are made so: what their loader's verdict must say.

Each is a dataset, options of the loader, a step, and words that the verdict has and has not.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset, IterableDataset

import lit_loader
from lit_loader import CachedDataset, DataLoader, LoaderStatistics

LEAVE = "the loader is not the limit: leave it"
CORES = len(os.sched_getaffinity(0))


def compute(seconds: float) -> None:
    """Use a processor for so long, by the processor's clock: others may have it meanwhile."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


Work = Callable[[float], None]
sleep: Work = time.sleep


class Samples(Dataset[Any]):
    """Each sample is a tensor of so many bytes, after so many seconds of work."""

    def __init__(
        self, seconds: float = 0, work: Work = sleep, nbytes: int = 64, length: int = 320
    ) -> None:
        self.seconds, self.work, self.nbytes, self.length = seconds, work, nbytes, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if self.seconds:
            self.work(self.seconds)
        return torch.zeros(self.nbytes, dtype=torch.uint8)


class Ready(Samples):
    """Gives the same tensor each time, so that reading it costs nothing."""

    def __init__(self, nbytes: int, length: int) -> None:
        super().__init__(nbytes=nbytes, length=length)
        self.sample = torch.zeros(nbytes, dtype=torch.uint8)

    def __getitem__(self, index: int) -> Any:
        return self.sample


class Stream(IterableDataset[Any]):
    """The same, one after the other."""

    def __init__(self, samples: Dataset[Any]) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        shard, shards = lit_loader.get_shard()
        for index in range(shard, len(self.samples), shards):  # type: ignore[arg-type]
            yield self.samples[index]


class OneSlow(Samples):
    """A sample in each batch of eight takes long."""

    def __getitem__(self, index: int) -> Any:
        sleep(0.04 if index % 8 == 3 else 0.0002)
        return super().__getitem__(index)


class Lazy(Samples):
    """Opens its file, or connects to its storage, with the first sample that it reads."""

    opened = False

    def __getitem__(self, index: int) -> Any:
        if not self.opened:
            sleep(0.5)
            self.opened = True
        return super().__getitem__(index)


class Locked(Samples):
    """Samples are read under a lock that all workers share."""

    def __init__(self, kind: str, work: Work) -> None:
        super().__init__(0.004, work, length=240)
        self.lock: Any = multiprocessing.Lock() if kind == "lock" else None
        if kind == "thread":
            self.lock = threading.Lock()

    def __getitem__(self, index: int) -> Any:
        if self.lock is not None:
            with self.lock:
                return super().__getitem__(index)
        import fcntl

        with open("/proc/self/exe", "rb") as file:  # any file that is there
            fcntl.flock(file, fcntl.LOCK_EX)
            return super().__getitem__(index)


class Helped(Samples):
    """Samples are read by a thread that the sample starts."""

    def __getitem__(self, index: int) -> Any:
        with ThreadPoolExecutor(1) as helper:
            return helper.submit(super().__getitem__, index).result()


class Stored(Samples):
    """Objects that are some milliseconds away, marked as reads."""

    @lit_loader.reads_ahead
    def fetch(self, index: int) -> Any:
        sleep(0.02)
        return torch.zeros(8)

    def __getitem__(self, index: int) -> Any:
        return self.fetch(index)


class Objects(Samples):
    """Samples that are objects, of which many make a batch."""

    def __init__(self, objects: int = 3000, length: int = 320) -> None:
        super().__init__(length=length)
        self.objects = objects

    def __getitem__(self, index: int) -> Any:
        return [{"box": (n, n), "name": "a"} for n in range(self.objects)]


class LateToPickle:
    def __init__(self, seconds: float, where: str) -> None:
        self.seconds, self.where = seconds, where

    def __getstate__(self) -> dict[str, Any]:
        if self.where == "encode":
            sleep(self.seconds)
        return vars(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self.where == "decode":
            sleep(self.seconds)


class Collate:
    """Stacks, and takes long with it, or gives something that takes long on its way."""

    def __init__(self, seconds: float = 0, work: Work = sleep, where: str = "collate") -> None:
        self.seconds, self.work, self.where = seconds, work, where

    def __call__(self, samples: list[Any]) -> Any:
        if self.where != "collate":
            return torch.stack(samples), LateToPickle(self.seconds, self.where)
        self.work(self.seconds)
        return torch.stack(samples)


class SlowStart:
    """A worker_init_fn that takes long."""

    def __call__(self, worker: int) -> None:
        sleep(0.4)


def multiply(seconds: float) -> None:
    """A step that computes with all of torch's threads."""
    a, end = torch.ones(512, 512), time.monotonic() + seconds
    while time.monotonic() < end:
        a @ a


class Program(NamedTuple):
    """One of them; ``step`` works for so many seconds after each batch."""

    dataset: Any
    options: dict[str, Any]
    step: tuple[Work, float]
    says: tuple[str, ...]
    never: tuple[str, ...] = ()
    epochs: int = 1
    threads: int = 1


def run(program: Program) -> LoaderStatistics:
    """Runs it, and gives its loader's statistics."""
    work, seconds = program.step
    options = {"batch_size": 8, **program.options}
    before = torch.get_num_threads()
    torch.set_num_threads(program.threads)
    try:
        with DataLoader(program.dataset, **options) as loader:
            for _ in range(program.epochs):
                for _ in loader:
                    if seconds:
                        work(seconds)
            return loader.statistics()
    finally:
        torch.set_num_threads(before)


def cached(room: int) -> CachedDataset:
    return CachedDataset(Samples(0.002, nbytes=20_000, length=160), room)


def quick(samples: int = 200) -> Samples:
    """What a step of 30 ms is not held up by."""
    return Samples(0.0005, length=samples)


W1, W2, W4 = {"num_workers": 1}, {"num_workers": 2}, {"num_workers": 4}
LIVE, THREADS = {"persistent_workers": True}, {"worker_method": "thread"}
NONE: tuple[Work, float] = (sleep, 0.0)
STEP = (sleep, 0.03)
WAITS = ("mostly waiting for storage, network or each other", "add workers")
STREAM = ("in the stream's __iter__",)
ITEM = ("in __getitem__",)
CHEAPER = ("make __getitem__ cheaper",)
BUSY = "add workers or" if CORES > 2 else "more workers do not help"
ALONE = "it loads the data itself"

PROGRAMS: dict[str, Program] = {
    # The step.
    "step sleeps": Program(quick(), W2, STEP, (LEAVE,)),
    "step computes": Program(quick(), W1, (compute, 0.03), (LEAVE,)),
    "step, without workers": Program(Samples(length=200), {}, STEP, (LEAVE,)),
    "step, of a stream": Program(Stream(quick()), W2, STEP, (LEAVE,)),
    "step, of a stream in shards": Program(
        Stream(quick()), {**W2, "num_shards": 2}, STEP, (LEAVE,)
    ),
    "step, two epochs": Program(quick(), {**W2, **LIVE}, STEP, (LEAVE,), epochs=2),
    "step, while workers are half busy": Program(
        Samples(0.003, length=200), W2, STEP, (LEAVE,), ("add workers",)
    ),
    "step, four workers": Program(Samples(0.002, length=200), W4, STEP, (LEAVE,)),
    "step, large batches": Program(Samples(nbytes=200_000, length=200), W2, STEP, (LEAVE,)),
    "step, a table": Program(
        torch.utils.data.TensorDataset(torch.zeros(200, 4)), W2, STEP, (LEAVE,)
    ),
    # Sleep and compute in the dataset.
    "samples sleep, one worker": Program(Samples(0.003), W1, (sleep, 0.001), (*ITEM, *WAITS)),
    "samples sleep, two workers": Program(Samples(0.003), W2, (sleep, 0.001), (*ITEM, *WAITS)),
    "samples sleep, four workers": Program(
        Samples(0.006, length=240), W4, (sleep, 0.001), (*ITEM, *WAITS, "reads_ahead")
    ),
    "samples sleep, no workers": Program(
        Samples(0.002), {}, NONE, (ALONE, "in __getitem__: set num_workers")
    ),
    "samples compute, one worker": Program(
        Samples(0.002, compute), W1, (sleep, 0.001),
        (*ITEM, *CHEAPER, "add workers or" if CORES > 1 else ""), ("storage",)
    ),
    "samples compute, as many workers as processors": Program(
        Samples(0.003, compute, length=240), {"num_workers": CORES}, NONE,
        (*ITEM, *CHEAPER, "more workers do not help"), ("storage", "add workers"),
    ),
    "samples compute, too many workers": Program(
        Samples(0.003, compute, length=240), {"num_workers": 3 * CORES}, NONE,
        (*ITEM, *CHEAPER, "more workers do not help"), ("storage", "add workers"),
    ),
    "samples compute, no workers": Program(
        Samples(0.002, compute), {}, NONE, (ALONE, "set num_workers")
    ),
    "samples cost nothing, no workers": Program(
        Samples(length=3200), {}, NONE, (ALONE, "make them larger"), ("set num_workers",)
    ),
    "samples cost nothing, workers": Program(
        Samples(length=16_000), W1, NONE, ("make batches larger",)
    ),
    "a table, nothing else": Program(
        torch.utils.data.TensorDataset(torch.zeros(3200, 4)), {}, NONE,
        (ALONE, "make them larger"), ("set num_workers", "add workers"),
    ),
    "a stream sleeps": Program(Stream(Samples(0.003)), W2, NONE, (*STREAM, *WAITS, "read_stream")),
    "a stream sleeps, shards": Program(
        Stream(Samples(0.003)), {**W2, "num_shards": 4}, NONE, (*STREAM, *WAITS)
    ),
    "a stream computes": Program(
        Stream(Samples(0.003, compute, length=240)), {"num_workers": CORES}, NONE,
        (*STREAM, "more workers do not help"),
    ),
    "a stream, no workers": Program(
        Stream(Samples(0.002)), {}, NONE, (ALONE, "in the stream's __iter__: set num_workers")
    ),
    # Collating and the way to the consumer.
    "collate_fn sleeps": Program(
        Samples(), {**W2, "collate_fn": Collate(0.02)}, NONE, ("in collate_fn", "add workers")
    ),
    "collate_fn computes": Program(
        Samples(length=240), {"num_workers": CORES, "collate_fn": Collate(0.02, compute)}, NONE,
        ("in collate_fn", "make collate_fn cheaper"),
    ),
    "collate_fn, no workers": Program(
        Samples(), {"collate_fn": Collate(0.01)}, NONE, (ALONE, "in collate_fn: set num_workers")
    ),
    "objects are pickled": Program(
        Samples(), {**W1, "collate_fn": Collate(0.02, where="encode")}, NONE,
        ("writing batches into shared memory", "return tensors or arrays"),
    ),
    "objects are unpickled": Program(
        Samples(), {**W2, "collate_fn": Collate(0.02, where="decode")}, NONE,
        ("rebuilding batches in the training process", "return tensors or arrays"),
    ),
    "objects by the thousand": Program(
        Objects(500), {**W2, "collate_fn": list}, NONE,
        ("return tensors or arrays",)
    ),
    "large batches": Program(
        Ready(4_000_000, length=240), W1, NONE, ("send less: a batch has 32 MB",)
    ),
    # Worker threads.
    "worker threads sleep": Program(
        Samples(0.004), {**W2, **THREADS}, NONE, (*ITEM, *WAITS), ("interpreter",)
    ),
    "worker threads compute in C": Program(
        Samples(0.004, multiply, length=240), {**W2, **THREADS}, NONE, ITEM, ("interpreter", *WAITS)
    ),
    "worker threads hold the interpreter": Program(
        Samples(0.004, compute, length=240), {**W2, **THREADS}, NONE,
        ("hold the interpreter's lock", "worker_method='multiprocessing'"), ("add workers",),
    ),
    "worker threads share a lock, asleep": Program(
        Locked("thread", sleep), {**W2, **THREADS}, NONE,
        ("worker threads waited for a lock", "more of them do not help"), ("add workers",),
    ),
    "worker threads share a lock, in C": Program(
        Locked("thread", multiply), {**W4, **THREADS}, NONE,
        ("worker threads waited for a lock",), ("add workers",),
    ),
    "worker threads wait for threads of their own": Program(
        Helped(0.004), {**W2, **THREADS}, NONE, (*ITEM, *WAITS), ("a lock",)
    ),
    # Locks, storage, one slow sample.
    "a lock, asleep": Program(
        Locked("lock", sleep), W2, NONE, ("a lock that they share", "more workers do not help")
    ),
    "a lock, computing": Program(
        Locked("lock", compute), W2, NONE, ("a lock that they share",), ("add workers",)
    ),
    "a lock, four workers": Program(
        Locked("lock", sleep), W4, NONE, ("a lock that they share",), ("add workers",)
    ),
    "a locked file": Program(
        Locked("file", sleep), W2, NONE, ("a lock that they share",), ("add workers",)
    ),
    "storage, few reads": Program(
        Stored(length=320), {**W1, "concurrent_reads": 2}, NONE,
        ("samples waited for storage", "raise concurrent_reads"),
    ),
    "one slow sample in each batch": Program(
        OneSlow(length=240), W2, NONE, ("a few slow samples", "slowest samples"), ("storage",)
    ),
    # Starts.
    "workers start for each short epoch": Program(
        Samples(length=16), {**W1, "worker_init_fn": SlowStart()}, NONE,
        ("for the first batches of 4 epochs", "persistent_workers=True"), epochs=4,
    ),
    "a dataset that opens lazily": Program(
        Lazy(length=64), W2, NONE,
        ("the first batch (", "in __getitem__: the dataset opens or builds something on first use",
         "loader.start()"), ("starting workers",)),
    "a dataset that opens lazily, in each short epoch": Program(
        Lazy(length=16), W1, NONE, ("opens or builds something", "persistent_workers=True keeps"),
        ("starting workers",), epochs=4,
    ),
    "a dataset that opens lazily, no workers": Program(
        Lazy(length=64), {}, NONE, ("in __getitem__: the dataset opens or builds something",)
    ),
    "workers start, and the run is over": Program(
        quick(64), {**W1, "worker_init_fn": SlowStart()}, STEP,
        ("first batch",),
    ),
    # Caches.
    "a cache that is full": Program(
        cached(1_000_000), {**W1, **LIVE}, NONE, ("more memory would hold all",), epochs=2,
    ),
    "a cache that holds all": Program(
        cached(100_000_000), {**W2, **LIVE}, STEP, ("of the samples came from the cache",),
        ("more memory would hold all", "raise prefetch_factor"), epochs=3,
    ),
    # Threads.
    "threads that fight": Program(
        Samples(0.004, compute, length=480), {"num_workers": CORES}, (multiply, 0.01),
        ("torch.set_num_threads(", "waited for a processor"), threads=CORES if CORES > 1 else 2,
    ),
    "one thread, and a worker that computes": Program(
        Samples(0.0005, compute, length=200), W1, (compute, 0.03), (LEAVE,), ("set_num_threads",)
    ),
}  # fmt: skip
