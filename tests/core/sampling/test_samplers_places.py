"""Samplers with a state_dict, which has their place: they are put back there."""

from itertools import islice

import pytest

from lit_loader import DataLoader
from tests.support.exact import loaded, through_file
from tests.support.stateful_data import sampling
from tests.support.tools import lists

LENGTH = 42


def loader_of(use: str, kind: str) -> DataLoader[int]:
    # One that draws its order at its first item must have that in its state.
    shuffle = "no" if kind == "sampler" else "torch"
    return DataLoader(range(LENGTH), seed=1, **sampling(use, kind, LENGTH, shuffle)[1])


@pytest.mark.parametrize("batches", [3, None], ids=["given up", "whole"])
@pytest.mark.parametrize("kind", ["sampler", "iterator", "both"])
@pytest.mark.parametrize("use", ["sampler", "batch sampler"])
def test_a_state_of_a_pass_of_which_no_step_was_committed(
    use: str, kind: str, batches: int | None
) -> None:
    """As a trainer asks for it whose first step after ``set_epoch`` has failed."""

    def begun() -> DataLoader[int]:
        loader = loader_of(use, kind)
        loader.commit()
        loader.set_epoch(0)
        lists(islice(iter(loader), batches))
        loader.commit()
        loader.set_epoch(1)
        return loader

    expected, loader = lists(begun()), begun()
    iterator = iter(loader)
    assert lists(islice(iterator, 1)) == expected[:1]
    state = through_file(loader.state_dict())
    again = loaded(loader_of(use, kind), state)
    assert lists(islice(iter(again), 2)) == expected[:2]
    assert lists(loaded(loader_of(use, kind), state)) == expected
