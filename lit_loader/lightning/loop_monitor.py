"""Watches the loaders of one Lightning loop, training or validation, for `LoaderMonitor`.

::

    a loader's Recorder ─ records ─▶ LoaderHistory, one a loader ─┬─▶ figures of an interval
    a step starts, ends ───────────▶ StepTimer, one a loop ───────┴─▶ LoaderReport, LoaderTrace

The Trainer's loaders and the moments of its steps come in; figures for loggers go out, and the
histories, of which the monitor makes reports at the end. Everything is computed from records that
the loaders make anyway. Of Lightning it knows the containers of loaders only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from lit_loader.lightning.loader_history import LoaderHistory, StepTimer
from lit_loader.loader import DataLoader, recorder_of
from lit_loader.statistics.recorder import Recorder

__all__ = ["LoopMonitor"]


class LoopMonitor:
    """The training loop, or that of validation.

    Args:
        split: "train" or "val".
        keep: How many of the last records of batches and steps are kept.

    Attributes:
        split: "train" or "val".
        histories: What is known of each of its loaders, by the loader's name.
        wait_fraction: Part of the last interval that the loop waited for all of them.
    """

    def __init__(self, split: str, keep: int) -> None:
        self.split = split
        self.histories: dict[str, LoaderHistory] = {}
        self.wait_fraction = 0.0
        self._keep = keep
        self._began = time.monotonic_ns()
        self._loaders: dict[str, DataLoader[Any]] = {}
        self._recorders: list[Recorder] = []
        self._steps = StepTimer(keep)

    def watch(self, loaders: Any) -> None:
        """Watch these loaders from now on, and no others."""
        found = dict(_named(self.split, loaders))
        if found == self._loaders:
            return
        self.release()
        for name, loader in found.items():
            if name not in self.histories:
                self.histories[name] = LoaderHistory(name, self._began, self._steps, self._keep)
            self.histories[name].begin(loader)
        self._loaders = found
        self._recorders = [recorder_of(loader) for loader in found.values()]

    def start_step(self) -> None:
        """Note that a step starts."""
        self._steps.start(self._recorders)

    def end_step(self) -> None:
        """Note that a step has ended."""
        self._steps.end()

    def figures(self) -> dict[str, float]:
        """Returns what is logged of the interval that ends here, and begins another one."""
        logged: dict[str, float] = {}
        self.wait_fraction = 0.0
        for name, loader in self._loaders.items():
            figures = self.histories[name].interval(loader)
            if not figures:
                continue
            self.wait_fraction = min(1.0, self.wait_fraction + figures["wait_fraction"])
            inner = name if self.split != "train" else name.removeprefix("train").lstrip("/")
            prefix = "/".join(filter(None, ("loader", inner)))
            logged.update({f"{prefix}/{key}": value for key, value in figures.items()})
        return logged

    def release(self) -> None:
        """Watch no loader any more."""
        for name, loader in self._loaders.items():
            self.histories[name].end(loader)
        self._loaders = {}
        self._recorders = []


def _named(split: str, loaders: Any) -> Iterator[tuple[str, DataLoader[Any]]]:
    """A loop's loaders that are ours, with the name of the split and their place among several."""
    if isinstance(loaders, DataLoader):
        yield split, loaders
    elif hasattr(loaders, "iterables"):  # a CombinedLoader of either name
        yield from _named(split, loaders.iterables)
    elif isinstance(loaders, Mapping):
        for key, member in loaders.items():
            yield from _named(f"{split}/{key}", member)
    elif isinstance(loaders, (list, tuple)):
        for number, member in enumerate(loaders):
            yield from _named(f"{split}/{number}", member)
