"""States are compared whatever of the user's lies in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Sampler

from lit_loader import DataLoader, StateError, merge_states
from lit_loader.checkpoint.untrusted_state import alike

NAN = float("nan")


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda: np.arange(3), np.arange(4)),
        (lambda: {"a": [np.zeros(2), 1]}, {"a": [np.zeros(2), 2]}),
        (lambda: (torch.ones(2), NAN), (torch.zeros(2), NAN)),
        (lambda: np.zeros(2, np.int32), np.zeros(2, np.int64)),
        (lambda: 1, True),
        (lambda: torch.eye(2).to_sparse(), None),
    ],
)
def test_it_compares_values(make: Any, other: Any) -> None:
    one = make()
    assert alike(one, one) and not alike(one, other)
    assert alike(one, make()) or one.layout is torch.sparse_coo  # which cannot be compared


def test_what_contains_itself() -> None:
    one: list[Any] = []
    one.append(one)
    other: list[Any] = []
    other.append(other)
    assert alike(one, one) and not alike(one, other)


class Held(Sampler[int]):
    """Has an array in its state."""

    def __init__(self) -> None:
        self.held = np.arange(5)

    def __iter__(self) -> Iterator[int]:
        return iter(range(12))

    def __len__(self) -> int:
        return 12

    def state_dict(self) -> dict[str, Any]:
        return {"held": self.held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = state["held"]


def test_states_of_all_ranks_that_are_the_same() -> None:
    loader = DataLoader(list(range(12)), 4, sampler=Held())
    iterator = iter(loader)
    next(iterator)
    one, same = loader.state_dict(), loader.state_dict()
    assert merge_states([one, same])["batches"] == 1
    next(iterator)
    with pytest.raises(StateError, match="states differ, which are the same on all ranks"):
        merge_states([one, loader.state_dict()])
