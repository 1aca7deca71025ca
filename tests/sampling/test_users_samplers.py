"""The samplers of users' programs: cut at every batch, left early, seeded anew, and resumed."""

from __future__ import annotations

import itertools
import math
import random
import signal
import warnings
import zlib
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

from lit_loader import DataLoader, StateError, merge_states
from tests.support.exact import Indices

LENGTH, SIZE, EPOCHS = 14, 4, 3
DATA = Indices(LENGTH)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Own:
    """A sampler whose order a subclass makes, epoch by epoch."""

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        yield from self.order()

    def order(self) -> Any:
        raise NotImplementedError


# --- that are told the epoch ---


class SeededByEpoch(Own):
    """As torch's documentation of ``set_epoch`` suggests it; keeps the epoch for itself."""

    def __init__(self) -> None:
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def order(self) -> Any:
        return torch.randperm(LENGTH, generator=seeded(7 + self._epoch)).tolist()


class SeedsItsGenerator(Own):
    """Seeds in ``set_epoch`` what its constructor has seeded."""

    def __init__(self) -> None:
        self.generator = seeded(5)

    def set_epoch(self, epoch: int) -> None:
        self.generator.manual_seed(5 + epoch)

    def order(self) -> Any:
        return torch.randperm(LENGTH, generator=self.generator).tolist()


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


class ToldEpochs(Own):
    """Goes on with its generator, and is told the epoch."""

    def __init__(self) -> None:
        self.rng, self.epoch = random.Random(1), 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def order(self) -> Any:
        first = self.rng.randrange(LENGTH)
        return [(first + self.epoch + number) % LENGTH for number in range(LENGTH)]


# --- that go on with a generator, or have a state ---


class Generator(Own):
    """Goes on with a generator under some name, of some kind."""

    def __init__(self, rng: Any = None) -> None:
        self.rng = rng or seeded(3)

    def order(self) -> Any:
        if isinstance(self.rng, random.Random):
            self.rng.gauss(0, 1)  # another one in reserve
            return self.rng.sample(range(LENGTH), LENGTH)
        if isinstance(self.rng, torch.Generator):
            return torch.randperm(LENGTH, generator=self.rng).tolist()
        return self.rng.permutation(LENGTH).tolist()


class MadeOnFirstUse(Generator):
    def __init__(self) -> None:
        self.rng = None

    def order(self) -> Any:
        self.rng = self.rng or random.Random(5)
        return super().order()


class Both(Own):
    """Its own, and one of a sampler inside of it, in slots."""

    __slots__ = ("inner", "rng")

    def __init__(self) -> None:
        self.inner, self.rng = Generator(random.Random(1)), np.random.default_rng(2)

    def order(self) -> Any:
        first = int(self.rng.integers(LENGTH))
        return [(index + first) % LENGTH for index in self.inner.order()]


class InChunks(Own):
    """Draws five indices at a time, when they are needed."""

    def __init__(self) -> None:
        self.generator = seeded(6)

    def order(self) -> Any:
        for start in range(0, LENGTH, 5):
            number = min(5, LENGTH - start)
            yield from torch.randint(LENGTH, (number,), generator=self.generator).tolist()


class OneByOne(Own):
    """Draws index by index, and once more at its end; can be interrupted."""

    interrupt_at = -1

    def __init__(self) -> None:
        self.rng = seeded(3)

    def order(self) -> Any:
        for place in range(LENGTH):
            if place == self.interrupt_at:
                self.interrupt_at = -1
                signal.raise_signal(signal.SIGINT)
            yield int(torch.randint(LENGTH, (), generator=self.rng))
        torch.rand(1, generator=self.rng)


class Shuffles(Own):
    """By the global generator."""

    def order(self) -> Any:
        return random.sample(range(LENGTH), LENGTH)


