"""`check_determinism`: what does not follow from the seed and the index is noticed."""

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import WeightedRandomSampler

import lit_loader
from lit_loader import DataLoader, DeterminismError, OptionError, check_determinism
from tests.support.datasets import BufferedStream
from tests.support.exact import Augmented
from tests.support.samples import Call, Counting

LENGTH = 40


def items(value: Callable[[int], Any]) -> Call:
    """Item ``i`` is a dict of ``i`` and of what a function gives for it."""
    return Call(lambda index: {"index": index, "value": value(index)}, LENGTH)


class OwnGenerator:
    """A generator of the user's own making, which no search can know."""

    state = 1

    def __call__(self, index: int) -> float:
        self.state = self.state * 6364136223846793005 + 1442695040888963407 & 2**64 - 1
        return self.state / 2**64


def counter() -> Callable[[int], int]:
    calls = itertools.count()
    return lambda index: next(calls)


def entropy(index: int = 0) -> float:
    return float(np.random.default_rng().random())


def third(index: int) -> float:
    """Only the sample 17 is not exact."""
    return entropy() if index == 17 else index


@pytest.mark.usefixtures("by_fork")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [OwnGenerator, counter, lambda: entropy])
def test_what_does_not_follow_from_the_seed_is_named(kind: Any, workers: int) -> None:
    with (
        DataLoader(items(kind()), 4, num_workers=workers) as loader,
        pytest.raises(DeterminismError, match=r"batch\['value'\] \(.* 4\) has other values in"),
    ):
        check_determinism(loader)


@pytest.mark.usefixtures("by_fork")
@pytest.mark.parametrize("workers", [0, 2])
def test_two_plain_passes_are_compared_first(workers: int) -> None:
    with (
        DataLoader(items(entropy), 4, num_workers=workers) as loader,
        pytest.raises(DeterminismError, match="batch 0 of epoch 0 differs the second time"),
    ):
        check_determinism(loader)


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"shuffle": True, "seed": 3}])
def test_the_sample_is_named(options: dict[str, Any]) -> None:
    loader = DataLoader(items(third), 4, **options)
    with pytest.raises(DeterminismError, match=r"in sample \d, dataset\[17\]\. "):
        check_determinism(loader, batches=10)


@pytest.mark.usefixtures("by_fork")
def test_what_depends_on_the_number_of_workers_is_named() -> None:
    def workers(index: int) -> int:
        info = lit_loader.get_worker_info()
        return 0 if info is None else info.num_workers

    with pytest.raises(DeterminismError, match="differs with num_workers=3 instead of 2: batch"):
        check_determinism(DataLoader(items(workers), 4, num_workers=2))


class Held(Augmented):
    """Holds seeded generators."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(1)
        self.own = random.Random(2)

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = [self.rng.random(), self.own.random(), random.random(), float(torch.rand(()))]
        return torch.tensor([index, *drawn])


LOADERS: dict[str, Callable[..., DataLoader[Any]]] = {
    "in order": lambda **more: DataLoader(Held(), 4, **more),
    "shuffled": lambda **more: DataLoader(Held(), 4, shuffle=True, **more),
    "seeded": lambda **more: DataLoader(Held(), 4, shuffle=True, seed=1, **more),
    "by sample": lambda **more: DataLoader(
        Held(), 4, sampler=WeightedRandomSampler([1.0] * 20, 20), seeding="sample", **more
    ),
    "out of order": lambda **more: DataLoader(Held(), 4, in_order=False, **more),
    "few": lambda **more: DataLoader(Held(), 100, **more),
    "stream": lambda **more: DataLoader(Counting(LENGTH, lambda i: random.random()), 4, **more),
    "shards": lambda **more: DataLoader(
        Counting(LENGTH, lambda i: random.random()), 4, num_shards=4, **more
    ),
}


@pytest.mark.parametrize(
    ("make", "workers"),
    [(make, 0 if name in ("in order", "few") else 2) for name, make in LOADERS.items()],
    ids=LOADERS,
)
@pytest.mark.filterwarnings("ignore:.*reads? all of", "ignore:.*no state_dict")
def test_what_is_exact_passes_and_stays_as_it_is(make: Any, workers: int) -> None:
    torch.manual_seed(5)
    with make(num_workers=workers) as loader:
        for batches in (1, 8):
            check_determinism(loader, batches)
        found = [torch.as_tensor(batch).tolist() for batch in loader]
    torch.manual_seed(5)
    with make(num_workers=workers) as loader:
        assert sorted(found) == sorted(torch.as_tensor(batch).tolist() for batch in loader)


def test_it_continues_where_the_loader_is() -> None:
    loader = DataLoader(Held(), 4, shuffle=True, seed=1)
    iterator = iter(loader)
    batches = [next(iterator) for _ in range(2)]
    check_determinism(loader)
    batches += iterator
    assert all(map(torch.equal, batches, DataLoader(Held(), 4, shuffle=True, seed=1)))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors_are_compared(layout: torch.layout) -> None:
    def nested(samples: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.nested_tensor(samples, layout=layout)

    ragged = Call(lambda index: torch.full((index + 1,), float(index)), LENGTH)
    check_determinism(DataLoader(ragged, 4, collate_fn=nested))
    other = Call(lambda index: torch.full((index + 1,), entropy()), LENGTH)
    with pytest.raises(DeterminismError, match=r"batch\[0\] \(float32 \d+\) has other values"):
        check_determinism(DataLoader(other, 4, collate_fn=nested))
    stream = Counting(3, lambda index: nested([torch.ones(index + 1), torch.ones(2)]))
    assert len(list(DataLoader(stream, None))) == 3


def test_an_error_the_second_time_is_a_difference() -> None:
    read: set[int] = set()

    def once(index: int) -> int:
        if index in read:
            raise RuntimeError(f"{index} was read before")
        read.add(index)
        return index

    with pytest.raises(DeterminismError, match="was dict of 2, and then RuntimeError: .* before"):
        check_determinism(DataLoader(items(once), 4))


@pytest.mark.parametrize("options", [{}, {"num_shards": 2, "num_workers": 1}])
def test_a_stream_whose_state_leaves_out_its_buffer_is_named(options: Any) -> None:
    class Lossy(BufferedStream):
        def __iter__(self) -> Any:
            buffer: Any = super().__iter__()
            buffer.load_state_dict = lambda state: setattr(buffer, "place", state["place"])
            return buffer

    check_determinism(DataLoader(BufferedStream(200), 4, **options))
    with (
        pytest.warns(lit_loader.ExactnessWarning, match="LL321"),
        pytest.raises(DeterminismError, match="after a resume"),
    ):
        check_determinism(DataLoader(Lossy(200), 4, **options))


@pytest.mark.filterwarnings("ignore:.*LL308")
def test_a_stream_that_cannot_begin_again_is_named() -> None:
    class Once(torch.utils.data.IterableDataset[int]):
        def __init__(self) -> None:
            self.left = iter(range(LENGTH))

        def __iter__(self) -> Iterator[int]:
            return self.left

    with pytest.raises(DeterminismError, match="batch 0 of epoch 0 differs the second time"):
        check_determinism(DataLoader(Once(), 4))


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(OptionError, match=r"needs a lit_loader\.DataLoader, got list"):
        check_determinism([])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="batches must be a whole number of at least 1, got 0"):
        check_determinism(DataLoader(range(4)), 0)  # type: ignore[arg-type]
