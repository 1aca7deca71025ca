"""Ordinary programs, by what their data is like: does it vary, is it independent, is it fixed?

Each program is a function of a loader's class and keyword arguments for workers, and gives a number
or a list that torch's loader and ours are compared by. Marked slow, each runs with torch's, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset, Sampler, Subset

from lit_loader import DataLoader, get_rng, get_shard
from tests.support.datasets import Numbers, Shuffled
from tests.support.programs import run_program
from tests.support.samples import Call, Counting

N = 24

Make = Callable[..., Any]
Program = Callable[[Make], Any]


NOISE = {
    "torch": lambda: float(torch.rand((), dtype=torch.float64)),
    "numpy": np.random.random,
    "python": random.random,
}


def augmented(kind: str = "torch") -> Call:
    """Samples with the noise of one library."""
    return Call(lambda index: torch.tensor([index, NOISE[kind]()], dtype=torch.float64), N)


def rows(loader: Any) -> list[tuple[float, ...]]:
    return [tuple(row) for batch in loader for row in batch.tolist()]


def noise(loader: Any) -> frozenset[float]:
    return frozenset(row[1] for row in rows(loader))


def distinct(passes: Any) -> int:
    return len(set(passes))


def shared(one: frozenset[Any], other: frozenset[Any]) -> int:
    return len(one & other)


def a_loader_for_each_epoch(make: Make) -> int:
    data = augmented()
    return distinct(tuple(rows(make(data, batch_size=4, shuffle=True))) for _ in range(4))


def validation_is_trained_on(make: Make) -> int:
    found = 0
    for kind in ("torch", "numpy"):
        train, val = make(augmented(kind), batch_size=4, shuffle=True), make(augmented(kind), 4)
        found += sum(shared(noise(train), noise(val)) for _ in range(3))
    return found


def parts_of_one_dataset(make: Make) -> int:
    data = augmented()
    halves = Subset(data, range(12)), Subset(data, range(12, 24))
    train, val = (make(half, batch_size=4) for half in halves)
    return shared(noise(train), noise(val))


class Episodes(Sampler[list[int]]):
    """Few-shot episodes."""

    def __init__(self, number: int = 10) -> None:
        self.number = number

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self.number):
            yield np.random.choice(N, 5, replace=False).tolist()


def episodes(make: Make) -> int:
    train, val = (make(Numbers(N), batch_sampler=Episodes()) for _ in range(2))
    sets = [frozenset(tuple(batch.tolist()) for batch in loader) for loader in (train, val, train)]
    return shared(sets[0], sets[1]) + shared(sets[0], sets[2])


def pairs(make: Make) -> bool:
    """Whether zipped loaders pair other samples in each epoch."""
    ours, theirs = (make(Numbers(N), batch_size=1, shuffle=True) for _ in range(2))
    found = {(int(a), int(b)) for _ in range(5) for a, b in zip(ours, theirs, strict=True)}
    return len(found) > 3 * N


def trials_with_one_seed_each(make: Make) -> int:
    def trial(seed: int) -> tuple[Any, ...]:
        torch.manual_seed(seed)
        return tuple(rows(make(augmented(), batch_size=4, shuffle=True)))

    return distinct(trial(seed) for seed in (0, 1, 2, 0))


VARIED: dict[Program, Any] = {
    a_loader_for_each_epoch: 4,
    validation_is_trained_on: 0,
    parts_of_one_dataset: 0,
    episodes: 0,
    pairs: True,
    trials_with_one_seed_each: 3,
}

# --- what the program seeds ---


def seed_before_each_pass(make: Make) -> int:
    loader, passes = make(augmented(), batch_size=4, shuffle=True), []
    for _ in range(3):
        torch.manual_seed(0)
        passes.append(tuple(rows(loader)))
    return distinct(passes)


def seed_before_validation(make: Make) -> tuple[int, int]:
    train, val = make(augmented(), batch_size=4, shuffle=True), make(augmented(), batch_size=4)
    passes, trained = [], []
    for _ in range(3):
        trained.append(tuple(rows(train)))
        with torch.random.fork_rng():
            torch.manual_seed(7)
            passes.append(noise(val))
    return distinct(trained), distinct(passes)


def a_place_put_back(make: Make) -> tuple[bool, bool]:
    """What people resume by: the state of torch's generator, and a new loader."""
    torch.manual_seed(1)
    rows(make(augmented(), batch_size=4, shuffle=True))
    place = torch.get_rng_state()
    following = rows(make(augmented(), batch_size=4, shuffle=True))
    first = torch.manual_seed(1) and rows(make(augmented(), batch_size=4, shuffle=True))
    torch.set_rng_state(place)
    again = rows(make(augmented(), batch_size=4, shuffle=True))
    return again == following, again != first


def all_are_seeded(make: Make) -> tuple[int, ...]:
    def run(kind: str) -> tuple[Any, ...]:
        torch.manual_seed(2)
        np.random.seed(2)
        random.seed(2)
        return tuple(rows(make(augmented(kind), batch_size=4, shuffle=True)))

    return tuple(distinct(run(kind) for _ in range(2)) for kind in ("torch", "numpy", "python"))


SEEDED: dict[Program, Any] = {
    seed_before_each_pass: 1,
    seed_before_validation: (3, 1),
    a_place_put_back: (True, True),
    all_are_seeded: (1, 1, 1),
}


