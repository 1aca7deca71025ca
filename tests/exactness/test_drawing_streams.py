"""Streams whose draws decide what comes next: states of older versions, and what cannot be found.

The table of kinds, generators and states, cut, killed and resized, is in test_exactness.py.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from lit_loader import DataLoader
from tests.support.drawing_streams import (
    STATES,
    OnDataset,
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


def loader(dataset: Any, size: int = SIZE) -> DataLoader[Any]:
    return DataLoader(dataset, size, seed=5, collate_fn=uncollated)


def test_a_state_without_marks() -> None:
    """As older versions have made them: read as these did, and saved again."""
    one = loader(OnDataset("shuffled augmented", "random"))
    batches = iter(one)
    for _ in range(5):
        next(batches)
    state = one.state_dict()
    rest = list(batches)
    del state["workers"][0][4:]
    resumed = loader(OnDataset("shuffled augmented", "random"))
    resumed.load_state_dict(state)
    got = list(itertools.islice(resumed, 1))
    state = through_file(resumed.state_dict())
    again = loader(OnDataset("shuffled augmented", "random"))
    again.load_state_dict(state)
    assert got + list(again) == rest


@pytest.mark.parametrize("state", ["dataset", "none"])
def test_what_cannot_be_found_again_is_told(state: str) -> None:
    def make() -> DataLoader[Any]:
        return loader(STATES[state]("filter", "none knows", length=400), size=24)

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
    one = loader(OnDataset(kind, "random"))
    batches = iter(one)
    for _ in range(6):
        next(batches)
    dataset = OnDataset(kind, "random")
    resumed = loader(dataset)
    resumed.load_state_dict(one.state_dict())
    next(iter(resumed))
    assert 2 * SIZE < dataset.taken <= 5 * SIZE
