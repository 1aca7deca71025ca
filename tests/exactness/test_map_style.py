"""(Dataset, options, fault, stop) → bytes: whatever happens, the batches are those of one process.

A `Case` is what is loaded, and how. Each test does one thing to all of them, and compares every
byte with a loader without workers to which nothing happens: other workers, states taken after each
batch and resumed, workers that are killed, other numbers of workers mid-epoch. The default run has
some of the cells of each kind.
"""

import functools
import itertools
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from lit_loader import (
    BalancedBatchSampler,
    DataLoader,
    MixtureDataset,
    MixtureSampler,
    PackingBatchSampler,
    TokenBudgetBatchSampler,
    get_rng,
)
from tests.support.exact import (
    Augmented,
    EveryOther,
    Pairs,
    SamplerWithStatefulIterator,
    StatefulSampler,
    digests,
    noisy_collate,
    taken,
    through_file,
    with_states,
)
from tests.support.samples import OfLength, own_generators, worker_pids

pytestmark = [
    pytest.mark.filterwarnings("ignore::lit_loader.WorkerRestartWarning"),
    pytest.mark.filterwarnings("ignore:.*LL334"),  # a state of an epoch's end
]

LENGTH = 26


class Case(NamedTuple):
    """What is loaded: makes the dataset, and the loader's options, anew for each loader."""

    dataset: Callable[[], Any]
    options: Callable[[], dict[str, Any]] = dict

    def loader(self, workers: int = 0, **more: Any) -> DataLoader[Any]:
        options = {"batch_size": 4, "seed": 11, "num_workers": workers, **self.options(), **more}
        if "batch_sampler" in options:
            del options["batch_size"]
        return DataLoader(self.dataset(), **options)


def epoch(loader: DataLoader[Any], number: int) -> list[str]:
    """Digests of an epoch's batches; ranks that share the data must say which it is."""
    if loader.num_replicas is not None:
        loader.set_epoch(number)
    return digests(loader)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(8)


def by(sampler: Any) -> dict[str, Any]:
    return {"sampler": sampler}


def batched(sampler: Any) -> dict[str, Any]:
    return {"batch_sampler": BatchSampler(sampler, 4, drop_last=False)}


WEIGHTS = torch.arange(1.0, LENGTH + 1).tolist()
LENGTHS = [1 + 7 * index % 40 for index in range(60)]
RANKS = {"num_replicas": 2, "rank": 1}
ORDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "order": lambda: {},
    "shuffle": lambda: {"shuffle": True},
    "shuffle, single": lambda: {"batch_size": None, "shuffle": True},
    "shuffle, by sample": lambda: {"shuffle": True, "seeding": "sample"},
    "shuffle, noisy": lambda: {"shuffle": True, "collate_fn": noisy_collate},
    "shuffle, rank": lambda: {"shuffle": True, **RANKS},
    "random": lambda: by(RandomSampler(range(LENGTH))),
    "random, replaced": lambda: by(RandomSampler(range(LENGTH), replacement=True, num_samples=30)),
    "random, generator": lambda: by(RandomSampler(range(LENGTH), generator=generator())),
    "weighted": lambda: by(WeightedRandomSampler(WEIGHTS, LENGTH)),
    "weighted, rank": lambda: by(WeightedRandomSampler(WEIGHTS, LENGTH)) | RANKS,
    "weighted, generator": lambda: by(
        WeightedRandomSampler(WEIGHTS, LENGTH, generator=generator())
    ),
    "subset": lambda: by(SubsetRandomSampler(range(3, 20))),
    "list": lambda: by([5, 3, 1, 1, 2, 9, 20, 25, 0]),
    "custom": lambda: by(EveryOther(LENGTH)),
    "stateful": lambda: by(StatefulSampler(LENGTH)),
    "stateful, rank": lambda: by(StatefulSampler(LENGTH)) | RANKS,
    "stateful iterator": lambda: by(SamplerWithStatefulIterator(LENGTH)),
    "batches": lambda: batched(SequentialSampler(range(LENGTH))),
    "batches, random": lambda: batched(RandomSampler(range(LENGTH))),
    "batches, generator": lambda: batched(RandomSampler(range(LENGTH), generator=generator())),
    "batches, stateful": lambda: batched(StatefulSampler(LENGTH)),
    "custom batches": lambda: {"batch_sampler": Pairs(LENGTH)},
    "token budget": lambda: {
        "batch_sampler": TokenBudgetBatchSampler(LENGTHS[:LENGTH], 100, seed=1)
    },
    "balanced": lambda: {
        "batch_sampler": BalancedBatchSampler(LENGTHS[:LENGTH], 3, group=2, seed=1)
    },
    "packed": lambda: {
        "batch_sampler": PackingBatchSampler(LENGTHS[:LENGTH], 60, window=5, seed=1)
    },
}
"""Options that order the samples of a map-style dataset."""


class Jittered(OfLength):
    """Holds functions of the global generators, and draws by them."""

    length = LENGTH

    def __init__(self) -> None:
        choose = functools.partial(random.choice, range(99))
        self.draws = [functools.partial(np.random.uniform, -1), random.random, choose]

    def __getitem__(self, index: int) -> float:
        return index + sum(draw() for draw in self.draws)


