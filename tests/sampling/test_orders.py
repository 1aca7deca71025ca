"""The loader's own orders, and the arithmetic of sharing a stream among ranks."""

from __future__ import annotations

import itertools
import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import RandomSampler, SequentialSampler

from lit_loader.errors import OptionError
from lit_loader.sampling.orders import CHUNK, OrderedSampler, ShuffledSampler
from lit_loader.sampling.permutation import Permutation
from lit_loader.sampling.shard import Shard
from lit_loader.seeding.seeds import derive

TAILS = ["pad", "drop", "keep"]


# ------------------------------------------------------------------------------------- samplers


def test_samplers_are_torchs_classes_as_far_as_a_caller_can_see() -> None:
    data, generator = list(range(10)), torch.Generator()
    ordered, shuffled = OrderedSampler(data), ShuffledSampler(data, generator)
    assert isinstance(ordered, SequentialSampler)
    assert isinstance(shuffled, RandomSampler)
    assert ordered.data_source is shuffled.data_source is data
    assert shuffled.replacement is False
    assert shuffled.num_samples == len(shuffled) == len(ordered) == 10
    assert shuffled.generator is generator
    assert ShuffledSampler(data).generator is None


def test_an_empty_dataset_is_treated_as_torch_treats_it() -> None:
    assert list(OrderedSampler([])) == []
    try:
        RandomSampler([])
    except ValueError as error:
        with pytest.raises(ValueError, match=str(error)):
            ShuffledSampler([])
    else:
        assert list(ShuffledSampler([])) == []


def test_orders() -> None:
    length = 2 * CHUNK + 5
    assert list(OrderedSampler(range(length))) == list(range(length))
    shuffled = ShuffledSampler(range(length), seed=7)
    order = list(shuffled)
    assert order == Permutation(length, derive(7, 0)).take(0, length).tolist()
    assert all(type(index) is int for index in order[:3])
    shuffled.set_epoch(1)
    assert list(shuffled) == Permutation(length, derive(7, 1)).take(0, length).tolist()


def test_orders_change_with_seed_and_epoch_alone() -> None:
    first, second = ShuffledSampler(range(50), seed=1), ShuffledSampler(range(50), seed=1)
    assert list(first) == list(first) == list(second)
    orders = set()
    for seed, epoch in itertools.product(range(5), range(5)):
        sampler = ShuffledSampler(range(50), seed=seed)
        sampler.set_epoch(epoch)
        orders.add(tuple(sampler))
    assert len(orders) == 25


def test_a_seed_may_be_a_function() -> None:
    seed = 1
    sampler = ShuffledSampler(range(50), seed=lambda: seed)
    first = list(sampler)
    seed = 2
    assert list(sampler) != first
    assert list(sampler) == list(ShuffledSampler(range(50), seed=2))


@pytest.mark.parametrize("kind", [OrderedSampler, ShuffledSampler])
def test_nothing_is_drawn(kind: Any) -> None:
    generator = torch.Generator()
    states = torch.get_rng_state(), generator.get_state()
    python, numpy_key = random.getstate(), np.random.get_state()[1].copy()
    sampler = kind(range(100)) if kind is OrderedSampler else kind(range(100), generator)
    list(sampler)
    sampler.indices(3, 5, 50)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(generator.get_state(), states[1])
    assert random.getstate() == python
    assert np.array_equal(np.random.get_state()[1], numpy_key)


@pytest.mark.parametrize("kind", [OrderedSampler, ShuffledSampler])
def test_indices_by_position(kind: Any) -> None:
    sampler = kind(range(3000))
    sampler.set_epoch(4)
    order = list(sampler)
    part = sampler.indices(4, 100, 200)
    assert part.dtype == np.int64
    assert part.tolist() == order[100:200]
    assert sampler.indices(4, 2990, 4000).tolist() == order[2990:]
    assert sampler.indices(4, 5000, 6000).tolist() == []


@pytest.mark.parametrize("kind", [OrderedSampler, ShuffledSampler])
def test_samplers_follow_a_dataset_that_grows(kind: Any) -> None:
    data = [0]
    sampler = kind(data)
    data += range(1, 30)
    assert len(sampler) == 30
    assert sorted(sampler) == data
    assert sampler.indices(0, 0, 100).size == 30


