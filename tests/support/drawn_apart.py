"""Global functions that draw random numbers, and in a loader do so by `lit_loader.get_rng`.

What is loaded is the same by threads, then, which cannot have the global generators.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import lit_loader
from lit_loader.context import reading

Rng = np.random.Generator


def _picked(rng: Rng, items: Any) -> Any:
    return items[int(rng.integers(len(items)))]


def _torch(draw: Callable[[Rng, Any], Any]) -> Callable[..., Any]:
    def drawn(rng: Rng, *size: Any, dtype: Any = None, **_: Any) -> torch.Tensor:
        return torch.as_tensor(draw(rng, size), dtype=dtype)

    return drawn


def _rand(rng: Rng, size: Any) -> Any:
    return rng.random(size[0] if size and isinstance(size[0], tuple) else size)


_FUNCTIONS: dict[Any, dict[str, Callable[..., Any]]] = {
    random: {
        "random": lambda rng: float(rng.random()),
        "randrange": lambda rng, *ends: int(rng.integers(*ends)),
        "choice": _picked,
        "shuffle": lambda rng, items: rng.shuffle(items),
        "sample": lambda rng, items, count: [items[n] for n in rng.permutation(len(items))[:count]],
        "gauss": lambda rng, *args: float(rng.normal(*args)),
    },
    np.random: {
        **{name: lambda rng, *size: rng.random(size or None) for name in ("random", "rand")},
        "uniform": lambda rng, *args: rng.uniform(*args),
        "permutation": lambda rng, items: rng.permutation(items),
        "standard_normal": lambda rng: rng.standard_normal(),
    },
    torch: {
        "rand": _torch(_rand),
        "randperm": _torch(lambda rng, size: rng.permutation(size[0])),
        "randint": _torch(lambda rng, size: rng.integers(size[0], size=size[1])),
    },
}


def _apart(before: Callable[..., Any], draw: Callable[..., Any]) -> Callable[..., Any]:
    def drawn(*args: Any, **options: Any) -> Any:
        if reading().maker is None or options.get("generator") is not None:
            return before(*args, **options)
        return draw(lit_loader.get_rng(), *args, **options)

    return drawn


def draw_apart(patch: pytest.MonkeyPatch) -> None:
    """Have them do so from now on."""
    for module, functions in _FUNCTIONS.items():
        for name, draw in functions.items():
            patch.setattr(module, name, _apart(getattr(module, name), draw))
