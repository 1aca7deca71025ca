"""Any order, batch size, ranks and place: the samples are those of one process, in its order."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from lit_loader import DataLoader, MixtureDataset, MixtureSampler
from tests.support.exact import (
    EveryOther,
    SamplerWithStatefulIterator,
    StatefulSampler,
    through_file,
)
from tests.support.samples import Call, own_generators, uncollated
from tests.support.stateful_data import SAMPLERS

ORDERS: dict[str, Callable[[int], dict[str, Any]]] = {
    "ordered": lambda n: {},
    "shuffled": lambda n: {"shuffle": True},
    "random": lambda n: {"sampler": RandomSampler(range(n))},
    "replacement": lambda n: {"sampler": RandomSampler(range(n), replacement=True, num_samples=n)},
    "subset": lambda n: {"sampler": SubsetRandomSampler(range(n))},
    "weighted": lambda n: {"sampler": WeightedRandomSampler([1.0, 2.0] * n, n)},
    "generator": lambda n: {"sampler": RandomSampler(range(n), generator=torch.Generator())},
    "list": lambda n: {"sampler": list(range(n, 0, -1))},
    "drawing": lambda n: {"sampler": EveryOther(n)},
    "stateful": lambda n: {"sampler": StatefulSampler(n)},
    "stateful iterator": lambda n: {"sampler": SamplerWithStatefulIterator(n)},
}
ORDERS["mixture"] = lambda n: {
    "sampler": MixtureSampler(MixtureDataset([range(n - n // 3), range(n // 3)]), seed=2)
}
ORDERS |= {
    f"with a state: {kind}": lambda n, make=make, kind=kind: {
        # One that draws its order at its first item must have that in its state.
        "sampler": make(n, "no" if kind == "sampler" else "torch")
    }
    for kind, make in SAMPLERS.items()
}


def ranks_of(
    order: str, length: int, size: int, ranks: int, **options: Any
) -> list[DataLoader[Any]]:
    return [
        DataLoader(
            Call(int, length), size, collate_fn=uncollated, num_replicas=ranks, rank=rank,
            **{"seed": 3} | ORDERS[order](length) | options,
        )
        for rank in range(ranks)
    ]  # fmt: skip


def stream_of(epochs: list[list[list[int]]]) -> list[int]:
    """Put the ranks' samples together again: one of each rank in turn, batch by batch."""
    missing = object()
    return [
        item
        for batches in itertools.zip_longest(*epochs, fillvalue=[])
        for row in itertools.zip_longest(*batches, fillvalue=missing)
        for item in row
        if item is not missing
    ]


orders, tails = st.sampled_from(sorted(ORDERS)), st.sampled_from(["pad", "drop", "keep"])


@settings(max_examples=80)
@example("drawing", 7, 2, 2, "pad", True)  # the last batch is full by what is repeated
@given(orders, st.integers(1, 60), st.integers(1, 9), st.integers(1, 7), tails, st.booleans())
def test_ranks(order: str, length: int, size: int, ranks: int, tail: str, drop_last: bool) -> None:
    before = own_generators()
    [alone] = [list(each) for each in ranks_of(order, length, size * ranks, 1)]
    whole = stream_of([alone])
    loaders = ranks_of(order, length, size, ranks, uneven_ranks=tail, drop_last=drop_last)
    epochs = [list(loader) for loader in loaders]
    assert [len(loader) for loader in loaders] == [len(batches) for batches in epochs]
    assert own_generators() == before
    got = stream_of(epochs)
    if tail != "keep":
        assert len({tuple(map(len, batches)) for batches in epochs}) == 1  # or DDP would hang
    share = -(-length // ranks) if tail == "pad" else length // ranks
    if drop_last:
        assert {len(batch) for batches in epochs for batch in batches} <= {size}
        assert len(epochs[-1]) == share // size
    elif tail == "pad":
        assert length <= len(got) < length + ranks
    else:
        assert len(got) == (length - length % ranks if tail == "drop" else length)
    if not (drop_last and tail == "keep"):  # then some have one more than others
        assert got == list(itertools.islice(itertools.cycle(whole), len(got)))


@pytest.mark.filterwarnings("ignore:.*LL334")
@settings(max_examples=80)
@example("ordered", 9, 2, 1, 2, "keep", 1.0)  # where a rank has fewer batches than the state
@given(
    orders, st.integers(1, 40), st.integers(1, 3), st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]), st.sampled_from(["pad", "keep"]), st.floats(0, 1),
)  # fmt: skip
def test_gone_on_with_other_ranks(
    order: str, length: int, size: int, first: int, then: int, tail: str, part: float
) -> None:
    [whole] = [list(each) for each in ranks_of(order, length, 4 * size, 1)]
    loaders = ranks_of(order, length, 4 * size // first, first, uneven_ranks=tail)
    iterators = [iter(loader) for loader in loaders]
    stop = int(part * len(loaders[-1]))
    for iterator in iterators:
        list(itertools.islice(iterator, stop))
    state = through_file(loaders[-1].state_dict())
    resumed = ranks_of(order, length, 4 * size // then, then, uneven_ranks=tail)
    for loader in resumed:
        loader.load_state_dict(state)
    rest = stream_of([list(loader) for loader in resumed])
    expected = stream_of([whole[stop:]])
    assert rest[: len(expected)] == expected


@pytest.mark.parametrize("tail", ["pad", "drop", "keep"])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("size", [4, None])
def test_an_order_without_a_length(size: int | None, ranks: int, tail: str) -> None:
    class Unsized:
        def __init__(self, length: int) -> None:
            self.length = length

        def __iter__(self) -> Iterator[int]:
            return iter(range(self.length))

    class Sized(Unsized):
        def __len__(self) -> int:
            return self.length

    def epochs(kind: type[Unsized], length: int) -> list[list[Any]]:
        options = {"num_replicas": ranks, "uneven_ranks": tail, "seed": 1}
        options["collate_fn"] = uncollated
        return [
            list(DataLoader(Call(int, 20), size, sampler=kind(length), rank=rank, **options))
            for rank in range(ranks)
        ]

    for length in (0, 1, 2, 5, 12, 13):
        assert epochs(Unsized, length) == epochs(Sized, length)
