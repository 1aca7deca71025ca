"""Programs as people write them: their samples are the same with reads ahead and without."""

import asyncio
import random
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    random_split,
)

import lit_loader
from lit_loader import DataLoader, MixtureDataset, OptionError
from tests.core.options.test_refusals import refused
from tests.exactness.test_reads import Around
from tests.support.exact import digests
from tests.support.samples import OfLength

LENGTH = 24

_ahead = 0


class Stored(OfLength):
    """Counts the reads that another thread than the batch's has done."""

    length = LENGTH

    @lit_loader.reads_ahead
    def read(self, index: Any) -> float:
        return stored(index)

    def __getitem__(self, index: Any) -> Any:
        return torch.tensor([self.read(index), random.random()], dtype=torch.float64)


def stored(index: Any) -> float:
    global _ahead
    _ahead += threading.current_thread() is not threading.main_thread()
    time.sleep(0.005)
    return float(index)


class Overriding(Stored):
    """Calls what it overrides, and is not marked itself."""

    def read(self, index: int) -> float:
        return 1 + super().read(index)


class OverridingMarked(Stored):
    @lit_loader.reads_ahead
    def read(self, index: int) -> float:
        return 1 + super().read(index)


class AroundAwaited(Stored):
    """Its read is a function, and takes samples of a dataset whose read is a coroutine."""

    def __init__(self) -> None:
        self.inner = Awaited()

    @lit_loader.reads_ahead
    def read(self, index: int) -> float:
        return self.inner[index] + stored(index)


class Awaited(Stored):
    @lit_loader.reads_ahead
    async def read(self, index: int) -> float:
        await asyncio.sleep(0)
        return float(index)

    def __getitem__(self, index: int) -> float:
        return self.read(index)


class WholeSample(Stored):
    """All of it is read; what it gives is a generator, which is one sample's alone."""

    @lit_loader.reads_ahead
    def generate(self, index: int) -> Any:
        first = stored(index)
        return (first + more for more in range(3))

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([*self.generate(index)])


class Pair(OfLength):
    """Two datasets, of which it says that it reads them."""

    length = LENGTH

    def __init__(self) -> None:
        self.images, self.masks = Stored(), Stored()

    def reads_from(self, index: int) -> Any:
        return (self.images, index), (self.masks, index)

    def __getitem__(self, index: int) -> Any:
        return self.images[index], self.masks[index]


def half() -> Any:
    return random_split(Stored(), [0.5, 0.5], torch.Generator().manual_seed(1))[0]


PROGRAMS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "shuffled": (Stored, {"shuffle": True}),
    "a subset of a concatenation": (
        lambda: Subset(ConcatDataset([Stored(), Stored()]), range(30, 10, -1)),
        {},
    ),
    "a half": (half, {"shuffle": True}),
    "a subset by a tensor": (lambda: Subset(Stored(), torch.arange(3, 23)), {}),
    "a subset by an array": (lambda: Subset(Stored(), np.arange(3, 23)), {}),
    "a sampler by a tensor": (Stored, {"sampler": SubsetRandomSampler(torch.arange(20))}),
    "a batch sampler": (
        Stored,
        {"batch_size": 1, "batch_sampler": [[0, 1, 1], [5, 6, 7, 8], [9, 10]]},
    ),
    "a stack": (lambda: StackDataset(Stored(), Stored()), {}),
    "a mixture": (lambda: MixtureDataset([Stored(), Stored()]), {}),
    "transforms": (lambda: Around(Around(Stored())), {}),
    "a subclass": (Overriding, {}),
    "a subclass that is marked": (OverridingMarked, {}),
    "a function around a coroutine": (AroundAwaited, {}),
    "a generator": (WholeSample, {}),
    "a pair": (Pair, {}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_samples_are_the_same_and_read_ahead(name: str) -> None:
    global _ahead
    make, options = PROGRAMS[name]
    options = {"batch_size": 4, "seed": 3} | options
    without = DataLoader(make(), concurrent_reads=0, **options)
    expected = [digests(without) for _ in range(2)]
    _ahead = 0
    loader = DataLoader(make(), concurrent_reads=4, **options)
    assert [digests(loader) for _ in range(2)] == expected
    assert _ahead > 0
    with DataLoader(make(), concurrent_reads=4, num_workers=1, **options) as loader:
        assert digests(loader) == expected[0]


def test_two_loaders_over_one_dataset_take_turns() -> None:
    dataset = Stored()
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "num_workers": 0}
    expected = [
        digests(DataLoader(dataset, seed=seed, concurrent_reads=0, **options)) for seed in (1, 2)
    ]
    train, val = (DataLoader(dataset, seed=seed, **options) for seed in (1, 2))
    both = [digests(pair) for pair in zip(train, val, strict=True)]
    assert [*zip(*both, strict=True)] == [tuple(each) for each in expected]


