"""Sources of a `MixtureStream` that draw from generators of their own, with and without a state."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

import lit_loader
from lit_loader import MixtureStream
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


class Nested(IterableDataset[Tensor]):
    """A mixture as a source of another one."""

    def __init__(self, *sources: Any) -> None:
        self.mixture = MixtureStream(
            list(sources), stopping_strategy="all_exhausted_without_replacement", seed=8
        )

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.mixture)


class Buffered(Held):
    """Without a state, and draws from all generators which sample comes next."""

    def __iter__(self) -> Iterator[Tensor]:
        waiting: list[int] = []
        for number in range(self.start, self.start + self.length):
            waiting.append(number)
            if len(waiting) > 6:
                yield self.item(self.one_of(waiting))
        while waiting:
            yield self.item(self.one_of(waiting))

    def one_of(self, waiting: list[int]) -> int:
        index, count = lit_loader.get_shard()
        draw = random.random() + self.python.random() + float(self.numpy.random()) + index / count
        return waiting.pop(int(draw * 97) % len(waiting))


SOURCES: dict[str, Callable[[], list[Any]]] = {
    "stateless": lambda: [Held(0, 24), Held(100, 12)],
    "with state": lambda: [HeldWithState(0, 24), Held(100, 12)],
    "nested": lambda: [Held(0, 16), Nested(Held(100, 12), HeldWithState(200, 8))],
    "buffered": lambda: [Buffered(0, 24), Buffered(100, 12)],
    "buffered late": lambda: [HeldWithState(0, 24), Buffered(100, 12)],
    "buffered within": lambda: [
        HeldWithState(0, 16), Nested(HeldWithState(100, 12), Buffered(200, 8))
    ],
}  # fmt: skip
