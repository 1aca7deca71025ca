"""Mixtures whose weights and sources change: by a schedule, and by a resume."""

import itertools
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset

from lit_loader import (
    DataLoader,
    MixtureDataset,
    MixtureSampler,
    MixtureStream,
    StateError,
    get_epoch,
)
from tests.core.options.test_refusals import refused
from tests.support.exact import loaded, taken, through_file
from tests.support.samples import Cursor, share

SOURCES = {"a": range(20), "b": range(1000, 1700), "c": range(5000, 5064)}
FIRST, THEN = {"a": 5, "b": 3, "c": 2}, {"a": 0, "b": 1, "c": 3}
CHANGED = pytest.mark.filterwarnings("ignore:.*the state was taken with")


def mixed(
    weights: Any = FIRST, sources: Any = SOURCES, ranks: Any = None, **options: Any
) -> DataLoader[Any]:
    mixture = MixtureDataset(sources, weights)
    sampler = MixtureSampler(mixture, **{"epoch_length": 400, "seed": 1, **options})
    return DataLoader(mixture, 8, sampler=sampler, **(ranks or {}))


def flat(batches: Any) -> list[int]:
    return list(itertools.chain(*(batch.tolist() for batch in batches)))


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


# --- schedules ---


def test_weights_change_at_a_draw() -> None:
    numbers = flat(mixed([(0, FIRST), (200, THEN)]))
    assert numbers[:200] == flat(mixed())[:200]
    assert Counter(of(numbers[:200])) == pytest.approx({"a": 100, "b": 60, "c": 40}, abs=25)
    assert "a" not in of(numbers[200:])
    assert Counter(of(numbers[200:])) == pytest.approx({"b": 50, "c": 150}, abs=25)
    goes_round(numbers)


def test_draws_are_counted_over_all_epochs() -> None:
    loader = mixed([(0, FIRST), (600, THEN)])
    numbers = flat(loader) + flat(loader)
    assert "a" not in of(numbers[600:])
    assert "a" in of(numbers[500:600])
    goes_round(numbers)


@pytest.mark.parametrize("weights", [[[0, [5, 3, 2]], [200, [0, 1, 3]]], [(0, FIRST), (200, THEN)]])
def test_ranks_and_resume_see_the_same(weights: Any) -> None:
    whole = [batch.tolist() for batch in mixed(weights)]
    ranks = [
        [batch.tolist() for batch in mixed(weights, ranks={"num_replicas": 2, "rank": rank})]
        for rank in range(2)
    ]
    assert sorted(itertools.chain(*ranks[0], *ranks[1])) == sorted(itertools.chain(*whole))
    for count in (0, 24, 25, 30):
        first = mixed(weights)
        taken(first, count)
        rest = loaded(mixed(weights), through_file(first.state_dict()))
        assert [batch.tolist() for batch in rest] == whole[count:]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (
            [(5, FIRST)],
            "weights that change must begin at draw 0, and their draws must rise, got d",
        ),
        ([(0, FIRST), (0, THEN)], "and their draws must rise, got draws [0, 0]"),
        ([(0, FIRST), (1.5, THEN)], "weights' draw must be a whole number of at least 0"),
        ([(0, FIRST), (9, {"a": 1})], "the datasets 'a', 'b', 'c', in a list or by name, got weig"),
        ([(0, FIRST), (9, {"a": 0, "b": 0, "c": 0})], "at least one of them above 0"),
    ],
)
def test_refused(weights: Any, message: str) -> None:
    assert message in refused(lambda: MixtureDataset(SOURCES, weights))
    assert message in refused(lambda: MixtureStream(dict(SOURCES), weights))


# --- a state is gone on from with other weights ---


def test_what_has_changed_is_said_and_may_be_an_error() -> None:
    first = mixed()
    taken(first, 5)
    state = through_file(first.state_dict())
    other = mixed(THEN)
    before = other.state_dict()
    line = re.escape(
        "the state was taken with sampler.shares='1/2, 3/10, 1/5', and this loader has "
        "sampler.shares='0, 1/4, 3/4': what was drawn stays, and from here on this loader's count"
    )
    with pytest.raises(UserWarning, match=line):  # as filterwarnings("error") makes it
        other.load_state_dict(state)
    assert other.state_dict() == before
    with pytest.warns(UserWarning, match=line):
        mixed(THEN).load_state_dict(state)


