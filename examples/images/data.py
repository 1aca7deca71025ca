"""The data module: files are written once, and each split is a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from digits.once import write_once
from torch.utils.data import Dataset

from images.augment import augmentation
from images.files import SPLITS, JpegFolder, Transformed, write
from lit_loader import CachedDataset, LoaderDataModule


class ImagesData(LoaderDataModule):
    """JPEG files in folders, the training ones augmented.

    Args:
        root: Where the files are, or are to be written.
        augment_with: "pillow", "torchvision" or "auto".
        cache: Memory in which decoded images are kept from epoch to epoch, as in "200 MB"; None:
            they are decoded in each.
        **options: Of `LoaderDataModule`.
    """

    splits = SPLITS

    def __init__(
        self,
        root: str,
        augment_with: str = "auto",
        cache: str | int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.root = Path(root).absolute()
        self.augment_with = augment_with
        self.cache = cache

    def prepare_data(self) -> None:
        write_once(self.root, write)

    def make_dataset(self, split: str) -> Dataset[Any]:
        transform = augmentation(self.augment_with) if split == "train" else None
        if self.cache is None:
            return JpegFolder(self.root / split, transform)
        decoded = CachedDataset(JpegFolder(self.root / split), self.cache)
        return decoded if transform is None else decoded.map(Transformed(transform))