@pytest.mark.parametrize("kind", [OrderedSampler, ShuffledSampler])
def test_samplers_can_be_pickled(kind: Any) -> None:
    sampler = kind(list(range(30)))
    sampler.set_epoch(3)
    assert list(pickle.loads(pickle.dumps(sampler))) == list(sampler)


# ------------------------------------------------------------------------------------- sharding

lengths, replicas, tails = st.integers(0, 200), st.integers(1, 9), st.sampled_from(TAILS)


def shares(length: int, num_replicas: int, tail: Any) -> list[list[int]]:
    """Give each rank's positions."""
    shards = [Shard(rank, num_replicas, tail) for rank in range(num_replicas)]
    return [s.positions(0, s.share(length), length).tolist() for s in shards]


def striped(ranks: list[list[int]]) -> list[int]:
    """Put the ranks' items together again: one of each rank in turn."""
    rows = itertools.zip_longest(*ranks)
    return [item for row in rows for item in row if item is not None]


@given(lengths, replicas)
def test_keep_gives_each_item_once(length: int, num_replicas: int) -> None:
    ranks = shares(length, num_replicas, "keep")
    assert striped(ranks) == list(range(length))
    counts = [len(rank) for rank in ranks]
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)


@given(lengths, replicas)
def test_drop_leaves_the_remainder_off(length: int, num_replicas: int) -> None:
    ranks = shares(length, num_replicas, "drop")
    assert striped(ranks) == list(range(length - length % num_replicas))
    assert len({len(rank) for rank in ranks}) == 1


@given(lengths, replicas)
def test_pad_goes_on_at_the_start(length: int, num_replicas: int) -> None:
    ranks = shares(length, num_replicas, "pad")
    assert len({len(rank) for rank in ranks}) == 1
    stream = striped(ranks)
    assert length <= len(stream) < length + num_replicas
    assert stream == list(itertools.islice(itertools.cycle(range(length)), len(stream)))


@given(lengths, replicas, tails, st.data())
def test_a_part_of_a_share(length: int, num_replicas: int, tail: Any, data: st.DataObject) -> None:
    shard = Shard(data.draw(st.integers(0, num_replicas - 1)), num_replicas, tail)
    share = shard.share(length)
    start = data.draw(st.integers(0, share))
    stop = data.draw(st.integers(start, share))
    whole = shard.positions(0, share, length)
    assert whole.dtype == np.int64
    assert np.array_equal(shard.positions(start, stop, length), whole[start:stop])


@given(lengths, replicas, tails, st.integers(1, 5))
def test_dealing_a_stream_in_parts_is_the_same(
    length: int, num_replicas: int, tail: Any, batch_size: int
) -> None:
    """A stream whose length is not known must be shared out like one whose length is."""
    stream = list(range(length))
    group = batch_size * num_replicas
    for rank, expected in enumerate(shares(length, num_replicas, tail)):
        shard = Shard(rank, num_replicas, tail)
        head = stream[: num_replicas - 1]
        parts = [stream[first : first + group] for first in range(0, length, group)]
        assert [item for part in parts for item in shard.deal(part, head)] == expected


@given(lengths, replicas, tails)
def test_counts_agree_with_positions(length: int, num_replicas: int, tail: Any) -> None:
    ranks = shares(length, num_replicas, tail)
    assert Shard(0, num_replicas, tail).assigned(length) == sum(map(len, ranks))


@pytest.mark.parametrize(("rank", "num_replicas"), [(-1, 2), (2, 2), (0, 0)])
def test_ranks_out_of_range_are_refused(rank: int, num_replicas: int) -> None:
    expected = (
        "^rank must be at least 0 and less than num_replicas, "
        f"got rank={rank} and num_replicas={num_replicas}$"
    )
    with pytest.raises(OptionError, match=expected):
        Shard(rank, num_replicas)


def test_unknown_tails_are_refused() -> None:
    with pytest.raises(
        OptionError, match="^shard_tail must be one of 'pad', 'drop', 'keep', got shard_tail='cut'"
    ):
        Shard(tail="cut")  # type: ignore[arg-type]
