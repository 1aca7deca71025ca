"""Reproducibility: what is the same for the same seed, and what must differ."""

import random

import numpy as np
import pytest
import torch

from tests.support.datasets import Noise
from tests.support.tools import flat


def noise(loader_class, num_workers, seed=None, **options):
    """All random rows of an epoch, as nested lists."""
    if seed is not None:
        options["generator"] = torch.Generator().manual_seed(seed)
    loader = loader_class(Noise(), batch_size=2, num_workers=num_workers, **options)
    return torch.cat(list(loader)).tolist()


@pytest.mark.parametrize(
    ("num_workers", "by"), [(1, "generator"), (2, "generator"), (2, "torch"), (0, "everything")]
)
def test_fresh_loaders_with_the_same_seed_agree(loader_class, num_workers, by):
    rows = []
    for seed in (42, 42, 43):
        if by != "generator":
            torch.manual_seed(seed)
        if by == "everything":
            random.seed(seed)
            np.random.seed(seed)
        rows.append(noise(loader_class, num_workers, seed if by == "generator" else None))
    assert rows[0] == rows[1] != rows[2]


def test_no_two_samples_draw_the_same_numbers(loader_class, num_workers):
    rows = noise(loader_class, num_workers)
    for column in zip(*rows, strict=True):
        assert len(set(column)) == len(rows)


@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_draw_different_numbers(loader_class, persistent):
    loader = loader_class(Noise(), batch_size=2, num_workers=2, persistent_workers=persistent)
    first, second = (torch.cat(list(loader)) for _ in range(2))
    assert not (first == second).any()


@pytest.mark.parametrize("by", ["generator", "manual_seed"])
def test_shuffled_orders_follow_the_seed(loader_class, num_workers, by):
    def epochs(seed):
        options = {}
        if by == "generator":
            options["generator"] = torch.Generator().manual_seed(seed)
        else:
            torch.manual_seed(seed)
        loader = loader_class(
            range(60), batch_size=7, shuffle=True, num_workers=num_workers, **options
        )
        return [flat(loader) for _ in range(2)]

    assert epochs(42) == epochs(42)
    assert epochs(42) != epochs(43)
    assert epochs(42)[0] != epochs(42)[1]


def test_a_given_generator_spares_the_global_one(loader_class, num_workers):
    options = {"shuffle": True, "generator": torch.Generator()}
    before = torch.get_rng_state()
    list(loader_class(range(20), num_workers=num_workers, **options))
    assert torch.equal(torch.get_rng_state(), before)
