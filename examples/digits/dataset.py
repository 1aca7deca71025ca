"""Scikit-learn's handwritten digits: 1,797 real images of 8 × 8 pixels, inside the package."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.utils.data import Dataset


class Digits(Dataset[tuple[Tensor, int]]):
    """One split of the digits: 60 % for training, 20 % for validation, 20 % for the test.

    Args:
        split: "train", "val" or "test".
        augment: Shift each image by up to one pixel and vary its brightness, differently each time.
    """

    def __init__(self, split: str, augment: bool = False) -> None:
        images, labels = load_digits(return_X_y=True)
        train, rest = train_test_split(
            range(len(labels)), test_size=0.4, stratify=labels, random_state=0
        )
        val, test = train_test_split(rest, test_size=0.5, stratify=labels[rest], random_state=0)
        chosen = {"train": train, "val": val, "test": test}[split]
        self.images = torch.as_tensor(images[chosen] / 16, dtype=torch.float32).view(-1, 1, 8, 8)
        self.labels: list[int] = labels[chosen].tolist()
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Returns the image (1 × 8 × 8, float32, 0 … 1) and its digit."""
        image = self.images[index]
        if self.augment:
            down, right = torch.randint(0, 3, (2,)).tolist()
            padded = torch.nn.functional.pad(image, (1, 1, 1, 1))
            image = padded[:, down : down + 8, right : right + 8] * torch.empty(1).uniform_(0.8, 1)
        return image, self.labels[index]
