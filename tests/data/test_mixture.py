"""Mixtures of map-style datasets: shares, passes without replacement, weights that change."""

import itertools
import pickle
import re
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
CHANGED = pytest.mark.filterwarnings("ignore:.*the state was taken with")


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


def first_of(loader: DataLoader[Any], count: int) -> list[Any]:
    return list(itertools.islice(loader, count))


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
    assert all(abs(made.counts(0)[n] - c) < 60 for n, c in {"a": 20, "b": 700, "c": 64}.items())
    frequent = Counter(itertools.chain(*epochs(made, 20)))
    assert len(frequent) == 784 and all(17 <= count <= 23 for count in frequent.values())
    assert sampler(THEN).counts(0)["a"] == 0


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


@CHANGED
@pytest.mark.filterwarnings("ignore:.*LL334")
@pytest.mark.parametrize("epoch", [0, 2])
@pytest.mark.parametrize("count", [0, 7, 49, 50])
def test_other_weights_count_from_the_state_on(epoch: int, count: int) -> None:
    """As if that had been the schedule."""
    scheduled = mixed([(0, FIRST), (epoch * 400 + count * 8, THEN)] if epoch + count else THEN)
    expected = []
    for number in range(epoch, epoch + 3):
        scheduled.set_epoch(number)
        expected.append(flat(scheduled))
    first = mixed()
    first.set_epoch(epoch)
    taken(first, count)
    other = loaded(mixed(THEN), through_file(first.state_dict()))
    assert [flat(other), flat(other)] == [expected[0][count * 8 :], expected[1]]
    again = loaded(mixed(THEN), through_file(other.state_dict()))  # now nothing changes
    assert flat(again) == expected[2]


@CHANGED
def test_what_was_drawn_by_earlier_weights_is_known() -> None:
    """Also after two changes; from a state on the loader's own weights count."""
    first = mixed()
    run = [batch.tolist() for batch in first_of(first, 10)]
    second = loaded(mixed(THEN), through_file(first.state_dict()))
    run += [batch.tolist() for batch in first_of(second, 10)]
    third = loaded(mixed(), through_file(second.state_dict()))
    run += [batch.tolist() for batch in third]
    samples = [[mixture()[i] for i in third.indices_of(0, number)] for number in range(50)]
    assert samples == run
    for place, weights in ((5, FIRST), (15, [1, 1, 1])):
        other = loaded(mixed(weights), through_file(third.state_at(0, place)))
        changes = [(0, FIRST), (80, THEN)][: 1 + (place > 10)]
        expected = flat(mixed([*changes, (place * 8, weights)]))[place * 8 :]
        assert flat(other) == (expected if weights != FIRST else flat(mixed())[place * 8 :])


@CHANGED
def test_sources_are_added_and_taken_out() -> None:
    first = mixed()
    begun = flat(first_of(first, 30))
    now = {"d": range(9000, 9100), "c": SOURCES["c"], "b": SOURCES["b"]}
    weights = {"d": 2, "c": 1, "b": 1}
    other = loaded(mixed(weights, now), through_file(first.state_dict()))
    after = flat(other)
    assert len(begun) + len(after) == 400
    assert Counter(number in now["d"] for number in after)[True] == pytest.approx(80, abs=20)
    assert not any(number < 20 for number in after)
    goes_round(begun + after, SOURCES | now)
    other.set_epoch(0)
    with pytest.raises(StateError, match="source 'a' was drawn from here, and has been taken out"):
        next(iter(other))


def test_what_has_changed_is_said_and_may_be_an_error() -> None:
    first = mixed()
    taken(first, 5)
    state, other = through_file(first.state_dict()), mixed(THEN)
    before = other.state_dict()
    line = re.escape("taken with sampler.shares='1/2, 3/10, 1/5', and this loader has sampler.shar")
    with pytest.raises(UserWarning, match=line):  # as filterwarnings("error") makes it
        other.load_state_dict(state)
    assert other.state_dict() == before
    with pytest.warns(UserWarning, match=line) as caught:
        mixed(THEN).load_state_dict(state)
    assert [each.filename for each in caught] == [__file__]


def test_a_source_that_has_grown_is_refused() -> None:
    first = mixed()
    taken(first, 3)
    with pytest.raises(StateError, match="source 'a' has 20 samples, and this one has 21"):
        mixed(sources={**SOURCES, "a": range(21)}).load_state_dict(first.state_dict())


SOME = st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 3))


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
                ([1, 2], "one number for each of the datasets 'a', 'b', 'c'"),
                ({"a": 1, "d": 2}, "or by name, got weights={'a': 1, 'd': 2}"),
                (["3", "1", "1"], "weights must be finite numbers of at least 0"),
                ([1, -1, 1], "weights must be finite numbers of at least 0"),
                ([1, 1, float("nan")], "weights must be finite numbers of at least 0"),
                (NOT_ALL, "at least one of them above 0"),
                ([(5, FIRST)], "weights that change must begin at draw 0"),
                ([(0, FIRST), (0, THEN)], "their draws must rise, got draws [0, 0]"),
                ([(0, FIRST), (1.5, THEN)], "weights' draw must be a whole number of at least 0"),
                ([(0, FIRST), (9, {"a": 1})], "the datasets 'a', 'b', 'c', in a list or by name"),
                ([(0, FIRST), (9, NOT_ALL)], "at least one of them above 0"),
            ]
        ),
        (lambda: sampler([1, 1, 1e-9]), "at least a millionth of their sum"),
    ],
)
def test_refused(make: Any, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        make()
    assert message in str(caught.value)
