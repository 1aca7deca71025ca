"""Loaders that a dataset makes, or iterates, while a sample of another loader is read."""

import random

import pytest
import torch

from tests.support.datasets import Call
from tests.support.samples import Counting
from tests.support.tools import flat

POOL = list(range(100))


def first_batch(loader):
    return next(iter(loader)).tolist()


def of_new_loaders(make):
    return lambda index: first_batch(make(POOL, 5, shuffle=True))


def of_kept_loaders(make):
    """Each sample is a support set: the first batch of a loader that is shuffled."""
    kept = [make(POOL, 5, shuffle=True) for _ in range(8)]
    return lambda index: first_batch(kept[index])


def of_whole_passes(inner):
    return lambda index: torch.cat(list(inner)).tolist()


DATASETS = {
    "made anew": lambda make: Call(of_new_loaders(make), 8),
    "kept": lambda make: Call(of_kept_loaders(make), 8),
    "stream": lambda make: Counting(8, of_new_loaders(make)),
    "whole passes": lambda make: Call(of_whole_passes(make(POOL[:20], 5, shuffle=True)), 8),
    "noise": lambda make: Call(of_whole_passes(make(Call(lambda _: random.random(), 3), 2)), 8),
}


@pytest.mark.parametrize("kind", DATASETS)
def test_each_pass_is_another_one(loader_class, num_workers, kind):
    torch.manual_seed(0)
    workers = min(num_workers, 1) if kind == "stream" else num_workers
    loader = loader_class(DATASETS[kind](loader_class), 4, num_workers=workers, collate_fn=list)
    rows = [str(row) for _ in range(3) for row in flat(loader)]
    assert len(rows) == len(set(rows)) == 24


def test_what_a_sample_seeds_is_fixed(loader_class, num_workers):
    """As validation does that is to draw the same episodes in each epoch."""
    read = of_kept_loaders(loader_class)

    def fixed(index):
        torch.manual_seed(index)
        return read(index)

    loader = loader_class(Call(fixed, 8), 4, num_workers=num_workers, collate_fn=list)
    epochs = [flat(loader) for _ in range(2)]
    assert epochs[0] == epochs[1]
    assert len(set(map(str, epochs[0]))) == 8
