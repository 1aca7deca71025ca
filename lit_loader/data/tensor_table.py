"""Datasets that are tables of tensors: a batch of theirs is one indexing, not a loop over samples.

What comes out is what ``default_collate([dataset[i] for i in indices])`` gives, byte for byte.
Nothing of it draws a random number, so generators need be neither seeded nor preserved.

A table keeps nothing of its dataset: indices and tensors are looked up at every batch, as they
would be for every sample.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Subset, TensorDataset

from lit_loader.core.batch.collate import DIRECT_BYTES, Empty
from lit_loader.core.transport.reductions import is_plain

__all__ = ["Table", "table_of"]

_WHOLE = frozenset((int, *(np.dtype(f"i{size}").type for size in (1, 2, 4, 8))))
"""What a list of indices may hold. Not bool, which means another thing to a tensor."""


class NoTableError(Exception):
    """The dataset is no table, or no longer, or not with these indices: read it by the sample."""


class Table:
    """The rows of a ``TensorDataset`` that a dataset consists of; its tensors are at the bottom."""

    def __init__(self, dataset: Any, tensors: tuple[torch.Tensor, ...]) -> None:
        self._dataset = dataset
        self._tensors = tensors

    def batch(
        self, indices: Sequence[int] | npt.NDArray[np.generic], empty: Empty | None = None
    ) -> list[torch.Tensor]:
        """Return the batch of these samples, or raise that it cannot be taken in this way."""
        dataset = self._dataset
        while type(dataset) is Subset:
            indices = _chosen(dataset.indices, indices)
            dataset = dataset.dataset
        if dataset.tensors is not self._tensors:
            self._tensors = _tensors_of(dataset)
        if isinstance(indices, np.ndarray):
            rows = torch.from_numpy(indices.astype(np.int64, copy=False))
        else:
            rows = torch.frombuffer(array("q", indices), dtype=torch.int64)
        return [_take(tensor, rows, empty) for tensor in self._tensors]


def _chosen(chosen: Any, places: Any) -> Any:
    """Return ``[chosen[place] for place in places]``, all of them plain whole numbers."""
    source = _source(chosen)
    if type(source) is np.ndarray:
        return source[places]
    rows = [] if source is None else [source[place] for place in places]
    if source is None or not _WHOLE.issuperset(map(type, rows)):
        raise NoTableError
    return rows


def _source(chosen: object) -> Any:
    """Return what rows are chosen from; None: no indices. Of a list only batches are read."""
    if type(chosen) is torch.Tensor and chosen.dtype is torch.int64 and _has_rows(chosen):
        chosen = chosen.numpy()
    if type(chosen) is np.ndarray:
        return chosen if chosen.ndim == 1 and chosen.dtype.kind == "i" else None
    return chosen if type(chosen) in (list, tuple, range) else None


def _take(tensor: torch.Tensor, rows: torch.Tensor, empty: Empty | None) -> torch.Tensor:
    shape, out = (len(rows), *tensor.shape[1:]), None
    if empty is not None and tensor.element_size() * math.prod(shape) >= DIRECT_BYTES:
        out = empty(shape, tensor.dtype)
    return torch.index_select(tensor, 0, rows, out=out)


def table_of(dataset: object) -> Table | None:
    """Find the table that a dataset is; None if it is none, or not surely.

    A table is a ``TensorDataset``, or a ``Subset`` (of a ``Subset`` …) of one, of these very
    classes: a subclass may do anything with its samples.
    """
    subsets: list[object] = []
    bottom = dataset
    while type(bottom) is Subset and not any(bottom is subset for subset in subsets):
        subsets.append(bottom)
        bottom = bottom.dataset
    try:
        tensors = _tensors_of(bottom)
    except NoTableError:
        return None
    # Only now: what is not at the bottom of a table may have indices of any kind.
    sources = [_source(getattr(subset, "indices", None)) for subset in subsets]
    return None if any(source is None for source in sources) else Table(dataset, tensors)


def _tensors_of(dataset: object) -> tuple[torch.Tensor, ...]:
    if type(dataset) is TensorDataset:
        tensors = dataset.tensors
        if tensors and type(tensors) is tuple and all(map(_has_rows, tensors)):
            return tensors
    raise NoTableError


def _has_rows(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and is_plain(tensor) and tensor.ndim > 0 and len(tensor) > 0
