"""The samplers of ordinary programs, cut at every batch and resumed in a new process's objects."""

from __future__ import annotations

import itertools
import math
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
)

from lit_loader import DataLoader, merge_states
from tests.support.exact import Indices

LENGTH, SIZE, EPOCHS = 14, 4, 3
BATCHES = -(-LENGTH // SIZE)
DATA = Indices(LENGTH)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Own(Sampler[int]):
    def __init__(self) -> None:
        pass

    def __len__(self) -> int:
        return LENGTH


class SeededByEpoch(Own):
    """As torch's documentation of ``set_epoch`` suggests it; keeps the epoch for itself."""

    def __init__(self) -> None:
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(LENGTH, generator=seeded(7 + self._epoch)).tolist())


class SeedsItsGenerator(Own):
    """Seeds in ``set_epoch`` what its constructor has seeded."""

    def __init__(self) -> None:
        self.generator = seeded(5)

    def set_epoch(self, epoch: int) -> None:
        self.generator.manual_seed(5 + epoch)

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(LENGTH, generator=self.generator).tolist()


class InChunks(Own):
    """Draws five indices at a time, when they are needed."""

    def __init__(self) -> None:
        self.generator = seeded(6)

    def __iter__(self) -> Iterator[int]:
        for start in range(0, LENGTH, 5):
            number = min(5, LENGTH - start)
            yield from torch.randint(LENGTH, (number,), generator=self.generator).tolist()


class Shuffles(Own):
    """By the global generator."""

    def __iter__(self) -> Iterator[int]:
        order = list(range(LENGTH))
        random.shuffle(order)
        return iter(order)


