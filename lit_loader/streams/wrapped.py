"""`wrapped`: a dataset, and those that it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_DEPTH, _ITEMS = 6, 64
"""How deep `wrapped` looks, and into containers of how many items."""


def wrapped(dataset: Any, method: str) -> Iterator[Any]:
    """Return a dataset, and what is wrapped in it: its attributes, those in short containers, ....

    What has ``method``, which only datasets have, each once.
    """
    seen, level = {id(dataset)}, [dataset]
    for _ in range(_DEPTH + 1):
        yield from level
        inner: list[Any] = []
        for part in (part for each in level for part in getattr(each, "__dict__", {}).values()):
            short = isinstance(part, (list, tuple, dict)) and len(part) <= _ITEMS
            several = part.values() if isinstance(part, dict) else part
            inner += several if short else [part]
        level = []
        for each in inner:
            known = id(each) in seen or not hasattr(type(each), method)
            if not known and hasattr(each, "__dict__"):
                seen.add(id(each))
                level.append(each)
