"""The search for generators that a dataset holds: what no black-box test of it can ask."""

import random
import sys
from typing import Any

import numpy as np
import pytest
import torch

from lit_loader.core.seeding.find_generators import find_generators


class Box:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


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


def test_no_code_of_the_user_runs() -> None:
    root = Box(a=[Hostile()], b={"k": Hostile()})
    assert find_generators(root, Hostile()).paths == [
        "Box.a[0].rng",
        "Box.b['k'].rng",
        "Hostile.rng",
    ]


def test_a_module_that_may_not_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def optional() -> Any:
        import blocked_module  # type: ignore[import-not-found]

        return blocked_module

    monkeypatch.setitem(sys.modules, "blocked_module", None)
    assert find_generators(optional).paths == []


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


@pytest.mark.filterwarnings(
    "ignore:Sparse (invariant|CSR):UserWarning", "ignore:The PyTorch API of nested:UserWarning"
)
def test_what_is_said_to_be_shared() -> None:
    """Only memory that another process may write; tensors of any kind can be asked."""
    rows = torch.ones(2, 2)
    own = [
        rows,
        rows.to_sparse(),
        rows.to_sparse_csr(),
        rows.to("meta"),
        rows.to_mkldnn(),
        torch.nested.nested_tensor([rows[0], rows[1]]),
        torch.nested.nested_tensor([rows[0], rows[1]], layout=torch.jagged),
        torch.empty(0),
    ]
    assert find_generators(Box(held=own)).shared is None
    shared = torch.ones(4).share_memory_()[1:]
    found = find_generators(Box(held=[*own, shared])).shared
    assert found is not None and found.endswith(f"[{len(own)}]")
