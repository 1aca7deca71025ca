"""A stream that keeps the place it was brought to begins at its start again; as Hugging Face's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from lit_loader import DataLoader, MixtureStream


class Kept(IterableDataset[int]):
    """Begins at the state that it was given, each time that it is iterated in that epoch."""

    def __init__(self, first: int, length: int) -> None:
        self.numbers, self.epoch, self.at = range(first, first + length), 0, 0
        self._starting_state_dict: Any = None

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int] | None) -> None:
        self._starting_state_dict = state

    def __iter__(self) -> Iterator[int]:
        start = self._starting_state_dict
        self.at = start["at"] if start and start["epoch"] == self.epoch else 0
        for number in self.numbers[self.at :]:
            self.at += 1
            yield number


def batches(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def test_the_same_epoch_again_after_a_resume() -> None:
    loader = DataLoader(Kept(0, 12), 4)
    start, iterator = loader.state_dict(), iter(loader)
    whole = [next(iterator).tolist() for _ in range(2)]
    state = loader.state_dict()
    whole += batches(iterator)
    resumed = DataLoader(Kept(0, 12), 4)
    for _ in range(2):
        resumed.load_state_dict(state)
        assert batches(resumed) == whole[2:]
        resumed.set_epoch(0)
        assert batches(resumed) == whole
    resumed.load_state_dict(state)
    next(iter(resumed))
    resumed.load_state_dict(start)
    assert batches(resumed) == whole


def test_it_begins_where_its_user_has_brought_it() -> None:
    stream = Kept(0, 12)
    stream.load_state_dict({"at": 4, "epoch": 0})
    loader = DataLoader(stream, 4)
    iterator = iter(loader)
    first = next(iterator).tolist()
    loader.load_state_dict(loader.state_dict())
    assert [first, *batches(loader)] == [[4, 5, 6, 7], [8, 9, 10, 11]]
    loader.set_epoch(0)
    assert batches(loader) == [[4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.parametrize("shards", [None, 1])
def test_a_source_that_is_repeated_after_a_resume(shards: int | None) -> None:
    def make() -> DataLoader[Any]:
        sources = [Kept(0, 10), Kept(100, 7)]
        mixture = MixtureStream(sources, epoch_length=60, exhausted="repeat")
        return DataLoader(mixture, 4, num_shards=shards, seed=1)

    expected = batches(make())
    for stop in (1, 3, 9):
        loader = make()
        iterator = iter(loader)
        first = [next(iterator).tolist() for _ in range(stop)]
        resumed = make()
        resumed.load_state_dict(loader.state_dict())
        assert first + batches(resumed) == expected
