"""Caches of decoded images: the epoch that fills one, later ones, and one that holds half of them.

    python examples/benchmark/caches.py [--rounds 1] [--workers 2] [--quick]

Milliseconds a batch of 16 over a whole epoch, beside decoding anew with torch's loader, and MONAI's
caches in torch's loader where MONAI is installed. Its ``CacheDataset`` decodes all that it holds
before the first epoch, by as many threads as there are workers, which counts as part of that epoch;
its ``PersistentDataset`` keeps a file a sample.
"""

import importlib.util
import io
import tempfile
import time
from functools import partial

import numpy as np
import torch
from common import LOADERS, in_turns, parser, table
from samples import jpeg_files
from torch.utils.data import Dataset

import lit_loader

BATCH = 16
SAMPLE = 224 * 224 * 3 + 512
"""Bytes of a sample that is kept."""


class Thumbnails(Dataset):
    """JPEG images, decoded and resized; nothing is random."""

    def __init__(self, length):
        self.length, self.files = length, jpeg_files()

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        from PIL import Image

        with Image.open(io.BytesIO(self.files[index % len(self.files)])) as file:
            image = file.convert("RGB").resize((224, 224), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(image)), index


def ours(images, room, folder, workers):
    if folder:
        return lit_loader.CachedDataset(images, 0, folder, "images")
    return lit_loader.CachedDataset(images, int(room * len(images) * SAMPLE))


def monai(images, room, folder, workers):
    from monai.data import CacheDataset, PersistentDataset
    from monai.transforms import Transform

    # A transform that MONAI takes for one without random numbers, and so keeps.
    decode = type("Decode", (Transform,), {"__call__": lambda self, index: images[index]})()
    numbers = list(range(len(images)))
    if folder:
        return PersistentDataset(numbers, decode, folder)
    return CacheDataset(numbers, decode, cache_rate=room, num_workers=workers, progress=False)


def epoch(loader, make, images, room, number, disk, workers):
    """Milliseconds a batch of this epoch, with a cache that is new in the first."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        dataset = make(images, room, folder if disk else "", workers)
        opened = LOADERS[loader](dataset, BATCH, num_workers=workers, persistent_workers=True)
        for _ in range(number):
            for _ in opened:
                pass
            began = time.perf_counter()
        for _ in opened:
            pass
        took = time.perf_counter() - began
        if loader == "lit_loader":
            opened.close()
    return took * 1e3 * BATCH / len(images)


def main():
    args = parser(__doc__, rounds=1).parse_args()
    images, rows = Thumbnails(48 if args.quick else 320), []
    makers = {"lit_loader": ("lit_loader", ours), "torch": ("torch", lambda images, *_: images)}
    if importlib.util.find_spec("monai"):
        makers["MONAI"] = ("torch", monai)
    for name, room, number, disk in (
        ("memory, first epoch", 1.0, 0, False),
        ("memory, second epoch", 1.0, 1, False),
        ("memory for half of it, second epoch", 0.5, 1, False),
        ("disk, first epoch", 1.0, 0, True),
        ("disk, second epoch", 1.0, 1, True),
    ):
        subjects = {
            who: partial(epoch, loader, make, images, room, number, disk, args.workers)
            for who, (loader, make) in makers.items()
        }
        rows.append([name, *in_turns(subjects, args.rounds, uncounted=not args.quick).values()])
    table(["ms a batch", *makers], rows)


if __name__ == "__main__":
    main()
