"""A pipeline of `torchdata.nodes` as an iterable dataset: its share, its order, its state.

::

    files ─ order of this epoch ─ every count-th ─▶ IterableWrapper ─▶ ParallelMapper ─▶ augment
            (seed, epoch)         (get_shard)                          (threads read)    (here)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torchdata.nodes as tn
from images.augment import augmentation
from images.files import JpegFolder, Transformed
from torch import Tensor
from torch.utils.data import IterableDataset

from lit_loader import get_epoch, get_shard

Sample = tuple[Tensor, int]


class Pipeline(IterableDataset[Sample]):
    """JPEG files, read and decoded ahead by threads of each reader's own.

    Args:
        root: Holds ``<split>/<class>/*.jpg``.
        split: "train", which is shuffled and augmented, "val" or "test".
        seed: Of the order.
        augment_with: "pillow", "torchvision" or "auto".
        threads: Of each reader.
    """

    def __init__(
        self, root: Path, split: str, seed: int = 0, augment_with: str = "auto", threads: int = 2
    ) -> None:
        self.files = JpegFolder(root / split)
        self.seed, self.threads, self.training = seed, threads, split == "train"
        self.augment = Transformed(augmentation(augment_with)) if self.training else None

    def __iter__(self) -> Nodes:
        order = np.arange(len(self.files))
        if self.training:
            order = np.random.default_rng([self.seed, get_epoch()]).permutation(order)
        index, count = get_shard()
        node = tn.IterableWrapper(order[index::count].tolist())
        node = tn.ParallelMapper(
            node, self.files.__getitem__, num_workers=self.threads, method="thread"
        )
        return Nodes(node, self.augment)


class Nodes(Iterator[Sample]):
    """One reader's way through one epoch.

    A node continues from a state by ``reset``, where the loader calls ``load_state_dict``. Random
    numbers are drawn here and not in a node's thread: only here they are a sample's own.

    Args:
        node: The last one of the pipeline.
        then: Called with each sample.
    """

    def __init__(self, node: tn.BaseNode[Sample], then: Any = None) -> None:
        self.node, self.then = node, then

    def __next__(self) -> Sample:
        sample = next(self.node)
        return sample if self.then is None else self.then(sample)

    def state_dict(self) -> dict[str, Any]:
        return self.node.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.node.reset(state)
