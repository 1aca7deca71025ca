"""A Parquet file as an iterable dataset that knows its place: share, order, resume.

::

    row groups of the file ─ order of this epoch ─ every count-th ─▶ this reader's groups
                             (seed, epoch)         (get_shard)          │ read one at a time
    state: {"group": 3, "row": 7} ◀── place ──────────────────────── rows, in an order of their own
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from lit_loader import get_epoch, get_shard

Row = tuple[Tensor, Tensor]


class RowGroups(IterableDataset[Row]):
    """Rows of a Parquet file; each reader reads whole row groups of its own.

    There may be any number of groups and readers: with ``num_shards`` the loader sees to it that
    all ranks come to as many batches (``uneven_ranks``).

    Args:
        path: The file.
        target: Column of the class; all others are features.
        shuffle: A new order of the groups, and of the rows in each, in every epoch.
        seed: Of that order.
    """

    def __init__(self, path: Path, target: str, shuffle: bool = False, seed: int = 0) -> None:
        self.path, self.target, self.shuffle, self.seed = path, target, shuffle, seed

    def __iter__(self) -> Reader:
        return Reader(self)

    def share(self, groups: int) -> list[int]:
        """Returns this reader's groups of this epoch, in the order in which it reads them."""
        index, count = get_shard()
        order = np.arange(groups)
        if self.shuffle:
            order = np.random.default_rng([self.seed, get_epoch()]).permutation(groups)
        return order[index::count].tolist()

    def rows(self, file: pq.ParquetFile, group: int) -> list[Row]:
        """Reads a group; returns its rows (features: float32; target: int64, a scalar)."""
        table = file.read_row_group(group, use_threads=False)  # the workers are the parallelism
        labels = torch.from_numpy(table[self.target].to_numpy().copy())
        columns = [table[name].to_numpy() for name in table.column_names if name != self.target]
        features = torch.from_numpy(np.stack(columns, axis=1))
        order = np.arange(len(labels))
        if self.shuffle:
            order = np.random.default_rng([self.seed, get_epoch(), group]).permutation(order)
        return [(features[row], labels[row]) for row in order]


class Reader(Iterator[Row]):
    """One reader's way through one epoch.

    Its state is its place alone: the loader restores the epoch, and the rest follows from that.
    """

    def __init__(self, dataset: RowGroups) -> None:
        self.dataset = dataset
        self.file: pq.ParquetFile | None = None  # opened by the process that reads it
        self.groups: list[int] | None = None
        self.group = self.row = 0
        self.rows: list[Row] | None = None

    def __next__(self) -> Row:
        if self.file is None or self.groups is None:
            self.file = pq.ParquetFile(self.dataset.path, memory_map=True)
            self.groups = self.dataset.share(self.file.num_row_groups)
        while self.group < len(self.groups):
            if self.rows is None:
                self.rows = self.dataset.rows(self.file, self.groups[self.group])
            if self.row < len(self.rows):
                self.row += 1
                return self.rows[self.row - 1]
            self.rows, self.row, self.group = None, 0, self.group + 1
        self.file.close()
        raise StopIteration

    def state_dict(self) -> dict[str, int]:
        return {"group": self.group, "row": self.row}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.group, self.row, self.rows = state["group"], state["row"], None
