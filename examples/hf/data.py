"""The data module: Parquet files are written once, `datasets` maps them into memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
from datasets import Array3D, ClassLabel, Dataset, Features
from digits.dataset import Digits
from digits.once import write_once
from torch import Tensor

from lit_loader import LoaderDataModule, default_collate

FEATURES = Features(
    {"image": Array3D((1, 8, 8), "float32"), "label": ClassLabel(names=list("0123456789"))}
)


def write(root: Path) -> None:
    """Writes ``root/<split>.parquet`` of images (1 × 8 × 8, float32) and labels."""
    for split in ("train", "val", "test"):
        digits = Digits(split)
        columns = {"image": digits.images.numpy(), "label": digits.labels}
        Dataset.from_dict(columns, features=FEATURES).to_parquet(root / f"{split}.parquet")


class Columns:
    """A collate_fn: collates rows, which are mappings, and gives these columns as a tuple.

    A class rather than a function with a closure, so that spawned workers can be sent it.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    def __call__(self, rows: list[Mapping[str, Tensor]]) -> tuple[Tensor, ...]:
        batch = default_collate(rows)
        return tuple(batch[name] for name in self.names)


class HuggingFaceData(LoaderDataModule):
    """Digits as a `datasets` Dataset, which reads a whole batch at once (``__getitems__``).

    Args:
        root: Where the files are, or are to be written; what `datasets` keeps is next to it.
        **options: Of `LoaderDataModule`.
    """

    splits = ("train", "val", "test")

    def __init__(self, root: str, **options: Any) -> None:
        super().__init__(**options)
        self.root = Path(root).absolute()

    def prepare_data(self) -> None:
        datasets.disable_progress_bars()  # it would stay on the console, above the Trainer's
        write_once(self.root, write)
        for split in self.splits:  # converted here, so that the ranks find it done
            self._read(split)

    def make_dataset(self, split: str) -> Dataset:
        datasets.disable_progress_bars()
        return self._read(split).with_format("torch")

    def _read(self, split: str) -> Dataset:
        cache = self.root.with_name(f"{self.root.name}-cache")
        path = str(self.root / f"{split}.parquet")
        return Dataset.from_parquet(path, cache_dir=str(cache), features=FEATURES)
