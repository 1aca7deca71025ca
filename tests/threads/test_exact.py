"""Threads, as workers and as ``read_threads``, yield the bytes of one read after another.

Streams read by worker threads yield the bytes of processes; or there is a reason why not.
"""

import contextlib
import random
import sqlite3
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, IterableDataset, Subset, get_worker_info

import lit_loader
from lit_loader import DataLoader, ExactnessWarning
from tests.support.datasets import Shuffled
from tests.support.samples import Call, OfLength, share

THREADS: dict[str, Any] = {"num_workers": 2, "worker_method": "thread"}
READS: dict[str, Any] = {"read_threads": 5}
KINDS: dict[str, dict[str, Any]] = {
    "processes": {"num_workers": 2},
    "threads": THREADS,
    "three threads": THREADS | {"num_workers": 3},
    "reads": READS,
    "processes, reads": {"num_workers": 2, **READS},
    "threads, reads": THREADS | READS,
}
SHARING = [name for name in KINDS if "threads" in name or "reads" in name]


@pytest.fixture(params=SHARING)
def kind(request: pytest.FixtureRequest) -> dict[str, Any]:
    return KINDS[request.param]


class Drawing(OfLength):
    """Samples are ready in another order, and draw from what threads may draw from."""

    length = 37

    def __getitem__(self, index: int) -> list[float]:
        time.sleep(0.001 * (index % 3))
        rng = lit_loader.get_rng()
        drawn = [rng.random(), rng.random(), lit_loader.get_rng("a key").random()]
        return [index, lit_loader.get_epoch(), *drawn]


class Asking(Drawing):
    """Asks torch, too: only of workers."""

    def __getitem__(self, index: int) -> list[float]:
        info: Any = get_worker_info()
        own, seed = getattr(info, "rng", None), torch.initial_seed()
        assert info.seed == seed
        if own is None:  # before torch 2.9
            return [*super().__getitem__(index), seed % 2**31]
        drawn = [own.random_generator.random(), own.numpy_generator.random(), seed % 2**31]
        return [*super().__getitem__(index), *drawn, torch.rand((), generator=own.torch_generator)]


def transformed(index: int) -> list[float]:
    """Draws as transforms of torchvision do. ``read_threads`` cannot have that exact."""
    generator = torch.thread_safe_generator()  # type: ignore[attr-defined]
    return [index, torch.rand((), generator=generator).item()]


class AllAtOnce(Drawing):
    def __getitems__(self, indices: list[int]) -> list[list[float]]:
        return [[index, lit_loader.get_rng(index).random()] for index in indices]


class Failing(Drawing):
    """Some samples fail after they have drawn: at their first attempt, or always."""

    def __init__(self, always: bool = True) -> None:
        super().__init__()
        self.always, self.failed = always, set[Any]()

    def __getitem__(self, index: int) -> list[float]:
        sample, attempt = super().__getitem__(index), (index, lit_loader.get_epoch())
        if index % 5 == 3 and (self.always or attempt not in self.failed):
            self.failed.add(attempt)
            raise OSError(f"{index} is bad")
        return sample


class FailingAtOnce(AllAtOnce):
    def __getitems__(self, indices: list[int]) -> list[list[float]]:
        if any(index % 5 == 3 for index in indices):
            raise OSError(f"one of {indices} is bad")
        return super().__getitems__(indices)


class Told(OfLength):
    def __init__(self) -> None:
        super().__init__(37)
        self.told: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.told.append(epoch)

    def __getitem__(self, index: int) -> list[int]:
        return [index, self.told[-1]]


def noisy(samples: list[Any]) -> torch.Tensor:
    return torch.tensor(samples, dtype=torch.float64) + lit_loader.get_rng().random()


