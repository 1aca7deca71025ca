"""``num_workers="auto"`` whose number changes by chance, and often."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from torch.utils.data import Sampler

from lit_loader import DataLoader
from lit_loader.profiling import auto_workers
from lit_loader.profiling.controller import Bounds, Load, Setting


class Endless(Sampler[int]):
    """Indices of an epoch that goes on until workers were decided about twice more.

    Workers are up sooner or later: an epoch of a fixed number of batches may be over before.
    """

    def __init__(self, length: int = 240) -> None:
        self.length = length
        self.decided: Sequence[Any] = ()
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        dice, enough = random.Random(self.epoch), len(self.decided) + 2
        while len(self.decided) < enough:
            yield from (dice.randrange(self.length) for _ in range(4))


class Random:
    """A controller that decides anything."""

    def __init__(self, seed: int, most: int = 5) -> None:
        self._dice = random.Random(seed)
        self._most = most
        self.setting = Setting(2, 2, "by chance")
        self.window = 3
        self.loads: list[tuple[Load, Bounds]] = []

    def decide(self, load: Load, bounds: Bounds) -> Setting:
        self.loads.append((load, bounds))
        self.setting = Setting(
            self._dice.randint(1, self._most), self._dice.randint(1, 3), "by chance"
        )
        return self.setting


def by_chance(
    loader: DataLoader[Any], monkeypatch: pytest.MonkeyPatch, seed: int = 0, most: int = 5
) -> Random:
    """Have a loader's number of workers change by chance."""
    monkeypatch.setattr(auto_workers, "LEAST", 0)
    auto: Any = loader._core.auto
    auto._controller = controller = Random(seed, most)
    return controller
