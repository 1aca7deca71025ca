"""A sampler's generator is where it was when the epoch began, also in the same process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils.data
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


class Lazy(Drawing):
    """It draws index by index, and once more at its end."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(LENGTH):
            yield int(torch.randint(LENGTH, (), generator=self.own))
        torch.rand(1, generator=self.own)


def seeded_by_the_program(kind: type[Drawing], workers: int) -> tuple[DataLoader[Any], Any]:
    sampler = kind()
    loader = DataLoader(range(LENGTH), 2, sampler=sampler, num_workers=workers)
    return loader, sampler.own.manual_seed


@pytest.mark.parametrize("kind", [Drawing, Lazy])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("given_out", [1, 2, 5])
def test_a_generator_that_is_seeded_for_each_epoch(
    kind: type[Drawing], workers: int, given_out: int
) -> None:
    # As in `generator.manual_seed(epoch)`; the epoch before is left early, or at its last batch.
    loader, seed = seeded_by_the_program(kind, workers)
    sampler = kind()
    for epoch in range(3):
        seed(100 + epoch)
        sampler.own.manual_seed(100 + epoch)
        expected = list(torch.utils.data.BatchSampler(sampler, 2, drop_last=False))
        iterator = iter(loader)
        assert rest(next(iterator) for _ in range(given_out)) == expected[:given_out]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_generator_that_is_not_seeded_goes_on_behind_what_was_given_out(workers: int) -> None:
    loader, _ = seeded_by_the_program(Lazy, workers)
    sampler = Lazy()
    for given_out in (1, 3, 2):
        iterator = iter(loader)
        given = rest(next(iterator) for _ in range(given_out))
        draws = range(given_out * 2)
        drawn = [int(torch.randint(LENGTH, (), generator=sampler.own)) for _ in draws]
        assert [index for batch in given for index in batch] == drawn


@pytest.mark.parametrize("kind", [Drawing, Lazy])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_generator_that_is_seeded_for_the_epoch_behind_a_loaded_state(
    kind: type[Drawing], workers: int
) -> None:
    loader, seed = seeded_by_the_program(kind, workers)
    epochs, states = [], []
    for epoch in range(3):
        seed(100 + epoch)
        epochs.append(rest(loader))
        states.append(loader.state_dict())
    for epoch in range(2):
        resumed, seed = seeded_by_the_program(kind, workers)
        resumed.load_state_dict(states[epoch])
        for later in range(epoch + 1, 3):
            seed(100 + later)
            assert rest(resumed) == epochs[later]


def test_a_loaded_position_does_not_depend_on_what_the_program_seeds_anew() -> None:
    loader, _ = seeded_by_the_program(Lazy, 0)
    rest(loader)
    iterator = iter(loader)
    next(iterator)
    state, expected = loader.state_dict(), rest(iterator)
    resumed, seed = seeded_by_the_program(Lazy, 0)
    resumed.load_state_dict(state)
    seed(3)  # as it did when it was started first
    assert rest(resumed) == expected
