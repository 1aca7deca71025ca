"""`alike`: compares two states, of which parts are the user's: arrays and tensors among them.

These have no ``==`` that answers for the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["alike"]


def alike(one: Any, other: Any) -> bool:
    """Whether two values are the same; of those that cannot be compared, False."""
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(_equal(one, other))
    except Exception:  # it contains itself, say
        return False


def _equal(one: Any, other: Any) -> Any:
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return one == other or (one != one and other != other)  # not a number
