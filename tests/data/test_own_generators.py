"""Generators from which the sources of a `MixtureStream` draw: a resume finds them as they were."""

import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

import lit_loader
from lit_loader import DataLoader, MixtureStream
from tests.support.samples import Placed, share

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*MixtureStream has a source that has no state_dict"
)


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


def test_who_reads_again_is_told() -> None:
    """Only if a source that has been begun, and is not through, has no state."""

    def loader() -> DataLoader[Any]:
        sources = SOURCES["buffered late"]()
        mixture = MixtureStream(
            sources, weights=[3, 1], stopping_strategy="all_exhausted_without_replacement", seed=1
        )
        return DataLoader(mixture, 2, seed=1)

    one, warned = loader(), []
    for _ in one:
        state = one.state_dict()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader().load_state_dict(state)
        texts = " ".join(str(warning.message) for warning in caught)
        warned.append("has a source that has no state_dict" in texts)
    assert not warned[0]
    assert True in warned


def test_a_loader_of_others_reads_a_source_again_alone() -> None:
    """From the mixture's own state, which does without the seeds of our loader's batches."""

    def mixture() -> MixtureStream:
        return MixtureStream(
            [HeldWithState(0, 24), Held(100, 12)],
            stopping_strategy="all_exhausted_without_replacement",
            seed=1,
        )

    whole = [int(row[0]) for row in mixture()]
    for stop in range(len(whole) + 1):
        first: Any = iter(mixture())
        assert [int(next(first)[0]) for _ in range(stop)] == whole[:stop]
        state = first.state_dict()
        second: Any = iter(mixture())
        second.load_state_dict(state)
        assert [int(row[0]) for row in second] == whole[stop:]
