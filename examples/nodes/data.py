"""The data module: files are written once, each split is a pipeline of nodes over its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from digits.once import write_once
from images.files import SPLITS, write

from lit_loader import LoaderDataModule
from nodes.pipeline import Pipeline


class NodesData(LoaderDataModule):
    """JPEG files in folders, read by torchdata's nodes; the training ones shuffled and augmented.

    Args:
        root: Where the files are, or are to be written.
        seed: Of their order.
        augment_with: "pillow", "torchvision" or "auto".
        threads: That read files ahead, of each reader.
        **options: Of `LoaderDataModule`.
    """

    splits = SPLITS

    def __init__(
        self,
        root: str,
        seed: int = 0,
        augment_with: str = "auto",
        threads: int = 2,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.root, self.seed = Path(root).absolute(), seed
        self.augment_with, self.threads = augment_with, threads

    def prepare_data(self) -> None:
        write_once(self.root, write)

    def make_dataset(self, split: str) -> Pipeline:
        return Pipeline(self.root, split, self.seed, self.augment_with, self.threads)
