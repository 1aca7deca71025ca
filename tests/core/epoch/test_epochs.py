"""Epoch numbers: counted, chosen, and known to datasets wherever they are read."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import RandomSampler, WeightedRandomSampler

from lit_loader import DataLoader
from tests.support.exact import Augmented, Epochs, Shared, digests, loaded


def told(loader: DataLoader[Any]) -> set[tuple[int, int]]:
    """What the dataset was told, and what ``get_epoch`` said, over an epoch."""
    return {(int(a), int(b)) for _, was, says in loader for a, b in zip(was, says, strict=True)}


@pytest.mark.parametrize(
    ("method", "persistent"), [("", False), ("fork", False), ("fork", True), ("spawn", True)]
)
def test_a_dataset_learns_the_epoch_in_each_worker(method: str, persistent: bool) -> None:
    """And where there is none."""
    options = {"num_workers": 2, "multiprocessing_context": method} if method else {}
    with DataLoader(Epochs(), 2, persistent_workers=persistent, **options) as loader:
        assert told(loader) == {(-1, 0)}  # nothing, for the program has told the loader nothing
        assert told(loader) == {(-1, 1)}
        loader.set_epoch(7)
        assert loader.dataset.epoch == -1  # not before it is read
        assert told(loader) == {(7, 7)}
        assert told(loader) == {(7, 8)}


def test_the_epoch_counts_up_when_a_loop_is_left_early() -> None:
    loader = DataLoader(Augmented(), 4, True, seed=1)
    second = [digests(loader) for _ in range(2)][1]
    fresh = DataLoader(Augmented(), 4, True, seed=1)
    next(iter(fresh))
    iter(fresh)  # one that is never used is no epoch
    assert digests(fresh) == second


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_is_looked_at_in_an_epoch(workers: int) -> None:
    """The position stays that of the loop: in the step in which it is looked at, and behind it."""
    expected = digests(DataLoader(Augmented(), 4, True, seed=1))
    with DataLoader(Augmented(), 4, True, seed=1, num_workers=workers) as loader:
        given, held = [], []
        for batch in loader:
            given += digests([batch])
            if len(given) == 3:
                next(iter(loader))
            if len(given) == 5:  # and one that is kept
                held.append(iter(loader))
                next(held[0])
            if len(given) != 5:
                fresh = loaded(DataLoader(Augmented(), 4, True, seed=1), loader.state_dict())
                assert given + digests(fresh) == expected or len(given) == len(expected)
        assert given == expected
        held.clear()
        assert loader.state_dict()["batches"] == 0


def with_order(name: str, workers: int = 0) -> DataLoader[Any]:
    """A loader with an order of its own, or of a sampler with a generator."""
    data, generator = Augmented(), torch.Generator().manual_seed(3)
    orders: dict[str, Any] = {
        "shuffle": {"shuffle": True},
        "at once": {"sampler": RandomSampler(data, generator=generator)},
        "one by one": {"sampler": OneByOne(len(data))},
        "weighted": {
            "sampler": WeightedRandomSampler([1.0] * len(data), len(data), generator=generator)
        },
    }
    return DataLoader(data, 4, seed=1, num_workers=workers, **orders[name])


class OneByOne:
    """Draws an index when it is asked for it."""

    def __init__(self, length: int) -> None:
        self.length, self.rng = length, np.random.default_rng(5)

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return (int(self.rng.integers(self.length)) for _ in range(self.length))


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_looks_within_epochs_are_no_epochs(workers: int, asked: bool) -> None:
    """Whether a state is taken or not; and those in a row are different ones."""
    plain = with_order("shuffle")
    expected = [digests(plain) for _ in range(3)]
    with with_order("shuffle", workers) as loader:
        for epoch in range(3):
            given = []
            for batch in loader:
                given += digests([batch])
                if len(given) in (1, 4, len(expected[0])):
                    looks = []
                    for _ in range(2):
                        looks += digests([next(iter(loader))])
                        assert not asked or loader.state_dict()["epoch"] == epoch
                    assert looks[0] != looks[1]
                if asked and (epoch, len(given)) == (1, 4):
                    fresh = loaded(with_order("shuffle"), loader.state_dict())
                    assert [given + digests(fresh), digests(fresh)] == expected[1:]
            assert given == expected[epoch]


@pytest.mark.parametrize("order", ["at once", "one by one", "weighted"])
def test_a_samplers_own_generator_goes_on_from_a_look_as_with_torch(order: str) -> None:
    def indices(loader: Any) -> list[Any]:
        found = []
        for epoch in range(3):
            for number, batch in enumerate(loader):
                found.append(batch.tolist())
                if number == epoch:
                    found.append(next(iter(loader)).tolist())
        return found

    ours, theirs = with_order(order), with_order(order)
    mine = DataLoader(range(26), 4, sampler=ours.sampler)
    assert indices(mine) == indices(TorchDataLoader(range(26), 4, sampler=theirs.sampler))


def test_a_state_behind_a_look_is_the_loops_own() -> None:
    """A sampler's generator has drawn for the look; the rest of the epoch is what it would be."""
    loader, given = with_order("at once"), []
    for batch in loader:
        given += digests([batch])
        if len(given) == 3:
            next(iter(loader))
            state = loader.state_dict()
    assert given[3:] == digests(loaded(with_order("at once"), state))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_is_asked_for_is_not_used_up_by_looks(workers: int) -> None:
    """As with torch's DistributedSampler: else a loop's order would come twice."""
    with DataLoader(Augmented(), 4, True, seed=1, num_workers=workers) as loader:
        for epoch in range(3):
            loader.set_epoch(epoch)
            if epoch == 1:
                for _ in range(2):
                    next(iter(loader))
            indices = [batch[:, 0].tolist() for batch in loader]
            reference = DataLoader(Augmented(), 4, True, seed=1)
            reference.set_epoch(epoch)
            assert indices == [batch[:, 0].tolist() for batch in reference]
        assert loader.state_dict()["epoch"] == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_that_is_left_behind_a_look(workers: int) -> None:
    """As where a step logs a picture, and is the last one: the state is the loop's."""
    expected = digests(DataLoader(Augmented(), 4, True, seed=1))
    with DataLoader(Augmented(), 4, True, seed=1, num_workers=workers) as loader:
        given = []
        for batch in loader:
            given += digests([batch])
            if len(given) == 3:
                next(iter(loader))
                break
        fresh = loaded(DataLoader(Augmented(), 4, True, seed=1), loader.state_dict())
        assert given + digests(fresh) == expected
        next(iter(loader))  # an epoch of its own, for nothing lives beside it
        assert loader.state_dict() | {"samples": 4} == loader.state_dict()
        assert loader.state_dict()["epoch"] == 1


