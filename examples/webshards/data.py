"""The data module: shards are written once, each split is a pipeline over its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import webdataset as wds
from digits.once import write_once

from lit_loader import LoaderDataModule
from webshards.shards import pipeline, write


class WebShardsData(LoaderDataModule):
    """Tar shards of JPEG files, the training ones shuffled and augmented.

    Args:
        root: Where the shards are, or are to be written.
        seed: Of their order.
        augment_with: "pillow", "torchvision" or "auto".
        **options: Of `LoaderDataModule`.
    """

    splits = ("train", "val", "test")

    def __init__(
        self, root: str, seed: int = 0, augment_with: str = "auto", **options: Any
    ) -> None:
        super().__init__(**options)
        self.root, self.seed, self.augment_with = Path(root).absolute(), seed, augment_with

    def prepare_data(self) -> None:
        write_once(self.root, write)

    def make_dataset(self, split: str) -> wds.WebDataset:
        return pipeline(self.root, split, self.seed, self.augment_with)