class WithState(Own):
    def __init__(self) -> None:
        self.epochs, self.place, self.generator = 0, 0, seeded(1)
        self.order: list[int] = []

    def __iter__(self) -> Iterator[int]:
        if self.place in (0, LENGTH):
            self.epochs, self.place = self.epochs + 1, 0
            self.order = torch.randperm(LENGTH, generator=seeded(self.epochs)).tolist()
        while self.place < LENGTH:
            self.place += 1
            yield self.order[self.place - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs, "place": self.place, "order": list(self.order)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epochs, self.place, self.order = state["epochs"], state["place"], state["order"]


class RepeatedAugmentation(Own):
    """timm's ``RASampler``: each index three times, a share for a rank."""

    def __init__(self, rank: int = 1) -> None:
        self.num_replicas, self.rank, self.epoch, self.num_repeats = 2, rank, 0, 3
        self.num_selected = math.ceil(LENGTH / self.num_replicas)

    def __len__(self) -> int:
        return self.num_selected

    def __iter__(self) -> Iterator[int]:
        indices = torch.randperm(LENGTH, generator=seeded(self.epoch))
        indices = torch.repeat_interleave(indices, repeats=self.num_repeats, dim=0)
        return iter(indices[self.rank :: self.num_replicas].tolist()[: self.num_selected])

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Seedable(RandomSampler):
    """accelerate's ``SeedableRandomSampler``: has no generator until it is iterated."""

    def __init__(self) -> None:
        super().__init__(DATA)
        self.initial_seed, self.epoch = 3, 0

    def __iter__(self) -> Iterator[int]:
        if self.generator is None:
            self.generator = torch.Generator()
        self.generator.manual_seed(self.epoch + self.initial_seed)
        yield from super().__iter__()
        self.set_epoch(self.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Around:
    """A batch sampler of the program's own around a sampler."""

    def __init__(self) -> None:
        self.sampler = RandomSampler(DATA, generator=seeded(2))

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[list[int]]:
        items = iter(self.sampler)
        while batch := list(itertools.islice(items, SIZE)):
            yield batch


KINDS: dict[str, Callable[[], Any]] = {
    "random": lambda: RandomSampler(DATA, generator=seeded(3)),
    "weighted": lambda: WeightedRandomSampler([1.0, 2.0] * 7, LENGTH, generator=seeded(4)),
    "in batches": lambda: BatchSampler(RandomSampler(DATA, generator=seeded(2)), SIZE, False),
    "around": Around,
    "seeded by epoch": SeededByEpoch,
    "seeds its generator": SeedsItsGenerator,
    "in chunks": InChunks,
    "global": Shuffles,
    "with a state": WithState,
    "repeated": RepeatedAugmentation,
    "accelerate": Seedable,
    "distributed": lambda: DistributedSampler(DATA, num_replicas=2, rank=1, seed=1),
}
WORKERS = [(0, False), (2, False), (2, True)]


def loader_of(sampler: Any, workers: int, persistent: bool) -> DataLoader[Any]:
    options: dict[str, Any] = {"sampler": sampler, "batch_size": SIZE}
    if isinstance(sampler, (BatchSampler, Around)):
        options = {"batch_sampler": sampler}
    return DataLoader(DATA, seed=1, num_workers=workers, persistent_workers=persistent, **options)


Cut = tuple[int, int | None]


def trained(
    make: Callable[[], Any],
    workers: int = 0,
    persistent: bool = False,
    start: int = 0,
    state: Any = None,
    cuts: bool = False,
    told_first: bool = False,
) -> tuple[list[Any], dict[Cut, Any]]:
    """A training program: all batches, and the states behind each and between the epochs."""
    sampler, seen = make(), list[Any]()
    states: dict[Cut, Any] = {}
    with loader_of(sampler, workers, persistent) as loader:
        if state is not None and not told_first:
            loader.load_state_dict(state)
        for epoch in range(start, EPOCHS):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            if state is not None and told_first and epoch == start:
                loader.load_state_dict(state)
            for number, batch in enumerate(loader):
                seen.append((epoch, batch.tolist()))
                if cuts:
                    states[epoch, number] = loader.state_dict(), len(seen)
            if cuts:
                states[epoch, None] = loader.state_dict(), len(seen)
    return seen, states


@pytest.mark.parametrize("told_first", [False, True], ids=["", "told before it is loaded"])
@pytest.mark.parametrize("kind", KINDS)
def test_cut_anywhere_and_resumed_it_is_the_same_training(kind: str, told_first: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole, states = trained(KINDS[kind], cuts=True)
        assert len({str(batch) for _, batch in whole}) > BATCHES
        for (epoch, number), (state, given) in states.items():
            start = epoch + (number is None)
            got, _ = trained(KINDS[kind], start=start, state=state, told_first=told_first)
            assert got == whole[given:], (epoch, number)


@pytest.mark.parametrize(("workers", "persistent"), WORKERS[1:], ids=["2", "2 that stay"])
@pytest.mark.parametrize("kind", KINDS)
def test_so_it_is_with_workers(kind: str, workers: int, persistent: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole, _ = trained(KINDS[kind])
        seen, states = trained(KINDS[kind], workers, persistent, cuts=True)
        assert seen == whole
        for cut in [(0, 1), (1, 0), (1, None)]:
            state, given = states[cut]
            start = cut[0] + (cut[1] is None)
            got, _ = trained(KINDS[kind], workers, persistent, start, state)
            assert got == whole[given:], cut


# --- what a resume cannot bring back is told, or refused ---


@pytest.mark.parametrize("kind", [SeededByEpoch, SeedsItsGenerator])
def test_one_that_is_told_another_epoch_than_the_states_says_so(kind: Any) -> None:
    sampler = kind()
    loader = loader_of(sampler, 0, False)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        list(itertools.islice(loader, 2))
    sampler = kind()
    resumed = loader_of(sampler, 0, False)
    resumed.load_state_dict(loader.state_dict())
    sampler.set_epoch(2)
    with pytest.warns(UserWarning, match="gives other indices than before the state was taken"):
        list(resumed)


@pytest.mark.parametrize("batches", [1, None], ids=["in mid-epoch", "between epochs"])
def test_states_of_ranks_whose_sampler_takes_its_share_are_merged(batches: int | None) -> None:
    states = []
    for rank in range(2):
        sampler = RepeatedAugmentation(rank)
        loader = loader_of(sampler, 0, False)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            list(itertools.islice(loader, batches))
        states.append(loader.state_dict())
    merged = merge_states(states)
    assert (merged["epoch"], merged["batches"]) == ((1, 1) if batches else (2, 0))
