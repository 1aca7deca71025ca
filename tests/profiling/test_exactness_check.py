"""`check_determinism`: what is not a function of seed and index is noticed by what it does."""

import itertools
import os
import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import lit_loader
from lit_loader import DataLoader, ExactnessWarning, LoaderConfig, OptionError
from tests.support.exact import Augmented
from tests.support.samples import Call, Counting

LENGTH = 20


def items(value: Any) -> Call:
    """Item ``i`` is a dict of ``i`` and of what a function gives for it."""
    return Call(lambda index: {"index": index, "value": value(index)}, LENGTH)


class OwnGenerator:
    """A generator of the user's own making, which no search can know."""

    state = 1

    def __call__(self, index: int) -> float:
        self.state = self.state * 6364136223846793005 + 1442695040888963407 & 2**64 - 1
        return self.state / 2**64


def counter() -> Any:
    calls = itertools.count()
    return lambda index: next(calls)


def once() -> Any:
    """What cannot be read twice in one process."""
    read: set[int] = set()

    def value(index: int) -> int:
        if index in read:
            raise RuntimeError(f"{index} was read before")
        read.add(index)
        return index

    return value


def entropy(index: int = 0) -> float:
    return float(np.random.default_rng().random())


def num_workers(index: int) -> int:
    info = lit_loader.get_worker_info()
    return 0 if info is None else info.num_workers


def set_order(index: int) -> list[str]:
    return list({f"label {number}" for number in range(30)})


def told(loader: DataLoader[Any], epochs: int = 1) -> list[str]:
    """The warnings of some epochs."""
    with warnings.catch_warnings(record=True) as caught, loader:
        warnings.simplefilter("always")
        for _ in range(epochs):
            for _ in loader:
                pass
    strange = [str(each.message) for each in caught if each.category is not ExactnessWarning]
    assert not strange
    return [str(each.message) for each in caught]


@pytest.mark.usefixtures("by_fork")
@pytest.mark.parametrize("batches", [1, 3, 100])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "make",
    [OwnGenerator, counter, lambda: lambda index: random.SystemRandom().random(), lambda: entropy],
    ids=["own", "counter", "system", "entropy"],
)
def test_what_is_not_exact_is_told_once(make: Any, workers: int, batches: int) -> None:
    loader = DataLoader(items(make()), 4, num_workers=workers, check_determinism=batches)
    [message] = told(loader, epochs=3)
    assert "of epoch 0 came out otherwise when it was made again" in message
    assert "batch['value'] (float64 4) has other values" in message or make is counter
    assert "reseed_fn(dataset, seed)" in message
    assert "\n" not in message


@pytest.mark.parametrize("value", [lambda index: os.getpid(), num_workers], ids=["pid", "workers"])
def test_what_differs_between_processes_is_told(value: Any) -> None:
    [message] = told(DataLoader(items(value), batch_size=4, num_workers=2, check_determinism=2))
    assert "batch['value'] (int64 4) has other values" in message


@pytest.mark.slow
def test_set_order_under_spawn_is_told() -> None:
    options: Any = {"collate_fn": list, "multiprocessing_context": "spawn", "check_determinism": 1}
    [message] = told(DataLoader(items(set_order), 2, num_workers=1, **options))
    assert "batch[0]['value'][0] (str) has other values" in message


@pytest.mark.parametrize("options", [{}, {"seeding": "sample"}, {"persistent_workers": True}])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_nothing_is_told_of_what_is_exact(workers: int, options: dict[str, Any]) -> None:
    if not workers and "persistent_workers" in options:
        options = {}
    options = {"num_workers": workers, "check_determinism": 4, "seed": 1, **options}
    assert told(DataLoader(Augmented(), 4, shuffle=True, **options), epochs=2) == []


def test_what_the_consumer_does_to_a_batch_is_no_difference() -> None:
    with DataLoader(Augmented(), 4, num_workers=1, check_determinism=3) as loader:
        for batch in loader:
            batch.zero_()


def test_streams_are_checked_with_workers() -> None:
    assert told(DataLoader(Counting(LENGTH), 4, num_workers=2, check_determinism=4)) == []
    [message] = told(DataLoader(Counting(LENGTH, entropy), 4, num_workers=2, check_determinism=4))
    assert "batch (float64 4) has other values" in message


def test_a_stream_without_workers_is_not_iterated_twice() -> None:
    with (
        DataLoader(Counting(LENGTH), 4, check_determinism=4) as loader,
        pytest.warns(UserWarning, match="check_determinism needs num_workers of at least 1 for an"),
    ):
        assert len(list(loader)) == LENGTH // 4


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@pytest.mark.parametrize("workers", [0, 1])
def test_nested_tensors_are_compared(workers: int, layout: torch.layout) -> None:
    """Their shape is not one of numbers."""

    def nested(samples: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.nested_tensor(samples, layout=layout)

    nested([torch.ones(1)])  # torch warns once
    options: Any = {"collate_fn": nested, "num_workers": workers, "check_determinism": 2}
    ragged = Call(lambda index: torch.full((index + 1,), float(index)), LENGTH)
    options["multiprocessing_context"] = "fork" if workers else None
    assert told(DataLoader(ragged, 4, **options)) == []
    other = Call(lambda index: torch.full((index + 1,), entropy()), LENGTH)
    [message] = told(DataLoader(other, 4, **options))
    assert "batch[0] (float32 " in message and "has other values" in message


def test_an_error_the_second_time_is_a_difference() -> None:
    [message] = told(DataLoader(items(once()), 4, check_determinism=1))
    assert "batch was dict of 2, and then RuntimeError: 0 was read before" in message


@pytest.mark.usefixtures("by_fork")
def test_an_epoch_left_early_is_no_epoch() -> None:
    loader = DataLoader(items(counter()), 4, num_workers=1, check_determinism=3)
    with loader:
        next(iter(loader))
    [message] = told(loader)
    assert "of epoch 1 came" in message


def test_it_is_refused_where_batches_depend_on_workers() -> None:
    with pytest.raises(OptionError, match="check_determinism needs batches that do not depend on"):
        LoaderConfig(seeding="worker", check_determinism=1)
    with pytest.raises(OptionError, match="check_determinism must be a whole number of at least 0"):
        LoaderConfig(check_determinism=-1)
