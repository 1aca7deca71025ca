"""Streams whose draws decide what comes next: states of older versions, and what cannot be found.

The table of kinds, generators and states, cut, killed and resized, is in test_exactness.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from torch.utils.data import get_worker_info

from lit_loader import DataLoader
from tests.support.drawing_streams import (
    STATES,
    OfALocalGenerator,
    OnDataset,
    stream,
)
from tests.support.exact import through_file
from tests.support.samples import uncollated

pytestmark = [
    pytest.mark.filterwarnings("ignore:.* has no state_dict and load_state_dict"),
    pytest.mark.filterwarnings("ignore:.*has a source that has no state_dict"),
    pytest.mark.filterwarnings("ignore::lit_loader.WorkerRestartWarning"),
    pytest.mark.filterwarnings("ignore:.*is a random generator that was made while"),
]

SIZE = 3


class Case(NamedTuple):
    kind: str
    generator: str = "random"
    state: str = "dataset"
    shards: int | None = None

    def loader(self, workers: int = 0, **options: Any) -> DataLoader[Any]:
        return loader(
            stream(self.kind, self.generator, self.state), workers, self.shards, **options
        )


def loader(
    dataset: Any, workers: int, shards: int | None, size: int = SIZE, **options: Any
) -> DataLoader[Any]:
    if shards is not None:
        options["num_shards"] = shards
    return DataLoader(dataset, size, num_workers=workers, seed=5, collate_fn=uncollated, **options)


def check(make: Callable[[], DataLoader[Any]], stops: slice = slice(None)) -> None:
    """Cut it everywhere, resume there, and once more a batch later."""
    with make() as one:
        expected, states = [], [through_file(one.state_dict())]
        for batch in one:
            expected.append(batch)
            states.append(through_file(one.state_dict()))
    assert len(expected) > 6
    for stop in range(len(states))[stops]:
        with make() as resumed:
            resumed.load_state_dict(states[stop])
            iterator = iter(resumed)
            got = list(itertools.islice(iterator, 1))
            state = through_file(resumed.state_dict())
            assert got + list(iterator) == expected[stop:], stop
        if got:
            with make() as again:
                again.load_state_dict(state)
                assert list(again) == expected[stop + 1 :], stop


@pytest.mark.parametrize("seeding", ["batch", "sample"])
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_other_options(seeding: str, policy: str) -> None:
    check(lambda: Case("filter").loader(seeding=seeding, on_sample_error=policy))


def test_a_generator_that_is_in_no_state() -> None:
    """It is made anew where the stream begins again, so all is read again."""
    check(lambda: loader(OfALocalGenerator("filter", "random", length=400), 0, None, size=24))


class KnowsItself(OfALocalGenerator):
    """Compares what it is with what torch says is read."""

    def __iter__(self) -> Iterator[Any]:
        for sample in super().__iter__():
            info = get_worker_info()
            assert info is not None and info.dataset is self
            yield sample


@pytest.mark.parametrize(("workers", "shards"), [(1, None), (0, 2), (1, 2)])
def test_a_copy_that_is_read_in_its_stead_is_who_torch_says(
    workers: int, shards: int | None
) -> None:
    def make() -> DataLoader[Any]:
        return loader(KnowsItself("filter", "random", length=400), workers, shards, size=24)

    with make() as one:
        batches = iter(one)
        for _ in range(7):
            next(batches)
        state = one.state_dict()
        rest = list(batches)
    with make() as resumed:
        resumed.load_state_dict(state)
        assert list(resumed) == rest


def test_a_state_without_marks() -> None:
    """As older versions have made them: read as these did, and saved again."""
    case = Case("shuffled augmented")
    one = case.loader()
    batches = iter(one)
    for _ in range(5):
        next(batches)
    state = one.state_dict()
    rest = list(batches)
    del state["workers"][0][4:]
    resumed = case.loader()
    resumed.load_state_dict(state)
    got = list(itertools.islice(resumed, 1))
    state = through_file(resumed.state_dict())
    again = case.loader()
    again.load_state_dict(state)
    assert got + list(again) == rest


@pytest.mark.parametrize("state", ["dataset", "none"])
def test_what_cannot_be_found_again_is_told(state: str) -> None:
    def make() -> DataLoader[Any]:
        return loader(STATES[state]("filter", "none knows", length=400), 0, None, size=24)

    one = make()
    batches = iter(one)
    for _ in range(5):
        next(batches)
    resumed = make()
    resumed.load_state_dict(one.state_dict())
    with pytest.warns(UserWarning, match="were read again, and were others"):
        next(iter(resumed))


@pytest.mark.parametrize("kind", ["filter", "buffer", "shuffled", "shuffled augmented"])
def test_a_state_spares_reading(kind: str) -> None:
    """Of what was given out, two batches are read again, at most twice."""
    one = loader(OnDataset(kind, "random"), 0, None)
    batches = iter(one)
    for _ in range(6):
        next(batches)
    dataset = OnDataset(kind, "random")
    resumed = loader(dataset, 0, None)
    resumed.load_state_dict(one.state_dict())
    next(iter(resumed))
    assert 2 * SIZE < dataset.taken <= 5 * SIZE
