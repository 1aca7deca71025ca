"""What the caches hold that lie somewhere in a loader's dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from torch.utils.data import Dataset

from lit_loader.cache.dataset import CachedDataset
from lit_loader.cache.shared_store import CacheFigures

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


def _caches(value: Any, depth: int) -> Iterator[CachedDataset]:
    """Find caches in what datasets are wrapped in: attributes, and short containers."""
    if isinstance(value, CachedDataset):
        yield value
    if not depth:
        return
    if isinstance(value, Mapping):
        inside: Iterable[Any] = value.values() if len(value) <= _ITEMS else ()
    elif isinstance(value, (list, tuple)):
        inside = value if len(value) <= _ITEMS else ()
    elif isinstance(value, Dataset):
        inside = getattr(value, "__dict__", {}).values()
    else:
        return
    for each in inside:
        if isinstance(each, (Dataset, Mapping, list, tuple)):
            yield from _caches(each, depth - 1)
