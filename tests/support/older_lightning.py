"""Lets the tests run with releases of Lightning whose Trainer has no ``weights_only``: import it.

Those before 2.6 load a checkpoint as ``torch.load`` does by default.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import lightning
import pytest
from lightning.pytorch import Trainer

__all__ = ["needs_2_6"]

needs_2_6 = pytest.mark.skipif(
    tuple(map(int, lightning.__version__.split(".")[:2])) < (2, 6),
    reason="finders before Lightning 2.6 look further than they are asked to",
)


def _without(method: Any) -> Any:
    @functools.wraps(method)
    def call(*args: Any, weights_only: Any = None, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return call


for _name in ("fit", "validate", "test", "predict"):
    if "weights_only" not in inspect.signature(getattr(Trainer, _name)).parameters:
        setattr(Trainer, _name, _without(getattr(Trainer, _name)))