class ByRng(OfLength):
    """Draws from `get_rng` alone, at several places."""

    length = LENGTH

    def __getitem__(self, index: int) -> Tensor:
        draws = get_rng().random(), get_rng().random(), get_rng(index).random()
        return torch.tensor([index, *draws], dtype=torch.float64)


class Held(OfLength):
    """Holds a seeded generator of each kind."""

    def __init__(self, length: int = LENGTH) -> None:
        super().__init__(length)
        self.numpy, self.python = np.random.default_rng(42), random.Random(42)
        self.parts = {"torch": [torch.Generator().manual_seed(42)]}
        self.legacy = np.random.RandomState(42)

    def __getitem__(self, index: int) -> Tensor:
        (torchs,) = self.parts["torch"]
        drawn = self.numpy.random(), self.python.random(), self.legacy.rand(), random.random()
        return torch.tensor([index, *drawn, float(torch.rand((), generator=torchs))])


class Choosy(OfLength):
    """Cannot read some of its samples."""

    length = LENGTH

    def __getitem__(self, index: int) -> Tensor:
        noise = torch.rand(2)
        if index % 5 == 3:
            raise ValueError(index)
        return noise + index


class Episodes(Augmented):
    """Makes loaders within a sample, and iterates kept ones, in the midst of its own draws."""

    def __init__(self) -> None:
        super().__init__(8)
        self.kept = DataLoader(Held(4), 2, shuffle=True)
        self.sampled: Any = DataLoader(Held(4), 2, sampler=RandomSampler(range(4)))

    def __getitem__(self, index: int) -> Tensor:
        new: Any = DataLoader(Held(4), 2, shuffle=True)
        whole = [new, self.kept][index % 2]
        looks = [next(iter(each)) for each in (new, self.kept, self.sampled)]
        parts = super().__getitem__(index), *looks, *whole
        return torch.cat([part.flatten() for part in parts])


def table() -> TensorDataset:
    return TensorDataset(torch.arange(LENGTH), torch.arange(LENGTH) % 3)


OF_MIXTURE = MixtureDataset([Augmented(10), Augmented(40), Augmented(20)], [5, 3, 2])


def cases() -> Iterator[tuple[str, Case]]:
    for name, options in ORDERS.items():
        yield name, Case(functools.partial(Augmented, LENGTH), options)
    mixing = functools.partial(MixtureSampler, OF_MIXTURE, epoch_length=30, seed=1)
    yield "mixture", Case(lambda: OF_MIXTURE, lambda: by(mixing()))
    kinds = {"jittered": Jittered, "get_rng": ByRng, "held": Held, "table": table}
    for (name, dataset), seeding in itertools.product(kinds.items(), ("batch", "sample")):
        options = functools.partial(dict, shuffle=True, seeding=seeding)
        yield f"{name}, by {seeding}", Case(dataset, options)
    for policy in ("skip", "replace"):
        options = functools.partial(dict, shuffle=True, on_sample_error=policy)
        yield f"bad samples, {policy}", Case(Choosy, options)
    yield "loaders within", Case(Episodes, functools.partial(dict, shuffle=True, batch_size=2))


CASES = dict(cases())


def some(every: int, first: int = 0, names: Iterable[str] = CASES) -> list[Any]:
    """The default run has one of ``every`` cases."""
    return [
        pytest.param(name, marks=[] if place % every == first else [pytest.mark.slow])
        for place, name in enumerate(names)
    ]


@functools.cache
def reference(name: str) -> list[list[str]]:
    """Three epochs to which nothing happens, in this process."""
    before = own_generators()
    with CASES[name].loader() as loader:
        epochs = [epoch(loader, number) for number in range(3)]
    assert epochs[0]
    assert len({*map(str, epochs)}) == 3 or "table" in name
    assert own_generators() == before
    return epochs


@pytest.mark.parametrize("name", some(5))
@pytest.mark.parametrize(
    ("workers", "persistent"),
    [(1, False), (2, True), pytest.param(4, True, marks=pytest.mark.slow)],
)
def test_epochs_are_equal_for_any_number_of_workers(
    workers: int, name: str, persistent: bool
) -> None:
    expected, before = reference(name), own_generators()
    with CASES[name].loader(workers, persistent_workers=persistent) as loader:
        assert [epoch(loader, number) for number in range(3)] == expected
    assert own_generators() == before


@pytest.mark.parametrize("name", some(2, 1))
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_stopped_after_each_batch_and_resumed_twice(name: str, workers: int) -> None:
    check_resumes(name, workers, step=1 if workers == 0 else 5)


@pytest.mark.parametrize("name", some(7, 3))
def test_stopped_in_workers_and_resumed_by_others(name: str) -> None:
    check_resumes(name, 2, step=5)


