"""Samples of a stream that come too quickly to be announced one by one are the same."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from lit_loader import DataLoader, get_rng
from lit_loader.core.batch import progress


class Numbers(IterableDataset[float]):
    """Draws for each sample; from ``slow_from`` on each takes 20 us; ``bad`` raises."""

    def __init__(self, slow_from: int = 10_000, bad: int = -1) -> None:
        self.slow_from, self.bad = slow_from, bad

    def __iter__(self) -> Iterator[float]:
        for number in range(500):
            until = time.perf_counter() + 20e-6 * (number >= self.slow_from)
            while time.perf_counter() < until:
                pass
            if number == self.bad:
                raise ValueError("unreadable")
            yield number + float(get_rng().random())


class Bare:
    """An iterator that cannot be iterated, as ``next()`` needs it."""

    def __init__(self) -> None:
        self.number = 0

    def __next__(self) -> int:
        self.number += 1
        if self.number > 100:
            raise StopIteration
        return self.number


class OfBare(IterableDataset[int]):
    def __iter__(self) -> Any:
        return Bare()


def test_they_draw_what_slow_ones_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(slow_from: int = 0, **workers: Any) -> torch.Tensor:
        with DataLoader(Numbers(slow_from), 32, seed=1, **workers) as loader:
            return torch.cat(list(loader))

    forked = {"num_workers": 1, "multiprocessing_context": "fork"}
    expected = drawn(timeout=600, **forked)  # each sample is announced
    assert drawn().equal(drawn(200)) and drawn().equal(expected)
    monkeypatch.setattr(progress, "QUICK", 10**9)  # whatever the machine is at
    assert drawn(10_000).equal(expected) and drawn(10_000, **forked).equal(expected)


class OwnIterator(Bare, IterableDataset[int]):
    """Begins again whenever it is iterated."""

    def __iter__(self) -> Any:
        self.number = 0
        return self


@pytest.mark.parametrize("kind", [OfBare, OwnIterator])
def test_an_iterator_needs_a_next_alone(kind: Any) -> None:
    assert torch.cat(list(DataLoader(kind(), 32))).tolist() == [*range(1, 101)]