@CHANGED
@pytest.mark.parametrize("epoch", [0, 2])
@pytest.mark.parametrize("count", [0, 7, 49, 50])
def test_other_weights_count_from_the_state_on(epoch: int, count: int) -> None:
    """As if that had been the schedule."""
    scheduled = mixed([(0, FIRST), (epoch * 400 + count * 8, THEN)] if epoch + count else THEN)
    scheduled.set_epoch(epoch)
    first = mixed()
    first.set_epoch(epoch)
    taken(first, count)
    other = loaded(mixed(THEN), through_file(first.state_dict()))
    assert flat(other) + flat(other) == flat(scheduled)[count * 8 :] + flat(scheduled)
    again = loaded(mixed(THEN), through_file(other.state_dict()))  # now nothing changes
    assert flat(again) == flat(scheduled)


@CHANGED
def test_back_to_before_the_weights_changed_and_over_it_again() -> None:
    """A state of any place of a run leads to the batches of that run."""
    first = mixed()
    run = [batch.tolist() for batch in taken_of(first, 10)]
    second = loaded(mixed(THEN), through_file(first.state_dict()))
    run += [batch.tolist() for batch in taken_of(second, 10)]
    third = loaded(mixed(FIRST), through_file(second.state_dict()))
    run += [batch.tolist() for batch in third]
    for place in (5, 10, 15, 20, 25):
        state = through_file(third.state_at(0, place))
        for there in (mixed(FIRST), third):
            assert [batch.tolist() for batch in loaded(there, state)] == run[place:]
            assert [there.indices_of(0, n) for n in range(50)] == [
                third.indices_of(0, n) for n in range(50)
            ]
    # By others from there on, which is said.
    other = loaded(mixed([1, 1, 1]), through_file(third.state_at(0, 5)))
    sampler = mixed([(0, FIRST), (40, [1, 1, 1])])
    assert [batch.tolist() for batch in other] == [batch.tolist() for batch in sampler][5:]


def test_the_warning_names_the_line_that_loads_the_state() -> None:
    state = mixed().state_dict()
    with pytest.warns(UserWarning, match="the state was taken with") as caught:
        mixed(THEN).load_state_dict(state)
    assert [each.filename for each in caught] == [__file__]


@CHANGED
def test_sources_are_added_and_taken_out() -> None:
    first = mixed()
    begun = flat(taken_of(first, 30))
    now = {"d": range(9000, 9100), "c": SOURCES["c"], "b": SOURCES["b"]}
    weights = {"d": 2, "c": 1, "b": 1}
    mixture = MixtureDataset(now, weights)
    sampler = MixtureSampler(mixture, epoch_length=400, seed=1)
    other = loaded(DataLoader(mixture, 8, sampler=sampler), through_file(first.state_dict()))
    after = flat(other)
    assert len(begun) + len(after) == 400
    assert Counter(number in now["d"] for number in after)[True] == pytest.approx(80, abs=20)
    assert not any(number < 20 for number in after)
    goes_round(begun + after, SOURCES | now)
    other.set_epoch(0)
    with pytest.raises(StateError, match="the mixture's source 'a' was drawn from here, and has "):
        next(iter(other))


def taken_of(loader: DataLoader[Any], count: int) -> list[Any]:
    return list(itertools.islice(loader, count))


def test_a_source_that_has_grown_is_refused() -> None:
    first = mixed()
    taken(first, 3)
    grown = {**SOURCES, "a": range(21)}
    with pytest.raises(StateError, match="whose source 'a' has 20 samples, and this one has 21: r"):
        mixed(sources=grown).load_state_dict(first.state_dict())


SOME = st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 3))


