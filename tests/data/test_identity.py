"""Which datasets a key stands for: another selection, wrapper, state or code is another cache."""

import functools
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch.utils.data import ConcatDataset, Dataset, Subset

from lit_loader import CachedDataset, SharedSequence
from tests.support.programs import run_python
from tests.support.samples import OfLength


class Numbers(OfLength):
    """Sample ``i`` is ``i``, as what it holds makes it."""

    def __init__(self, length: int = 12, transform: Any = None, held: Any = None) -> None:
        super().__init__(length)
        self.transform, self.held = transform, held

    def __getitem__(self, index: int) -> int:
        return index if self.transform is None else self.transform(index)


class Shifted(Dataset[int]):
    """A wrapper of the user's own."""

    def __init__(self, inner: Any, by: int) -> None:
        self.inner, self.by = inner, by

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> int:
        return int(self.inner[index]) + self.by


class Alike(Shifted):
    def __getitem__(self, index: int) -> int:
        return super().__getitem__(index) * 2


class Times:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, number: int) -> int:
        return number * self.factor


def added(step: Any) -> Callable[[int], int]:
    return lambda number: number + int(step)


def mapped(path: Path, start: int) -> Any:
    return np.load(path, mmap_mode="r")[start : start + 6]


CASES: dict[str, Callable[[Path], list[Any]]] = {
    "folds": lambda _: [Subset(Numbers(), range(fold, 12, 3)) for fold in range(3)],
    "concatenated": lambda _: [
        ConcatDataset([Shifted(Numbers(), n), Shifted(Numbers(), 12 - n)]) for n in (0, 12)
    ],
    "a wrapper": lambda _: [Shifted(Numbers(), 1), Shifted(Numbers(), 2), Alike(Numbers(), 1)],
    "a transform": lambda _: [Numbers(transform=Times(n)) for n in (2, 3)],
    "another transform": lambda _: [Numbers(transform=each) for each in (None, Times(2), abs)],
    "lambdas": lambda _: [
        Numbers(transform=each) for each in (lambda n: n + 1, lambda n: n + 2, lambda n: n - 1)
    ],
    "closures": lambda _: [Numbers(transform=added(n)) for n in (1, 2)],
    "steps of arrays": lambda _: [
        Numbers(transform=added(each)) for each in (np.array(1), np.array(2), torch.tensor(3))
    ],
    "partial functions": lambda _: [
        Numbers(transform=functools.partial(each, 20)) for each in (max, min)
    ],
    "methods": lambda _: [Numbers(transform=Times(n).__call__) for n in (2, 3)],
    "records": lambda _: [Subset(SharedSequence(range(n, 9)), range(6)) for n in range(2)],
    "configurations": lambda _: [
        Numbers(transform=added(OmegaConf.create({"a": {"by": n}, "b": "${a.by}"}).b))
        for n in (1, 2)
    ],
    "files that are mapped": lambda path: [
        Subset(mapped(path, start), range(6)) for start in (0, 6)
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_each_has_samples_of_its_own(name: str, tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", np.arange(12))
    kept = []
    for memory, directory in (("1 MB", None), (0, tmp_path / "cache"), (0, tmp_path / "cache")):
        again = any(each.directory for each in kept)
        for dataset in CASES[name](tmp_path / "array.npy"):
            cached: Any = CachedDataset(dataset, memory, directory, f"{tmp_path}")
            wanted = [dataset[index] for index in range(min(len(dataset), 12))]
            assert [cached[index] for index in range(len(wanted))] == wanted
            assert cached.figures().misses == len(wanted) * (not again)
            kept.append(cached)


def test_equal_ones_have_the_same(tmp_path: Path) -> None:
    """Whether or not parts of them are one and the same; a generator's state does not count."""

    def made(name: str) -> Any:
        held = {
            "names": [name, "".join(["a", "b"])],
            "generators": [random.Random(), np.random.default_rng(), torch.Generator()],
            "lock": threading.Lock(),
            "steps": [Times(3), np.arange(5), {"x", "y"}],
        }
        dataset = Numbers(held=held)
        held["circle"] = dataset
        return CachedDataset(dataset, "1 MB", key=f"{tmp_path}")

    first = made("ab")
    assert [first[index] for index in range(12)] == [*range(12)]
    second = made("".join(["a", "b"]))
    assert [second[index] for index in range(12)] == [*range(12)]
    assert second.figures()[:2] == (12, 12)


def test_what_cannot_be_compared_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "data").write_bytes(b"0123456789ab")
    with open(tmp_path / "data", "rb") as file:
        dataset = Numbers(held=[file, threading.Lock()])
        cached = [CachedDataset(dataset, "1 MB", key=f"{tmp_path}") for _ in range(2)]
        assert [each[3] for each in cached] == [3, 3]
        assert cached[0].figures()[:2] == (1, 1)
    line, _ = (record.message for record in caplog.records)
    assert line.startswith("CachedDataset: <_io.BufferedReader")
    assert line.endswith("let the key name what it stands for")


MODULE = """
import base

class Own(base.Base):
    kinds = SET

    def __init__(self):
        self.names = {"some", "names", "in", "a", "set"}

    def __getitem__(self, index):
        return index + base.STEP
"""
BASE = """
STEP = 1

class Base:
    def __len__(self):
        return 3
"""
PROGRAM = """
import sys
import module
from lit_loader import CachedDataset
cached = CachedDataset(module.Own(), 0, "cache", "v1")
print([cached[index] for index in range(3)], cached.figures().misses)
"""


def run(folder: Path, seed: int, module: str = MODULE, base: str = BASE) -> str:
    (folder / "module.py").write_text(module.replace("SET", "frozenset('abc')"))
    (folder / "base.py").write_text(base)
    root = Path(__file__).parents[2]
    return run_python(
        folder, "-c", PROGRAM, PYTHONPATH=f"{root}:{folder}", PYTHONHASHSEED=str(seed)
    ).strip()


def test_from_run_to_run(tmp_path: Path) -> None:
    """The same in every process; the files that define the classes count, with all they say."""
    assert run(tmp_path, 1) == "[1, 2, 3] 3"
    assert run(tmp_path, 2) == "[1, 2, 3] 0"
    assert run(tmp_path, 3, base=BASE.replace("STEP = 1", "STEP = 5")) == "[5, 6, 7] 3"
    assert run(tmp_path, 4, module=MODULE.replace("index +", "2 * index +")) == "[1, 3, 5] 3"
    assert run(tmp_path, 5) == "[1, 2, 3] 0"
