"""Which batches come of which dataset and options, in what order, and how many are promised."""

import os
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from tests.support.datasets import (
    Call,
    CountingSampler,
    Many,
    NoLength,
    ReversedBatches,
    Shares,
    SizedStream,
    Squares,
    Stream,
)
from tests.support.samples import uncollated as as_is
from tests.support.tools import flat, is_oracle, lists

# What lit_loader says of streams that are empty, or shorter than their length; torch says nothing.
pytestmark = pytest.mark.filterwarnings("ignore:.*(yielded no batch|epoch ended after)")


class GetItemSampler:
    """Iterable through ``__getitem__`` alone, the old way."""

    def __getitem__(self, position: int) -> int:
        return [3, 2, 1, 0][position]

    def __len__(self) -> int:
        return 4


class Case(NamedTuple):
    """What a loader gives; dataset and options may be made anew for each loader by a function."""

    dataset: Any
    options: Any
    batches: list[Any]
    second: list[Any] | None = None  # batches of the second epoch, if they are others


def with_getitems(length: int, getitems: Any) -> Squares:
    dataset = Squares(length)
    dataset.__getitems__ = getitems
    return dataset


def refilled() -> Any:
    """One list, that is filled for each batch."""
    batch: list[int] = []
    for start in range(0, 6, 2):
        batch[:] = [start, start + 1]
        yield batch


FIVE = [[0, 1], [2, 3], [4]]
PAIRS = [[1, 0], [3, 2], [5, 4]]
GRID = np.arange(60).reshape(6, 10)
CASES = {
    # datasets
    **{
        type(data).__name__: Case(data, {"batch_size": 2}, FIVE)
        for data in (
            *([0, 1, 2, 3, 4], (0, 1, 2, 3, 4), range(5), {0: 0, 1: 1, 2: 2, 3: 3, 4: 4}),
            *(np.arange(5), torch.arange(5), bytes(range(5)), Subset(range(10), [0, 1, 2, 3, 4])),
            ConcatDataset([range(2), range(2, 5)]),
        )
    },
    "text": Case("hello", {"batch_size": 2}, [["h", "e"], ["l", "l"], ["o"]]),
    "TensorDataset": Case(
        TensorDataset(torch.arange(3.0), torch.arange(6).view(3, 2)),
        {"batch_size": 2},
        [[[0, 1], [[0, 1], [2, 3]]], [[2], [[4, 5]]]],
    ),
    "StackDataset": Case(
        StackDataset(image=torch.arange(3.0), text=["a", "b", "c"]),
        {"batch_size": 2},
        [{"image": [0, 1], "text": ["a", "b"]}, {"image": [2], "text": ["c"]}],
    ),
    "Subset of tensors": Case(
        Subset(TensorDataset(torch.arange(10)), [9, 7, 5, 3]), {"batch_size": 3},
        [[[9, 7, 5]], [[3]]],
    ),
    "empty": Case([], {}, []),
    "empty, not batched": Case([], {"batch_size": None}, []),
    # sizes
    **{
        f"batches of {size}{', drop_last' * drop_last}": Case(
            range(10), {"batch_size": size, "drop_last": drop_last},
            [
                [*range(start, min(10, start + size))] for start in range(0, 10, size)
                if not drop_last or start + size <= 10
            ],
        )
        for size in (1, 3, 5, 7, 11)
        for drop_last in (False, True)
    },
    "not batched": Case(Squares(4), {"batch_size": None}, [0, 1, 4, 9]),
    # samplers
    **{
        f"sampler, {name}": Case(Squares(4), {"sampler": made, "batch_size": 3}, [[9, 4, 1], [0]])
        for name, made in {
            "list": [3, 2, 1, 0], "tuple": (3, 2, 1, 0), "range": range(3, -1, -1),
            "ndarray": np.array([3, 2, 1, 0]), "tensor": torch.tensor([3, 2, 1, 0]),
            "dict": dict.fromkeys([3, 2, 1, 0]), "getitem": GetItemSampler(),
        }.items()
    },
    "sampler, generator": Case(
        Squares(), lambda: {"sampler": (index for index in [4, 0, 2]), "batch_size": 2},
        [[16, 0], [4]], [],
    ),
    "sampler, not batched": Case(Squares(), {"batch_size": None, "sampler": [1, 2]}, [1, 4]),
    "sampler and no length": Case(NoLength(), {"sampler": [4, 1]}, [[104], [101]]),
    **{
        f"batch sampler, {name}": Case(
            Squares(6), {"batch_sampler": made}, [[1, 0], [9, 4], [25, 16]]
        )
        for name, made in {
            "lists": PAIRS, "tuples": tuple(map(tuple, PAIRS)), "ndarray": np.array(PAIRS),
            "tensor": torch.tensor(PAIRS), "iterable": ReversedBatches(6),
            "BatchSampler": BatchSampler([1, 0, 3, 2, 5, 4], 2, False),
        }.items()
    },
    "batch sampler, generator": Case(
        Squares(), lambda: {"batch_sampler": ([index] * index for index in [1, 3])},
        [[1], [9, 9, 9]], [],
    ),
    "batch sampler, one list": Case(
        range(6), lambda: {"batch_sampler": refilled()}, [[0, 1], [2, 3], [4, 5]], [],
    ),
    "an empty batch": Case(
        range(10), {"batch_sampler": [[1], [], [2]], "collate_fn": as_is}, [[1], [], [2]]
    ),
    # __getitems__
    "getitems": Case(
        Many(5), {"batch_size": 3, "collate_fn": as_is},
        [[[i, "list"] for i in (0, 1, 2)], [[i, "list"] for i in (3, 4)]],
    ),
    **{
        f"getitems of a {kind.__name__}": Case(
            Many(4), {"batch_sampler": ReversedBatches(4, kind), "collate_fn": as_is},
            [[[i, kind.__name__] for i in pair] for pair in ((1, 0), (3, 2))],
        )
        for kind in (list, tuple)
    },
    "getitems of an array": Case(
        with_getitems(6, lambda indices: np.asarray(indices) * 10),
        {"batch_size": 4, "collate_fn": torch.as_tensor}, [[0, 10, 20, 30], [40, 50]],
    ),
    "getitems, not batched": Case(
        with_getitems(3, lambda indices: pytest.fail("not for single samples")),
        {"batch_size": None}, [0, 1, 4],
    ),
    "getitems is None": Case(with_getitems(3, None), {"batch_size": 2}, [[0, 1], [4]]),
    "lists as indices": Case(
        GRID, {"batch_size": None, "sampler": BatchSampler(SequentialSampler(GRID), 4, False)},
        [GRID[:4].tolist(), GRID[4:].tolist()],
    ),
}  # fmt: skip