@CHANGED
@settings(max_examples=5, deadline=None)
@given(st.lists(SOME, min_size=50, max_size=50))
def test_weights_that_change_at_each_batch_of_a_run(weights: list[tuple[int, int, int]]) -> None:
    state, numbers, sources = None, list[int](), list(SOURCES.values())
    for each in weights:
        loader = mixed(list(each), sources)
        if state is not None:
            loader.load_state_dict(state)
        (batch,) = taken_of(loader, 1)
        state = loader.state_dict()
        numbers += batch.tolist()
        drawn = {name for name, weight in zip(SOURCES, each, strict=True) if weight}
        assert {*of(batch.tolist())} <= drawn
    goes_round(numbers)


# --- streams ---


class Numbers(IterableDataset[int]):
    """A source's numbers, shared out, with a state."""

    def __init__(self, name: str) -> None:
        self.numbers = SOURCES.get(name, range(9000, 9300))

    def __iter__(self) -> Cursor:
        get_epoch()
        return Cursor(int, share(self.numbers))


def streamed(weights: Any = FIRST, names: str = "abc", **options: Any) -> DataLoader[Any]:
    workers = options.pop("num_workers", 0)
    sources = {name: Numbers(name) for name in names}
    made = {"stopping_strategy": "repeat", "epoch_length": 240, "seed": 3, **options}
    stream = MixtureStream(sources, weights, **made)
    return DataLoader(stream, 4, num_shards=2, num_workers=workers, seed=1)


def test_a_streams_weights_change_at_a_draw() -> None:
    loader = streamed([(0, FIRST), (120, THEN), (400, FIRST)])
    numbers = flat(loader)
    assert numbers[:120] == flat(streamed())[:120]
    assert "a" in of(numbers[100:120])
    assert "a" not in of(numbers[120:])
    second = flat(loader)
    assert "a" not in of(second[:160])
    assert "a" in of(second[160:])


@CHANGED
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 20])
def test_a_stream_goes_on_by_other_weights(count: int, workers: int) -> None:
    """Readers have given ``count / 2`` batches of 4, and draw by the others from there on."""
    first = streamed()
    begun = flat(taken_of(first, count))
    resumed = loaded(streamed(THEN, num_workers=workers), through_file(first.state_dict()))
    batches = iter(resumed)
    after = flat(itertools.islice(batches, 6))
    assert "a" not in of(after)
    if count in (0, 2, 20):  # both have given as many: as if that had been the schedule
        scheduled = streamed([(0, FIRST), (count * 4, THEN)] if count else THEN)
        assert begun + after == flat(taken_of(scheduled, count + 6))
    goes_round([number for number in begun + after if number >= 20])  # a: by each reader
    again = loaded(streamed(THEN), through_file(resumed.state_dict()))  # now nothing changes
    assert flat(again) == flat(batches)
    assert flat(again) == flat(resumed)


@CHANGED
def test_sources_of_a_stream_are_added_and_taken_out() -> None:
    first = streamed()
    begun = flat(taken_of(first, 8))
    second = loaded(
        streamed({"d": 1, "b": 1, "a": 0, "c": 1}, "dbac"), through_file(first.state_dict())
    )
    between = flat(taken_of(second, 8))
    third = loaded(streamed({"c": 1, "d": 3}, "cd"), through_file(second.state_dict()))
    with pytest.raises(StateError, match="source 'b' was drawn from shortly before the state was "):
        next(iter(third))
    assert "a" not in of(between)
    later = loaded(streamed({"b": 0, "c": 1, "d": 3}, "bcd"), through_file(second.state_dict()))
    after = flat(taken_of(later, 8))
    last = loaded(streamed({"c": 1, "d": 3}, "cd"), through_file(later.state_dict()))
    numbers = begun + between + after + flat(taken_of(last, 6))
    assert sum(number >= 9000 for number in numbers) > 30
    own = [number for number in numbers if number >= 20]
    assert len({*own}) == len(own)


def test_a_stream_that_is_read_again_keeps_its_weights() -> None:
    def loader(weights: Any) -> DataLoader[Any]:
        return DataLoader(MixtureStream([range(30), range(40, 90)], weights, seed=1), 4)

    first = loader([1, 1])
    taken(first, 3)
    with pytest.raises(StateError, match="dataset.shares='1/2, 1/2', but this loader has dataset"):
        loader([1, 3]).load_state_dict(first.state_dict())
