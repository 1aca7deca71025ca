"""What the caches hold that lie somewhere in a loader's dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from lit_loader.data.cache_store import CacheFigures
from lit_loader.data.cached_dataset import CachedDataset

__all__ = ["figures_of"]

_DEPTH: Final = 6
_ITEMS: Final = 64


def figures_of(dataset: Any) -> dict[str, Any]:
    """Add up the figures of the caches in a dataset.

    Returns:
        By the names that `LoaderStatistics` has for them; empty: there is no cache.
    """
    found = {id(each): each.figures() for each in _caches(dataset, _DEPTH)}
    if not found:
        return {}
    sums = map(sum, zip(*found.values(), strict=True))
    return dict(zip((f"cache_{name}" for name in CacheFigures._fields), sums, strict=True))


def _caches(value: Any, depth: int) -> Iterator[CachedDataset[Any]]:
    """Find caches in what datasets are wrapped in: their attributes, and short containers there."""
    if isinstance(value, CachedDataset):
        yield value
    if depth:
        for part in getattr(value, "__dict__", {}).values():
            for each in _items(part):
                if hasattr(type(each), "__getitem__") and hasattr(each, "__dict__"):
                    yield from _caches(each, depth - 1)


def _items(part: Any) -> Iterable[Any]:
    if isinstance(part, (list, tuple)):
        return part if len(part) <= _ITEMS else ()
    if isinstance(part, dict):
        return part.values() if len(part) <= _ITEMS else ()
    return (part,)
