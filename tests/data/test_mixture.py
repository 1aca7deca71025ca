"""Mixtures of datasets: shares, passes without replacement, ranks, and exact resume."""

import itertools
import pickle
import random
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lit_loader import DataLoader, StateError
from lit_loader.data.mixture import MixtureDataset, MixtureSampler
from lit_loader.data.mixture_stream import MixtureStream
from lit_loader.data.weights import Schedule
from tests.core.options.test_refusals import refused
from tests.data.test_own_generators import Held, HeldWithState
from tests.support.exact import Epochs
from tests.support.samples import Cursor, Rows, share

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*MixtureStream has a source that has no state_dict"
)

WEIGHTS = {"a": 5, "b": 3, "c": 2}


class Many(list[int]):
    """Is asked for several at once."""

    asked: list[int]

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.asked = list(indices)
        return [self[index] for index in indices]


def mixture(weights: Any = WEIGHTS) -> MixtureDataset:
    sources = {"a": range(20), "b": range(1000, 1700), "c": range(5000, 5064)}
    return MixtureDataset(sources, weights)


def sampler(**options: Any) -> MixtureSampler:
    return MixtureSampler(mixture(), **{"epoch_length": 500, "seed": 1, **options})


def drawn(made: MixtureSampler, epochs: int) -> list[list[int]]:
    result = []
    for number in range(epochs):
        made.set_epoch(number)
        result.append(list(made))
    return result


# --- the schedule ---


@given(
    st.lists(st.integers(0, 50) | st.floats(0.01, 50), min_size=1, max_size=6).filter(any),
    st.integers(0, 2**64 - 1),
    st.integers(0, 10**9),
)
def test_each_block_keeps_the_shares(weights: list[float], seed: int, block: int) -> None:
    schedule = Schedule(weights, seed)
    sources, counts = schedule.at(block)
    before, after = schedule.drawn(block), schedule.drawn(block + 1)
    for source, weight in enumerate(weights):
        share = weight / sum(weights)
        wanted = after[source] - before[source]
        assert abs(wanted - schedule.block * share) < 2
        # Each number once, in turn.
        assert counts[sources == source].tolist() == list(range(before[source], after[source]))
    assert sum(after) == (block + 1) * schedule.block
    if block < 10**5:  # beyond, a float is not exact enough to say so
        shares = [(block + 1) * schedule.block * weight / sum(weights) for weight in weights]
        assert all(abs(a - s) <= 1 + 1e-6 for a, s in zip(after, shares, strict=True))


# --- the dataset ---


def test_the_dataset_is_the_sources_one_behind_the_other() -> None:
    made = mixture()
    assert (made.names, made.lengths, made.weights) == (["a", "b", "c"], [20, 700, 64], [5, 3, 2])
    assert len(made) == 784
    assert [made[i] for i in (0, 19, 20, 719, 720, 783)] == [0, 19, 1000, 1699, 5000, 5063]
    assert made.locate(720) == (2, 0)
    assert made.__getitems__ is None
    for index in (-1, 784):
        with pytest.raises(
            IndexError, match=f"index {index} is out of range for a MixtureDataset of 784"
        ):
            made[index]


def test_a_batch_is_read_at_once_where_a_source_can() -> None:
    many = Many(range(100, 110))
    made: Any = MixtureDataset([range(5), lambda: many])
    assert (made.names, made.weights) == (["0", "1"], [5, 10])
    assert made.__getitems__([6, 0, 14, 4]) == [101, 0, 109, 4]
    assert many.asked == [1, 9]
    (batch,) = DataLoader(made, 15)
    assert batch.tolist() == [*range(5), *range(100, 110)]


def test_sources_are_told_the_epoch() -> None:
    loader = DataLoader(MixtureDataset([Epochs(2), Epochs(3)]), 5, num_workers=1)
    for number in range(2):
        loader.set_epoch(number)
        ((_, told, asked),) = list(loader)
        assert told.tolist() == asked.tolist() == [number] * 5


# --- the sampler ---


def test_each_source_is_gone_through_before_it_begins_again() -> None:
    stream = list(itertools.chain(*drawn(sampler(), 6)))  # 3000 draws
    for start, length in ((0, 20), (20, 700), (720, 64)):
        own = [i for i in stream if start <= i < start + length]
        passes = [own[i : i + length] for i in range(0, len(own), length)]
        assert len(passes) > 1
        for through in passes[:-1]:
            assert sorted(through) == list(range(start, start + length))
        assert passes[0] != passes[1] or len(passes[1]) < length


