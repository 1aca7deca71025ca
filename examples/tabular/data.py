"""The data module: Parquet files are written once, each split is one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from digits.once import write_once

from lit_loader import LoaderDataModule
from tabular.files import TARGET, write
from tabular.row_groups import RowGroups


class TabularData(LoaderDataModule):
    """Parquet files read by row groups, in a new order in each epoch of training.

    Args:
        root: Where the files are, or are to be written.
        seed: Of the order.
        **options: Of `LoaderDataModule`.
    """

    splits = ("train", "val", "test")

    def __init__(self, root: str, seed: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.root, self.seed = Path(root).absolute(), seed

    def prepare_data(self) -> None:
        write_once(self.root, write)

    def make_dataset(self, split: str) -> RowGroups:
        training = split == "train"
        path = self.root / f"{split}.parquet"
        return RowGroups(path, TARGET, shuffle=training, seed=self.seed)
