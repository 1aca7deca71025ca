"""A sampler's generator is where it was when the epoch began, also in the same process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Sampler

from lit_loader import DataLoader

LENGTH = 9


class Drawing(Sampler[int]):
    """Its order depends on a generator of its own."""

    def __init__(self) -> None:
        self.shift, self.interrupt_at = 0, -1
        self.own = torch.Generator().manual_seed(3)

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        for place, index in enumerate(torch.randperm(LENGTH, generator=self.own)):
            if place == self.interrupt_at:
                self.interrupt_at = -1
                signal.raise_signal(signal.SIGINT)
            yield (int(index) + self.shift) % LENGTH


def make(workers: int) -> tuple[DataLoader[Any], Drawing]:
    sampler = Drawing()
    return DataLoader(range(LENGTH), 2, sampler=sampler, num_workers=workers), sampler  # type: ignore[arg-type]


def rest(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_is_loaded_where_it_was_taken(workers: int) -> None:
    loader, _ = make(workers)
    reference, _ = make(0)
    expected = [rest(reference) for _ in range(3)]
    for epoch in range(2):
        iterator = iter(loader)
        first = rest(next(iterator) for _ in range(2))
        state = loader.state_dict()
        next(iterator)
        for _ in range(2):
            loader.load_state_dict(state)
            assert first + rest(loader) == expected[epoch]
    assert rest(loader) == expected[2]


def test_an_iterator_that_was_interrupted_goes_on() -> None:
    expected = rest(make(0)[0])
    loader, sampler = make(0)
    iterator = iter(loader)
    found = [next(iterator).tolist()]
    sampler.interrupt_at = 3
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert found + rest(iterator) == expected


def test_what_was_set_before_the_first_epoch_stays() -> None:
    reference, sampler = make(0)
    sampler.shift = 4
    iterator = iter(reference)
    first = rest(next(iterator) for _ in range(2))
    state = reference.state_dict()
    loader, sampler = make(0)
    loader.state_dict()
    sampler.shift = 4
    loader.load_state_dict(state)
    assert first + rest(loader) == first + rest(iterator)