def test_iterators_that_take_turns_on_a_samplers_generator() -> None:
    """Of what they draw the prefetching is a part: it is said. A look is none of them."""
    data, loader = Augmented(), with_order("at once")
    with pytest.warns(UserWarning, match="take turns, and its sampler draws from a generator"):
        list(zip(loader, loader, strict=True))
    list(zip(*[DataLoader(data, 4, True)] * 2, strict=True))


def test_a_look_behind_the_first_resumed_batch() -> None:
    """The loop has the loaded position, and goes on: nothing is left out, and nothing is said."""
    loader = DataLoader(Augmented(), 4, True, seed=1)
    expected, iterator = digests(DataLoader(Augmented(), 4, True, seed=1)), iter(loader)
    next(iterator), next(iterator)
    state, given = loader.state_dict(), []
    loader.load_state_dict(state)
    for batch in loader:
        given += digests([batch])
        next(iter(loader))
    assert given == expected[2:]


@pytest.mark.parametrize(
    ("dataset", "options"), [(Augmented(), {"shuffle": True}), (Shared(26), {"num_shards": 1})]
)
@pytest.mark.filterwarnings("ignore:.*Shared has no state_dict")
def test_a_loaded_position_that_is_used_up_by_a_look_is_told(
    dataset: Any, options: dict[str, Any]
) -> None:
    loader = DataLoader(dataset, 4, seed=1, **options)
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = loader.state_dict()
    loader.load_state_dict(state)
    next(iter(loader))
    with pytest.warns(UserWarning, match="loaded position, batch 2 of epoch 0, went to an iterato"):
        next(iter(loader))


def test_setting_the_epoch_during_one_is_for_the_next() -> None:
    loader = DataLoader(Augmented(), 4, True, seed=1)
    other = DataLoader(Augmented(), 4, True, seed=1)
    epochs = [digests(other) for _ in range(6)]
    iterator = iter(loader)
    first = digests([next(iterator)])
    loader.set_epoch(5)
    assert first + digests(iterator) == epochs[0]
    assert digests(loader) == epochs[5]


@pytest.mark.filterwarnings("ignore:.*the batches of a lit_loader.DataLoader:UserWarning")
def test_a_loader_of_torchs_made_of_the_batches_can_be_told_its_epoch() -> None:
    """As Transformers' Trainer does for a resume behind the first epoch."""
    one: Any = {"num_replicas": 1, "rank": 0}  # without: torch's class, whatever epoch is set
    made = DataLoader(list(range(12)), batch_size=3, shuffle=True, seed=1, **one)
    orders = [[batch.tolist() for batch in made] for _ in range(2)]
    fresh = DataLoader(list(range(12)), batch_size=3, shuffle=True, seed=1, **one)
    batches: Any = copy.deepcopy(fresh).batch_sampler
    batches.set_epoch(1)
    theirs = TorchDataLoader(list(range(12)), batch_sampler=batches)
    assert [batch.tolist() for batch in theirs] == orders[1] != orders[0]
