"""Loaders with remote workers, and comparisons of what they yield with this process's batches."""

import dataclasses
import itertools
import random
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import lit_loader
from tests.support.faults import plain
from tests.support.samples import OfLength

LENGTH = 96


class Drawn(OfLength):
    """Samples that draw from all global generators, and from one of their own."""

    length = LENGTH

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "index": index,
            "drawn": torch.rand(3),
            "others": [random.random(), float(np.random.rand()), self.generator.random()],
        }


class Broken(Drawn):
    """Some of its samples cannot be read."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index % 29 == 7:
            raise ValueError(f"sample {index} is broken")
        return super().__getitem__(index)


def collate(samples: list[dict[str, Any]]) -> Any:
    batch = lit_loader.default_collate(samples)
    return {**batch, "noise": torch.rand(2), "names": [f"{s['index']:03}" for s in samples]}


def loader_of(
    dataset: Any, here: int = 0, there: int = 0, remote: Any = None, **options: Any
) -> Any:
    options = {"batch_size": 4, "shuffle": True, "seed": 3, **options}
    options["persistent_workers"] = bool(here or there)
    if remote is not None:
        remote = dataclasses.replace(remote, num_workers=there)
    return lit_loader.DataLoader(dataset, num_workers=here, remote=remote, **options)


def epochs(dataset: Any, **options: Any) -> Iterator[list[Any]]:
    """What each epoch holds, made in this process."""
    loader = loader_of(dataset, **options)
    while True:
        yield [plain(batch) for batch in loader]


def compare_until(
    happened: Callable[[], bool], loader: Any, dataset: Any, **options: Any
) -> list[str]:
    """Compare epochs, until in one something has happened; returns the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # One that comes again would draw otherwise.
        begun = getattr(loader, "_loader", loader).state_dict()["epoch"]
        for expected in itertools.islice(epochs(dataset, **options), begun, None):
            assert [plain(batch) for batch in loader] == expected
            if happened():
                break
    return [f"{type(each.message).__name__}: {each.message}" for each in caught]


def told(text: str, loader: Any, dataset: Any) -> list[str]:
    """Compare epochs, until something is told of; returns the warnings till then."""
    warned: list[str] = []
    while not any(text in each for each in warned):
        warned += compare_until(lambda: True, loader, dataset)
    return warned


class Calm(Drawn):
    """Leaves processors to nodes that are starting; an epoch takes a second."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(0.01)
        return super().__getitem__(index)
