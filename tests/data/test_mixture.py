"""Mixtures of map-style datasets: shares, passes without replacement, weights that change."""

import itertools
import pickle
import tracemalloc
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_loader import (
    DataLoader,
    MixtureDataset,
    MixtureSampler,
    MixtureStream,
    OptionError,
    StateError,
)
from lit_loader.data.weights import Schedule
from tests.support.exact import loaded, taken, through_file
from tests.support.samples import Rows

SOURCES = {"a": range(20), "b": range(1000, 1700), "c": range(5000, 5064)}
FIRST, THEN = {"a": 5, "b": 3, "c": 2}, {"a": 0, "b": 1, "c": 3}


def mixture(weights: Any = FIRST, sources: Any = SOURCES) -> MixtureDataset:
    return MixtureDataset(sources, weights)


def sampler(weights: Any = FIRST, sources: Any = SOURCES, **options: Any) -> MixtureSampler:
    return MixtureSampler(mixture(weights, sources), **{"epoch_length": 400, "seed": 1, **options})


def mixed(
    weights: Any = FIRST, sources: Any = SOURCES, ranks: Any = None, **options: Any
) -> DataLoader[Any]:
    made = sampler(weights, sources, **options)
    return DataLoader(made.data_source, 8, sampler=made, **(ranks or {}))


def flat(batches: Any) -> list[int]:
    return list(itertools.chain(*(batch.tolist() for batch in batches)))


def epochs(made: MixtureSampler, count: int) -> list[list[int]]:
    found = []
    for number in range(count):
        made.set_epoch(number)
        found.append(list(made))
    return found


def of(numbers: list[int]) -> str:
    """From which source each is."""
    return "".join("a" if number < 20 else "b" if number < 5000 else "c" for number in numbers)


def goes_round(numbers: list[int], sources: Any = SOURCES) -> None:
    """No sample of a source comes twice in a pass over it."""
    for source in sources.values():
        own = [number for number in numbers if number in source]
        for start in range(0, len(own), len(source)):
            part = own[start : start + len(source)]
            assert len({*part}) == len(part)


# --- the schedule ---


@given(
    st.lists(st.integers(0, 50) | st.floats(0.01, 50), min_size=1, max_size=6).filter(any),
    st.integers(0, 2**64 - 1),
    st.integers(0, 10**5),
)
def test_each_block_keeps_the_shares(weights: list[float], seed: int, block: int) -> None:
    schedule = Schedule(weights, seed)
    sources, counts = schedule.at(block)
    before, after = schedule.drawn(block), schedule.drawn(block + 1)
    for source, weight in enumerate(weights):
        share = weight / sum(weights)
        assert abs(after[source] - before[source] - schedule.block * share) < 2
        assert abs(after[source] - (block + 1) * schedule.block * share) <= 1 + 1e-6
        # Each number once, in turn.
        assert counts[sources == source].tolist() == list(range(before[source], after[source]))
    assert sum(after) == (block + 1) * schedule.block


# --- the dataset ---


def test_the_dataset_is_the_sources_one_after_the_other() -> None:
    made = mixture()
    assert (made.names, made.lengths, made.weights) == (["a", "b", "c"], [20, 700, 64], [5, 3, 2])
    assert [made[i] for i in (0, 19, 20, 719, 720, 783)] == [0, 19, 1000, 1699, 5000, 5063]
    assert len(made) == 784 and made.locate(720) == (2, 0) and made.__getitems__ is None
    for index in (-1, 784):
        with pytest.raises(IndexError, match=f"index {index} is out of range"):
            made[index]


class Many(list[int]):
    """Is asked for several at once."""

    asked: list[int]

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.asked = list(indices)
        return [self[index] for index in indices]


def test_a_batch_is_read_at_once_where_a_source_can() -> None:
    many = Many(range(100, 110))
    made: Any = MixtureDataset([range(5), lambda: many])
    assert (made.names, made.weights) == (["0", "1"], [5, 10])
    assert made.__getitems__([6, 0, 14, 4]) == [101, 0, 109, 4]
    assert many.asked == [1, 9]
    assert flat(DataLoader(made, 15)) == [*range(5), *range(100, 110)]


# --- the sampler ---


def test_each_source_is_gone_through_before_it_begins_again() -> None:
    stream = list(itertools.chain(*epochs(sampler(epoch_length=500), 6)))
    for start, length in ((0, 20), (20, 700), (720, 64)):
        own = [i for i in stream if start <= i < start + length]
        passes = [own[i : i + length] for i in range(0, len(own), length)]
        assert len(passes) > 1
        assert all(sorted(each) == list(range(start, start + length)) for each in passes[:-1])
        assert passes[0] != passes[1] or len(passes[1]) < length


def test_epochs_are_functions_of_the_seed() -> None:
    first = epochs(sampler(), 3)
    assert first == epochs(sampler(), 3) != epochs(sampler(seed=2), 3)
    assert len(set(map(tuple, first))) == 3
    made = sampler()
    assert made.indices(2, 100, 10_000).tolist() == first[2][100:]
    made.set_epoch(2)
    before = torch.get_rng_state()
    assert list(pickle.loads(pickle.dumps(made))) == first[2]
    assert torch.equal(torch.get_rng_state(), before)
    (indices,) = epochs(sampler(shuffle=False), 1)  # each source in its own order
    of_b = [i for i in indices if 20 <= i < 720]
    assert of_b == list(range(20, 20 + len(of_b)))


