"""JPEG files: scikit-learn's digits, enlarged and rendered; written, encoded and decoded here."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from digits.dataset import Digits
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

SIDE = 64  # pixels
SPLITS = ("train", "val", "test")

Transform = Callable[[Image.Image], Image.Image]


def rendered(split: str) -> Iterator[tuple[bytes, int]]:
    """Gives each digit of a split as the bytes of a JPEG file (64 × 64, grey), and its class."""
    digits = Digits(split)
    for pixels, label in zip(digits.images, digits.labels, strict=True):
        small = Image.fromarray((255 * pixels[0]).numpy().astype(np.uint8))
        buffer = io.BytesIO()
        small.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
        yield buffer.getvalue(), label


def write(root: Path) -> None:
    """Writes ``root/<split>/<class>/<number>.jpg``, as image classifiers' data often lies."""
    for split in SPLITS:
        for label in range(10):
            (root / split / str(label)).mkdir(parents=True)
        for number, (jpeg, label) in enumerate(rendered(split)):
            (root / split / str(label) / f"{number:04}.jpg").write_bytes(jpeg)


def to_tensor(image: Image.Image) -> Tensor:
    """Returns 1 × 64 × 64 bytes: as floats a batch would be four times as large on its way."""
    return torch.from_numpy(np.array(image))[None]


class JpegFolder(Dataset[tuple[Tensor, int]]):
    """Each file below a folder, its folder's name being its class.

    Args:
        root: Holds ``<class>/*.jpg``.
        transform: Called with each decoded image, in the worker.

    Raises:
        FileNotFoundError: There is no such file.
    """

    def __init__(self, root: Path, transform: Transform | None = None) -> None:
        # Sorted, because the order in which a folder gives its files differs between machines.
        self.paths = sorted(root.glob("*/*.jpg"))
        if not self.paths:
            raise FileNotFoundError(
                f"no images (*/*.jpg) below {root}: remove {root.parent}, and the next run writes "
                "them anew"
            )
        self.labels = [int(path.parent.name) for path in self.paths]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Returns the image (1 × 64 × 64, uint8) and its class."""
        with Image.open(self.paths[index]) as file:
            image = file.convert("L")
        if self.transform is not None:
            image = self.transform(image)
        return to_tensor(image), self.labels[index]


class Transformed:
    """Transforms images that are decoded already, as they come out of a cache."""

    def __init__(self, transform: Transform) -> None:
        self.transform = transform

    def __call__(self, sample: tuple[Tensor, int]) -> tuple[Tensor, int]:
        image, label = sample
        return to_tensor(self.transform(Image.fromarray(image[0].numpy()))), label