def plain(value: Any) -> Any:
    """Tensors as numbers, containers as lists."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("name", CASES)
def test_map_style(loader_class, num_workers, name):
    dataset, options, first, second = CASES[name]
    # Torch's queue pickles the list later, in a thread.
    if name == "batch sampler, one list" and num_workers and is_oracle(loader_class):
        pytest.skip("torch's queue pickles the list later, in a thread")
    options = options() if callable(options) else options
    loader = loader_class(dataset, num_workers=num_workers, **options)
    assert loader.dataset is dataset
    if second is None:
        assert len(loader) == len(first)
    assert plain(list(loader)) == first
    assert plain(list(loader)) == (first if second is None else second)


# --- shuffled, and torch's samplers ---


def test_shuffle_gives_each_sample_once_and_a_new_order_every_epoch(loader_class, num_workers):
    loader = loader_class(range(50), batch_size=8, shuffle=True, num_workers=num_workers)
    first, second = flat(loader), flat(loader)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != list(range(50))
    assert first != second
    with pytest.raises(ValueError, match="num_samples"):
        loader_class([], shuffle=True)


def seeded() -> dict[str, Any]:
    return {"generator": torch.Generator().manual_seed(5)}


@pytest.mark.parametrize(
    "make",
    [
        lambda data: RandomSampler(data, **seeded()),
        lambda data: RandomSampler(data, replacement=True, num_samples=25, **seeded()),
        lambda data: RandomSampler(data, num_samples=25, **seeded()),
        lambda data: RandomSampler(data, num_samples=4, **seeded()),
        lambda data: SubsetRandomSampler([1, 5, 9], **seeded()),
        lambda data: WeightedRandomSampler([0.5] * 10, 15, **seeded()),
        lambda data: WeightedRandomSampler([0.5] * 10, 6, False, **seeded()),
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


# --- what an index may be ---

OF_LIBRARIES = [
    np.int64(3), np.int32(3), np.bool_(True), torch.tensor(3), np.array([1, 2]), [1, [2, 3]]
]  # fmt: skip
KEYS = [
    *(key for key in OF_LIBRARIES for _ in range(3)),  # a batch of each, too
    *(0, -1, 2**40, -(2**63) - 1, 2**70, True, None, 1.5, "name", b"name", "", (1, 2)),
    *((3, "deep", (4.0,)), frozenset({1}), slice(1, 9, 2), Ellipsis),
]


def describe_key(key):
    return type(key).__name__, repr(key)


@pytest.mark.parametrize("batch_size", [None, 3])
def test_any_key_is_an_index(loader_class, num_workers, batch_size):
    loader = loader_class(
        Call(describe_key), sampler=KEYS, batch_size=batch_size, collate_fn=as_is,
        num_workers=num_workers,
    )  # fmt: skip
    batches = list(loader)
    found = batches if batch_size is None else flat(batches)
    assert found == [describe_key(key) for key in KEYS]


# --- how samplers are drawn from ---


def test_samplers_run_in_the_parent_only(loader_class, num_workers):
    sampler = CountingSampler(6)
    loader = loader_class(Squares(6), sampler=sampler, num_workers=num_workers)
    assert flat(loader) == [0, 1, 4, 9, 16, 25]
    assert (sampler.drawn, sampler.pids) == (6, {os.getpid()})


@pytest.mark.parametrize(("num_workers", "prefetch_factor"), [(0, None), (1, 1), (1, 3), (2, 2)])
def test_prefetching_is_bounded(loader_class, num_workers, prefetch_factor):
    sampler = CountingSampler(100)
    loader = loader_class(
        Squares(100), sampler=sampler, num_workers=num_workers, prefetch_factor=prefetch_factor
    )
    iterator = iter(loader)
    bound = num_workers * (prefetch_factor or 0)
    for taken in range(1, 6):
        next(iterator)
        assert taken <= sampler.drawn <= taken + bound
    assert (sampler.drawn > 5) == bool(num_workers), "nothing is prefetched"


# --- lengths ---


@pytest.mark.parametrize(
    ("dataset", "options"),
    [(Stream(3), {}), (NoLength(), {}), (Squares(), {"sampler": iter([1, 2])})],
    ids=["stream", "map", "sampler"],
)
def test_what_has_no_length(loader_class, dataset, options):
    with pytest.raises(TypeError):
        len(loader_class(dataset, **options))


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_length_follows_a_dataset_that_grows(loader_class, num_workers, shuffle):
    data = [1, 2, 3]
    loader = loader_class(data, batch_size=2, num_workers=num_workers, shuffle=shuffle)
    for change in (
        lambda: None,
        lambda: data.extend([4, 5]),
        lambda: data.clear() or data.append(1),
    ):
        change()
        assert len(loader) == -(-len(data) // 2)
        assert sorted(flat(loader)) == data


def test_an_iterator_has_the_length_of_its_loader(loader_class):
    iterator = iter(loader_class(Squares(10), batch_size=4))
    assert len(iterator) == 3
    next(iterator)
    assert len(iterator) == 3


@pytest.mark.parametrize("batch_size", [1, None])
def test_a_broken_promise_warns(loader_class, num_workers, batch_size):
    dataset = SizedStream(6, promised=4)
    loader = loader_class(dataset, batch_size=batch_size, num_workers=num_workers)
    expected = [value for value in range(6) for _ in range(max(num_workers, 1))]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(promised|reported)")
        assert [int(value) for value in loader] == expected  # nobody has asked
        assert len(loader) == 4
        iterator = iter(loader)
        values = [int(next(iterator)) for _ in range(4)]
    with pytest.warns(UserWarning, match=r"(?i)len.*\b4\b|\b4\b.*len"):
        values += [int(value) for value in iterator]
    assert values == expected


def test_fewer_samples_than_promised_are_all_there(loader_class, num_workers):
    loader = loader_class(SizedStream(3, promised=20), num_workers=num_workers)
    assert len(loader) == 20
    assert len(list(loader)) == 3 * max(num_workers, 1)


# --- iterable datasets ---

STREAMS = {
    "batches": (lambda: SizedStream(10), {"batch_size": 3}, [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]),
    "drop_last": (
        lambda: SizedStream(10), {"batch_size": 3, "drop_last": True},
        [[0, 1, 2], [3, 4, 5], [6, 7, 8]],
    ),
    "not batched": (lambda: SizedStream(3), {"batch_size": None}, [0, 1, 2]),
    "empty": (lambda: SizedStream(0), {"batch_size": 2}, []),
    "Chain": (
        lambda: ChainDataset([SizedStream(3), SizedStream(2)]), {"batch_size": 2},
        [[0, 1], [2, 0], [1]],
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*(promised|Length of IterableDataset)")
@pytest.mark.parametrize("name", STREAMS)
def test_iterable_style(loader_class, num_workers, name):
    make, options, expected = STREAMS[name]
    loader = loader_class(make(), num_workers=num_workers, **options)
    assert len(loader) == len(expected)
    for _ in range(2):
        batches = list(loader)
        kind = int if name == "not batched" else torch.Tensor
        assert all(type(batch) is kind for batch in batches)
        # Each worker iterates its own copy, and they take turns.
        again = max(1, num_workers)
        assert plain(batches) == [batch for batch in expected for _ in range(again)]


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
def test_workers_take_turns(loader_class, shares, expected):
    loader = loader_class(Shares(*shares), num_workers=len(shares), prefetch_factor=2)
    assert flat(loader) == expected


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_are_made_within_a_worker_anew_each_epoch(loader_class, drop_last, persistent):
    loader = loader_class(
        Shares(range(5), range(10, 13)), batch_size=2, drop_last=drop_last, num_workers=2,
        persistent_workers=persistent,
    )  # fmt: skip
    for _ in range(3):
        assert lists(loader) == [[0, 1], [10, 11], [2, 3], *([] if drop_last else [[12], [4]])]
