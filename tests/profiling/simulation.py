"""A machine with loaders on it, simulated: for tests of what is decided from measurements.

Every loader has workers, an in-order window of batches and a consumer. Workers and consumers share
the machine's processors, equally, with other programs; what waits for storage shares its channels.
Remote workers share nothing; of two tasks they take one, if they and those here have nothing to do.
One event after another, in simulated seconds; the same numbers in every run.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from lit_loader.core.batch.timings import Timings

Draw = Callable[[int], float]
"""A number for each batch."""


class Work(NamedTuple):
    """What a loader's batches take; seconds of each."""

    compute: Draw  # of processor time
    storage: Draw  # of waiting for storage, where that is free
    step: Draw  # of the consumer
    channels: float = math.inf  # batches that storage serves at full speed at a time
    trainer: float = 0.0  # processors that the consumer keeps busy in its steps


@dataclass
class _Job:
    """Something that has seconds left to be worked on, at a speed that depends on the others."""

    left: float
    batch: int
    stage: str  # "start", "storage", "compute", "step", "elsewhere"
    worker: int = -1
    queued: float = 0.0
    began: float = 0.0
    computed: float = 0.0


@dataclass
class Loader:
    """A loader on a machine."""

    work: Work
    on_batch: Callable[[Timings], object] = lambda record: None
    start: float = 0.1  # seconds until a new worker takes its first batch
    epoch: int = 0  # batches of an epoch, with workers of its own; 0: it never ends
    workers: int = 0
    depth: int = 1
    given: int = 0
    made: int = 0
    sent: int = 0
    idle: list[int] = field(default_factory=list)
    leaving: int = 0
    jobs: list[_Job] = field(default_factory=list)
    done: dict[int, tuple[int, float, float, float, float]] = field(default_factory=dict)
    asked: float = 0.0
    stepping: bool = False
    step: float = 0.0
    started: int = 0
    there: int = 0  # remote workers that have nothing to do
    epochs: int = 1

    def __post_init__(self) -> None:
        self.remote = self.there

    def resize(self, workers: int, depth: int) -> None:
        """Have so many workers and batches ahead from now on; who leaves finishes what it has."""
        more = workers - self.workers
        self.workers, self.depth = workers, depth
        if more > 0:
            back = min(more, self.leaving)
            self.leaving -= back
            for _ in range(more - back):
                self.jobs.append(_Job(self.start, -1, "start", self.started))
                self.started += 1
        else:
            self.leaving -= more

    @property
    def settled(self) -> bool:
        """Whether all its workers are there, and none besides."""
        return not self.leaving and not any(job.stage == "start" for job in self.jobs)


class Machine:
    """Loaders that share processors; other programs would keep some busy, by the time."""

    def __init__(self, processors: float, neighbour: Callable[[float], float]) -> None:
        self.processors, self.neighbour = processors, neighbour
        self.now = 0.0
        self.loaders: list[Loader] = []

    def run(self, ended: Callable[[], bool]) -> None:
        """Let time pass until the condition is true."""
        while not ended():
            for loader in self.loaders:
                self._issue(loader)
            self._pass_time()

    def _issue(self, loader: Loader) -> None:
        while loader.leaving and loader.idle:
            loader.idle.pop()
            loader.leaving -= 1
        end = loader.given + loader.depth + 2 * loader.remote
        if loader.epoch:
            if loader.given == loader.epoch * loader.epochs and not loader.stepping:
                loader.epochs += 1
                while loader.idle:
                    loader.jobs.append(_Job(loader.start, -1, "start", loader.idle.pop()))
            end = min(end, loader.epoch * loader.epochs)
        while (loader.idle or loader.there) and loader.sent < end:
            batch, loader.sent = loader.sent, loader.sent + 1
            left = loader.work.storage(batch)
            if loader.there and (batch % 2 or not loader.idle):
                loader.there -= 1
                left += loader.work.compute(batch)
                loader.jobs.append(_Job(left, batch, "elsewhere", 1024, began=self.now))
                continue
            loader.jobs.append(_Job(left, batch, "storage", loader.idle.pop(0), began=self.now))

    def _speeds(self) -> Iterator[tuple[Loader, _Job, float]]:
        wanted = self.neighbour(self.now)
        for loader in self.loaders:
            for job in loader.jobs:
                wanted += job.stage == "compute"
                wanted += loader.work.trainer if job.stage == "step" else 0.0
        share = min(1.0, self.processors / wanted) if wanted else 1.0
        for loader in self.loaders:
            reading = sum(job.stage == "storage" for job in loader.jobs)
            for job in loader.jobs:
                if job.stage == "storage":
                    speed = min(1.0, loader.work.channels / reading)
                elif job.stage == "compute" or (job.stage == "step" and loader.work.trainer):
                    speed = share
                else:
                    speed = 1.0
                yield loader, job, speed

    def _pass_time(self) -> None:
        speeds = list(self._speeds())
        passed = min(job.left / speed for _, job, speed in speeds)
        self.now += passed
        for _, job, speed in speeds:
            job.left -= passed * speed
            if job.stage == "compute":
                job.queued += passed * (1 - speed)
        for loader, job, _ in speeds:
            if job.left <= 1e-12:
                self._end(loader, job)
        for loader in self.loaders:
            self._give(loader)

    def _end(self, loader: Loader, job: _Job) -> None:
        if job.stage == "storage":
            job.stage, job.computed = "compute", loader.work.compute(job.batch)
            job.left = job.computed
            return
        loader.jobs.remove(job)
        if job.stage == "step":
            loader.stepping, loader.asked = False, self.now
            return
        if job.stage == "elsewhere":
            loader.there += 1
        else:
            loader.idle.append(job.worker)
        if job.stage != "start":
            took = self.now - job.began
            loader.made += 1
            loader.done[job.batch] = (job.worker, job.began, took, job.computed, job.queued)

    def _give(self, loader: Loader) -> None:
        if loader.stepping or loader.given not in loader.done:
            return
        batch = loader.given
        worker, began, took, computed, queued = loader.done.pop(batch)
        epoch, number = divmod(batch, loader.epoch) if loader.epoch else (0, batch)
        made, step = round((began + took) * 1e9), round(loader.step * 1e9) if number else 0
        asked = round(loader.asked * 1e9)
        record = Timings(
            **{"worker": worker, "samples": 1, "epoch": epoch, "number": number, "step": step},
            **{"began": round(began * 1e9), "fetch": round(took * 1e9), "arrived": made},
            **{"asked": asked, "wait": round((self.now - loader.asked) * 1e9)},
            **{"processor": round(computed * 1e9), "queued": round(queued * 1e9)},
        )
        loader.given += 1
        loader.step, loader.stepping = loader.work.step(batch), True
        loader.jobs.append(_Job(loader.step, batch, "step"))
        loader.on_batch(record)


def draws(seed: int, mean: float, spread: float = 0.0) -> Draw:
    """Gamma-distributed numbers, a function of a batch's number."""

    def draw(number: int) -> float:
        if not mean or not spread:
            return mean
        shape = 1 / spread**2
        return random.Random(seed * 1_000_003 + number).gammavariate(shape, mean / shape)

    return draw
