"""Datasets that are tables of tensors: a batch of theirs is one indexing, not a loop over samples.

What comes out is what ``default_collate([dataset[i] for i in indices])`` gives, byte for byte.
Nothing of it draws a random number, so generators need be neither seeded nor preserved.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Subset, TensorDataset

from lit_loader.collate import DIRECT_BYTES, Empty

__all__ = ["Table", "table_of"]


class Table:
    """The rows of a ``TensorDataset`` that a dataset consists of.

    Args:
        dataset: Its tensors are dense, and on the CPU.
        rows: Row of each sample, int64; None: sample ``i`` is row ``i``.
    """

    def __init__(self, dataset: TensorDataset, rows: torch.Tensor | None) -> None:
        self._dataset = dataset
        self._rows = rows

    def batch(self, indices: Sequence[int], empty: Empty | None = None) -> list[torch.Tensor]:
        """Return the batch of these samples: a tensor for each of the table's.

        Args:
            indices: Of the samples.
            empty: Gives memory for large outputs; None for private memory.

        Raises:
            Exception: There is no such sample, or it cannot be taken in this way.
        """
        rows = torch.frombuffer(array("q", indices), dtype=torch.int64)
        if self._rows is not None:
            rows = self._rows[rows]
        return [_take(tensor, rows, empty) for tensor in self._dataset.tensors]


def _take(tensor: torch.Tensor, rows: torch.Tensor, empty: Empty | None) -> torch.Tensor:
    """Return rows of a tensor, contiguous."""
    if empty is not None:
        shape = (len(rows), *tensor.shape[1:])
        if tensor.element_size() * math.prod(shape) >= DIRECT_BYTES:
            out = empty(shape, tensor.dtype)
            if out is not None:
                return torch.index_select(tensor, 0, rows, out=out)
    return torch.index_select(tensor, 0, rows)


def table_of(dataset: Any) -> Table | None:
    """Find the table that a dataset is; None if it is none, or not surely.

    Args:
        dataset: A ``TensorDataset``, or a ``Subset`` (of a ``Subset`` …) of one, of these very
            classes: a subclass may do anything with its samples.
    """
    rows: torch.Tensor | None = None
    while type(dataset) is Subset:
        chosen = torch.as_tensor(dataset.indices)
        if chosen.dtype != torch.int64 or chosen.ndim != 1:
            return None
        rows = chosen if rows is None else chosen[rows]
        dataset = dataset.dataset
    if type(dataset) is not TensorDataset or not all(map(_is_plain, dataset.tensors)):
        return None
    return Table(dataset, rows) if dataset.tensors else None


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and not tensor.requires_grad
        and len(tensor) > 0
    )
