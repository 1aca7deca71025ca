"""Samplers with a state_dict, which has their place: they are put back there, at no cost."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from lit_loader import DataLoader
from tests.support.exact import loaded, through_file
from tests.support.tools import lists

BATCHES, SAMPLES = 421, 1684


class Placed:
    """Batches of an order of each epoch's; each one drawn is counted, as if it took long."""

    def __init__(self) -> None:
        self.epoch, self.place, self.drawn = 0, 0, 0

    def order(self) -> Any:
        return np.random.default_rng(self.epoch).permutation(SAMPLES)

    def item(self, order: Any) -> Any:
        return order[4 * self.place - 4 : 4 * self.place].tolist()

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[Any]:
        order = self.order()
        while self.place < len(self):
            self.place, self.drawn = self.place + 1, self.drawn + 1
            yield self.item(order)
        self.epoch, self.place = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.place = state["epoch"], state["place"]


class Indices(Placed):
    """Single indices, in the place of batches."""

    def __len__(self) -> int:
        return SAMPLES

    def item(self, order: Any) -> Any:
        return int(order[self.place - 1])


class OfIterator(Placed):
    """Its iterator has the place."""

    state_dict = None  # type: ignore[assignment]

    def __iter__(self) -> Any:
        return _Places(self)


class _Places:
    def __init__(self, sampler: Placed) -> None:
        self.sampler, self.place = sampler, 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if self.place == BATCHES:
            raise StopIteration
        self.place, self.sampler.drawn = self.place + 1, self.sampler.drawn + 1
        return self.sampler.order()[4 * self.place - 4 : 4 * self.place].tolist()

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


def loader_of(sampler: Placed, **options: Any) -> DataLoader[Any]:
    if isinstance(sampler, Indices):
        return DataLoader(range(SAMPLES), **{"batch_size": 4, "sampler": sampler, **options})
    return DataLoader(range(SAMPLES), batch_sampler=sampler, **options)


@pytest.mark.parametrize("batches", [3, None], ids=["given up", "whole"])
@pytest.mark.parametrize("kind", [Placed, Indices, OfIterator])
def test_a_state_of_a_pass_of_which_no_step_was_committed(kind: Any, batches: int | None) -> None:
    """As a trainer asks for it whose first step after ``set_epoch`` has failed."""

    def begun() -> DataLoader[Any]:
        loader = loader_of(kind())
        loader.commit()
        loader.set_epoch(0)
        lists(islice(iter(loader), batches))
        loader.commit()
        loader.set_epoch(1)
        return loader

    expected, loader = lists(begun()), begun()
    iterator = iter(loader)
    assert lists(islice(iterator, 1)) == expected[:1]
    state = through_file(loader.state_dict())
    again = loaded(loader_of(kind()), state)
    assert lists(islice(iter(again), 2)) == expected[:2]
    assert lists(loaded(loader_of(kind()), state)) == expected


@pytest.mark.parametrize(
    ("tail", "before", "after"), [("pad", 3, 3), ("keep", 3, 2), ("pad", 1, 3)]
)
def test_ranks_and_batch_sizes(tail: Any, before: int, after: int) -> None:
    """Samples go by rank 1's batches; 1,684 are no multiple of 3."""
    options = {"num_replicas": before, "rank": before - 1, "uneven_ranks": tail, "batch_size": 2}
    options["seed"] = 1
    loader = loader_of(Indices(), **options)
    lists(islice(iter(loader), 1440 // (2 * before)))
    state = through_file(loader.state_dict())
    options |= {"num_replicas": after, "rank": 0, "batch_size": 4}
    resumed, whole = (loader_of(Indices(), **options) for _ in range(2))
    assert lists(loaded(resumed, state)) == lists(whole)[1440 // (4 * after) :]
