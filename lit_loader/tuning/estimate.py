"""What so many workers would make: a model of workers that wait for storage and share processors.

Used by `tuning/controller.py`. What was measured with some number of workers comes in
(:class:`Load`), the batches per second of any number go out.

Workers circulate between waiting for storage, where each is alone, and computing, where they share
the processors with each other, the consumer and other programs: a closed queueing network, whose
throughput exact mean value analysis gives for any distribution of the times (Reiser and Lavenberg,
1980).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["IDLE", "Bounds", "Load", "others_at_work", "rates_by_workers"]

IDLE: Final = 0.15
"""The part of their time from which on workers are idle, and not between two batches."""


@dataclass(frozen=True)
class Bounds:
    """What the workers may use.

    Attributes:
        processors: Processors for this process and its workers; a quota may be a fraction.
        most: Workers that there may be at most, by memory.
        batches: Batches that may be ready or in work at most, by the memory budget.
    """

    processors: float
    most: int
    batches: int


@dataclass(frozen=True)
class Load:
    """What the batches of a window have cost; seconds are means per batch.

    Attributes:
        workers: Workers that there were.
        batches: Batches that were given out.
        rate: Batches per second that the consumer was given.
        worker: Seconds from a worker's taking a batch up to its result.
        processor: Seconds of processor time in that, of all of the worker's threads.
        queued: Seconds of it in which the worker waited for a processor.
        spread: Standard deviation of ``worker`` over its mean.
        step: Seconds that the consumer was busy between two batches.
        wait: Seconds that it waited for one.
        idle: Part of their time in which workers had nothing to do.
        consumer_processors: Processors that the consumer's own process kept busy.
        remote: Part of the batches that workers on other machines made. All that is said of workers
            is said of those of this machine.
    """

    workers: int
    batches: int
    rate: float
    worker: float
    processor: float
    queued: float
    spread: float
    step: float
    wait: float
    idle: float
    consumer_processors: float = 0.0
    remote: float = 0.0

    @property
    def capacity(self) -> float:
        """Batches per second that the workers make while none is idle (Little's law)."""
        return self.workers / max(self.worker, 1e-9)

    @property
    def alone(self) -> float:
        """Seconds that a batch takes a worker that need not wait for a processor."""
        return max(self.worker - self.queued, 1e-9)

    @property
    def variance(self) -> float:
        """That of ``worker``, over the square of its mean."""
        return self.spread * self.spread

    @property
    def threads(self) -> float:
        """Processors that a worker keeps busy while it computes."""
        return max(1.0, self.processor / self.alone)

    @property
    def storage(self) -> float:
        """Seconds of a batch in which its worker neither computes nor waits for a processor."""
        return max(self.alone - self.processor / self.threads, 0.0)

    @property
    def waiting(self) -> float:
        """The part of its time that the consumer waits."""
        return self.wait / max(self.step + self.wait, 1e-12)

    @property
    def lacking(self) -> float:
        """The part that the workers fail to give: it is waited for, or made on other machines."""
        return max(self.waiting, self.remote)


def others_at_work(load: Load, processors: float) -> float:
    """Processes besides the workers that want a processor: the consumer, other programs.

    As many as explain how long the workers have waited for one.

    Args:
        load: What was measured.
        processors: Of this process and its workers.
    """
    wanted = load.processor / load.threads + load.queued
    least, most = load.consumer_processors, load.consumer_processors + 4 * processors
    if load.queued < 0.1 * wanted:
        return least
    busy = max(1, round(load.workers * (1 - load.idle)))
    if _computing(load, processors, most, busy)[-1] < wanted:
        return most
    for _ in range(8):
        middle = (least + most) / 2
        if _computing(load, processors, middle, busy)[-1] < wanted:
            least = middle
        else:
            most = middle
    return least


def rates_by_workers(load: Load, processors: float, others: float, most: int) -> list[float]:
    """Batches per second that 1, 2, … workers would make, were the consumer never in the way.

    Args:
        load: What was measured.
        processors: Processors of this process and its workers.
        others: Processes besides the workers that want a processor.
        most: The last number of workers to compute for.
    """
    times = _computing(load, processors, others, most)
    storage = load.storage
    return [n / (storage + time) for n, time in enumerate(times, 1)]


def _computing(load: Load, processors: float, others: float, most: int) -> list[float]:
    """Seconds that a batch computes, waiting for a processor included, with 1, 2, … workers."""
    threads = load.threads
    compute = max(load.processor / threads, 1e-9)
    # Seconds for one batch, of n computing workers.
    each = [max(1.0, (n * threads + others) / processors) * compute / n for n in range(1, most + 1)]
    storage = load.storage
    times: list[float] = []
    at = [1.0]  # probability that 0, 1, … workers compute
    for n in range(1, most + 1):
        shares = [each[j] * at[j] for j in range(n)]
        time = sum((j + 1) * share for j, share in enumerate(shares))
        rate = n / (storage + time)
        following = [rate * share for share in shares]
        at = [max(0.0, 1.0 - sum(following)), *following]
        times.append(time)
    return times
