"""The digits with one class rarer than the other, and the sampler that makes up for it."""

from __future__ import annotations

import numpy as np
import torch
from digits.dataset import Digits
from torch.utils.data import WeightedRandomSampler


class RareDigits(Digits):
    """A split of the digits in which each digit has fewer examples than the one before it.

    Args:
        split: As for `Digits`.
        keep: Share of a digit's examples that the next digit keeps: 0.75 leaves 7.5 % of the nines.
        augment: As for `Digits`.
    """

    def __init__(self, split: str, keep: float = 0.75, augment: bool = False) -> None:
        super().__init__(split, augment)
        labels = np.array(self.labels)
        kept = []
        for digit in range(10):
            examples = np.flatnonzero(labels == digit)
            kept.append(examples[: max(1, round(len(examples) * keep**digit))])
        chosen = np.sort(np.concatenate(kept))
        self.images = self.images[torch.from_numpy(chosen)]
        self.labels = labels[chosen].tolist()


def balanced(dataset: RareDigits, num_samples: int) -> WeightedRandomSampler:
    """Makes torch's own sampler, which knows nothing of processes: the loader shards it."""
    labels = np.array(dataset.labels)
    weights = 1 / np.bincount(labels)[labels]
    return WeightedRandomSampler(weights.tolist(), num_samples)