RETRY = {"times": 2, "backoff": 0.001}
CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "by batch": (Drawing, {}),
    "by sample": (Drawing, {"seeding": "sample"}),
    "asking": (Asking, {}),
    "asking, by sample": (Asking, {"seeding": "sample"}),
    "transforms": (lambda: Call(transformed, 37), {}),
    "collate_fn": (Drawing, {"collate_fn": noisy}),
    "single": (lambda: Drawing(12), {"batch_size": None}),
    "wrapped": (lambda: ConcatDataset([Subset(Drawing(), range(4, 30)), Drawing(5)]), {}),
    "sampler": (Drawing, {"sampler": [*range(36, -1, -1)], "shuffle": None}),
    "ranks": (Drawing, {"num_replicas": 2, "rank": 1, "uneven_ranks": "keep"}),
    "told": (Told, {}),
    "all at once": (AllAtOnce, {}),
    "skip": (Failing, {"on_sample_error": "skip"}),
    "replace": (Failing, {"on_sample_error": "replace"}),
    "skip, all at once": (FailingAtOnce, {"on_sample_error": "skip"}),
    "retries": (lambda: Failing(always=False), {"sample_retries": RETRY}),
    "pinned": (Drawing, {"pin_memory": True}),
}


def loader_of(case: str, **options: Any) -> DataLoader[Any]:
    make, given = CASES[case]
    return DataLoader(make(), **{"batch_size": 8, "shuffle": True, "seed": 5, **given, **options})


def plain(batches: Any) -> Any:
    return [[torch.as_tensor(each).tolist() for each in batch] for batch in batches]


def two_epochs(loader: DataLoader[Any]) -> Any:
    found = []
    for epoch in (3, 4):
        loader.set_epoch(epoch)
        found.append(plain(loader))
    return found


@pytest.mark.filterwarnings("ignore:.*pin_memory")
@pytest.mark.parametrize("case", CASES)
def test_batches_are_those_of_one_read_after_another(case: str) -> None:
    if case == "transforms" and not hasattr(torch, "thread_safe_generator"):
        pytest.skip("torch has it from 2.13 on")
    with loader_of(case, num_workers=1) as loader:
        expected = two_epochs(loader)
    for name, options in KINDS.items():
        if case.startswith("asking") and "num_workers" not in options:
            continue  # there is no worker to ask of
        if case == "transforms" and "read_threads" in options:
            continue
        with loader_of(case, **options) as loader:
            assert two_epochs(loader) == expected, name
    first, second = KINDS["threads, reads"], KINDS["processes"]
    for one, other in () if case == "transforms" else ((first, second), (second, first)):
        with loader_of(case, **one) as loader, loader_of(case, **other) as resumed:
            loader.set_epoch(3)
            batches = iter(loader)
            begun = [next(batches) for _ in range(2)]
            resumed.set_epoch(3)
            resumed.load_state_dict(loader.state_dict())
            assert plain(begun) + plain(resumed) == expected[0]


def test_the_dataset_is_told_its_epoch_once_for_each_pass() -> None:
    dataset = Told()
    two_epochs(DataLoader(dataset, 4, **THREADS | {"num_workers": 4}))
    assert dataset.told == [3, 4]


class Parts(OfLength):
    def __getitems__(self, indices: list[int]) -> Any:
        return [[index, len(indices), lit_loader.get_rng().random()] for index in indices]


class Whole(OfLength):
    """Makes a batch by itself: no list that could be joined."""

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return torch.tensor(indices)


def test_getitems_gets_parts_that_draw_differently() -> None:
    first, second = DataLoader(Parts(), 8, read_threads=3, seed=1)
    numbers, sizes, drawn = first
    assert numbers.tolist() == [*range(8)]
    assert sizes.tolist() == [2, 2, 3, 3, 3, 3, 3, 3]
    assert len({*drawn.tolist(), *second[2].tolist()}) == 16
    whole = DataLoader(Whole(), 8, read_threads=3, collate_fn=lambda batch: batch)
    assert [batch.tolist() for batch in whole] == [[*range(8)], [*range(8, 16)]]


# --- generators that threads share ---


class Holding(OfLength):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(1)

    def __getitem__(self, index: int) -> float:
        return float(self.rng.random())


DRAWS: dict[str, Any] = {
    "random": lambda _: random.random(),
    "numpy.random": lambda _: np.random.rand(),
    "torch's": lambda _: torch.rand(()).item(),
}


