"""Training loops on a simulated machine: what a `Recorder` would have of them, and their verdict.

Workers take the batches in turn, hold what they hold, and are one behind another at a lock; the
loop waits for its batches in order. Nothing is drawn and no clock is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lit_loader.core.batch.timings import BatchLog, Timings
from lit_loader.profiling.recorder import Recorder
from lit_loader.profiling.records import Surroundings
from lit_loader.profiling.verdict import LoaderStatistics

HANDOVER = 100e-6  # seconds of the loop to take in what a worker has made
INTERVAL = 5e-3  # seconds until a thread lets go of the interpreter that another one wants


@dataclass(frozen=True)
class Loop:
    """A program: its loader's options, what its samples and batches take, and its step.

    Attributes:
        sleep, compute, read, lock, page: Seconds of a sample: asleep, at a processor, at what
            `reads_ahead` marks, at a lock that workers share, at memory that comes from a disk.
        slow: Seconds more of one sample in each batch, asleep.
        held: Whether what computes holds the interpreter's lock.
        collate, encode, state: Seconds of a batch, at a processor, in a worker.
        decode, pin: Seconds of a batch, in the training process.
        step, step_threads: Seconds of a step, and the threads that it computes with.
        others: Processors that other programs want.
        uneven: Part of the batches that worker 0 makes alone.
    """

    workers: int = 2
    sleep: float = 0.0
    compute: float = 0.0
    read: float = 0.0
    lock: float = 0.0
    page: float = 0.0
    slow: float = 0.0
    held: bool = False
    collate: float = 20e-6
    encode: float = 20e-6
    state: float = 0.0
    decode: float = 0.0
    pin: float = 0.0
    step: float = 0.0
    step_threads: int = 0
    others: float = 0.0
    uneven: float = 0.0
    processors: int = 4
    batches: int = 200
    epochs: int = 1
    start: float = 0.05
    size: int = 8
    nbytes: int = 10_000
    persistent: bool = False
    iterable: bool = False
    method: str = "multiprocessing"
    device: bool = False
    cache: tuple[int, int, int] = (0, 0, 0)  # hits, misses, bytes that lack
    auto: str = ""

    @property
    def turns(self) -> bool:
        """Whether the workers that compute take turns."""
        return self.held and self.method == "thread"

    def statistics(self) -> LoaderStatistics:
        """Let it run, as slow as its processors make it."""
        run = _Run(self, 1.0)
        for _ in range(12):  # who waits for a processor wants it for longer
            if run.wanted <= self.processors and run.slower == 1:
                break
            run = _Run(self, max(1.0, (run.slower + run.wanted / self.processors) / 2))
        return run.statistics()


class _Run:
    """One, where all that computes takes ``slower`` times as long."""

    def __init__(self, loop: Loop, slower: float) -> None:
        self.loop, self.slower = loop, slower
        self.now = self.computed = self.locked = self.paged = self.made = 0.0
        self.records: list[Timings] = []
        for epoch in range(loop.epochs):
            self._epoch(epoch)
        self.wanted = 1.0 if loop.turns else slower * self.computed / self.now + loop.others

    def _epoch(self, epoch: int) -> None:
        loop, begin, lock = self.loop, self.now, 0.0
        started = begin + loop.start * (epoch == 0 or not loop.persistent)
        free = [started] * max(1, loop.workers)
        given: list[float] = []
        step = 0.0
        for number in range(loop.batches):
            asked = self.now
            worker = min(range(len(free)), key=free.__getitem__)
            if loop.uneven:
                worker = 0 if number % 10 < 10 * loop.uneven else 1 + number % (len(free) - 1)
            ahead = number - 2 * loop.workers  # the batch that made room for this one
            began = free[worker] if loop.workers else asked
            if loop.workers and ahead >= 0:
                began = max(began, given[ahead])
            computing = loop.compute * loop.size
            locked = loop.lock * loop.size or computing * loop.turns
            entered = max(began, lock) if locked else began
            lock = entered + locked
            slept = (loop.sleep + loop.read + loop.page) * loop.size + loop.slow + loop.state
            fetch = lock - began if locked else 0.0
            fetch += slept + (0.0 if loop.turns else computing * self.slower)
            made = began + fetch + (loop.collate + loop.encode) * self.slower
            # Who wants the interpreter asks the one that has it, and gets it a little later.
            wait = max(0.0, made + INTERVAL * loop.turns - asked) + HANDOVER * bool(loop.workers)
            free[worker] = made
            self.now = asked + wait + loop.decode + (0 if loop.workers else loop.pin)
            given.append(self.now)
            at_processor = computing + loop.collate + loop.encode + loop.state
            self.computed += at_processor
            self.locked += entered - began if loop.lock else 0.0
            self.paged += loop.page * loop.size
            self.made += made - began
            queued = at_processor * (self.slower - 1)
            mean = fetch / loop.size
            self.records.append(
                Timings(
                    worker=worker if loop.workers else -1,
                    nbytes=loop.nbytes if loop.workers else 0,
                    samples=loop.size,
                    epoch=epoch,
                    number=number,
                    slowest_index=3 if loop.slow else None,
                    **{
                        name: round(seconds * 1e9)
                        for name, seconds in {
                            "began": began, "fetch": fetch, "collate": loop.collate * self.slower,
                            "encode": loop.encode * self.slower if loop.workers else 0.0,
                            "slowest": loop.slow + loop.sleep if loop.slow else mean,
                            "processor": at_processor, "queued": queued,
                            "read": loop.read * loop.size, "state": loop.state,
                            "arrived": made if loop.workers else 0.0, "asked": asked,
                            "wait": wait, "decode": loop.decode, "pin": loop.pin, "step": step,
                        }.items()
                    },
                )
            )  # fmt: skip
            stepping = max(loop.step, 1e-6) * (self.slower if loop.step_threads else 1.0)
            step = stepping if number + 1 < loop.batches else 0.0
            self.now += stepping
            self.computed += loop.step * loop.step_threads

    def statistics(self) -> LoaderStatistics:
        loop, recorder = self.loop, Recorder(BatchLog())
        recorder.extend(self.records)
        hits, misses, lacking = loop.cache
        known: dict[str, Any] = {
            "lock_fraction": self.locked / self.made,
            "page_fraction": self.paged / self.made,
        }
        if loop.step_threads > 1:
            known["active_threads"] = loop.step_threads
            stepping = sum(record.step for record in self.records) / 1e9 / self.now
            known["queued_threads"] = loop.step_threads * stepping * (1 - 1 / self.slower)
        surroundings = Surroundings(
            processors=loop.processors,
            persistent_workers=loop.persistent,
            iterable=loop.iterable,
            threads=max(1, loop.step_threads),
            device=loop.device,
            worker_method=loop.method,
        )
        return recorder.summary(
            num_workers=loop.workers, surroundings=surroundings, num_workers_reason=loop.auto,
            cache_hits=hits, cache_misses=misses, cache_bytes_missing=lacking, **known,
        )  # fmt: skip
