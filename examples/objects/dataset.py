"""Map-style datasets over object storage: an object for each sample, or a range of a larger one.

An index, one small object, says where each sample is; it is read once, where the dataset is made.
A worker then asks for just the bytes of its samples, with several threads (``read_threads``). A
failed request is an ``OSError``, which the loader tries again (``sample_retries``), without a byte
of the batch changing.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from images.files import SPLITS, rendered, to_tensor
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

import lit_loader
from objects.storage import Storage

PACK = 256
"""Samples in one pack."""


def write(storage: Storage, layout: str, splits: Sequence[str] = SPLITS) -> None:
    """Writes the digits as JPEG: ``layout`` "objects", one each, or "ranges" of packs."""
    for split in splits:
        samples = list(rendered(split))
        if layout == "objects":
            names = [f"{split}/{number:05}.jpg" for number in range(len(samples))]
            storage.write({n: jpeg for n, (jpeg, _) in zip(names, samples, strict=True)})
            places = [(name, 0, -1) for name in names]
        else:
            places = []
            for first in range(0, len(samples), PACK):
                pack = [jpeg for jpeg, _ in samples[first : first + PACK]]
                name = f"{split}/pack-{first // PACK:03}"
                storage.write({name: b"".join(pack)})
                ends = np.cumsum([len(jpeg) for jpeg in pack]).tolist()
                places += [(name, *ends) for ends in zip([0, *ends[:-1]], ends, strict=True)]
        table = [[*place, label] for place, (_, label) in zip(places, samples, strict=True)]
        # Last: where an index is, all that it names is there.
        storage.write({f"{split}.{layout}.json": json.dumps(table).encode()})


class Objects(Dataset[tuple[Tensor, int]]):
    """Images in object storage.

    Args:
        storage: Where.
        split: "train", "val" or "test".
        layout: "objects" or "ranges", as :func:`write` was told.
    """

    def __init__(self, storage: Storage, split: str, layout: str) -> None:
        self.storage = storage
        table: list[Any] = json.loads(storage.read(f"{split}.{layout}.json"))
        names = sorted({row[0] for row in table})
        number = {name: place for place, name in enumerate(names)}
        self._names = names
        # Arrays, and not a list of lists: workers share their pages.
        self._places = np.array([(number[n], *rest) for n, *rest in table], np.int64)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Returns the image (1 × 64 × 64, uint8) and its class."""
        name, start, end, label = self._places[index].tolist()
        part = (None, None) if end < 0 else (start, end)
        jpeg = self.storage.read(self._names[name], *part)
        with Image.open(io.BytesIO(jpeg)) as file:
            return to_tensor(file.convert("L")), label


class Shown(Dataset[tuple[Tensor, int]]):
    """The same, moved by up to four pixels each time: what is random stays out of the storage."""

    def __init__(self, images: Objects) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = self.images[index]
        down, right = lit_loader.get_rng().integers(-4, 5, 2).tolist()
        return torch.roll(image, (down, right), (1, 2)), label