class WithState(Own):
    def __init__(self) -> None:
        self.epochs, self.place, self.indices = 0, 0, list[int]()

    def order(self) -> Any:
        if self.place in (0, LENGTH):
            self.epochs, self.place = self.epochs + 1, 0
            self.indices = torch.randperm(LENGTH, generator=seeded(self.epochs)).tolist()
        while self.place < LENGTH:
            self.place += 1
            yield self.indices[self.place - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs, "place": self.place, "indices": [*self.indices]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class Batches:
    """A batch sampler that goes on with its generator, over a sampler that does, too."""

    def __init__(self) -> None:
        self.sampler, self.rng = RandomSampler(DATA, generator=seeded(2)), random.Random(1)

    def __len__(self) -> int:
        return -(-LENGTH // SIZE)

    def __iter__(self) -> Iterator[list[int]]:
        indices, shift = list(self.sampler), self.rng.randrange(LENGTH)
        for start in range(0, LENGTH, SIZE):
            yield [(index + shift) % LENGTH for index in indices[start : start + SIZE]]


TOLD: dict[str, Callable[[], Any]] = {
    "seeded by epoch": SeededByEpoch,
    "seeds its generator": SeedsItsGenerator,
    "repeated": RepeatedAugmentation,
    "accelerate": Seedable,
    "told and going on": ToldEpochs,
    "distributed": lambda: DistributedSampler(DATA, num_replicas=2, rank=1, seed=1),
}
GOING_ON: dict[str, Callable[[], Any]] = {
    "python": lambda: Generator(random.Random(1)),
    "numpy": lambda: Generator(np.random.default_rng(7)),
    "philox": lambda: Generator(np.random.Generator(np.random.Philox(7))),
    "legacy": lambda: Generator(np.random.RandomState(1)),
    "torch": Generator,
    "made on first use": MadeOnFirstUse,
    "both": Both,
    "in chunks": InChunks,
    "one by one": OneByOne,
    "in batches": Batches,
    "cut by torch": lambda: BatchSampler(Generator(), SIZE, False),  # type: ignore[arg-type]
    "permutation": lambda: RandomSampler(DATA, generator=seeded(8)),
    "draws": lambda: RandomSampler(DATA, True, LENGTH + 40, seeded(8)),
    "weighted": lambda: WeightedRandomSampler([1.0] * LENGTH, LENGTH, generator=seeded(8)),
    "subset": lambda: SubsetRandomSampler(range(LENGTH), generator=seeded(8)),
    "in torch's batches": lambda: BatchSampler(
        RandomSampler(DATA, generator=seeded(8)), SIZE, drop_last=False
    ),
}
KINDS = TOLD | GOING_ON | {"global": Shuffles, "with a state": WithState}


def options_of(sampler: Any) -> dict[str, Any]:
    if isinstance(sampler, (Batches, BatchSampler)):
        return {"batch_sampler": sampler}
    return {"sampler": sampler, "batch_size": SIZE}


def loader_of(sampler: Any, workers: int = 0, persistent: bool = False) -> DataLoader[Any]:
    options: Any = {"num_workers": workers, "persistent_workers": persistent, "seed": 1}
    return DataLoader(DATA, **options, **options_of(sampler))


def values(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


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
            if not hasattr(sampler, "set_epoch"):
                assert loader.state_dict() == state
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


@pytest.mark.parametrize(
    ("kind", "told_first"), [*((kind, False) for kind in KINDS), *((kind, True) for kind in TOLD)]
)
def test_cut_anywhere_and_resumed_it_is_the_same_training(kind: str, told_first: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole, states = trained(KINDS[kind], cuts=True)
        assert len({str(batch) for _, batch in whole}) > LENGTH / SIZE + 1
        for (epoch, number), (state, given) in states.items():
            start = epoch + (number is None)
            got, _ = trained(KINDS[kind], start=start, state=state, told_first=told_first)
            assert got == whole[given:], (epoch, number)


@pytest.mark.parametrize("persistent", [False, True], ids=["", "that stay"])
@pytest.mark.parametrize("kind", KINDS)
def test_so_it_is_with_workers(kind: str, persistent: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole, _ = trained(KINDS[kind])
        seen, states = trained(KINDS[kind], 2, persistent, cuts=True)
        assert seen == whole
        for cut in [(0, 1), (1, 0), (1, None)]:
            state, given = states[cut]
            start = cut[0] + (cut[1] is None)
            got, _ = trained(KINDS[kind], 2, persistent, start, state)
            assert got == whole[given:], cut


# --- where a generator is, also in the same process ---


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", GOING_ON)
def test_an_epoch_left_early_leaves_a_sampler_where_torch_does(kind: str, workers: int) -> None:
    """With torch's loader without workers it has drawn what was given out, and no more."""

    def orders(loader: Any) -> Any:
        given = [values(loader)]
        for stop in (1, 3, 2):
            given.append(values(itertools.islice(loader, stop)))
        return [*given, values(loader)]

    with loader_of(GOING_ON[kind](), workers) as ours:
        assert orders(ours) == orders(TorchLoader(DATA, **options_of(GOING_ON[kind]())))


@pytest.mark.parametrize("kind", ["torch", "one by one"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_is_loaded_where_it_was_taken(kind: str, workers: int) -> None:
    loader, reference = loader_of(KINDS[kind](), workers), loader_of(KINDS[kind]())
    expected = [values(reference) for _ in range(3)]
    for epoch in range(2):
        iterator = iter(loader)
        first = values(itertools.islice(iterator, 2))
        state = loader.state_dict()
        next(iterator)
        for _ in range(2):
            loader.load_state_dict(state)
            assert first + values(loader) == expected[epoch]
    assert values(loader) == expected[2]


def test_an_iterator_that_was_interrupted_goes_on() -> None:
    expected, sampler = values(loader_of(OneByOne())), OneByOne()
    iterator = iter(loader_of(sampler))
    found = [next(iterator).tolist()]
    sampler.interrupt_at = SIZE + 1
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert found + values(iterator) == expected


@pytest.mark.parametrize("kind", ["torch", "one by one"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("given_out", [1, 2, 4])
def test_a_generator_that_is_seeded_for_each_epoch(kind: str, workers: int, given_out: int) -> None:
    """As in ``generator.manual_seed(epoch)``; the epoch before is left early, or at its end."""
    sampler, theirs = KINDS[kind](), KINDS[kind]()
    loader = loader_of(sampler, workers)
    for epoch in range(3):
        sampler.rng.manual_seed(100 + epoch)
        theirs.rng.manual_seed(100 + epoch)
        expected = list(BatchSampler(theirs, SIZE, drop_last=False))[:given_out]
        iterator = iter(loader)
        assert values(next(iterator) for _ in range(given_out)) == expected


@pytest.mark.parametrize("kind", ["torch", "one by one"])
@pytest.mark.parametrize("workers", [0, 2])
def test_so_it_is_behind_a_loaded_state(kind: str, workers: int) -> None:
    def seeded_epochs(start: int, state: Any = None) -> list[Any]:
        sampler, found = KINDS[kind](), []
        loader = loader_of(sampler, workers)
        if state is not None:
            loader.load_state_dict(state)
        for epoch in range(start, 3):
            sampler.rng.manual_seed(100 + epoch)
            found.append((values(loader), loader.state_dict()))
        return found

    epochs = seeded_epochs(0)
    for epoch in range(2):
        assert seeded_epochs(epoch + 1, epochs[epoch][1]) == epochs[epoch + 1 :]


def test_a_loaded_position_does_not_depend_on_what_the_program_seeds_anew() -> None:
    loader = loader_of(OneByOne())
    values(loader)
    iterator = iter(loader)
    next(iterator)
    state, expected = loader.state_dict(), values(iterator)
    sampler = OneByOne()
    resumed = loader_of(sampler)
    resumed.load_state_dict(state)
    sampler.rng.manual_seed(3)  # as it did when it was started first
    assert values(resumed) == expected


# --- what a state has of a sampler ---


def test_the_state_is_of_primitives_and_small(tmp_path: Any) -> None:
    loader = loader_of(Both())
    values(loader)
    torch.save(loader.state_dict(), tmp_path / "state")
    assert torch.load(tmp_path / "state", weights_only=True) == loader.state_dict()
    assert (tmp_path / "state").stat().st_size < 8000


def test_what_a_sampler_holds_of_the_dataset_is_not_its_own() -> None:
    class Over(Own):
        def __init__(self, data_source: Any) -> None:
            self.data_source = data_source

        def order(self) -> Any:
            return range(LENGTH)

    dataset: Any = Indices(LENGTH)
    dataset.rng = random.Random(1)
    assert "sampler" not in DataLoader(dataset, sampler=Over(dataset)).state_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda held: {"Both.inner.rng": 3}, "'generators'. must be a dict of lists"),
        (lambda held: {"Both.inner.rng": []}, "with a generator Both.inner.rng, whi"),
        (lambda held: {"Both.other": [held["Both.rng"][0]]}, "a generator Both.other"),
        (lambda held: {"Both.rng": [b"x"]}, "must be a random generator's packed"),
        (lambda held: {"Both.rng": [zlib.compress(b"[1]")]}, "state of a PCG64, got"),
        (lambda held: {"Both.rng": [zlib.compress(bytes(1 << 24))]}, "packed state"),
    ],
    ids=range(6),
)
def test_a_damaged_state_is_refused(change: Callable[[Any], dict[str, Any]], message: str) -> None:
    loader, resumed = loader_of(Both()), loader_of(Both())
    values(loader)
    state = loader.state_dict()
    held = state["sampler"]["generators"]
    held |= change(held)
    with pytest.raises(StateError, match=message):
        resumed.load_state_dict(state)
        next(iter(resumed))


@pytest.mark.parametrize("kind", [SeededByEpoch, SeedsItsGenerator])
def test_one_that_is_told_another_epoch_than_the_states_says_so(kind: Any) -> None:
    sampler = kind()
    loader = loader_of(sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        list(itertools.islice(loader, 2))
    sampler = kind()
    resumed = loader_of(sampler)
    resumed.load_state_dict(loader.state_dict())
    sampler.set_epoch(2)
    with pytest.warns(UserWarning, match="gives other indices than before the state was taken"):
        list(resumed)


@pytest.mark.parametrize("batches", [1, None], ids=["in mid-epoch", "between epochs"])
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
