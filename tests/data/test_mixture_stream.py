"""Mixtures of iterable datasets: how they end, weights that change, tokens, resume."""

import itertools
import random
import warnings
from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from lit_loader import (
    DataLoader,
    ExactnessWarning,
    MixtureStream,
    OptionError,
    StateError,
    get_epoch,
    get_shard,
)
from tests.support.datasets import Lines, Shuffled, StatefulStream, drawn
from tests.support.exact import loaded, through_file
from tests.support.samples import Cursor, StatefulCounting, share, uncollated

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*MixtureStream has a source that has no state_dict"
)

ALL = "all_exhausted_without_replacement"


def numbers(loader: DataLoader[Any]) -> list[int]:
    return [int(value) for batch in loader for value in batch[:, 0]]


def first_of(loader: DataLoader[Any], count: int) -> list[Any]:
    return list(itertools.islice(loader, count))


# --- ends ---


def streams(strategy: str, epoch_length: int | None = None) -> MixtureStream:
    sources = [Lines(40), StatefulCounting(90, lambda n: drawn(1000 + n)), StatefulStream(30, 5000)]
    return MixtureStream(sources, [2, 2, 1], epoch_length, strategy, seed=7)


@pytest.mark.usefixtures("by_fork")
@pytest.mark.parametrize("workers", [0, 2])
def test_streams_end_as_the_strategy_says(workers: int) -> None:
    options = {"batch_size": 4, "num_workers": workers}
    everything = [*range(40), *range(1000, 1090), *range(5000, 5030)]
    with DataLoader(streams(ALL), **options) as loader:
        got = numbers(loader)
        assert sorted(got) == everything and numbers(loader) != got
    with DataLoader(streams("first_exhausted"), **options) as loader:
        stopped = numbers(loader)
        assert set(stopped) < set(everything) and len(set(stopped)) == len(stopped) > 60
    with DataLoader(streams("repeat", 2000), **options) as loader:
        repeated = numbers(loader)
    assert len(repeated) == 2000 and set(repeated) == set(everything)
    assert abs(sum(number < 1000 for number in repeated) - 800) < 10


@pytest.mark.parametrize("workers", [0, 2])
def test_an_empty_share_is_left_out_and_reported_once(workers: int) -> None:
    sources = MixtureStream(
        {"few": Lines(1), "many": Lines(60, 100)}, epoch_length=50, stopping_strategy="repeat"
    )
    line = "MixtureStream: source 'few' is empty in at least one of 4 shards"
    with (
        DataLoader(sources, 5, num_shards=4, num_workers=workers) as loader,
        pytest.warns(UserWarning, match=line) as caught,
    ):
        assert [len(numbers(loader)) for _ in range(2)] == [50, 50]
    assert [each.filename for each in caught] == [__file__]


def test_a_shard_without_a_sample_of_the_first_exhausted_source_is_reported() -> None:
    """Nearly all of the others' samples would be left out in silence."""
    sources = {"few": Lines(1), "many": Lines(60, 100)}
    with (
        DataLoader(MixtureStream(sources), 5, num_shards=4) as loader,
        pytest.warns(UserWarning, match="'few' is empty .*'first_exhausted' ends the epoch"),
    ):
        assert len(numbers(loader)) < 15
    with DataLoader(MixtureStream(sources, stopping_strategy=ALL), 5, num_shards=4) as loader:
        assert len(numbers(loader)) == 61


@pytest.mark.filterwarnings("ignore:.*yielded no batch")
def test_a_mixture_of_nothing() -> None:
    nothing = MixtureStream([Lines(0)], epoch_length=5, stopping_strategy="repeat")
    for iterated in (DataLoader(nothing), nothing):
        with pytest.warns(UserWarning, match="source '0' is empty, so its weight"):
            assert list(iterated) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_all_shards_shuffle_a_source_in_the_same_way(workers: int) -> None:
    """Though each begins it during another batch."""
    sources = [Shuffled(random, length=40), Shuffled(random.Random(1), length=40, start=100)]
    mixture = MixtureStream(sources, weights=[9, 1], stopping_strategy=ALL, seed=5)
    with DataLoader(mixture, 4, num_shards=3, num_workers=workers, seed=2) as loader:
        found = numbers(loader)
    assert found != sorted(found) == [*range(40), *range(100, 140)]


# --- weights that change ---

RANGES = {"a": range(20), "b": range(1000, 1700), "c": range(5000, 5400), "d": range(9000, 9300)}
FIRST, THEN = {"a": 5, "b": 3, "c": 2}, {"a": 0, "b": 1, "c": 3}


class Numbers(IterableDataset[int]):
    """A source's numbers, shared out, with a state."""

    def __init__(self, name: str) -> None:
        self.numbers = RANGES[name]

    def __iter__(self) -> Cursor:
        get_epoch()
        return Cursor(int, share(self.numbers))


def streamed(weights: Any = FIRST, names: str = "abc", workers: int = 0) -> DataLoader[Any]:
    sources = {name: Numbers(name) for name in names}
    stream = MixtureStream(sources, weights, 240, "repeat", seed=3)
    return DataLoader(stream, 4, num_shards=2, num_workers=workers, seed=1)


def flat(batches: Any) -> list[int]:
    return list(itertools.chain(*(batch.tolist() for batch in batches)))


def has_a(found: list[int]) -> bool:
    return any(number < 20 for number in found)


def test_weights_change_at_a_draw() -> None:
    loader = streamed([(0, FIRST), (120, THEN), (400, FIRST)])
    first, second = flat(loader), flat(loader)
    assert first[:120] == flat(streamed())[:120] and has_a(first[100:120])
    assert not has_a(first[120:]) and not has_a(second[:160]) and has_a(second[160:])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("count", [2, 5, 20])