class Blob(bytearray):
    """Counts how many there are."""

    alive = most = 0

    def __init__(self, size: int) -> None:
        super().__init__(size)
        with _counting:
            Blob.alive += 1
            Blob.most = max(Blob.most, Blob.alive)

    def __del__(self) -> None:
        with _counting:
            Blob.alive -= 1


_counting = threading.RLock()


class Blobs(Stored):
    @lit_loader.reads_ahead
    def read(self, index: int) -> Any:
        return Blob(1_000_000)

    def __getitem__(self, index: int) -> int:
        assert len(self.read(index)) == 1_000_000
        time.sleep(0.005)  # in which more is read
        return Blob.most


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_read_ahead_stays_within_the_memory_budget(workers: int) -> None:
    Blob.alive = Blob.most = 0
    with DataLoader(Blobs(), 8, num_workers=workers, memory_budget="16 MB") as loader:
        most = int(torch.cat([*loader]).max())
    assert 2 <= most <= 4 + 2  # a quarter of it, the one that is read first and the sample's own


class BlobsBehindABadOne(Blobs):
    @lit_loader.reads_ahead
    def read(self, index: int) -> Any:
        if index == 1:  # the first one that is read ahead
            raise OSError("no such blob")
        blob = Blob(1_000_000)
        time.sleep(0.005)  # in which others begin
        return blob


def test_a_read_that_fails_says_nothing_of_how_large_others_are() -> None:
    Blob.alive = Blob.most = 0
    options: Any = {"on_sample_error": "skip", "memory_budget": "16 MB", "concurrent_reads": 16}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        most = int(torch.cat([*DataLoader(BlobsBehindABadOne(), 16, **options)]).max())
    assert 2 <= most <= 4 + 2


# What is said ----------------------------------------------------------------------------------


def test_what_is_no_method_is_refused() -> None:
    class Static(Stored):
        @staticmethod
        @lit_loader.reads_ahead
        def read(index: int) -> float:  # type: ignore[override]
            return float(index)

    class OfClass(Stored):
        @classmethod
        @lit_loader.reads_ahead
        def read(cls, index: int) -> float:
            return float(index)

    for kind, what in ((Static, "a staticmethod"), (OfClass, "a classmethod")):
        text = f"{kind.__name__}.read is marked by reads_ahead and is {what}"
        assert text in refused(lambda kind=kind: list(DataLoader(kind(), 4)))  # type: ignore[misc]
    with pytest.raises(OptionError, match="not a property"):
        lit_loader.reads_ahead(property(stored))  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="not a staticmethod"):
        lit_loader.reads_ahead(staticmethod(stored))  # type: ignore[arg-type]

    def generate(self: Any, index: int) -> Any:
        yield index

    with pytest.raises(OptionError, match="generate is a generator function, which reads nothing"):
        lit_loader.reads_ahead(generate)


def told(dataset: Any, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        list(DataLoader(dataset, 4, **options))
    return [str(each.message) for each in found]


class Silent(Pair):
    """Does not say what it reads."""

    reads_from = None  # type: ignore[assignment]


class Misspoken(Pair):
    def reads_from(self, index: int) -> Any:
        return self.images, index


class Guessing(Pair):
    def reads_from(self, index: int) -> Any:
        return [(self.images, random.randrange(LENGTH))]


def test_what_cannot_be_read_ahead_is_told() -> None:
    [said] = told(Silent())
    assert "reads are not made ahead: no sample of 3 batches in a row asked Silent" in said
    assert "Misspoken.reads_from(0) is to give pairs (dataset, index)" in told(Misspoken())[0]
    [said] = told(Guessing())
    assert "a reads_from draws from random, so reads are not made ahead" in said


class DrawsSeldom(Stored):
    """As a client that waits for a random time before it asks again."""

    @lit_loader.reads_ahead
    def read(self, index: int) -> float:
        if index >= 4:  # whose samples wait longest; one within LOOK of another is not looked at
            time.sleep(0.2)
            random.random()
        return float(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_read_that_draws_later_is_told(workers: int) -> None:
    [said] = told(DrawsSeldom(), num_workers=workers)
    assert "something drew from random while sample" in said
    assert (
        "waited for DrawsSeldom.read, so random numbers of samples depend on when that was" in said
    )
