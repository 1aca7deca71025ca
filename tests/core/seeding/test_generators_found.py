"""Where libraries keep their random generators: each is found, and its draws follow from the seed.

The classes have the shapes of albumentations, MONAI, torchio and kornia, lhotse, and Hugging Face.
"""

import copy
import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

import lit_loader
from lit_loader import DataLoader, ExactnessWarning
from tests.support.samples import OfLength

LENGTH = 12


class Images(OfLength):
    length = LENGTH

    def __init__(self, transform: Callable[[], float] | None = None) -> None:
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        drawn = self.transform() if self.transform else 0.0
        return torch.tensor([index, drawn], dtype=torch.float64)


class Compose:
    """Transforms in a list, as every such library has it."""

    def __init__(self, *transforms: Callable[[], float]) -> None:
        self.transforms = list(transforms)

    def __call__(self) -> float:
        return sum(transform() for transform in self.transforms)


class Albumentation:
    def __init__(self) -> None:
        self.random_generator, self.py_random = np.random.default_rng(137), random.Random(137)

    def __call__(self) -> float:
        return float(self.random_generator.random()) + self.py_random.random()


class Randomizable:
    """As MONAI's: a ``RandomState``."""

    def __init__(self) -> None:
        self.R = np.random.RandomState()

    def __call__(self) -> float:
        return self.R.uniform()


class Slotted:
    __slots__ = ("generator",)

    def __init__(self) -> None:
        self.generator = torch.Generator()

    def __call__(self) -> float:
        return float(torch.rand((), generator=self.generator, dtype=torch.float64))


class Cuts:
    """As lhotse's: collates by a bound method, with a generator of Python's."""

    def __init__(self) -> None:
        self.rng = random.Random(0)

    def collate(self, samples: list[torch.Tensor]) -> torch.Tensor:
        noise = torch.tensor([[0.0, self.rng.random()] for _ in samples], dtype=torch.float64)
        return torch.stack(samples) + noise


GLOBAL = np.random.default_rng(5)


def of(rng: np.random.Generator) -> float:
    return float(rng.random())


def of_module() -> float:
    return of(GLOBAL)


def by_torch() -> float:
    """As torchvision, torchio and kornia draw."""
    return float(torch.rand((), dtype=torch.float64))


class Shuffled(IterableDataset[torch.Tensor]):
    """As Hugging Face's iterable datasets: shuffles by a copy of its generator, then augments."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(42)

    def __iter__(self) -> Iterator[torch.Tensor]:
        numbers = copy.deepcopy(self.generator).permutation(LENGTH)
        shard, count = lit_loader.get_shard()
        for number in numbers[shard::count].tolist():
            yield torch.tensor([number, self.generator.random()], dtype=torch.float64)


def held_in_a_dict() -> Images:
    """Behind other entries, as in a configuration."""
    parts: Any = {**dict.fromkeys(range(20)), "generators": ({np.random.default_rng(3)},)}
    dataset = Images(lambda: next(iter(parts["generators"][0])).random())
    dataset.parts = parts  # type: ignore[attr-defined]
    return dataset


Made = tuple[Any, dict[str, Any]]
KINDS: dict[str, Callable[[], Made]] = {
    "attributes of a transform": lambda: (Images(Compose(Compose(Albumentation()))), {}),
    "RandomState": lambda: (Images(Compose(Randomizable())), {}),
    "slots": lambda: (Images(Slotted()), {}),
    "torch's own": lambda: (Images(by_torch), {}),
    "a dict, a tuple, a set": lambda: (held_in_a_dict(), {}),
    "a partial": lambda: (Images(functools.partial(of, np.random.default_rng(3))), {}),
    "a module's globals": lambda: (Images(of_module), {}),
    "collate_fn's object": lambda: (Images(), {"collate_fn": Cuts().collate}),
    "a stream": lambda: (Shuffled(), {"num_shards": 3}),
}


def epochs(kind: str, seed: int | None = 5, **options: Any) -> list[list[list[float]]]:
    dataset, own = KINDS[kind]()
    if kind != "a stream":
        own["shuffle"] = True
    with DataLoader(dataset, 2, seed=seed, **own, **options) as loader:
        return [torch.cat([*loader]).tolist() for _ in range(2)]


@pytest.mark.parametrize("kind", KINDS)
def test_draws_follow_from_the_seed_whoever_makes_the_batch(kind: str) -> None:
    """And vary by sample and epoch."""
    expected = epochs(kind)
    rows = [row for epoch in expected for row in epoch]
    alike = 4 if kind == "a stream" else 0  # its 3 shards draw alike up to their first sample
    assert len({drawn for _, drawn in rows}) == len(rows) - alike == 2 * LENGTH - alike
    for workers, method in ((1, "fork"), (3, "fork"), (3, "forkserver")):
        assert epochs(kind, num_workers=workers, multiprocessing_context=method) == expected
    assert epochs(kind, seed=6) != expected


def test_a_search_that_ends_early_says_where() -> None:
    dataset: Any = Images()
    dataset.parts = [random.Random(0), *(object() for _ in range(20_000))]
    with pytest.warns(ExactnessWarning, match=r"beyond Images\.parts\[199\d\d\] are not seeded"):
        next(iter(DataLoader(dataset)))


@pytest.mark.parametrize("kind", ["attributes of a transform", "a module's globals", "a stream"])
def test_without_a_seed_a_seeded_generator_gives_what_its_own_seed_gives(kind: str) -> None:
    """In every run, whatever the program has seeded; and passes differ."""

    def drawn(seed: int, **options: Any) -> list[list[float]]:
        global GLOBAL
        GLOBAL = np.random.default_rng(5)
        torch.manual_seed(seed)
        dataset, own = KINDS[kind]()
        with DataLoader(dataset, 2, **own, **options) as loader:
            return [[float(row[1]) for batch in loader for row in batch] for _ in range(2)]

    with torch.random.fork_rng():
        first = drawn(1)
        assert drawn(2) == drawn(3, num_workers=2) == first
    assert not {*first[0]} & {*first[1]}
