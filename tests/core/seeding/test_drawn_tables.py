"""A dataset that draws a table in its first batch is told so; one that opens or reads it is not."""

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Subset

from lit_loader import DataLoader
from tests.support.samples import OfLength

LENGTH = 16


class Noisy(OfLength):
    """Adds numbers of a table, which it makes on first use; and may draw besides."""

    length = LENGTH

    def __init__(self, make: Callable[[Any], Any], draw: Callable[[Any], float]) -> None:
        self.rng = np.random.default_rng(1)
        self.table: Any = None
        self.make, self.draw = make, draw

    def __getitem__(self, index: int) -> Tensor:
        if self.table is None:
            self.table = self.make(self)
        return torch.tensor(float(index) + self.draw(self), dtype=torch.float64)


def nothing(_: Any) -> float:
    return 0.0


class Perturbed(OfLength):
    """As its user writes it."""

    length = LENGTH
    table: Any = None

    def __init__(self) -> None:
        self.rng = np.random.default_rng(1)

    def __getitem__(self, index: int) -> Tensor:
        if self.table is None:
            self.table = self.rng.random(LENGTH)
        return torch.tensor(index + self.table[index])


DRAWN: dict[str, Callable[[], Any]] = {
    "array": lambda: Noisy(lambda self: self.rng.random(9), nothing),
    "tensor": lambda: Noisy(lambda _: torch.rand(9), nothing),
    "list": lambda: Noisy(lambda _: [random.random() for _ in range(9)], nothing),
    "number": lambda: Noisy(lambda _: np.random.normal(), nothing),
    "order": lambda: Noisy(lambda self: self.rng.permutation(9).tolist(), nothing),
    "beside others": lambda: Noisy(lambda _: torch.randperm(9), lambda self: self.rng.random()),
    "in a subset": lambda: Subset(Noisy(lambda self: self.rng.random(9), nothing), range(LENGTH)),
}


def lines(loader: DataLoader[Any]) -> list[str]:
    with loader, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            list(loader)
    return [text for each in caught if "was drawn from" in (text := str(each.message))]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_table_that_is_drawn_in_the_first_batch_is_told_once(workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 2, "num_workers": workers}
    # With torch's loader each worker has the same table: their generators are equal copies.
    theirs = [torch.cat(list(TorchLoader(Perturbed(), **options))) for _ in range(2)]
    assert torch.equal(*theirs)
    [line] = lines(DataLoader(Perturbed(), **options))
    assert "Perturbed.table was drawn from a random generator" in line
    assert "build it in __init__" in line


@pytest.mark.parametrize("kind", DRAWN)
def test_what_is_drawn_and_kept(kind: str) -> None:
    [line] = lines(DataLoader(DRAWN[kind](), batch_size=2, num_workers=0))
    assert "Noisy.table was drawn" in line


def opened(self: Any) -> Any:
    self.file = Path(__file__).open()  # noqa: SIM115
    self.size = 1
    return np.ones(9)


class Caching(Noisy):
    """Keeps samples, in what it makes on first use."""

    kept: Any = None

    def __getitem__(self, index: int) -> Tensor:
        if self.kept is None:
            self.kept, self.last = {}, None
        if index not in self.kept:
            self.kept[index] = super().__getitem__(index)
        self.last = torch.rand(1)
        return self.kept[index]


PLAIN: dict[str, Callable[[], Any]] = {
    "read": lambda: Noisy(lambda _: np.arange(9), nothing),
    "read, and samples draw": lambda: Noisy(lambda _: [1.0, 2.0], lambda self: self.rng.random()),
    "mapped": lambda: Noisy(lambda _: torch.ones(9), lambda _: float(torch.rand(()))),
    "opened": lambda: Noisy(opened, lambda _: random.random()),
    "seeded": lambda: Noisy(lambda _: np.random.default_rng(3).random(9), nothing),
    "names": lambda: Noisy(lambda _: [str(random.random())], nothing),
    "samples": lambda: Caching(lambda _: [1], lambda self: self.rng.random()),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a dataset that never closes its file
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_is_read_or_opened_is_not_told(kind: str, workers: int) -> None:
    assert lines(DataLoader(PLAIN[kind](), batch_size=2, num_workers=workers)) == []


def test_batches_are_the_same_with_and_without_a_look_at_tables() -> None:
    """The look reads and sets generators; what is drawn after it is what would have been."""
    dataset = Noisy(lambda self: self.rng.random(9), lambda self: self.rng.random())
    filled = Noisy(nothing, lambda self: self.rng.random())
    filled.table = 1
    ours = [
        torch.cat(list(DataLoader(each, batch_size=2, seed=1)))[2:] for each in (dataset, filled)
    ]
    assert torch.equal(*ours)


def test_a_dataset_with_reseed_fn_is_left_to_it() -> None:
    loader = DataLoader(Perturbed(), batch_size=2, reseed_fn=lambda dataset, seed: None)
    assert lines(loader) == []