def test_weights_may_be_left_out_or_0() -> None:
    made = MixtureSampler(mixture(None))
    assert len(made) == 784
    frequent = Counter(itertools.chain(*epochs(made, 20)))
    assert len(frequent) == 784 and all(17 <= count <= 23 for count in frequent.values())
    assert min(sampler(THEN)) >= 20


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


# --- weights that change ---


def test_weights_change_at_a_draw() -> None:
    loader = mixed([(0, FIRST), (600, THEN)])
    numbers = flat(loader) + flat(loader)  # draws are counted over all epochs
    assert numbers[:400] == flat(mixed())
    assert Counter(of(numbers[:600])) == pytest.approx({"a": 300, "b": 180, "c": 120}, abs=40)
    assert Counter(of(numbers[600:])) == pytest.approx({"b": 50, "c": 150}, abs=25)
    goes_round(numbers)


def test_ranks_and_a_resume_see_the_same() -> None:
    """Also where weights "change" to what they are."""
    weights = [(0, FIRST), (160, FIRST), (240, THEN)]
    whole = [batch.tolist() for batch in mixed(weights)]
    ranks = [mixed(weights, ranks={"num_replicas": 2, "rank": rank}) for rank in range(2)]
    assert sorted(flat(ranks[0]) + flat(ranks[1])) == sorted(itertools.chain(*whole))
    for count in (0, 10, 20, 25, 30, 35):
        first = mixed(weights)
        taken(first, count)
        rest = loaded(mixed(weights), through_file(first.state_dict()))
        assert [batch.tolist() for batch in rest] == whole[count:]


@pytest.mark.filterwarnings("ignore:.*LL334")
@pytest.mark.parametrize("count", [0, 7, 49, 50])
def test_weights_to_come_may_change(count: int) -> None:
    """Those of draws that a state has behind it are kept, for samples would be lost or repeated."""
    first = mixed([(0, FIRST), (900, [1, 1, 1])])
    taken(first, count)
    state, now = through_file(first.state_dict()), count * 8
    whole = mixed([(0, FIRST), (max(1, now), THEN)])
    other = loaded(mixed([(0, FIRST), (max(1, now), THEN)]), state)
    assert [flat(other), flat(other)] == [flat(whole)[now:], flat(whole)]
    with pytest.raises(StateError, match="weights of past draws are fixed"):
        mixed(THEN).load_state_dict(state)
    if now > 4:
        with pytest.raises(StateError, match=f"after {now} draws by other weights.*a=1/2, b=3/10"):
            mixed([(0, FIRST), (4, THEN)]).load_state_dict(state)


def test_a_source_that_has_grown_is_refused() -> None:
    first = mixed()
    taken(first, 3)
    with pytest.raises(StateError, match="dataset_length=784"):
        mixed(sources={**SOURCES, "a": range(21)}).load_state_dict(first.state_dict())


# --- refused ---

NOT_ALL = {"a": 0, "b": 0, "c": 0}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MixtureDataset({}), "datasets must be a list of datasets, or a mapping"),
        (lambda: MixtureDataset([3]), "datasets['0'] must be a dataset, or a factory"),
        (lambda: MixtureDataset({"a": iter([1])}), "datasets['a'] must have a length"),
        (lambda: MixtureDataset([range(0)], [1]), "source '0' is empty"),
        (lambda: MixtureSampler(Rows(3)), "data_source must be a MixtureDataset"),  # type: ignore
        (lambda: sampler(epoch_length="3"), "epoch_length must be a whole number of at least 1"),
        (lambda: sampler(seed="x"), "seed must be a whole number, got seed='x'"),
        (lambda: sampler(shuffle="no"), "shuffle must be True or False, got shuffle='no'"),
        *(
            (lambda make=make, weights=weights: make(weights), message)
            for make in (lambda w: MixtureDataset(SOURCES, w), lambda w: MixtureStream(SOURCES, w))
            for weights, message in [
                (5, "one number for each of the datasets 'a', 'b', 'c'"),
                ({"a": 1, "d": 2}, "or by name, got weights={'a': 1, 'd': 2}"),
                ([1, -1, 1], "weights must be finite numbers of at least 0"),
                (NOT_ALL, "at least one of them above 0"),
                ([(5, FIRST)], "weights that change must begin at draw 0"),
                ([(0, FIRST), (0, THEN)], "their draws must rise, got draws [0, 0]"),
                ([(0, FIRST), (1.5, THEN)], "weights' draw must be a whole number of at least 0"),
                ([(0, FIRST), (9, {"a": 1})], "the datasets 'a', 'b', 'c', in a list or by name"),
            ]
        ),
        (lambda: sampler([1, 1, 1e-9]), "at least a millionth of their sum"),
    ],
)
def test_refused(make: Any, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        make()
    assert message in str(caught.value)
