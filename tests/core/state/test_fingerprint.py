"""What samplers and datasets tell of themselves: a state of others is refused when it is loaded."""

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from torch.utils.data import BatchSampler, Sampler

from lit_loader import (
    DataLoader,
    MixtureDataset,
    MixtureSampler,
    MixtureStream,
    StateError,
    TokenBudgetBatchSampler,
)
from tests.support.exact import Unshared, digests, loaded, state_behind, taken, through_file
from tests.support.samples import Call
from tests.support.tools import refused

LENGTH = 60
DATA = Call(int, LENGTH)


def mixed(
    weights: Any = (3, 1), lengths: tuple[int, int] = (40, 20), **options: Any
) -> DataLoader[Any]:
    sources = MixtureDataset([Call(int, length) for length in lengths], weights)
    sampler = MixtureSampler(sources, **{"epoch_length": 50, "seed": 1, **options})
    return DataLoader(sources, 4, sampler=sampler, seed=3)


def budgeted(last: int = 9, **options: Any) -> DataLoader[Any]:
    lengths = [1 + index % 9 for index in range(LENGTH - 1)] + [last]
    made = TokenBudgetBatchSampler(lengths, **{"max_tokens": 40, "seed": 1, **options})
    return DataLoader(DATA, batch_sampler=made, seed=3)


def streamed(weights: Any = (3, 1), **options: Any) -> DataLoader[Any]:
    stream = MixtureStream([range(30), range(100, 190)], weights, **{"seed": 1, **options})
    return DataLoader(stream, 4, seed=3)


class Descending(Sampler[int]):
    """A sampler of the user's, whose order depends on where it begins."""

    def __init__(self, first: int) -> None:
        self.first = first

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        return iter([(self.first - index) % LENGTH for index in range(LENGTH)])

    def state_fingerprint(self) -> dict[str, Any]:
        return {"first": self.first}


class Countdown(Unshared):
    """A dataset of the user's that tells what it depends on."""

    def __init__(self, version: str) -> None:
        super().__init__(LENGTH)
        self.version = version

    def state_fingerprint(self) -> dict[str, Any]:
        return {"version": self.version}


def descending(first: int = 5) -> DataLoader[Any]:
    return DataLoader(DATA, 4, sampler=Descending(first), seed=3)


def in_batches(first: int = 5) -> DataLoader[Any]:
    batches = BatchSampler(Descending(first), 4, drop_last=False)
    return DataLoader(DATA, batch_sampler=batches, seed=3)


def counted(version: str = "a") -> DataLoader[Any]:
    return DataLoader(Countdown(version), 4, seed=3)


CHANGES: list[tuple[Callable[..., DataLoader[Any]], dict[str, Any], str]] = [
    (mixed, {"seed": 2}, "sampler.seed=1"),
    (mixed, {"epoch_length": 60}, "sampler.epoch_length=50"),
    (mixed, {"shuffle": False}, "sampler.shuffle=True"),
    (budgeted, {"max_tokens": 41}, "sampler.max_tokens=40"),
    (budgeted, {"spread": 0.2}, "sampler.spread=0.1"),
    (budgeted, {"last": 8}, "sampler.lengths="),
    (streamed, {"epoch_length": 9}, "dataset.epoch_length=None"),
    (descending, {"first": 6}, "sampler.first=5"),
    (in_batches, {"first": 6}, "sampler.sampler.first=5"),
    (counted, {"version": "b"}, "dataset.version='a'"),
]


# --- states of others are refused ---


@pytest.mark.filterwarnings("ignore:.*Countdown has no state_dict")
@pytest.mark.filterwarnings("ignore:.*MixtureStream has a source")
@pytest.mark.parametrize("when", ["new", "middle", "between"])
@pytest.mark.parametrize(
    ("make", "change", "message"),
    CHANGES,
    ids=[f"{make.__name__}, {next(iter(change))}" for make, change, _ in CHANGES],
)
def test_a_state_of_another_order_is_refused_in_one_line(
    make: Callable[..., DataLoader[Any]], change: dict[str, Any], message: str, when: str
) -> None:
    loader, other = make(), make(**change)
    if when != "new":
        taken(loader, 3 if when == "middle" else LENGTH)
    state = through_file(loader.state_dict())
    assert state["epoch"] == (when == "between")
    before = other.state_dict()
    refusal = refused(lambda: other.load_state_dict(state), StateError)
    assert message in refusal and "LL301" in refusal
    assert other.state_dict() == before
    make().load_state_dict(state)


def test_another_kind_of_sampler_is_named_first() -> None:
    dataset = mixed().dataset
    plain = DataLoader(dataset, 4, shuffle=True, seed=3)
    for loader, other in ((plain, mixed()), (mixed(), plain)):
        with pytest.raises(StateError, match="order=.*, but this loader has order="):
            loader.load_state_dict(other.state_dict())


# --- and others are not ---


def test_weights_of_the_same_shares_are_the_same() -> None:
    loader = mixed()
    expected = digests(loader)
    loader.set_epoch(0)
    taken(loader, 3)
    other = loaded(mixed(weights=(0.75, 0.25)), through_file(loader.state_dict()))
    assert digests(other) == expected[3:]


def test_another_number_of_ranks_may_begin_an_epoch_of_token_batches() -> None:
    loader = budgeted(num_replicas=2)
    digests(loader)
    between = through_file(loader.state_dict())
    budgeted(num_replicas=4).load_state_dict(between)
    taken(loader, 2)
    with pytest.raises(StateError, match="divides the samples differently"):
        budgeted(num_replicas=4).load_state_dict(through_file(loader.state_dict()))


# --- what is told ---


def test_states_stay_small() -> None:
    sources = MixtureDataset([range(1000 + number) for number in range(300)])
    loader = DataLoader(sources, sampler=MixtureSampler(sources, seed=2**64 - 1))
    assert len(pickle.dumps(loader.state_dict())) < 25 * 300  # a name and a share each
    batches = TokenBudgetBatchSampler(np.full(100_000, 5), 40, seed=2**64 - 1)
    loader = DataLoader(range(100_000), batch_sampler=batches)
    assert len(pickle.dumps(loader.state_dict())) < 600


@pytest.mark.parametrize(
    "given", ["abc", [1], {1: 2}, {"seed": np.int64(1)}, {"share": np.float64(1)}, {"seeds": [1]}]
)
def test_what_cannot_be_part_of_a_state_is_refused(given: Any) -> None:
    sampler = Descending(5)
    sampler.state_fingerprint = lambda: given  # type: ignore[method-assign]
    assert "state_fingerprint" in refused(lambda: DataLoader(range(LENGTH), sampler=sampler))


def test_a_state_of_the_other_kind_of_dataset_says_so() -> None:
    map_style, stream = DataLoader(DATA, 4, seed=3), streamed()
    taken_of = [state_behind(loader, 1) for loader in (map_style, stream)]
    for loader, state in ((streamed(), taken_of[0]), (DataLoader(DATA, 4, seed=3), taken_of[1])):
        with pytest.raises(StateError, match="dataset"):
            loader.load_state_dict(state)
