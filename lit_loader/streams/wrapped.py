"""`wrapped`: a dataset, and those that it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_DEPTH, _ITEMS = 6, 64
"""How deep `wrapped` looks, and into containers of how many items."""


def wrapped(
    dataset: object, method: str, depth: int = _DEPTH, seen: set[int] | None = None
) -> Iterator[Any]:
    """Return a dataset, and what is wrapped in it: its attributes, those in short containers, ....

    What has ``method``, which only datasets have, each once; but for what was ``seen``.
    """
    seen = {id(dataset)} if seen is None else seen
    yield dataset
    for part in getattr(dataset, "__dict__", {}).values() if depth else ():
        is_short = isinstance(part, (list, tuple, dict)) and len(part) <= _ITEMS
        several = part.values() if isinstance(part, dict) else part
        for each in several if is_short else [part]:
            is_new = id(each) not in seen and hasattr(type(each), method)
            if is_new and hasattr(each, "__dict__"):
                seen.add(id(each))
                yield from wrapped(each, method, depth - 1, seen)
