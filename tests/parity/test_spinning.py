"""A resume as Composer has it: one batch of each epoch before, then the epoch up to the place."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import DataLoader as TorchLoader

from lit_loader import DataLoader

LENGTH, EPOCH, BATCH, EPOCHS = 24, 2, 3, 4
DATA = range(LENGTH)


class OneByOne(Sampler[int]):
    """Draws an index when it is asked for it."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        for _ in DATA:
            yield int(torch.randint(LENGTH, (1,), generator=self.generator))


class AtOnce(OneByOne):
    """Draws the order when it is iterated."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(LENGTH, generator=self.generator).tolist())


SAMPLERS: dict[str, Callable[[Any], Any]] = {
    "random": lambda generator: RandomSampler(DATA, generator=generator),
    "with replacement": lambda generator: RandomSampler(DATA, True, LENGTH, generator),
    "weighted": lambda generator: WeightedRandomSampler([1.0] * LENGTH, LENGTH, True, generator),
    "subset": lambda generator: SubsetRandomSampler(DATA, generator),
    "one by one": OneByOne,
    "at once": AtOnce,
    "batches": lambda generator: BatchSampler(RandomSampler(DATA, generator=generator), 4, False),
    "distributed": lambda _: DistributedSampler(DATA, 2, 1, shuffle=True),
}


def resumed(base: Any, kind: str) -> list[list[int]]:
    sampler = SAMPLERS[kind](torch.Generator().manual_seed(5))
    batched = {"batch_sampler": sampler} if kind == "batches" else {"sampler": sampler}
    loader = base(DATA, **batched) if kind == "batches" else base(DATA, 4, **batched)
    told = getattr(sampler, "set_epoch", lambda epoch: None)
    for epoch in range(EPOCH):
        told(epoch)
        for _ in loader:
            break
    seen = []
    for epoch in range(EPOCH, EPOCHS):
        told(epoch)
        batches = [batch.tolist() for batch in loader]
        seen += batches[BATCH:] if epoch == EPOCH else batches
    return seen


@pytest.mark.parametrize("kind", SAMPLERS)
def test_one_batch_of_each_epoch_before(kind: str) -> None:
    assert resumed(DataLoader, kind) == resumed(TorchLoader, kind)
