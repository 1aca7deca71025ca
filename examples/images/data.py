"""The data module: files are written once, and each split is a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from digits.once import write_once

from images.augment import augmentation
from images.files import SPLITS, JpegFolder, write
from lit_loader import LoaderDataModule


class ImagesData(LoaderDataModule):
    """JPEG files in folders, the training ones augmented.

    Args:
        root: Where the files are, or are to be written.
        augment_with: "pillow", "torchvision" or "auto".
        **options: Of `LoaderDataModule`.
    """

    splits = SPLITS

    def __init__(self, root: str, augment_with: str = "auto", **options: Any) -> None:
        super().__init__(**options)
        self.root = Path(root).absolute()
        self.augment_with = augment_with

    def prepare_data(self) -> None:
        write_once(self.root, write)

    def make_dataset(self, split: str) -> JpegFolder:
        transform = augmentation(self.augment_with) if split == "train" else None
        return JpegFolder(self.root / split, transform)
