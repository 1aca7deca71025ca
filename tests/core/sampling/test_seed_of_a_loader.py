"""`loader.seed` and `loader.generator`, set on a loader, count from its next pass on."""

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


OPTIONS = {"here": {}, "persistent": {"num_workers": 2, "persistent_workers": True}}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", ["seed", "generator"])
def test_it_counts_from_the_next_pass_on(name: str, options: Any) -> None:
    def value(seed: int) -> Any:
        return seed if name == "seed" else generator(seed)

    def second_pass(first: int, then: int | None = None) -> list[Any]:
        with loader(**{name: value(first)}, **options) as made:
            first_pass = iter(made)
            next(first_pass)
            if then is not None:
                setattr(made, name, value(then))
            rest = [*first_pass]
            assert len(rest) == LENGTH // 4 - 1
            return batches(made)

    if name == "seed":
        assert second_pass(5, 7) == second_pass(7) != second_pass(5)
    else:  # the pass draws from the generator that is there
        assert second_pass(5, 7) == second_pass(6, 7) != second_pass(5, 8)


def test_datasets_that_differ_in_length_have_unlike_orders() -> None:
    one, other = (
        [int(index) for index in DataLoader(range(length), None, shuffle=True, seed=1)]
        for length in (1000, 1001)
    )
    assert sum(map(int.__eq__, one, other)) < 50


def test_a_pass_that_is_loaded_keeps_its_seed() -> None:
    state, first, second = state_behind(loader(seed=5), 2), loader(seed=5), loader(seed=7)
    batches(second)
    resumed = loaded(loader(seed=5), state)
    resumed.seed = 7
    assert [batches(resumed), batches(resumed)] == [batches(first)[2:], batches(second)]


def test_a_random_sampler_of_the_users_finds_it() -> None:
    def made(seed: int) -> DataLoader[Any]:
        sampler = BatchSampler(RandomSampler(range(LENGTH)), 4, False)
        return DataLoader(DATA, batch_sampler=sampler, seed=seed)

    changed = made(5)
    changed.seed = 7
    assert batches(changed) == batches(made(7)) != batches(made(5))


@pytest.mark.parametrize("copied", (copy.deepcopy, lambda one: one))
def test_a_copy_with_exchanged_batches_goes_on_with_the_seed_of_a_state(copied: Any) -> None:
    """As timm's loaders exchange them."""
    state = state_behind(loader(seed=5), 2)
    resumed = copied(loader(seed=5))
    resumed._DataLoader__initialized = False
    resumed.batch_sampler = BatchSampler(resumed.sampler, 4, False)
    resumed._DataLoader__initialized = True
    assert batches(loaded(resumed, state)) == batches(loader(seed=5))[2:]
