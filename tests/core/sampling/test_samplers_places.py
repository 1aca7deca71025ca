"""Samplers with a state_dict, which has their place, or the epoch alone, or what they like."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from lit_loader import DataLoader
from tests.support.exact import loaded, through_file

BATCHES, SAMPLES = 421, 1684


class Placed:
    """Batches of an order of each epoch's; each one drawn is counted, as if it took long."""

    def __init__(self) -> None:
        self.epoch, self.place, self.drawn, self.asked = 0, 0, 0, 0

    def order(self) -> Any:
        return np.random.default_rng(self.epoch).permutation(SAMPLES)

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[Any]:
        order = self.order()
        while self.place < BATCHES:
            self.place, self.drawn = self.place + 1, self.drawn + 1
            yield order[4 * self.place - 4 : 4 * self.place].tolist()
        self.epoch, self.place = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        self.asked += 1
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.place = state["epoch"], state["place"]


class Indices(Placed):
    """Single indices, in the place of batches."""

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[Any]:
        order = self.order()
        while self.place < SAMPLES:
            self.place, self.drawn = self.place + 1, self.drawn + 1
            yield int(order[self.place - 1])
        self.epoch, self.place = self.epoch + 1, 0


class Generator(Placed):
    """Draws its order from a generator of its own; resumed in mid-epoch, it has it in its state."""

    def __init__(self) -> None:
        super().__init__()
        self.rng, self.now = np.random.default_rng(3), None

    def order(self) -> Any:
        if not self.place:
            self.now = self.rng.permutation(SAMPLES)
        return self.now

    def state_dict(self) -> dict[str, Any]:
        now = None if self.now is None else self.now.tolist()
        return {**super().state_dict(), "now": now}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.now = None if state["now"] is None else np.array(state["now"])


class OfIterator(Placed):
    """Its iterator has the place."""

    def __iter__(self) -> Any:
        return _Places(self)

    state_dict = None  # type: ignore[assignment]


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


# --- whose state does not have the place ---


class OfEpoch(Placed):
    """Has the epoch alone in its state."""

    def __iter__(self) -> Iterator[Any]:
        self.place = 0
        return super().__iter__()

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]


class Counts(OfEpoch):
    """Has a count in its state that it does not go to."""

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "served": self.drawn}


class BetweenEpochs(OfEpoch):
    """Cannot say in mid-epoch where it is."""

    def state_dict(self) -> dict[str, Any]:
        if 0 < self.place < BATCHES:
            raise RuntimeError("in mid-epoch")
        return super().state_dict()


class Refuses(Placed):
    """Takes no state of mid-epoch."""

    def __iter__(self) -> Iterator[Any]:
        self.place = 0
        return super().__iter__()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["place"]:
            raise ValueError("in mid-epoch")
        super().load_state_dict(state)


PLACED = [Placed, Indices, Generator, OfIterator]
OTHERS = [OfEpoch, Counts, BetweenEpochs, Refuses]


def loader_of(sampler: Placed, **options: Any) -> DataLoader[Any]:
    if isinstance(sampler, Indices):
        return DataLoader(range(SAMPLES), **{"batch_size": 4, "sampler": sampler, **options})
    return DataLoader(range(SAMPLES), batch_sampler=sampler, **options)


def lists(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [*PLACED, *OTHERS])
def test_a_resume_gives_the_rest_and_what_follows(kind: Any, workers: int) -> None:
    sampler = kind()
    with loader_of(sampler, num_workers=workers, persistent_workers=workers > 0) as loader:
        states, got, iterator = {}, [], iter(loader)
        for number in (1, 201, 390, BATCHES):
            got += lists(islice(iterator, number - len(got)))
            states[number] = through_file(loader.state_dict())
        assert next(iterator, None) is None
        expected = [*got, *lists(loader)]
    assert sampler.asked < 40  # not at each batch
    for number, state in states.items():
        resumed = loaded(loader_of(kind()), state)
        iterator = iter(resumed)
        first = lists(islice(iterator, 1))
        if number == 201:  # of a resumed one, too
            once_more = loaded(loader_of(kind()), resumed.state_dict())
            assert lists(once_more) == expected[number + 1 : BATCHES]
        assert [*first, *lists(iterator), *lists(resumed)] == expected[number:]


@pytest.mark.parametrize("kind", PLACED)
def test_a_state_of_a_resumed_one_is_the_same(kind: Any) -> None:
    loader = loader_of(kind())
    iterator = iter(loader)
    lists(islice(iterator, 233))
    state = through_file(loader.state_dict())
    lists(islice(iterator, 140))
    resumed = loaded(loader_of(kind()), state)
    lists(islice(iter(resumed), 140))
    assert resumed.state_dict() == loader.state_dict()


@pytest.mark.parametrize(
    ("tail", "before", "after"), [("pad", 3, 3), ("keep", 3, 2), ("pad", 1, 3)]
)
def test_ranks_and_batch_sizes(tail: Any, before: int, after: int) -> None:
    """Samples go by rank 1's batches; 1,684 are no multiple of 3."""
    options = {"num_replicas": before, "rank": before - 1, "uneven_ranks": tail, "batch_size": 2}
    loader = loader_of(Indices(), **options)
    lists(islice(iter(loader), 1440 // (2 * before)))
    state = through_file(loader.state_dict())
    options |= {"num_replicas": after, "rank": 0, "batch_size": 4}
    resumed, whole = (loader_of(Indices(), **options) for _ in range(2))
    assert lists(loaded(resumed, state)) == lists(whole)[1440 // (4 * after) :]