HOW: dict[str, dict[str, Any]] = {  # workers of each pass: test_passes.py
    "in the process": {},
    "persistent workers": {"num_workers": 2, "persistent_workers": True},
}


@pytest.fixture(params=[*HOW.values()], ids=[*HOW])
def how(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


@pytest.fixture(params=[DataLoader, pytest.param(TorchLoader, marks=pytest.mark.slow)])
def made(request: pytest.FixtureRequest, how: dict[str, Any]) -> Iterator[Make]:
    """Makes loaders, and ends them."""
    loaders = []

    def make(*args: Any, **options: Any) -> Any:
        loaders.append(request.param(*args, **options, **how))
        return loaders[-1]

    yield make
    for loader in loaders:
        if isinstance(loader, DataLoader):
            loader.close()


def named(programs: dict[Program, Any]) -> list[Any]:
    return [pytest.param(*each, id=each[0].__name__) for each in programs.items()]


@pytest.mark.parametrize(("program", "wanted"), named(VARIED))
def test_it_varies_and_is_independent(program: Program, wanted: Any, made: Make) -> None:
    torch.seed()
    assert program(made) == wanted


@pytest.mark.parametrize(("program", "wanted"), named(SEEDED))
def test_what_the_program_seeds_is_fixed(program: Program, wanted: Any, made: Make) -> None:
    assert program(made) == wanted
    assert program(made) == wanted


def test_torch_alone_is_seeded_in_another_process(tmp_path: Path) -> None:
    """Where Python's generator has just been begun by the operating system, and NumPy's."""
    (program := tmp_path / "program.py").write_text("""
import random, numpy as np, torch
from lit_loader import DataLoader, get_rng, get_shard
random.seed(), np.random.seed()
class Noise(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return random.random(), np.random.random(), torch.rand(()).item()
for generator in (torch, torch.Generator()):
    for workers in (0, 2):
        generator.manual_seed(0)
        own = None if generator is torch else generator
        loader = DataLoader(Noise(), generator=own, num_workers=workers)
        print([[float(column) for column in batch] for batch in loader])
""")
    first, second = (run_program(program, forked=True).splitlines() for _ in range(2))
    assert first == second
    assert first[0] == first[1] and first[2] == first[3]


def test_a_generator_beside_the_dataset_is_moved_by_iter_alone(tmp_path: Path) -> None:
    """As in torch's notes on reproducibility: ``g`` is a global of the dataset's module."""
    (program := tmp_path / "program.py").write_text("""
import torch
from lit_loader import DataLoader, get_rng, get_shard
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 24
    def __getitem__(self, index): return index, torch.rand((), generator=g).item()
g, local = torch.Generator(), [torch.Generator()]
def passes(generator, workers):
    loader = DataLoader(Rows(), 24, shuffle=True, generator=generator, num_workers=workers)
    for _ in range(2):  # the loader's first pass is as its later ones
        generator.manual_seed(0)
        print([[column.tolist() for column in batch] for _ in range(2) for batch in loader])
if __name__ == "__main__":
    for workers in (0, 2):
        passes(g, workers)
    g = None
    passes(local[0], 0)
""")
    *seeded, first, second = run_program(program, forked=True).splitlines()
    assert len(set(seeded)) == 1
    orders = [[rows for rows, _ in eval(line)] for line in (seeded[0], first, second)]
    assert orders[0] == orders[1] == orders[2]


every_worker_simulates = pytest.mark.filterwarnings("ignore:.*LL201")


class Simulated(IterableDataset[float]):
    """Begins by a draw, as an environment that is reset does; `kind` says from what."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __iter__(self) -> Iterator[float]:
        seed = np.random.randint(2**31) if self.kind == "numpy" else int(torch.randint(2**31, ()))
        rng = np.random.default_rng(seed)
        for _ in range(16):
            yield rng.random()


def init(worker: int) -> None:
    np.random.seed(100 + worker)
    torch.manual_seed(100 + worker)


@every_worker_simulates
@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("function", [None, init])
@pytest.mark.parametrize("make", [DataLoader, pytest.param(TorchLoader, marks=pytest.mark.slow)])
def test_workers_of_a_stream_differ_from_the_first_instruction(
    kind: str, function: Any, make: Any
) -> None:
    loader = make(Simulated(kind), batch_size=4, num_workers=2, worker_init_fn=function)
    first = frozenset(float(each) for batch in loader for each in batch)
    assert len(first) == 32


@pytest.mark.parametrize("options", [{}, {"num_shards": 4}])
def test_workers_shuffle_files_alike(options: dict[str, Any]) -> None:
    files = Shuffled(np.random.default_rng(0), length=16)  # each takes its share of them
    loader = DataLoader(files, batch_size=1, num_workers=2, **options)
    orders = [tuple(row[0] for row in rows(loader)) for _ in range(3)]
    assert all(sorted(order) == [*range(16)] for order in orders)
    assert distinct(orders) == 3


def test_shards_differ_by_the_generator_of_their_share() -> None:
    data = Counting(8, lambda _: int(get_rng(get_shard()[0]).integers(1 << 40)))
    assert len({int(batch) for batch in DataLoader(data, 1, num_workers=2, num_shards=8)}) == 8
