"""`members`: what is in a weak set, while other threads add to it."""

from __future__ import annotations

import weakref
from typing import TypeVar

__all__ = ["members"]

T = TypeVar("T")


def members(of: weakref.WeakSet[T]) -> list[T]:
    """Give the members of a weak set, which raises if another thread adds one meanwhile.

    It must not where nobody would hear of that: around a fork, say.
    """
    while True:
        try:
            return list(of)
        except RuntimeError:
            continue
