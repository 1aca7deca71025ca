"""Loaders that a dataset makes, or iterates, while a sample of another loader is read."""

import random

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from tests.support.tools import flat

POOL = list(range(100))


class Episodes(Dataset):
    """Each sample is a support set: the first batch of a loader that is shuffled."""

    def __init__(self, make, kept):
        self.make, self.kept = make, [make() for _ in range(8)] if kept else None

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return next(iter(self.kept[index] if self.kept else self.make())).tolist()


class Stream(IterableDataset):
    def __init__(self, make):
        self.make = make

    def __iter__(self):
        for _ in range(8):
            yield next(iter(self.make())).tolist()


class Noise(Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return random.random()


class Repeated(Dataset):
    """Each sample is a pass over the same loader."""

    def __init__(self, make):
        self.inner = make()

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.cat(list(self.inner)).tolist()


DATASETS = {
    "made anew": lambda loader: Episodes(lambda: loader(POOL, 5, shuffle=True), kept=False),
    "kept": lambda loader: Episodes(lambda: loader(POOL, 5, shuffle=True), kept=True),
    "stream": lambda loader: Stream(lambda: loader(POOL, 5, shuffle=True)),
    "whole passes": lambda loader: Repeated(lambda: loader(POOL[:20], 5, shuffle=True)),
    "noise": lambda loader: Repeated(lambda: loader(Noise(), 2)),
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

    class Fixed(Episodes):
        def __getitem__(self, index):
            torch.manual_seed(index)
            return super().__getitem__(index)

    dataset = Fixed(lambda: loader_class(POOL, 5, shuffle=True), kept=True)
    loader = loader_class(dataset, 4, num_workers=num_workers, collate_fn=list)
    epochs = [flat(loader) for _ in range(2)]
    assert epochs[0] == epochs[1]
    assert len(set(map(str, epochs[0]))) == 8
