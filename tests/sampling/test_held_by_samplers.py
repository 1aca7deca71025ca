"""Samplers that carry something from epoch to epoch and have no `state_dict`: resumed exactly."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader

from lit_loader import DataLoader, StateError
from tests.support.exact import Indices

LENGTH = 14
EPOCHS = 4


class Ordered:
    """A sampler whose order a subclass makes, epoch by epoch."""

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        yield from self.order()

    def order(self) -> Any:
        raise NotImplementedError


class PythonGenerator(Ordered):
    def __init__(self) -> None:
        self.rng = random.Random(1)

    def order(self) -> Any:
        self.rng.gauss(0, 1)  # another one in reserve
        return self.rng.sample(range(LENGTH), LENGTH)


class NumpyGenerator(Ordered):
    bits: Callable[[], Any] = np.random.PCG64

    def __init__(self) -> None:
        self.rng = np.random.Generator(type(self).bits(7))  # type: ignore[call-arg]

    def order(self) -> Any:
        return self.rng.permutation(LENGTH).tolist()


class Philox(NumpyGenerator):
    bits = np.random.Philox


class Legacy(Ordered):
    def __init__(self) -> None:
        self.rng = np.random.RandomState(1)

    def order(self) -> Any:
        return self.rng.permutation(LENGTH).tolist()


class TorchGenerator(Ordered):
    """Not by the name that torch's samplers have for it."""

    def __init__(self) -> None:
        self.rng = torch.Generator().manual_seed(3)

    def order(self) -> Any:
        return torch.randperm(LENGTH, generator=self.rng).tolist()


class Lazy(Ordered):
    rng: Any = None

    def order(self) -> Any:
        if self.rng is None:
            self.rng = random.Random(5)
        return self.rng.sample(range(LENGTH), LENGTH)


class Both(Ordered):
    """Its own, and one of a sampler inside of it, in slots."""

    __slots__ = ("inner", "rng")

    def __init__(self) -> None:
        self.inner, self.rng = PythonGenerator(), np.random.default_rng(2)

    def order(self) -> Any:
        first = int(self.rng.integers(LENGTH))
        return [(index + first) % LENGTH for index in self.inner.order()]


class ToldEpochs(Ordered):
    """Goes on with its generator, and is told the epoch."""

    def __init__(self) -> None:
        self.rng, self.epoch = random.Random(1), 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def order(self) -> Any:
        first = self.rng.randrange(LENGTH)
        return [(first + self.epoch + number) % LENGTH for number in range(LENGTH)]


class Batches:
    """A batch sampler that goes on with its generator, over a sampler that does, too."""

    def __init__(self) -> None:
        self.sampler, self.rng = NumpyGenerator(), random.Random(1)

    def __len__(self) -> int:
        return LENGTH // 2

    def __iter__(self) -> Iterator[list[int]]:
        indices = list(self.sampler)
        starts = self.rng.sample(range(0, LENGTH, 2), LENGTH // 2)
        yield from (indices[start : start + 2] for start in starts)


SAMPLERS = [
    *(PythonGenerator, NumpyGenerator, Philox, Legacy, TorchGenerator, Lazy),
    *(Both, ToldEpochs, Batches),
]


def loader_of(kind: Any, workers: int = 0) -> DataLoader[Any]:
    options = {"batch_sampler": kind()}
    if kind is not Batches:
        options = {"sampler": kind(), "batch_size": 2}
    return DataLoader(Indices(LENGTH), num_workers=workers, seed=1, **options)


def run(loader: Any, epochs: int) -> list[list[list[int]]]:
    return [[batch.tolist() for batch in loader] for _ in range(epochs)]


@pytest.mark.parametrize("stop", [0, 3, 7])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_resume_in_a_later_epoch_is_exact(kind: Any, stop: int) -> None:
    expected = run(loader_of(kind), EPOCHS)
    assert expected[0] != expected[1]
    first, second = loader_of(kind), loader_of(kind)
    assert run(first, 2) == expected[:2]
    iterator = iter(first)
    for _ in range(stop):
        next(iterator)
    state = first.state_dict()
    second.load_state_dict(state)
    assert second.state_dict() == state
    assert run(second, 2) == [expected[2][stop:], expected[3]] if stop < 7 else expected[3:]


def test_so_it_is_with_workers() -> None:
    expected = run(loader_of(Both), EPOCHS)
    with loader_of(Both, workers=1) as first, loader_of(Both, workers=1) as second:
        run(first, 2)
        iterator = iter(first)
        next(iterator)
        second.load_state_dict(first.state_dict())
        assert run(second, 2) == [expected[2][1:], expected[3]]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_an_epoch_left_early_leaves_a_sampler_where_torch_does(kind: Any, workers: int) -> None:
    """With torch's loader without workers it has drawn what was given out, and no more."""

    def orders(loader: Any) -> Any:
        first = run(loader, 1)
        next(iter(loader))
        return first + run(loader, 1)

    name = "batch_sampler" if kind is Batches else "sampler"
    options = {name: kind(), **({} if kind is Batches else {"batch_size": 2})}
    with loader_of(kind, workers) as ours:
        assert orders(ours) == orders(TorchLoader(Indices(LENGTH), **options))


def test_the_state_is_of_primitives_and_small(tmp_path: Any) -> None:
    loader = loader_of(Both)
    run(loader, 2)
    torch.save(loader.state_dict(), tmp_path / "state")
    assert torch.load(tmp_path / "state", weights_only=True) == loader.state_dict()
    assert (tmp_path / "state").stat().st_size < 8000


def test_what_a_sampler_holds_of_the_dataset_is_not_its_own() -> None:
    class Over(Ordered):
        def __init__(self, data_source: Any) -> None:
            self.data_source = data_source

        def order(self) -> Any:
            return range(LENGTH)

    dataset = Indices(LENGTH)
    dataset.rng = random.Random(1)  # type: ignore[attr-defined]
    loader = DataLoader(dataset, sampler=Over(dataset))
    assert "sampler" not in loader.state_dict()


def damaged(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    loader = loader_of(Both)
    run(loader, 2)
    state = loader.state_dict()
    change(state["sampler"]["generators"])
    return state


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda held: held.update({"Both.inner.rng": 3}), "'generators'. must be a dict of lists"),
        (lambda held: held.update({"Both.inner.rng": []}), "with a generator Both.inner.rng, whi"),
        (lambda held: held.update({"Both.other": [held["Both.rng"][0]]}), "a generator Both.other"),
        (lambda held: held.update({"Both.rng": [b"x"]}), "must be a random generator's packed"),
        (lambda held: held.update({"Both.rng": [zlib.compress(b"[1]")]}), "state of a PCG64, got"),
        (lambda held: held.update({"Both.rng": [zlib.compress(bytes(1 << 24))]}), "packed state"),
    ],
    ids=range(6),
)
def test_a_damaged_state_is_refused(
    change: Callable[[dict[str, Any]], object], message: str
) -> None:
    loader, state = loader_of(Both), damaged(change)
    with pytest.raises(StateError, match=message):
        loader.load_state_dict(state)
        next(iter(loader))