def check_resumes(name: str, workers: int, step: int) -> None:
    """In the second epoch, with other workers each time; the epoch after it is known, too."""
    case = CASES[name]
    with case.loader(workers) as loader:
        assert epoch(loader, 0) == reference(name)[0]
        if loader.num_replicas is not None:
            loader.set_epoch(1)
        expected, states = with_states(loader)
        between = through_file(loader.state_dict())
        after = epoch(loader, 2)
    assert expected == reference(name)[1]
    for stop in sorted({*range(0, len(expected), step), 1, len(expected) - 1}):
        second, third = ((0, 1), (1, 0))[stop % 2] if workers else (0, 0)
        with case.loader(second) as resumed:
            resumed.load_state_dict(states[stop])
            assert through_file(resumed.state_dict()) == states[stop]
            got, _ = taken(resumed, 1)
            state = through_file(resumed.state_dict())
        with case.loader(third) as again:
            again.load_state_dict(state)
            assert got + epoch(again, 1) == expected[stop:], stop
            assert epoch(again, 2) == after, stop
    with case.loader(workers) as resumed:
        resumed.load_state_dict(between)
        assert epoch(resumed, 2) == after


@pytest.mark.usefixtures("by_fork")
@pytest.mark.parametrize("name", some(7, 5))
def test_workers_are_killed(name: str) -> None:
    """What is saved then is continued by another number of workers."""
    expected, got = reference(name)[0], []
    with CASES[name].loader(2) as loader:
        for number, batch in enumerate(iterator := iter(loader)):
            got += digests([batch])
            if number < 4:
                state, given = through_file(loader.state_dict()), len(got)
            if number in (1, 4):
                pids = worker_pids(iterator)
                os.kill(pids[number % len(pids)], signal.SIGKILL)
    assert got == expected
    with CASES[name].loader(1) as resumed:
        resumed.load_state_dict(state)
        assert digests(resumed) == expected[given:]


@pytest.mark.usefixtures("by_fork", "pinned")
@pytest.mark.parametrize("name", some(5, 2))
def test_resized(name: str) -> None:
    """At random moments, several times in a row too; with other options for each case."""
    case, chance = CASES[name], random.Random(name)
    in_order = chance.random() < 0.7
    options: dict[str, Any] = {
        "persistent_workers": chance.random() < 0.5,
        "pin_memory": chance.random() < 0.5,
        "prefetch_factor": chance.randint(1, 3),
    }
    with case.loader(chance.randint(1, 3), in_order=in_order, **options) as loader:
        for expected in reference(name)[:2]:
            found = []
            for batch in loader:
                found += digests([batch])
                while chance.random() < 0.3:
                    loader.resize(chance.randint(1, 6), chance.choice([None, 1, 3]))
            assert found == expected if in_order else Counter(found) == Counter(expected)


@pytest.mark.parametrize(
    ("name", "method"), [("held, by batch", "forkserver"), ("jittered, by sample", "spawn")]
)
def test_other_start_methods(name: str, method: str) -> None:
    """One set of workers: every stop by loading in place."""
    case, expected = CASES[name], reference(name)
    with case.loader(2, multiprocessing_context=method, persistent_workers=True) as loader:
        assert digests(loader) == expected[0]
        begins = loader.state_dict()
        for stop in (0, 1, 3, len(expected[1])):
            loader.load_state_dict(begins)
            got, iterator = taken(loader, stop)
            assert got == expected[1][:stop]
            del iterator
            if 0 < stop < len(expected[1]):
                loader.load_state_dict(through_file(loader.state_dict()))
                assert digests(loader) == expected[1][stop:]
                assert digests(loader) == expected[2]


@pytest.mark.parametrize("workers", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_out_of_order_loses_and_repeats_nothing(workers: int) -> None:
    case, expected = CASES["shuffle"], Counter(reference("shuffle")[0])
    for stop in range(0, len(reference("shuffle")[0]), 2):
        with case.loader(workers, in_order=False, prefetch_factor=3) as loader:
            got, _ = taken(loader, stop)
            state = through_file(loader.state_dict())
        for options in ({}, {"num_workers": 2, "in_order": False}):
            with case.loader(**options) as resumed:
                resumed.load_state_dict(state)
                assert Counter(got) + Counter(digests(resumed)) == expected


def test_what_a_sample_draws_follows_from_its_position_alone() -> None:
    """Not from the batch size, the number of ranks, or how often the sample comes."""

    def rows(batch_size: int, **options: Any) -> dict[str, None]:
        options = {"seed": 11, "seeding": "sample", "shuffle": True} | options
        loader = DataLoader(Augmented(24), batch_size, **options)
        return dict.fromkeys(digests(row for batch in loader for row in batch))

    assert list(rows(4)) == list(rows(5)) == list(rows(24))
    ranks = [list(rows(4, num_replicas=2, rank=rank)) for rank in range(2)]
    assert [row for pair in zip(*ranks, strict=True) for row in pair] == list(rows(4))
    drawn = rows(4, shuffle=None, sampler=[3] * 8)
    assert len(drawn) == 8


def test_the_largest_seed_and_epoch() -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 2**64 - 1}
    with DataLoader(Augmented(), 4, num_workers=1, **options) as loader:
        alone = DataLoader(Augmented(), 4, **options)
        for each in (loader, alone):
            each.set_epoch(2**62 - 1)
        assert digests(loader) == digests(alone)
