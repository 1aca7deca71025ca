"""Loads that the controller is tried on.

Every load is simulated (`simulation.py`): 200 batches from a start at nothing, then the throughput
of 600 more.
"""

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lit_loader.core.batch.timings import Timings
from lit_loader.profiling.auto_workers import AutoWorkers
from lit_loader.profiling.controller import Bounds, Setting
from tests.profiling.simulation import Draw, Loader, Machine, Work, draws

FIXED = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48)
"""Fixed numbers of workers that are compared with."""


def _still(now: float) -> float:
    return 0.0


@dataclass(frozen=True)
class Scene:
    """A load on a machine."""

    name: str
    processors: float  # of the machine
    work: Work
    neighbour: Callable[[float], float] = _still  # processors that others would keep busy
    ranks: int = 1  # loaders alike, on the same machine
    remote: int = 0  # remote workers of each
    start: float = 0.1  # seconds that a worker takes to start
    warm: int = 200  # batches from a start at nothing that do not count
    epoch: int = 0  # batches of an epoch, for which workers are started; 0: it never ends

    def machine(self) -> Machine:
        machine = Machine(self.processors, self.neighbour)
        machine.loaders = [
            Loader(self.work, there=self.remote, start=self.start, epoch=self.epoch)
            for _ in range(self.ranks)
        ]
        return machine


def changing(before: Draw, after: Draw, at: int = 100) -> Draw:
    return lambda number: before(number) if number < at else after(number)


def alternating(often: Draw, seldom: Draw, every: int, times: int = 1) -> Draw:
    """The second one so many times in a row, of so many."""
    return lambda number: seldom(number) if number % every >= every - times else often(number)


@functools.cache
def scenes() -> dict[str, Scene]:
    """The loads by name."""

    def d(mean: float, spread: float = 0.0) -> Draw:
        return draws(next(numbers), mean, spread)

    numbers = itertools.count()
    some, quick, nothing = 0.3, d(0.001), d(0)
    decode = Work(d(0.05, some), nothing, quick)
    slow = Work(d(0.05, some), nothing, d(0.02, 0.1))
    keeps_up = Work(d(0.05, some), nothing, d(0.01, 0.1))
    other = Work(
        changing(d(0.002, some), d(0.02, some)), changing(d(0.05, some), nothing), d(0.003)
    )
    quicker = Work(d(0.03, some), nothing, changing(d(0.02, 0.1), d(0.006, 0.1)))
    comes = Work(d(0.03, some), nothing, d(0.006))
    long_steps = Work(d(0.03, some), nothing, alternating(d(0.004), d(0.1), 20))
    bursts = Work(alternating(d(0.01, some), d(0.08, some), 60, 20), nothing, d(0.005))
    found = [
        Scene("decoding", 8, decode),
        Scene("decoding, 16 processors", 16, decode),
        Scene("slow consumer", 8, slow),
        Scene("very slow consumer", 8, Work(d(0.001, some), nothing, d(0.01))),
        Scene("consumer that computes", 4, Work(d(0.03, some), nothing, d(0.01), trainer=1)),
        Scene("storage", 4, Work(d(0.004, some), d(0.08, 0.5), d(0.002))),
        Scene("narrow storage", 8, Work(d(0.002, some), d(0.02, some), quick, channels=5)),
        Scene("mixed", 4, Work(d(0.02, some), d(0.02, 0.5), d(0.003))),
        Scene("stragglers", 8, Work(d(0.03, 1.5), nothing, d(0.01))),
        Scene("storage, then decoding", 4, other),
        Scene("consumer gets quicker", 8, quicker),
        Scene("busy neighbour, 4 of 8", 8, decode, lambda now: 4.0),
        Scene("a neighbour comes", 8, comes, lambda now: 6.0 * (now > 1)),
        Scene("two ranks, slow consumer", 8, Work(d(0.05, some), nothing, d(0.025, 0.1)), ranks=2),
        Scene("decoding, remote workers", 8, decode, remote=16),
        Scene("remote workers keep up", 8, keeps_up, remote=16),
        Scene("slow consumer, remote", 8, slow, remote=16),
        Scene("decoding, spawned", 8, decode, start=3),
        Scene("few sleeping ones an epoch", 2, Work(quick, d(0.05, some), d(0.01)), epoch=12),
        Scene("now and then a long step", 8, long_steps),
        Scene("bursts of slow batches", 8, bursts, warm=400),
    ]
    return {scene.name: scene for scene in found}


MEASURED = 600
"""Batches whose throughput counts, after the scene's first ones."""


def _measured(machine: Machine, warm: int) -> float:
    """Batches per second that are made for the first loader, after the first ones."""
    first = machine.loaders[0]
    machine.run(lambda: first.given >= warm)
    began, before = machine.now, first.made
    machine.run(lambda: first.given >= warm + MEASURED)
    return (first.made - before) / (machine.now - began)


@functools.cache
def fixed(name: str, workers: int) -> float:
    """Throughput with so many workers."""
    scene = scenes()[name]
    machine = scene.machine()
    for loader in machine.loaders:
        loader.resize(workers, 2 * workers)
    return _measured(machine, scene.warm)


class Bounded(AutoWorkers):
    """Keeps within a scene's bounds, and not this machine's."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__()
        self.bounds = bounds

    def _bounds(self, *arguments: Any) -> Bounds:
        return self.bounds


class Tuned:
    """A loader that sets its own number of workers; batch and setting of each decision."""

    def __init__(self, loader: Loader, bounds: Bounds) -> None:
        self.loader, self.throughput = loader, 0.0
        self.auto = Bounded(bounds)
        self.decided: list[tuple[int, Setting]] = []
        loader.on_batch = self.on_batch
        self._set(self.auto.setting)

    @property
    def settled(self) -> bool:
        return self.loader.settled

    @property
    def num_workers(self) -> int:
        return self.loader.workers

    def _set(self, setting: Setting) -> None:
        self.loader.resize(setting.workers, setting.workers * setting.prefetch)
        self.decided.append((self.loader.given, setting))

    def on_batch(self, record: Timings) -> None:
        if self.auto.add(record):
            setting = self.auto.decide(self, "a scene")
            if setting is not None:
                self._set(setting)


def tuned(scene: Scene) -> Tuned:
    """The first loader of a load, which sets its own number."""
    machine = scene.machine()
    bounds = Bounds(scene.processors / scene.ranks, 64, 1000)
    first, *_ = [Tuned(loader, bounds) for loader in machine.loaders]
    first.throughput = _measured(machine, scene.warm)
    return first


def best(name: str) -> tuple[int, float]:
    """The least fixed number that is within 2 % of the best, and the best's throughput.

    Beside other programs those count that take no more than twice their part from these.
    """
    scene = scenes()[name]
    fair = math.inf if scene.neighbour is _still else 2 * scene.processors
    rates = {workers: fixed(name, workers) for workers in FIXED if workers <= fair}
    most = max(rates.values())
    return min(n for n, rate in rates.items() if rate >= 0.98 * most), most
