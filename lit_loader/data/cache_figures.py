"""What the caches hold that lie somewhere in a loader's dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from lit_loader.data.cache_store import CacheFigures
from lit_loader.data.cached_dataset import CachedDataset

__all__ = ["figures_of"]

_DEPTH: Final = 6
_ITEMS: Final = 64


def figures_of(dataset: Any) -> dict[str, Any]:
    """Add up the figures of the caches in a dataset, by their names in `LoaderStatistics`."""
    found = {id(each): each.figures() for each in _caches(dataset, _DEPTH)}
    if not found:
        return {}
    sums = map(sum, zip(*found.values(), strict=True))
    return dict(zip((f"cache_{name}" for name in CacheFigures._fields), sums, strict=True))


def _caches(value: Any, depth: int) -> Iterator[CachedDataset[Any]]:
    """Find caches in what datasets are wrapped in: their attributes, and short containers there."""
    if isinstance(value, CachedDataset):
        yield value
    for part in getattr(value, "__dict__", {}).values() if depth else ():
        short = isinstance(part, (list, tuple, dict)) and len(part) <= _ITEMS
        each: Any = part.values() if isinstance(part, dict) else part
        for inner in each if short else [part]:
            if hasattr(type(inner), "__getitem__") and hasattr(inner, "__dict__"):
                yield from _caches(inner, depth - 1)