def test_epochs_are_functions_of_the_seed() -> None:
    first = drawn(sampler(), 3)
    assert first == drawn(sampler(), 3)
    assert first != drawn(sampler(seed=2), 3)
    assert len(set(map(tuple, first))) == 3
    made = sampler()
    assert made.indices(2, 100, 10_000).tolist() == first[2][100:]
    made.set_epoch(2)
    assert list(pickle.loads(pickle.dumps(made))) == first[2]
    before = torch.get_rng_state()
    list(made)
    assert torch.equal(torch.get_rng_state(), before)
    (indices,) = drawn(sampler(shuffle=False), 1)  # each source in its own order
    of_b = [i for i in indices if 20 <= i < 720]
    assert of_b == list(range(20, 20 + len(of_b)))
    assert [i for i in indices if i < 20][:25] == [*range(20), *range(5)]


def test_weights_may_be_left_out_or_0() -> None:
    made = MixtureSampler(mixture(None))
    assert len(made) == 784
    assert all(abs(made.counts(0)[n] - c) < 60 for n, c in {"a": 20, "b": 700, "c": 64}.items())
    frequent = Counter(itertools.chain(*drawn(made, 20)))
    assert len(frequent) == 784
    assert all(17 <= count <= 23 for count in frequent.values())
    made = MixtureSampler(mixture({"a": 0, "b": 1, "c": 1}), epoch_length=3000)
    assert made.counts(0)["a"] == 0


def test_any_place_of_a_huge_mixture_is_reached_at_once() -> None:
    """Drawing 10**9 would take gigabytes, and minutes."""
    made = MixtureSampler(MixtureDataset([range(10**8), range(10**9)]), epoch_length=10**9)
    tracemalloc.start()
    try:
        assert made.indices(5, 5 * 10**8, 5 * 10**8 + 100).shape == (100,)
        loader = DataLoader(made.data_source, 8, sampler=made, num_replicas=4, rank=3)
        assert len(next(iter(loader))) == 8
        assert tracemalloc.get_traced_memory()[1] < 10**8
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MixtureDataset({}), "datasets must be a list of datasets, or a mapping from name"),
        (lambda: MixtureDataset(Rows(3)), "with at least one, got <tests."),  # type: ignore
        (lambda: MixtureDataset([3]), "datasets['0'] must be a dataset, or a factory without"),
        (
            lambda: MixtureDataset({"a": iter([1])}),
            "datasets['a'] must have a length, got list_iter",
        ),
        (
            lambda: MixtureSampler(MixtureDataset({"a": [], "b": range(0)})),
            "with at least one sample, got MixtureDataset(lengths={'a': 0, 'b': 0}",
        ),
        (
            lambda: mixture(5),
            "weights must be one number for each of the datasets 'a', 'b', 'c', in a list or by "
            "name, got weights=5",
        ),
        (lambda: mixture([1, 2]), "in a list or by name, got weights=[1, 2]"),
        (lambda: mixture({"a": 1, "d": 2}), "or by name, got weights={'a': 1, 'd': 2}"),
        (lambda: MixtureDataset([range(0)], [1]), "source '0' is empty: leave it out or give"),
        (lambda: mixture(["3", "1", "1"]), "weights must be finite numbers of at least 0, and at"),
        (lambda: mixture([1, -1, 1]), "weights must be finite numbers of at least 0, and at leas"),
        (lambda: mixture([0, 0, 0]), "one of them above 0, got weights=[0, 0, "),
        (lambda: MixtureSampler(mixture([1, 1, float("nan")])), "weights must be finite numbers"),
        (lambda: MixtureSampler(mixture([1, 1, 1e-9])), "0 or at least a millionth of their sum"),
        (lambda: sampler(epoch_length=0), "whole number of at least 1, got epoch_length=0"),
        (lambda: sampler(epoch_length="3"), "epoch_length must be a whole number of at least 1, "),
        (lambda: sampler(seed="x"), "seed must be a whole number, got seed='x'"),
        (lambda: MixtureStream([[1]], epoch_length=0), "at least 1, got epoch_length=0"),
        (lambda: sampler(shuffle="no"), "shuffle must be True or False, got shuffle='no'"),
        (lambda: MixtureSampler(Rows(3)), "must be a MixtureDataset, which knows its"),  # type: ignore
        (
            lambda: MixtureStream([[1]], stopping_strategy="loop"),
            "stopping_strategy must be one of 'first_exhausted', ",
        ),
        (
            lambda: MixtureStream([[1]], stopping_strategy="repeat"),
            "never ends an epoch: set epoch_length",
        ),
    ],
)
def test_refused(make: Any, message: str) -> None:
    assert message in refused(make)


# --- streams ---


class WithIteratorState(Held):
    def __iter__(self) -> Iterator[Tensor]:
        return Cursor(self.item, self.numbers())


def streams(strategy: str, epoch_length: int | None = None) -> MixtureStream:
    sources = [Held(0, 40), WithIteratorState(1000, 90), HeldWithState(5000, 30)]
    return MixtureStream(sources, [2, 2, 1], epoch_length, strategy, seed=7)


def numbers(loader: DataLoader[Any]) -> list[int]:
    return [int(value) for batch in loader for value in batch[:, 0]]


