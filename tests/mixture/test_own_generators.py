"""Generators that the sources of a `MixtureStream` hold: what is read again leaves no trace."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

import lit_loader
from lit_loader import DataLoader, MixtureStream
from tests.support.exact import digests, through_file


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

    def __iter__(self) -> Iterator[Tensor]:
        index, count = lit_loader.get_shard()
        return map(self.item, range(self.start + index, self.start + self.length, count))

    def item(self, number: int) -> Tensor:
        draws = [
            *(self.python.gauss(0, 1), self.numpy.random(), self.legacy.normal()),
            *(self.numpy.integers(1000, dtype=np.uint32), random.random()),
            float(torch.rand((), generator=self.torch, dtype=torch.float64)),
        ]
        return torch.tensor([number, *draws], dtype=torch.float64)


class HeldWithState(Held):
    """Draws while it is brought to its place, which it need not have done in the first run."""

    begin = place = 0

    def __iter__(self) -> Iterator[Tensor]:
        self.place, self.begin = self.begin, 0
        index, count = lit_loader.get_shard()
        for number in [*range(self.start + index, self.start + self.length, count)][self.place :]:
            self.place += 1
            yield self.item(number)

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begin = state["place"]
        self.item(0)


class Nested(IterableDataset[Tensor]):
    """A mixture as a source of another one."""

    def __init__(self, *sources: Any) -> None:
        self.mixture = MixtureStream(list(sources), exhausted="drop", seed=8)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.mixture)


def stateless() -> list[Any]:
    return [Held(0, 24), Held(100, 12)]


def with_state() -> list[Any]:
    return [HeldWithState(0, 24), Held(100, 12)]


def nested() -> list[Any]:
    return [Held(0, 16), Nested(Held(100, 12), HeldWithState(200, 8))]


def loader(sources: Any, batch_size: int = 2, **options: Any) -> DataLoader[Any]:
    mixture = MixtureStream(sources(), weights=[3, 1], exhausted="drop", seed=1)
    return DataLoader(mixture, batch_size, seed=1, **options)


@pytest.mark.parametrize("num_shards", [None, 1, 2])
@pytest.mark.parametrize("sources", [stateless, with_state, nested])
def test_a_resume_from_every_place(sources: Any, num_shards: int | None) -> None:
    options: dict[str, Any] = {} if num_shards is None else {"num_shards": num_shards}
    one = loader(sources, **options)
    states, batches = [through_file(one.state_dict())], []
    for batch in one:
        batches.append(batch)
        states.append(through_file(one.state_dict()))
    for stop in range(len(batches) + 1):
        resumed = loader(sources, **options)
        resumed.load_state_dict(states[stop])
        assert digests(resumed) == digests(batches[stop:]), stop


@pytest.mark.usefixtures("by_fork")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_resume_in_workers(workers: int) -> None:
    options = {"num_workers": workers, "num_shards": 2}
    with loader(stateless, **options) as one:
        expected = digests(one)
    for stop in (4, 8):
        with loader(stateless, **options) as one:
            batches = iter(one)
            for _ in range(stop):
                next(batches)
            state = through_file(one.state_dict())
        with loader(stateless, **options) as resumed:
            resumed.load_state_dict(state)
            assert digests(resumed) == expected[stop:]


@pytest.mark.usefixtures("by_fork")
def test_a_resize_in_mid_epoch() -> None:
    def sources() -> list[Any]:
        return [Held(0, 96), Held(100, 48)]

    options = {"num_shards": 4, "batch_size": 2}
    expected = digests(loader(sources, **options))
    got = []
    with loader(sources, num_workers=1, **options) as resized:
        for number, batch in enumerate(resized):
            got.append(batch)
            if number in (9, 20, 41):
                resized.resize({9: 3, 20: 2, 41: 1}[number])
    assert digests(got) == expected