def test_weights_and_sources_to_come_may_change(count: int, workers: int) -> None:
    weights = [(0, FIRST), (150, {"a": 3, "b": 1, "c": 2})]
    first = streamed(weights)
    begun = flat(first_of(first, count))
    state = through_file(first.state_dict())
    changed = [(0, {**FIRST, "d": 0}), (100, {**THEN, "d": 4})]
    after = flat(loaded(streamed(changed, "abcd", workers=workers), state))
    assert begun + after == flat(streamed(changed, "abcd"))
    assert any(number >= 9000 for number in after)
    own = [number for number in begun + after if number >= 20]
    assert len({*own}) == len(own)
    with pytest.raises(StateError, match="weights of past draws are fixed"):
        streamed(THEN).load_state_dict(state)
    # The state's own place may be before draw 3; then the batches that are replayed differ.
    wrong = "draws by other weights.*a=1/2, b=3/10, c=1/5|the resume is not exact"
    with pytest.raises((StateError, ExactnessWarning), match=wrong):
        flat(loaded(streamed([(0, FIRST), (3, THEN)]), state))


# --- resume ---


def test_who_reads_again_is_warned() -> None:
    """Only if a source that has been begun, and is not through, has no state."""

    def loader() -> DataLoader[Any]:
        sources = [StatefulStream(24), Lines(12, 100)]
        return DataLoader(MixtureStream(sources, [3, 1], None, ALL, seed=1), 2)

    one, warned = loader(), []
    for _ in one:
        state = one.state_dict()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader().load_state_dict(state)
        texts = " ".join(str(warning.message) for warning in caught)
        warned.append("LL308" in texts)
    assert not warned[0] and True in warned


def test_a_loader_of_others_reads_a_source_again_alone() -> None:
    """From the mixture's own state: as torchdata's loader does it."""

    def mixture() -> MixtureStream:
        sources = {"a": Numbers("a"), "b": iter_of(12)}
        return MixtureStream(sources, stopping_strategy=ALL, seed=1)

    whole = list(mixture())
    for stop in range(len(whole) + 1):
        first: Any = iter(mixture())
        assert first_of(first, stop) == whole[:stop]
        second: Any = iter(mixture())
        second.load_state_dict(through_file(first.state_dict()))
        assert second.state_dict() == first.state_dict()
        assert list(second) == whole[stop:]


def iter_of(count: int) -> list[int]:
    return list(range(100, 100 + count))


# --- tokens ---


class Documents(IterableDataset[dict[str, Any]]):
    """Documents of one kind, each of so many tokens, or one more; it has a state."""

    def __init__(self, kind: str, length: int, count: int = 4000) -> None:
        self.kind, self.length, self.count = kind, length, count

    def __iter__(self) -> Cursor:
        index, count = get_shard()
        return Cursor(self.document, range(index, self.count, count))

    def document(self, number: int) -> dict[str, Any]:
        return {"kind": self.kind, "tokens": [number] * (self.length + number % 2)}


def of_tokens(workers: int = 0, weights: Any = None, **options: Any) -> DataLoader[Any]:
    sources = {"web": Documents("web", 10), "books": Documents("books", 100)}
    weights = {"web": 3, "books": 1} if weights is None else weights
    mixture = MixtureStream(sources, weights, **{"epoch_length": 800, "tokens": "tokens"} | options)
    return DataLoader(mixture, 8, num_workers=workers, num_shards=4, collate_fn=uncollated, seed=1)


def books(batches: Any, count: Any = lambda sample: len(sample["tokens"])) -> float:
    """The part of the books in all tokens."""
    total: Counter[str] = Counter()
    for sample in itertools.chain.from_iterable(batches):
        total[sample["kind"]] += count(sample)
    return total["books"] / total.total()


def tokens_of(sample: dict[str, Any]) -> int:
    return torch.tensor(sample["tokens"]).numel()


def test_weights_count_tokens() -> None:
    batches = list(of_tokens())
    assert books(of_tokens(tokens=None), lambda _: 1) == pytest.approx(0.25, abs=0.01)
    assert books(batches) == pytest.approx(0.25, abs=0.02)
    assert list(of_tokens(tokens=tokens_of)) == batches
    changing = [(0, {"web": 1, "books": 0}), (400, {"web": 1, "books": 1})]
    batches = list(of_tokens(weights=changing))
    assert books(batches[:45]) == 0 and books(batches[55:]) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("done", [3, 40])
def test_a_resume_goes_on_counting_tokens(done: int) -> None:
    with of_tokens(2) as first:
        batches = list(first)
    with of_tokens(1) as second:
        assert first_of(second, done) == batches[:done]
        state = through_file(second.state_dict())
    with of_tokens(3) as third:
        assert list(loaded(third, state)) == batches[done:]


# --- refused ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epoch_length": 0}, "at least 1, got epoch_length=0"),
        ({"stopping_strategy": "loop"}, "stopping_strategy must be one of 'first_exhausted'"),
        ({"stopping_strategy": "repeat"}, "never ends an epoch: set epoch_length"),
        ({"tokens": 3}, "tokens must be an entry's name, or a function"),
    ],
)
def test_refused(options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        MixtureStream([[1]], **options)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ("words", "tokens='words' is no entry of a sample, which has 'kind', 'tokens'"),
        (lambda _: -1, "must count a sample's tokens, got -1"),
    ],
    ids=["entry", "count"],
)
def test_what_cannot_be_counted(tokens: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        next(iter(of_tokens(tokens=tokens)))
