"""Generators that a dataset holds: found wherever they are, and reseeded in place."""

from __future__ import annotations

import argparse
import functools
import random
import threading
import types
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

from lit_loader.seeding.find_generators import (
    MAX_ITEMS,
    find_generators,
)
from tests.support import held_elsewhere

MODULE_GENERATOR = np.random.default_rng(1)


class Box:
    """Holds what a test gives it."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index


class Slotted:
    __slots__ = ("__private", "never", "rng")

    def __init__(self) -> None:
        self.rng = random.Random(1)
        self.__private = random.Random(2)


class SlottedChild(Slotted):
    pass


@dataclass
class Data:
    rng: np.random.Generator = field(default_factory=np.random.default_rng)


class ClassLevel:
    shared = random.Random(1)


class UsesModule(Box):
    def __getitem__(self, index: int) -> int:
        return index + helper()


def helper() -> int:
    return int(MODULE_GENERATOR.integers(5))


class UsesClass(Box):
    def __getitem__(self, index: int) -> Any:
        return ClassLevel.shared.random()


class UsesAttribute(Box):
    def __getitem__(self, index: int) -> Any:
        return held_elsewhere.GENERATOR.random()


class ImportsLate(Box):
    def __getitem__(self, index: int) -> Any:
        from tests.support.held_elsewhere import GENERATOR

        return GENERATOR.random()


class WithPartial:
    method = functools.partialmethod(print, random.Random(1))


def local(generator: random.Random) -> threading.local:
    space = threading.local()
    space.k = generator
    return space


def make_collate() -> Callable[[Any], Any]:
    rng, never = torch.Generator(), None
    del never

    def collate(samples: Any, default: Any = random.Random(1), *, other: Any = None) -> Any:  # noqa: B008
        never  # noqa: B018, F821
        return rng, samples, default

    return collate


class Hostile:
    """Nothing of it may run."""

    def __init__(self) -> None:
        object.__setattr__(self, "rng", random.Random(1))

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)

    @property
    def prop(self) -> Any:
        raise AssertionError

    def __eq__(self, other: object) -> bool:
        raise AssertionError

    def __hash__(self) -> int:
        raise AssertionError

    def __repr__(self) -> str:
        raise AssertionError

    def __len__(self) -> int:
        raise AssertionError

    def __iter__(self) -> Any:
        raise AssertionError

    def __bool__(self) -> bool:
        raise AssertionError


def rng() -> random.Random:
    return random.Random(1)


@pytest.mark.parametrize(
    ("root", "paths"),
    [
        (Box(a=np.random.default_rng()), ["Box.a"]),
        (Box(a=np.random.RandomState()), ["Box.a"]),
        (Box(a=np.random.PCG64()), ["Box.a"]),
        (Box(a=torch.Generator()), ["Box.a"]),
        (Box(a=rng()), ["Box.a"]),
        (Box(b=rng(), a=Box(c=rng())), ["Box.a.c", "Box.b"]),
        (Box(a=[0, (rng(),)]), ["Box.a[1][0]"]),
        (Box(a=deque([rng()])), ["Box.a[0]"]),
        (Box(a={"k": rng(), 2: rng(), (1,): rng()}), ["Box.a['k']", "Box.a[2]", "Box.a[?]"]),
        (Box(a=OrderedDict(k=rng())), ["Box.a['k']"]),
        (Box(a={rng()}), ["Box.a{}"]),
        (Slotted(), ["Slotted._Slotted__private", "Slotted.rng"]),
        (SlottedChild(), ["SlottedChild._Slotted__private", "SlottedChild.rng"]),
        (Data(), ["Data.rng"]),
        (Box(a=[0] * MAX_ITEMS + [rng()]), [f"Box.a[{MAX_ITEMS}]"]),
        (Box(a=dict.fromkeys(range(MAX_ITEMS + 1), rng())), ["Box.a[0]"]),
        (Box(a=np.array([0, rng()], dtype=object)), ["Box.a[1]"]),
        (Box(a=UserDict(k=rng())), ["Box.a.data['k']"]),
        (Box(a=argparse.Namespace(k=rng())), ["Box.a.k"]),
        (Box(a=types.SimpleNamespace(k=rng())), ["Box.a.k"]),
        (Box(a=np.vectorize(rng().gauss)), ["Box.a.pyfunc.__self__"]),
        (Box(a=local(rng())), ["Box.a.k"]),
        (Box(a=np.random.SeedSequence(1)), ["Box.a"]),
        (WithPartial(), ["WithPartial.method.args[0]"]),
        (Box(a=ClassLevel), ["Box.a.shared"]),
        (UsesClass(), ["UsesClass.__getitem__<global ClassLevel>.shared"]),
        (
            UsesAttribute(),
            ["UsesAttribute.__getitem__<global held_elsewhere>.GENERATOR"],
        ),
        (ImportsLate(), ["ImportsLate.__getitem__<global tests.support.held_elsewhere>.GENERATOR"]),
        (ClassLevel(), ["ClassLevel.shared"]),
        (
            Box(a=functools.partial(print, rng(), key=rng())),
            ["Box.a.args[0]", "Box.a.keywords['key']"],
        ),
        (Box(a=np.random.default_rng().normal), ["Box.a.__self__"]),
        (Box(a=Box(rng=rng()).__getitem__), ["Box.a.__self__.rng"]),
        (Subset(Box(a=rng()), [0]), ["Subset.dataset.a"]),
        (ConcatDataset([Box(a=rng())]), ["ConcatDataset.datasets[0].a"]),
        (torch.nn.Sequential(torch.nn.Linear(2, 2)), []),
        (UsesModule(), ["UsesModule.__getitem__<global helper><global MODULE_GENERATOR>"]),
        (make_collate(), ["function<defaults>[0]", "function<rng>"]),
        (lambda: [MODULE_GENERATOR for _ in range(2)], ["function<global MODULE_GENERATOR>"]),
    ],
)
def test_where_generators_are_found(root: object, paths: list[str]) -> None:
    held = find_generators(root)
    assert held.paths == paths
    assert len(held.generators) == len(paths)
    assert not held.cuts


def test_no_code_of_the_user_runs() -> None:
    root = Box(a=[Hostile()], b={"k": Hostile()})
    assert find_generators(root, Hostile()).paths == [
        "Box.a[0].rng",
        "Box.b['k'].rng",
        "Hostile.rng",
    ]


KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "PCG64": (np.random.default_rng, lambda g: g.random(3).tolist()),
    "Philox": (
        lambda: np.random.Generator(np.random.Philox()),
        lambda g: [g.random(3).tolist(), g.integers(9, dtype=np.int32)],
    ),
    "MT19937": (lambda: np.random.Generator(np.random.MT19937()), lambda g: g.random(3).tolist()),
    "bits": (np.random.SFC64, lambda g: g.random_raw(3).tolist()),
    "RandomState": (np.random.RandomState, lambda g: g.randn(3).tolist()),
    "RandomState(PCG64)": (
        lambda: np.random.RandomState(np.random.PCG64()),
        lambda g: g.randn(3).tolist(),
    ),
    "torch": (torch.Generator, lambda g: torch.randn(3, generator=g).tolist()),
    "random": (random.Random, lambda g: [g.gauss(0, 1) for _ in range(3)]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_reseeding_is_exact(kind: str) -> None:
    make, draw = KINDS[kind]
    first, second = make(), make()
    held, other = find_generators(Box(a=first)), find_generators(Box(a=second))
    draw(first)
    held.reseed(5)
    expected = [draw(first), draw(first)]
    other.reseed(5)
    assert [draw(second), draw(second)] == expected
    held.reseed(6)
    assert draw(first) != expected[0]


def test_albumentations_pipelines() -> None:
    albumentations = pytest.importorskip("albumentations")
    compose = albumentations.Compose(
        [
            albumentations.RandomCrop(8, 8),
            albumentations.OneOf([albumentations.GaussNoise(p=1), albumentations.Rotate(p=1)], p=1),
            albumentations.HorizontalFlip(p=0.5),
        ]
    )
    image = np.random.RandomState(0).randint(0, 255, (32, 32, 3), dtype=np.uint8)
    held = find_generators(Box(transform=compose))
    assert "Box.transform.py_random" in held.paths
    assert "Box.transform.random_generator" in held.paths

    def run(seed: int) -> list[bytes]:
        held.reseed(seed)
        return [compose(image=image)["image"].tobytes() for _ in range(10)]

    first = run(1)
    assert run(2) != first
    assert run(1) == first
