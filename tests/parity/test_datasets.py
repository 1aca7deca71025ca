"""What may be a dataset: torch's own wrappers, plain Python and NumPy objects, and streams."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ChainDataset,
    ConcatDataset,
    StackDataset,
    Subset,
    TensorDataset,
)

from .datasets import (
    Interval,
    Shares,
    SizedStream,
    Stream,
    split_interval,
)
from .tools import flat, lists


@pytest.mark.parametrize(
    "dataset",
    [
        [0, 1, 2, 3, 4],
        (0, 1, 2, 3, 4),
        range(5),
        {0: 0, 1: 1, 2: 2, 3: 3, 4: 4},
        np.arange(5),
        torch.arange(5),
        Subset(range(10), [0, 1, 2, 3, 4]),
        ConcatDataset([range(2), range(2, 5)]),
        bytes(range(5)),
    ],
    ids=["list", "tuple", "range", "dict", "ndarray", "tensor", "Subset", "Concat", "bytes"],
)
def test_map_style(loader_class, num_workers, dataset):
    loader = loader_class(dataset, batch_size=2, num_workers=num_workers)
    assert lists(loader) == [[0, 1], [2, 3], [4]]
    assert loader.dataset is dataset
    assert len(loader) == 3


def test_text_is_a_dataset_of_letters(loader_class, num_workers):
    assert list(loader_class("hello", batch_size=2, num_workers=num_workers)) == [
        ["h", "e"],
        ["l", "l"],
        ["o"],
    ]


def test_tensor_dataset(loader_class, num_workers):
    data, target = torch.randn(10, 3), torch.arange(10)
    loader = loader_class(TensorDataset(data, target), batch_size=4, num_workers=num_workers)
    batches = list(loader)
    assert all(isinstance(batch, list) for batch in batches)
    assert torch.equal(torch.cat([x for x, _ in batches]), data)
    assert torch.equal(torch.cat([y for _, y in batches]), target)


def test_stack_dataset(loader_class, num_workers):
    dataset = StackDataset(image=torch.arange(4.0), text=["a", "b", "c", "d"])
    batches = list(loader_class(dataset, batch_size=2, num_workers=num_workers))
    assert [batch["text"] for batch in batches] == [["a", "b"], ["c", "d"]]
    assert [batch["image"].tolist() for batch in batches] == [[0, 1], [2, 3]]


def test_subset_of_tensors_by_many_indices(loader_class, num_workers):
    dataset = Subset(TensorDataset(torch.arange(10)), [9, 7, 5, 3])
    batches = list(loader_class(dataset, batch_size=3, num_workers=num_workers))
    assert [batch[0].tolist() for batch in batches] == [[9, 7, 5], [3]]


def test_chain_dataset(loader_class):
    chain = ChainDataset([SizedStream(3), SizedStream(2)])
    loader = loader_class(chain, batch_size=2)
    assert lists(loader) == [[0, 1], [2, 0], [1]]
    assert len(loader) == 3


# --- iterable-style ---------------------------------------------------------------------------


def test_streams_are_converted_without_batching(loader_class, num_workers):
    loader = loader_class(Stream(3), batch_size=None, num_workers=num_workers)
    values = list(loader)
    assert sorted(values) == sorted([0, 1, 2] * max(num_workers, 1))
    assert all(type(value) is int for value in values)


def test_every_worker_iterates_its_own_copy(loader_class):
    assert flat(loader_class(Stream(3), num_workers=2)) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        (([0, 1, 2], [10, 11, 12]), [0, 10, 1, 11, 2, 12]),
        (([0, 1, 2], [10]), [0, 10, 1, 2]),
        (([0], [10, 11, 12, 13, 14]), [0, 10, 11, 12, 13, 14]),
        (([], [10, 11, 12]), [10, 11, 12]),
        (([0, 1, 2], []), [0, 1, 2]),
        (([], []), []),
        (([0, 1], [10], [20, 21, 22, 23]), [0, 10, 20, 1, 21, 22, 23]),
        (([], [10], []), [10]),
    ],
)
@pytest.mark.parametrize("prefetch_factor", [1, 2, 5])
def test_workers_take_turns(loader_class, shares, expected, prefetch_factor):
    loader = loader_class(Shares(*shares), num_workers=len(shares), prefetch_factor=prefetch_factor)
    assert flat(loader) == expected


@pytest.mark.parametrize(
    ("drop_last", "expected"),
    [
        (False, [[0, 1], [10, 11], [2, 3], [12], [4]]),
        (True, [[0, 1], [10, 11], [2, 3]]),
    ],
)
def test_batches_are_made_within_a_worker(loader_class, drop_last, expected):
    dataset = Shares(range(5), range(10, 13))
    loader = loader_class(dataset, batch_size=2, drop_last=drop_last, num_workers=2)
    assert lists(loader) == expected
    assert lists(loader) == expected


def test_sharding_by_worker_init_fn(loader_class):
    loader = loader_class(Interval(3, 10), num_workers=2, worker_init_fn=split_interval)
    assert flat(loader) == [3, 7, 4, 8, 5, 9, 6]
    many = loader_class(Interval(3, 5), num_workers=3, worker_init_fn=split_interval)
    assert flat(many) == [3, 4]
    assert flat(loader_class(Interval(3, 7))) == [3, 4, 5, 6]


@pytest.mark.parametrize("persistent", [False, True])
def test_each_epoch_iterates_the_stream_anew(loader_class, persistent):
    loader = loader_class(
        Shares([0, 1], [10, 11, 12]), num_workers=2, persistent_workers=persistent
    )
    for _ in range(3):
        assert flat(loader) == [0, 10, 1, 11, 12]


def test_an_endless_stream(loader_class, num_workers):
    loader = loader_class(Stream(2**60), batch_size=4, num_workers=num_workers)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("in_order", [False, True])
def test_all_of_a_stream_comes_in_any_order(loader_class, in_order):
    loader = loader_class(
        Shares(range(7), range(10, 12)), batch_size=2, num_workers=2, in_order=in_order
    )
    assert sorted(flat(loader)) == [*range(7), 10, 11]


@pytest.mark.ours_only
def test_a_whole_dataset_can_be_held(loader_class):
    """More batches than a process may have files open: torch keeps one open for every tensor."""
    batches = list(loader_class(range(6000), batch_size=2, num_workers=2))
    assert flat(batches) == list(range(6000))