@pytest.mark.filterwarnings("ignore:.*pin_memory")
@pytest.mark.parametrize("name", [*DRAWS, "Holding.rng"])
def test_a_draw_from_a_shared_generator_is_reported_once(name: str, kind: dict[str, Any]) -> None:
    dataset = Call(DRAWS[name]) if name in DRAWS else Holding()
    with (
        DataLoader(dataset, 4, pin_memory=True, **kind) as loader,
        pytest.warns(ExactnessWarning, match=f"(?s){name}.*get_rng.*LL418") as found,
    ):
        for _ in range(2):
            list(loader)
    assert len([each for each in found if each.category is ExactnessWarning]) == 1


def drawing_collate(samples: Any) -> torch.Tensor:
    return torch.tensor(samples) + random.random() + np.random.rand()


def test_what_the_program_and_collate_fn_draw_is_not_reported(kind: dict[str, Any]) -> None:
    collate = None if "worker_method" in kind else drawing_collate
    inline = iter(DataLoader(Call(DRAWS["random"], 64), seed=1))
    with warnings.catch_warnings(), DataLoader(Drawing(), 4, collate_fn=collate, **kind) as loader:
        warnings.simplefilter("error")
        loader.start()
        for _ in loader:
            torch.rand(3), random.random(), np.random.rand(), next(inline)


# --- streams ---


class Lines(IterableDataset[Any]):
    """Reads its share of some numbers from a cursor, which belongs to the thread that opened it."""

    def __iter__(self) -> Iterator[Any]:
        mine = share(lit_loader.get_rng("order").permutation(40)).tolist()
        with contextlib.closing(sqlite3.connect(":memory:")) as base:
            rows = base.execute(f"values {', '.join(f'({n})' for n in mine)}")
            for (number,) in rows:
                yield [number, lit_loader.get_rng().random(), torch.initial_seed() % 2**31]


class Placed(Lines):
    """Knows its place, and shuffles by a generator of its own."""

    def __init__(self) -> None:
        self.rng, self.place = np.random.default_rng(3), 0

    def __iter__(self) -> Iterator[Any]:
        for number in share(self.rng.permutation(40))[self.place :].tolist():
            self.place += 1
            yield [number, lit_loader.get_rng().random()]
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place, self.rng.bit_generator.state = state["place"], state["rng"]


@pytest.mark.filterwarnings("ignore:lit_loader. Lines has no state_dict")
@pytest.mark.parametrize("options", [{}, {"num_shards": 4}, {"num_shards": 4, "batch_size": None}])
@pytest.mark.parametrize("kind", [Lines, Placed])
def test_a_stream_s_batches_are_those_of_processes(kind: Any, options: dict[str, Any]) -> None:
    def loader(**more: Any) -> DataLoader[Any]:
        return DataLoader(kind(), **{"batch_size": 3, "seed": 5, **options, **more})

    if kind is Placed and not options:
        with pytest.raises(lit_loader.OptionError, match=r"Placed keeps its place.*num_shards"):
            next(iter(loader(**THREADS)))
        return
    with loader(**KINDS["processes"]) as processes:
        whole = [plain(processes) for _ in range(2)]
    with loader(**THREADS) as threads:
        assert [plain(threads) for _ in range(2)] == whole
    if options:
        assert plain(loader(**THREADS | {"num_workers": 3})) == whole[0]
    for first, second in ((THREADS, KINDS["processes"]), (KINDS["processes"], THREADS)):
        with loader(**first) as begun, loader(**second) as resumed:
            batches = iter(begun)
            given = [next(batches) for _ in range(5)]
            resumed.load_state_dict(begun.state_dict())
            assert plain(given) + plain(resumed) == whole[0]


def test_readers_move_when_the_number_of_threads_changes() -> None:
    loader = DataLoader(Placed(), 3, seed=5, num_shards=4, **THREADS)
    found = []
    for number, batch in enumerate(loader):
        found += plain([batch])
        loader.resize((3, 1, 4, 2)[number % 4])
    assert found == plain(DataLoader(Placed(), 3, seed=5, num_shards=4))


@pytest.mark.parametrize("options", [{}, {"num_shards": 4}])
def test_a_stream_that_shuffles_by_a_shared_generator_is_reported(
    options: Any, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-5)  # the threads look at the generators at the same moment
    for _ in range(20):
        with pytest.warns(lit_loader.ExactnessWarning, match=r"random.*lose samples.*LL418"):
            list(DataLoader(Shuffled(random), 3, **options, **THREADS))
