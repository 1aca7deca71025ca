"""Tar shards: written, divided among the readers, decoded; by webdataset's own pipeline."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import webdataset as wds
from images.augment import augmentation
from images.files import SPLITS, rendered, to_tensor

from lit_loader import get_epoch, get_shard

TRAIN_SHARDS, OTHER_SHARDS = 8, 2
BUFFER = 256  # samples that the shuffle draws from


def write(root: Path) -> None:
    """Writes ``root/<split>-<number>.tar``, with a JPEG file and a class for each sample."""
    for split in SPLITS:
        samples = list(rendered(split))
        shards = TRAIN_SHARDS if split == "train" else OTHER_SHARDS
        for shard in range(shards):
            with wds.TarWriter(str(root / f"{split}-{shard:03}.tar")) as tar:
                for number in range(shard, len(samples), shards):
                    jpeg, label = samples[number]
                    tar.write({"__key__": f"{number:06}", "jpg": jpeg, "cls": label})


class Share:
    """Chooses a reader's shards: a ``nodesplitter`` that does the ``workersplitter``'s part too.

    The library's own splitters work as well (``workersplitter=wds.split_by_worker``, its default,
    asks torch's ``get_worker_info``, which answers in lit_loader's workers). `get_shard` knows of
    ranks and workers together, under every strategy and start method; and `get_epoch` makes the
    order of the shards a new one in each epoch, in workers that live on as well.

    Args:
        shuffle: Whether the shards come in a new order in each epoch.
        seed: Of the order.
    """

    def __init__(self, shuffle: bool, seed: int) -> None:
        self.shuffle, self.seed = shuffle, seed

    def __call__(self, shards: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        index, count = get_shard()
        order = list(shards)
        if self.shuffle:
            # A string: what it seeds is the same in every Python.
            random.Random(f"{self.seed} {get_epoch()}").shuffle(order)
        return islice(order, index, None, count)


def pipeline(root: Path, split: str, seed: int, augment_with: str) -> wds.WebDataset:
    """Returns a split: an iterable dataset of images (1 × 64 × 64, uint8) and classes."""
    training = split == "train"
    dataset = wds.WebDataset(
        sorted(map(str, root.glob(f"{split}-*.tar"))),
        nodesplitter=Share(training, seed),
        workersplitter=None,
        shardshuffle=False,  # Share does it
        empty_check=False,  # there may be more workers than shards
        seed=seed,
    )
    if training:
        # lit_loader finds this generator and seeds it for every batch, like torch's own.
        dataset = dataset.shuffle(BUFFER, rng=random.Random(seed))
    dataset = dataset.decode("pill").to_tuple("jpg", "cls")
    if training:
        dataset = dataset.map_tuple(augmentation(augment_with))
    return dataset.map_tuple(to_tensor)
