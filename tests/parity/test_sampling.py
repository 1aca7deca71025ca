"""Which samples come, in which batches: samplers, batch samplers, and what an index may be."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from .datasets import (
    Call,
    CountingSampler,
    GetItemSampler,
    Many,
    NoLength,
    ReversedBatches,
    Squares,
)
from .tools import as_is, flat, lists


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, 5, 7, 11])
def test_batches_of_a_size(loader_class, num_workers, batch_size, drop_last):
    loader = loader_class(
        range(10), batch_size=batch_size, drop_last=drop_last, num_workers=num_workers
    )
    expected = [list(range(10))[i : i + batch_size] for i in range(0, 10, batch_size)]
    if drop_last and len(expected[-1]) < batch_size:
        expected.pop()
    assert lists(loader) == expected
    assert lists(loader) == expected


def test_shuffle_gives_each_sample_once_and_a_new_order_every_epoch(loader_class, num_workers):
    loader = loader_class(range(50), batch_size=8, shuffle=True, num_workers=num_workers)
    first, second = flat(loader), flat(loader)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != list(range(50))
    assert first != second


@pytest.mark.parametrize(
    "make",
    [
        lambda data: SequentialSampler(data),
        lambda data: RandomSampler(data, generator=seeded()),
        lambda data: RandomSampler(data, replacement=True, num_samples=25, generator=seeded()),
        lambda data: RandomSampler(data, num_samples=25, generator=seeded()),
        lambda data: RandomSampler(data, num_samples=4, generator=seeded()),
        lambda data: SubsetRandomSampler([1, 5, 9], generator=seeded()),
        lambda data: WeightedRandomSampler([0.5] * 10, 15, generator=seeded()),
        lambda data: WeightedRandomSampler([0.5] * 10, 6, False, generator=seeded()),
        lambda data: DistributedSampler(data, num_replicas=3, rank=1, shuffle=True, seed=3),
        lambda data: DistributedSampler(data, num_replicas=3, rank=2, shuffle=False),
        lambda data: DistributedSampler(data, num_replicas=3, rank=2, drop_last=True),
    ],
    ids=lambda make: None,
)
def test_torchs_samplers(loader_class, num_workers, make):
    data = Squares(10)
    expected = [index * index for index in make(data)]
    loader = loader_class(data, batch_size=4, sampler=make(data), num_workers=num_workers)
    batches = lists(loader)
    assert flat(batches) == expected
    assert [len(batch) for batch in batches[:-1]] == [4] * (len(batches) - 1)
    assert len(loader) == len(batches)


def test_set_epoch_of_a_distributed_sampler(loader_class):
    sampler = DistributedSampler(range(20), num_replicas=2, rank=0, seed=1)
    loader = loader_class(range(20), batch_size=5, sampler=sampler)
    orders = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        orders.append(flat(loader))
        assert orders[-1] == list(sampler)
    assert orders[0] != orders[1] != orders[2]


def test_two_ranks_cover_the_dataset(loader_class):
    seen = []
    for rank in range(2):
        sampler = DistributedSampler(range(11), num_replicas=2, rank=rank)
        seen += flat(loader_class(range(11), batch_size=3, sampler=sampler))
    assert set(seen) == set(range(11))
    assert len(seen) == 12


@pytest.mark.parametrize(
    "sampler",
    [
        [3, 2, 1, 0],
        (3, 2, 1, 0),
        range(3, -1, -1),
        np.array([3, 2, 1, 0]),
        torch.tensor([3, 2, 1, 0]),
        {3: "a", 2: "b", 1: "c", 0: "d"},
        GetItemSampler(),
    ],
    ids=["list", "tuple", "range", "ndarray", "tensor", "dict", "getitem"],
)
def test_any_iterable_is_a_sampler(loader_class, num_workers, sampler):
    loader = loader_class(Squares(4), sampler=sampler, batch_size=3, num_workers=num_workers)
    assert lists(loader) == [[9, 4, 1], [0]]
    assert lists(loader) == [[9, 4, 1], [0]]
    assert len(loader) == 2


def test_a_generator_as_sampler_lasts_one_epoch(loader_class, num_workers):
    sampler = (index for index in [4, 0, 2])
    loader = loader_class(Squares(), sampler=sampler, batch_size=2, num_workers=num_workers)
    assert lists(loader) == [[16, 0], [4]]
    assert lists(loader) == []


@pytest.mark.parametrize(
    "batch_sampler",
    [
        [[1, 0], [3, 2], [5, 4]],
        ((1, 0), (3, 2), (5, 4)),
        np.array([[1, 0], [3, 2], [5, 4]]),
        torch.tensor([[1, 0], [3, 2], [5, 4]]),
        BatchSampler([1, 0, 3, 2, 5, 4], 2, False),
        ReversedBatches(6),
    ],
    ids=["lists", "tuples", "ndarray", "tensor", "BatchSampler", "iterable"],
)
def test_batch_samplers(loader_class, num_workers, batch_sampler):
    loader = loader_class(Squares(6), batch_sampler=batch_sampler, num_workers=num_workers)
    for _ in range(2):
        assert lists(loader) == [[1, 0], [9, 4], [25, 16]]
    assert len(loader) == 3


def test_a_generator_as_batch_sampler_lasts_one_epoch(loader_class, num_workers):
    batches = ([index] * index for index in [1, 3])
    loader = loader_class(Squares(), batch_sampler=batches, num_workers=num_workers)
    assert lists(loader) == [[1], [9, 9, 9]]
    assert lists(loader) == []


def test_a_batch_sampler_whose_yielded_list_is_reused(loader_class, num_workers):
    def batches():
        batch = []
        for start in range(0, 6, 2):
            batch[:] = [start, start + 1]
            yield batch

    # In-process loading asks for a batch only when it is wanted, so both hold for torch; with
    # workers torch may pickle the list late, in its feeder thread, so only ours promises this.
    if num_workers and loader_class is torch.utils.data.DataLoader:
        pytest.skip("torch's queue pickles the list later, in a thread")
    loader = loader_class(range(6), batch_sampler=batches(), num_workers=num_workers)
    assert lists(loader) == [[0, 1], [2, 3], [4, 5]]


def test_an_empty_batch_goes_to_the_collate_fn(loader_class, num_workers):
    loader = loader_class(
        range(10), batch_sampler=[[1], [], [2]], collate_fn=as_is, num_workers=num_workers
    )
    assert list(loader) == [[1], [], [2]]


def test_getitems_fetches_a_batch_at_once(loader_class, num_workers):
    loader = loader_class(Many(5), batch_size=3, collate_fn=as_is, num_workers=num_workers)
    assert list(loader) == [[(0, "list"), (1, "list"), (2, "list")], [(3, "list"), (4, "list")]]


@pytest.mark.parametrize("kind", [list, tuple])
def test_getitems_gets_what_the_batch_sampler_gave(loader_class, num_workers, kind):
    sampler = ReversedBatches(4, kind)
    loader = loader_class(Many(4), batch_sampler=sampler, collate_fn=as_is, num_workers=num_workers)
    name = kind.__name__
    assert list(loader) == [[(1, name), (0, name)], [(3, name), (2, name)]]


def test_getitems_may_return_something_else_than_a_list(loader_class, num_workers):
    dataset = Squares(6)
    dataset.__getitems__ = lambda indices: np.asarray(indices) * 10
    loader = loader_class(
        dataset, batch_size=4, collate_fn=torch.as_tensor, num_workers=num_workers
    )
    assert lists(loader) == [[0, 10, 20, 30], [40, 50]]


def test_getitems_is_not_used_without_batching(loader_class, num_workers):
    dataset = Squares(3)
    dataset.__getitems__ = lambda indices: pytest.fail("not for single samples")
    assert list(loader_class(dataset, batch_size=None, num_workers=num_workers)) == [0, 1, 4]


def test_getitems_set_to_none_is_ignored(loader_class):
    dataset = Squares(3)
    dataset.__getitems__ = None
    assert flat(loader_class(dataset, batch_size=2)) == [0, 1, 4]


def test_a_list_index_passes_through_without_batching(loader_class, num_workers):
    data = np.arange(100).reshape(10, 10)
    sampler = BatchSampler(SequentialSampler(data), batch_size=4, drop_last=False)
    loader = loader_class(data, batch_size=None, sampler=sampler, num_workers=num_workers)
    batches = list(loader)
    assert [tuple(batch.shape) for batch in batches] == [(4, 10), (4, 10), (2, 10)]
    assert torch.equal(torch.cat(batches), torch.from_numpy(data))
    assert len(loader) == 3


KEYS = [
    0,
    -1,
    2**40,
    -(2**63) - 1,
    2**70,
    True,
    None,
    1.5,
    "name",
    b"name",
    "",
    (1, 2),
    (3, "deep", (4.0,)),
    frozenset({1}),
    slice(1, 9, 2),
    Ellipsis,
]


def describe_key(key):
    return type(key).__name__, repr(key)


@pytest.mark.parametrize("batch_size", [None, 3])
def test_any_key_is_an_index(loader_class, num_workers, batch_size):
    loader = loader_class(
        Call(describe_key),
        sampler=KEYS,
        batch_size=batch_size,
        collate_fn=as_is,
        num_workers=num_workers,
    )
    expected = [describe_key(key) for key in KEYS]
    batches = list(loader)
    assert (batches if batch_size is None else flat(batches)) == expected


@pytest.mark.parametrize(
    "key",
    [np.int64(3), np.int32(3), np.bool_(True), torch.tensor(3), np.array([1, 2]), [1, [2, 3]]],
    ids=["int64", "int32", "bool", "tensor", "ndarray", "list"],
)
def test_an_index_keeps_its_type(loader_class, num_workers, key):
    loader = loader_class(
        Call(describe_key), sampler=[key, key], batch_size=2, num_workers=num_workers,
        collate_fn=as_is,
    )  # fmt: skip
    assert list(loader) == [[describe_key(key)] * 2]


def test_a_dataset_without_length_needs_only_a_sampler(loader_class, num_workers):
    loader = loader_class(NoLength(), sampler=[4, 1], num_workers=num_workers)
    assert flat(loader) == [104, 101]


def test_an_endless_sampler_is_drawn_lazily(loader_class, num_workers):
    loader = loader_class(
        Squares(10), sampler=itertools.cycle([1, 2]), batch_size=2, num_workers=num_workers
    )
    assert lists(itertools.islice(loader, 5)) == [[1, 4]] * 5


def test_samplers_run_in_the_parent_only(loader_class, num_workers):
    sampler = CountingSampler(6)
    loader = loader_class(Squares(6), sampler=sampler, num_workers=num_workers)
    assert flat(loader) == [0, 1, 4, 9, 16, 25]
    assert (sampler.drawn, sampler.pids) == (6, {os.getpid()})


@pytest.mark.parametrize(("num_workers", "prefetch_factor"), [(1, 1), (1, 3), (2, 2)])
def test_prefetching_is_bounded(loader_class, num_workers, prefetch_factor):
    sampler = CountingSampler(100)
    loader = loader_class(
        Squares(100), sampler=sampler, num_workers=num_workers, prefetch_factor=prefetch_factor
    )
    iterator = iter(loader)
    bound = num_workers * prefetch_factor
    for taken in range(1, 6):
        next(iterator)
        assert taken <= sampler.drawn <= taken + bound
    assert sampler.drawn > 5, "nothing is prefetched"


def test_nothing_is_drawn_ahead_without_workers(loader_class):
    sampler = CountingSampler(100)
    iterator = iter(loader_class(Squares(100), sampler=sampler, batch_size=4))
    next(iterator)
    assert sampler.drawn == 4
