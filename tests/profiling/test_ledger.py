"""Batches looked up by their numbers: which samples they hold, and states that lead there."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler, IterableDataset, WeightedRandomSampler

from lit_loader import (
    BalancedBatchSampler,
    DataLoader,
    MixtureDataset,
    MixtureSampler,
    PackingBatchSampler,
    TokenBudgetBatchSampler,
)
from tests.support.exact import through_file
from tests.support.samples import Call
from tests.support.tools import refused

LENGTH = 61
LENGTHS = [1 + 7 * index % 40 for index in range(LENGTH)]
MIXTURE = MixtureDataset([range(20), range(20, LENGTH)], [(0, [1, 3]), (50, [2, 1])])

ORDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "order": lambda: {"batch_size": 4},
    "shuffle": lambda: {"batch_size": 4, "shuffle": True},
    "shuffle, drop_last": lambda: {"batch_size": 4, "shuffle": True, "drop_last": True},
    "single": lambda: {"batch_size": None, "shuffle": True},
    "mixture": lambda: {"batch_size": 4, "sampler": MixtureSampler(MIXTURE, seed=1)},
    "balanced": lambda: {"batch_sampler": BalancedBatchSampler(LENGTHS, 3, 4)},
    "packed": lambda: {"batch_sampler": PackingBatchSampler(LENGTHS, 60, num_replicas=2)},
    "tokens": lambda: {"batch_sampler": TokenBudgetBatchSampler(LENGTHS, 99, num_replicas=2)},
}


def loader(order: str, **options: Any) -> DataLoader[Any]:
    return DataLoader(Call(int, LENGTH), **{"seed": 5, **ORDERS[order](), **options})


def indices(batch: Any) -> Any:
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


@pytest.mark.parametrize("rank", [None, 1])
@pytest.mark.parametrize("order", ORDERS)
def test_what_is_said_is_what_comes(order: str, rank: int | None) -> None:
    ranks = {} if rank is None else {"num_replicas": 2, "rank": rank}
    asked, read = loader(order, **ranks), loader(order, **ranks)
    for epoch in range(2):
        if rank is not None:
            read.set_epoch(epoch)
        batches = [indices(batch) for batch in read]
        numbers = random.Random(epoch).sample(range(len(batches)), len(batches))
        assert [asked.indices_of(epoch, n) for n in numbers] == [batches[n] for n in numbers]
        with pytest.raises(IndexError, match=f"epoch {epoch} has {len(batches)} batches"):
            asked.indices_of(epoch, len(batches))
        if rank is not None:
            other = loader(order, num_replicas=2, rank=1 - rank)
            assert [other.indices_of(epoch, n, rank=rank) for n in numbers] == [
                batches[n] for n in numbers
            ]


@pytest.mark.parametrize("order", ORDERS)
def test_asking_moves_nothing(order: str) -> None:
    plain, asked = loader(order), loader(order)
    expected = [indices(batch) for batch in plain]
    got = []
    for number, batch in enumerate(asked):
        assert asked.indices_of(3, 0) is not None
        assert asked.indices_of(0, number) == indices(batch)
        asked.state_at(2, 1)
        got.append(indices(batch))
    assert got == expected
    assert asked.state_dict() == plain.state_dict()


@pytest.mark.parametrize(
    ("order", "workers"), [("shuffle", 2), ("mixture", 0), ("balanced", 0), ("packed", 0)]
)
def test_a_state_leads_there(order: str, workers: int) -> None:
    read = loader(order)
    epochs = [[indices(batch) for batch in read] for _ in range(3)]
    for epoch, number in ((0, 0), (1, 3), (2, len(epochs[2]) - 1)):
        there = loader(order, num_workers=workers)
        there.load_state_dict(through_file(read.state_at(epoch, number)))
        assert [indices(batch) for batch in there] == epochs[epoch][number:]
    begun = loader(order)
    batches = iter(begun)
    taken = [indices(batch) for batch in itertools.islice(batches, 5)]
    assert begun.state_dict() == begun.state_at(0, 5)
    del batches  # which was in use
    begun.load_state_dict(begun.state_at(0, 2))  # back
    assert [indices(batch) for batch in begun] == epochs[0][2:]
    assert taken == epochs[0][:5]


def test_ranks_have_the_same_states() -> None:
    states = [loader("shuffle", num_replicas=2, rank=rank).state_at(1, 4) for rank in range(2)]
    assert states[0] == states[1]


def test_torchs_distributed_sampler() -> None:
    sampler = DistributedSampler(range(LENGTH), num_replicas=2, rank=1, seed=3)
    data = DataLoader(Call(int, LENGTH), 4, sampler=sampler)
    data.set_epoch(1)
    assert [data.indices_of(1, number) for number in range(8)] == [b.tolist() for b in data]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(5))


def test_what_is_not_computed_is_refused() -> None:
    drawn = WeightedRandomSampler(np.ones(9).tolist(), 9)
    for made, why in (
        (DataLoader(Stream()), "Stream is an IterableDataset, whose samples come as it gives them"),
        (DataLoader(range(9), sampler=drawn), "WeightedRandomSampler is iterated, so that a batch"),
    ):
        for ask in (made.indices_of, made.state_at):
            with pytest.raises(TypeError, match=why):
                ask(0, 0)
    data = loader("shuffle")
    assert "rank must be a whole number of at least 0 and below 1, got rank=1" in refused(
        lambda: data.indices_of(0, 0, rank=1)
    )
    assert "batch must be a whole number of at least 0 and below 17" in refused(
        lambda: data.state_at(0, 17)
    )


def test_an_epoch_is_counted_from_0() -> None:
    made = loader("shuffle")
    for ask in (made.indices_of, made.state_at):
        assert "epoch must be a whole number of at least 0" in refused(lambda ask=ask: ask(-1, 0))  # type: ignore[misc]
