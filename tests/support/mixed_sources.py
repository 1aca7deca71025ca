"""Sources of a `MixtureStream` that draw from generators of their own, with and without a state."""

import random
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from tests.support.samples import Placed, share


class Held(IterableDataset[Tensor]):
    """Its share of ``start``, ``start + 1``, …, each with draws from generators of its own.

    Some keep half a draw in reserve, too. There is no state.
    """

    def __init__(self, start: int, length: int) -> None:
        self.start, self.length = start, length
        self.python = random.Random(1)
        self.numpy = np.random.default_rng(2)
        self.legacy = np.random.RandomState(3)
        self.torch = torch.Generator().manual_seed(4)

    def numbers(self) -> range:
        return share(range(self.start, self.start + self.length))

    def __iter__(self) -> Iterator[Tensor]:
        return map(self.item, self.numbers())

    def item(self, number: int) -> Tensor:
        draws = [
            *(self.python.gauss(0, 1), self.numpy.random(), self.legacy.normal()),
            *(self.numpy.integers(1000, dtype=np.uint32), random.random()),
            float(torch.rand((), generator=self.torch, dtype=torch.float64)),
        ]
        return torch.tensor([number, *draws], dtype=torch.float64)


class HeldWithState(Placed, Held):
    """Draws while it is brought to its place, which it need not have done in the first run."""

    def load_state_dict(self, state: dict[str, int]) -> None:
        super().load_state_dict(state)
        self.item(0)
