"""Datasets whose samples are decoded: what a cache is for, and what it must refuse."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lit_loader
from tests.support.faults import plain
from tests.support.samples import OfLength


class Decoded(OfLength):
    """Sample ``i`` tells ``i`` in many ways; notes in a folder how often each is made."""

    def __init__(self, length: int = 26, notes: Path | None = None, width: int = 50) -> None:
        super().__init__(length)
        self.notes, self.width = notes, width

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.length:
            raise IndexError(f"no sample {index}")
        if self.notes is not None:
            with open(self.notes / "made", "a") as file:
                file.write(f"{index}\n")
        return {
            "image": torch.full((3, self.width), index % 251, dtype=torch.uint8),
            "mask": np.arange(index, index + 7, dtype=np.float32),
            "label": index,
            "name": f"sample {index}",
        }

    def made(self) -> list[int]:
        """The samples that were made, each as often as it was."""
        assert self.notes is not None
        path = self.notes / "made"
        return sorted(map(int, path.read_text().split())) if path.exists() else []


class ManyAtOnce(Decoded):
    """The same, read by the batch."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [self[index] for index in indices]


class Drawing(OfLength):
    """Draws from one generator, in each sample from ``first`` on."""

    length = 12

    def __init__(self, source: str, first: int = 0) -> None:
        self.source, self.first = source, first
        self.rng = np.random.default_rng(3)
        self.lazy: Any = None

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= self.first:
            if self.source == "lazy" and self.lazy is None:
                self.lazy = random.Random(1)
            {
                "random": random.random,
                "numpy.random": np.random.standard_normal,
                "torch": lambda: torch.rand(2),
                "seeds": lambda: torch.manual_seed(5),
                "rng": self.rng.random,
                "lazy": lambda: self.lazy.random(),
                "epoch": lit_loader.get_epoch,
                "nothing": lambda: random.Random(index).random(),
            }[self.source]()
        return torch.tensor([index])


class Augment:
    """Draws from all generators, its own among them, after the cache; writes in place."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def __call__(self, sample: Any) -> Any:
        sample["image"] += 1  # what is given must be the reader's own
        sample["mask"] *= 2
        draws = [
            random.random(),
            np.random.random(),
            float(torch.rand((), dtype=torch.float64)),
            self.rng.random(),
            lit_loader.get_epoch(),
        ]
        return {**sample, "draws": torch.tensor(draws, dtype=torch.float64)}


def equal(one: Any, other: Any) -> bool:
    """Whether two samples are equal in every byte, kind and shape."""
    return plain(one) == plain(other)


def all_equal(cached: Any) -> bool:
    """Whether a cache of `Decoded` has its samples."""
    dataset = Decoded()
    return all(equal(cached[index], dataset[index]) for index in range(26))


def labels(loader: Any) -> list[int]:
    """The labels of an epoch."""
    return [label for batch in loader for label in batch["label"].tolist()]


def entries(folder: Path) -> list[Path]:
    """The samples that lie in a cache's directory."""
    return sorted(folder.glob("*/0*/*"))
