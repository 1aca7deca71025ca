"""Programs whose bottleneck is known, and the same programs with the verdict's advice followed.

Each is a dataset, options of the loader, a step, the limit and the fix that the verdict must name,
and what changes when somebody does what it says.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from lit_loader import DataLoader, LoaderStatistics

CORES = len(os.sched_getaffinity(0))


def compute(seconds: float) -> None:
    """Use CPU time, by the thread's own clock: other programs may use the core meanwhile."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


Work = Callable[[float], None]
sleep: Work = time.sleep


@dataclass
class Samples(Dataset[Any]):
    """Each sample is a tensor of so many bytes, after so many seconds of work."""

    seconds: float = 0
    work: Work = sleep
    nbytes: int = 64
    length: int = 320

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if self.seconds:
            self.work(self.seconds)
        return torch.zeros(self.nbytes, dtype=torch.uint8)


class Hanging(Samples):
    """One sample hangs, the first time that it is read."""

    def __init__(self, mark: Path) -> None:
        super().__init__(0.001, length=160)
        self.mark = mark

    def __getitem__(self, index: int) -> Any:
        if index == 80 and not self.mark.exists():
            self.mark.touch()
            sleep(1000)
        return super().__getitem__(index)


def slow_start(worker: int) -> None:
    sleep(0.4)


@dataclass(frozen=True)
class Program:
    """One of them.

    ``step``: seconds of work after each batch. ``build``: seconds before the loop, in which
    workers may start if they start ``early``. ``limit`` and ``fix``: words of the verdict.
    ``followed``: what changes when its advice is followed; None: there is none.
    """

    dataset: Any
    options: dict[str, Any]
    limit: str
    fix: str
    followed: dict[str, Any] | None
    step: float = 0
    build: float = 0
    early: bool = False
    faster: float = 1.15  # times as fast as before, at least

    def fixed(self) -> Program:
        """The same program with the advice followed."""
        assert self.followed is not None
        own = {name: value for name, value in self.followed.items() if hasattr(self, name)}
        options = {name: value for name, value in self.followed.items() if name not in own}
        return replace(self, options={**self.options, **options}, **own)


def run(program: Program) -> tuple[LoaderStatistics, float]:
    """Run it; returns its loader's statistics, and samples per second of all of it."""
    options = {"batch_size": 8, **program.options}
    began = time.monotonic()
    with DataLoader(program.dataset, **options) as loader:
        if program.early:
            loader.start()
        sleep(program.build)
        for _ in loader:
            if program.step:
                sleep(program.step)
        statistics = loader.statistics()
    return statistics, statistics.samples / (time.monotonic() - began)


W1, W2, W4 = {"num_workers": 1}, {"num_workers": 2}, {"num_workers": 4}
ITEM, STEP, SENDING = "reading samples, in __getitem__", "the training step", "sending batches"


def programs(folder: Path) -> dict[str, Program]:
    """All of them; some keep marks in an empty ``folder``."""
    return {
        "the step": Program(
            Samples(5e-4, length=200), W2, STEP, "none is needed", None, 0.03, build=0.5, early=True
        ),
        "a hung worker": Program(
            Hanging(folder / "mark"), {**W2, "timeout": 2.0}, "workers that hang", "lower timeout",
            {"timeout": 0.5, "dataset": Hanging(folder / "another")},
        ),
        "workers start late": Program(
            Samples(5e-4, length=64), {**W1, "worker_init_fn": slow_start}, "the start",
            "loader.start() before you build the model", {"early": True}, step=0.01, build=0.5,
        ),
        "samples sleep": Program(Samples(0.003), W2, ITEM, "raise num_workers, even", W4),
        "samples compute": Program(
            Samples(0.003, compute), W1, ITEM, "raise num_workers: there are",
            {"num_workers": CORES},
        ),
        "small batches": Program(
            Samples(length=16_000), W1, SENDING, "larger batches", {"batch_size": 64}
        ),
    }  # fmt: skip
