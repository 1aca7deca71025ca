"""`loader.seed` and `loader.generator`, set on a loader, count from its next epoch on."""

import copy
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler

from lit_loader import DataLoader
from tests.support.exact import loaded, state_behind
from tests.support.samples import Call

LENGTH = 24
DATA = Call(lambda index: (index, torch.rand(()).item()), LENGTH)
"""Samples draw from the global generator, which the loader seeds."""


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(DATA, **{"batch_size": 4, "shuffle": True, **options})


def batches(loader: DataLoader[Any]) -> list[Any]:
    return [[each.tolist() for each in batch] for batch in loader]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


OPTIONS = {
    "here": {},
    "workers": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(
    "name, values", [("seed", (5, 7)), ("generator", (generator(5), generator(7)))]
)
def test_it_counts_from_the_next_epoch_on(name: str, values: Any, options: Any) -> None:
    if name == "generator":
        for each in values:
            each.manual_seed(each.initial_seed())
    with loader(**{name: values[1]}, **options) as made, loader(**{name: values[0]}) as given:
        batches(made), batches(given)
        wanted, other = batches(made), batches(given)
    assert wanted != other
    with loader(**{name: values[0]}, **options) as changed:
        batches(changed)
        if name == "generator":
            values[1].manual_seed(7)  # others have drawn from it
        setattr(changed, name, values[1])
        assert getattr(changed, name) is values[1]
        assert batches(changed) == wanted


def test_datasets_that_differ_in_length_have_unlike_orders() -> None:
    one, other = (
        [int(index) for index in DataLoader(range(length), None, shuffle=True, seed=1)]
        for length in (1000, 1001)
    )
    assert sum(map(int.__eq__, one, other)) < 50


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_an_epoch_that_is_begun_or_loaded_keeps_its_seed(options: Any) -> None:
    with loader(seed=5) as undisturbed:
        first = batches(undisturbed)
    with loader(seed=7) as other:
        batches(other)
        second = batches(other)
    with loader(seed=5, **options) as running:
        iterator = iter(running)
        given = [next(iterator)]
        running.seed = 7
        given += [*iterator]
        assert [[each.tolist() for each in batch] for batch in given] == first
        assert batches(running) == second
    with loader(seed=5) as stopped:
        state = state_behind(stopped, 2)
    with loader(**options) as resumed:  # takes over the state's seed
        resumed.load_state_dict(state)
        resumed.seed = 7
        assert batches(resumed) == first[2:]
        assert batches(resumed) == second


def test_a_random_sampler_of_the_users_finds_it() -> None:
    def made(seed: int) -> DataLoader[Any]:
        sampler = BatchSampler(RandomSampler(range(LENGTH)), 4, False)
        return DataLoader(DATA, batch_sampler=sampler, seed=seed)

    changed = made(5)
    changed.seed = 7
    assert batches(changed) == batches(made(7)) != batches(made(5))


def test_a_copy_has_a_seed_of_its_own() -> None:
    one = loader(seed=5)
    for other in (copy.copy(one), copy.deepcopy(one)):
        other.seed = 7
        assert batches(other) == batches(loader(seed=7))
    assert batches(one) == batches(loader(seed=5))


@pytest.mark.parametrize("copied", (copy.copy, copy.deepcopy, lambda one: one))
def test_a_copy_with_exchanged_batches_goes_on_with_the_seed_of_a_state(copied: Any) -> None:
    """As timm's loaders exchange them."""
    state = state_behind(loader(seed=5), 2)
    resumed = copied(loader())
    resumed._DataLoader__initialized = False
    resumed.batch_sampler = BatchSampler(resumed.sampler, 4, False)
    resumed._DataLoader__initialized = True
    assert batches(loaded(resumed, state)) == batches(loader(seed=5))[2:]


def test_the_sampler_of_another_loader_keeps_its_seed() -> None:
    other = loader(seed=7)
    borrowed = loader(seed=5, shuffle=None, sampler=other.sampler)
    assert [each[0] for each in batches(borrowed)] == [each[0] for each in batches(other)]


def test_what_is_no_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seed"):
        loader().seed = -1
