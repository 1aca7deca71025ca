"""The samplers of users' programs: told epochs, interrupted, cut anywhere, and resumed.

What a resume cannot bring back (a counter, a generator under another name) is said by LL319.
"""

import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import DataLoader as TorchLoader

from lit_loader import DataLoader, merge_states
from tests.support.exact import StatefulSampler, loaded
from tests.support.samples import Call
from tests.support.tools import lists

LENGTH, SIZE, EPOCHS = 14, 4, 3
BATCHES = -(-LENGTH // SIZE)
DATA = Call(int, LENGTH)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Own:
    """A sampler whose order a function makes, pass by pass."""

    def __init__(self, order: Callable[[], Any]) -> None:
        self.order = order

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        yield from self.order()


class SeededByEpoch(Own):
    """As torch's documentation of ``set_epoch`` suggests; keeps the epoch for itself."""

    def __init__(self) -> None:
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def order(self) -> Any:
        return torch.randperm(LENGTH, generator=seeded(7 + self._epoch)).tolist()


class SeedsItsGenerator(Own):
    def __init__(self) -> None:
        self.generator = seeded(5)

    def set_epoch(self, epoch: int) -> None:
        self.generator.manual_seed(5 + epoch)

    def order(self) -> Any:
        return torch.randperm(LENGTH, generator=self.generator).tolist()


class Prebuilt(SeededByEpoch):
    """A batch sampler whose batches are made when it is told the epoch."""

    def __init__(self) -> None:
        self.set_epoch(0)

    def __len__(self) -> int:
        return BATCHES

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.batches = [*BatchSampler(self.order(), SIZE, drop_last=False)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


class RepeatedAugmentation(Own):
    """timm's ``RASampler``: each index three times, a share for a rank."""

    def __init__(self, rank: int = 1) -> None:
        self.num_replicas, self.rank, self.epoch, self.num_repeats = 2, rank, 0, 3
        self.num_selected = math.ceil(LENGTH / self.num_replicas)

    def __len__(self) -> int:
        return self.num_selected

    def order(self) -> Any:
        indices = torch.randperm(LENGTH, generator=seeded(self.epoch))
        indices = torch.repeat_interleave(indices, repeats=self.num_repeats, dim=0)
        return indices[self.rank :: self.num_replicas].tolist()[: self.num_selected]

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


class InChunks(Own):
    """Draws some indices at a time, when they are needed, from its attribute ``generator``."""

    def __init__(self, size: int = 5) -> None:
        self.generator, self.size = seeded(6), size

    def order(self) -> Any:
        for start in range(0, LENGTH, self.size):
            number = min(self.size, LENGTH - start)
            yield from torch.randint(LENGTH, (number,), generator=self.generator).tolist()


class Eager(Own):
    def __init__(self) -> None:
        pass

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(LENGTH).tolist())


class Counting(Own):
    """Counts its passes by itself, which no state has."""

    def __init__(self) -> None:
        self.count = 0

    def __iter__(self) -> Iterator[int]:
        self.count += 1
        return iter(torch.randperm(LENGTH, generator=seeded(self.count)).tolist())


class Hidden(Own):
    def __init__(self) -> None:
        self.rng = random.Random(1)

    def order(self) -> Any:
        return self.rng.sample(range(LENGTH), LENGTH)


TOLD: dict[str, Callable[[], Any]] = {
    "seeded by epoch": SeededByEpoch,
    "seeds its generator": SeedsItsGenerator,
    "prebuilt": Prebuilt,
    "repeated": RepeatedAugmentation,
    "accelerate": Seedable,
    "distributed": lambda: DistributedSampler(DATA, num_replicas=2, rank=1, seed=1),
}
OTHERS: dict[str, Callable[[], Any]] = {
    "in chunks": InChunks,
    "one by one": lambda: InChunks(1),
    "permutation": lambda: RandomSampler(DATA, generator=seeded(8)),
    "draws": lambda: RandomSampler(DATA, True, LENGTH + 40, seeded(8)),
    "weighted": lambda: WeightedRandomSampler([1.0] * LENGTH, LENGTH, generator=seeded(8)),
    "subset": lambda: SubsetRandomSampler(range(LENGTH), generator=seeded(8)),
    "in torch's batches": lambda: BatchSampler(
        RandomSampler(DATA, generator=seeded(8)), SIZE, False
    ),
    "python's": lambda: Own(lambda: random.sample(range(LENGTH), LENGTH)),
    "numpy's": lambda: Own(lambda: np.random.permutation(LENGTH).tolist()),
    "torch's": lambda: Own(lambda: map(int, torch.randperm(LENGTH))),
    "eager": Eager,
    "with a state": lambda: StatefulSampler(LENGTH),
}
KINDS = TOLD | OTHERS


def options_of(sampler: Any) -> dict[str, Any]:
    if isinstance(sampler, (Prebuilt, BatchSampler)):
        return {"batch_sampler": sampler}
    return {"sampler": sampler, "batch_size": SIZE}


def loader_of(sampler: Any, workers: int = 0, data: Any = DATA) -> DataLoader[Any]:
    return DataLoader(data, num_workers=workers, seed=1, **options_of(sampler))


def torchs(sampler: Any) -> Any:
    return TorchLoader(DATA, **options_of(sampler))


Cut = tuple[int, int | None]


def trained(
    make: Callable[[], Any], start: int = 0, state: Any = None, told_first: bool = False
) -> tuple[list[Any], dict[Cut, Any]]:
    """A training program: all batches, and the states behind each and between the epochs."""
    sampler, seen = make(), list[Any]()
    states: dict[Cut, Any] = {}
    with loader_of(sampler) as loader:
        if state is not None and not told_first:
            loader.load_state_dict(state)
        for epoch in range(start, EPOCHS):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            if state is not None and told_first and epoch == start:
                loader.load_state_dict(state)
            for number, batch in enumerate(loader):
                seen.append((epoch, batch.tolist()))
                states[epoch, number] = loader.state_dict(), len(seen)
            states[epoch, None] = loader.state_dict(), len(seen)
    return seen, states


@pytest.mark.filterwarnings("ignore:.*at the end of epoch .*LL334")
@pytest.mark.parametrize(
    ("kind", "told_first"), [*((kind, False) for kind in KINDS), *((kind, True) for kind in TOLD)]
)
def test_cut_anywhere_and_resumed_it_is_the_same_training(kind: str, told_first: bool) -> None:
    whole, states = trained(KINDS[kind])
    assert len({str(batch) for _, batch in whole}) > LENGTH / SIZE + 1
    for (epoch, number), (state, given) in states.items():
        start = epoch + (number is None)
        got, _ = trained(KINDS[kind], start, state, told_first)
        assert got == whole[given:], (epoch, number)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_draws_again_late_in_a_pass_is_seeded_there(workers: int) -> None:
    def in_two_parts() -> Iterator[int]:
        for start in (0, 50):
            yield from random.sample(range(start, start + 50), 50)

    def run(seed: int) -> Any:
        random.seed(seed)
        return lists(DataLoader(range(100), 2, sampler=in_two_parts(), seed=1, num_workers=workers))

    assert run(1) == run(2)


def test_a_loaded_position_does_not_depend_on_what_the_program_seeds_at_its_start() -> None:
    loader = loader_of(InChunks(1))
    lists(loader)
    iterator = iter(loader)
    next(iterator)
    state, expected = loader.state_dict(), lists(iterator)
    sampler = InChunks(1)
    resumed = loaded(loader_of(sampler), state)
    sampler.generator.manual_seed(3)
    assert lists(resumed) == expected


# --- what is told, and what is said ---


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [SeededByEpoch, SeedsItsGenerator, Prebuilt])
def test_it_is_told_what_the_program_tells_and_no_more(
    kind: Any, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = kind(), kind()
    expected, told = torchs(theirs), list[int]()
    set_epoch = kind.set_epoch

    def noted(sampler: Any, epoch: int) -> None:
        if sampler is mine:
            told.append(epoch)
        set_epoch(sampler, epoch)

    monkeypatch.setattr(kind, "set_epoch", noted)
    with loader_of(mine, workers) as loader:
        assert lists(loader) == lists(expected)
        for epoch in (5, 2, 2):
            mine.set_epoch(epoch)
            theirs.set_epoch(epoch)
            assert lists(loader) == lists(expected), epoch
        assert told == [5, 2, 2]
        loader.set_epoch(4)  # the loader tells it, then
        theirs.set_epoch(4)
        assert lists(loader) == lists(expected)


@pytest.mark.parametrize("kind", [Counting, Hidden, SeededByEpoch])
def test_what_is_not_brought_back_is_said(kind: Any) -> None:
    """A counter, a generator nobody finds, an epoch that the program does not set again."""
    loader = loader_of(kind())
    for epoch in range(2):
        if kind is SeededByEpoch:
            loader.set_epoch(epoch)
        list(itertools.islice(loader, 2 if epoch else None))
    resumed = loaded(loader_of(kind()), loader.state_dict())
    with pytest.warns(UserWarning, match="LL319"):
        assert len(list(resumed)) == BATCHES - 2


@pytest.mark.parametrize("batches", [1, None], ids=["mid-epoch", "between epochs"])
def test_states_of_ranks_whose_sampler_takes_its_share_are_merged(batches: int | None) -> None:
    states = []
    for rank in range(2):
        sampler = RepeatedAugmentation(rank)
        loader = loader_of(sampler)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            list(itertools.islice(loader, batches))
        states.append(loader.state_dict())
    merged = merge_states(states)
    assert (merged["epoch"], merged["batches"]) == ((1, 1) if batches else (2, 0))