@pytest.mark.usefixtures("by_fork")
@pytest.mark.parametrize("workers", [0, 2])
def test_streams_end_as_they_are_told(workers: int) -> None:
    options = {"batch_size": 4, "num_workers": workers}
    everything = [*range(40), *range(1000, 1090), *range(5000, 5030)]
    with DataLoader(streams("all_exhausted_without_replacement"), **options) as loader:
        got = numbers(loader)
        assert sorted(got) == everything
        assert numbers(loader) != got
    with DataLoader(streams("first_exhausted"), **options) as loader:
        stopped = numbers(loader)
        assert set(stopped) < set(everything)
        assert len(set(stopped)) == len(stopped) > 60
    with DataLoader(streams("repeat", 2000), **options) as loader:
        repeated = numbers(loader)
    assert len(repeated) == 2000
    assert set(repeated) == set(everything)
    assert abs(sum(number < 1000 for number in repeated) - 800) < 10
    with DataLoader(streams("first_exhausted", 21), **options) as loader:
        assert len(numbers(loader)) == 21


@pytest.mark.parametrize("workers", [0, 2])
def test_a_source_without_a_share_is_left_out_and_told_once(workers: int) -> None:
    sources = MixtureStream(
        [Held(0, 1), Held(100, 60)], epoch_length=50, stopping_strategy="repeat"
    )
    line = "MixtureStream: source '0' has no sample for one or more of the 4 readers, so stopping_"
    with (
        DataLoader(sources, 5, num_shards=4, num_workers=workers) as loader,
        pytest.warns(UserWarning, match=line) as caught,
    ):
        assert [len(numbers(loader)) for _ in range(2)] == [50, 50]
    assert [each.filename for each in caught] == [__file__]


def test_a_reader_without_a_share_of_a_source_has_no_epoch_and_it_is_told() -> None:
    """By "first_exhausted" nearly all of the others' samples would be left out in silence."""
    sources = MixtureStream({"few": Held(0, 1), "many": Held(100, 60)})
    line = "source 'few' has no sample for one or more of the 4 readers, so stopping_strategy='firs"
    with (
        DataLoader(sources, 5, num_shards=4) as loader,
        pytest.warns(UserWarning, match=line) as caught,
    ):
        assert len(numbers(loader)) < 15
    assert [each.filename for each in caught] == [__file__]
    whole = MixtureStream(
        {"few": Held(0, 1), "many": Held(100, 60)},
        stopping_strategy="all_exhausted_without_replacement",
    )
    with DataLoader(whole, 5, num_shards=4) as loader:
        assert len(numbers(loader)) == 61


def test_a_mixture_of_nothing() -> None:
    nothing = MixtureStream([Held(0, 0)], epoch_length=5, stopping_strategy="repeat")
    with pytest.warns(
        UserWarning, match="source '0' has no sample, so stopping_strategy='repeat' has"
    ):
        assert list(DataLoader(nothing)) == []
    with pytest.warns(
        UserWarning, match="source '0' has no sample, so stopping_strategy='repeat' has"
    ):
        assert list(nothing) == []


def test_a_state_of_other_sources_is_refused() -> None:
    """One that does not name them; of others see test_changing.py."""
    first: Any = iter(streams("all_exhausted_without_replacement"))
    next(first)
    state = first.state_dict()
    del state["names"]
    other: Any = iter(MixtureStream([Held(0, 40)]))
    with pytest.raises(StateError, match="state is of a mixture of 3 sources, but this one has 1"):
        other.load_state_dict(state)


def test_sources_that_give_everybody_everything_are_warned_of() -> None:
    loader = DataLoader(
        MixtureStream([[1, 2], [3, 4]], stopping_strategy="all_exhausted_without_replacement"),
        num_workers=2,
    )
    with pytest.warns(UserWarning, match="MixtureStream is iterated by 2 readers"):
        assert sorted(np.concatenate([batch.numpy() for batch in loader])) == [
            1, 1, 2, 2, 3, 3, 4, 4,
        ]  # fmt: skip


class Drawn(Held):
    """Draws its order before its first sample, from a global generator and one of its own."""

    def __iter__(self) -> Iterator[Tensor]:
        order = [*range(self.start, self.start + self.length)]
        random.shuffle(order)
        self.python.shuffle(order)
        return map(self.item, share(order))


@pytest.mark.parametrize("workers", [0, 2])
def test_all_readers_shuffle_a_source_alike(workers: int) -> None:
    """Though each begins it in the midst of another batch."""

    def loader() -> DataLoader[Any]:
        mixture = MixtureStream(
            [Drawn(0, 40), Drawn(100, 40)],
            weights=[9, 1],
            stopping_strategy="all_exhausted_without_replacement",
            seed=5,
        )
        return DataLoader(mixture, 4, num_shards=3, num_workers=workers, seed=2)

    with loader() as one:
        numbers = [int(row[0]) for batch in one for row in batch]
    assert numbers != sorted(numbers) == [*range(40), *range(100, 140)]
