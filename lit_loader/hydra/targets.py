"""What the groups in ``conf/lit_loader`` name as ``_target_`` and is not the package's own.

From Hydra 1.4 on an application lists the targets that its configuration may call. With these,
``lit_loader.*`` admits all of the package's groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from torch.utils.data import RandomSampler, WeightedRandomSampler

__all__ = ["SampleList", "load_weights", "random_sampler", "weighted_sampler"]


class SampleList:
    """A collate function: a batch is the list of its samples, as they are."""

    def __call__(self, samples: Iterable[Any]) -> list[Any]:
        """Give the samples as a new list."""
        return list(samples)


def load_weights(file: str) -> Any:
    """Read a ``.npy`` file with a number for each sample, float or int, shape (samples,)."""
    return np.load(file)


def weighted_sampler(
    weights: Any, num_samples: int, replacement: bool = True
) -> WeightedRandomSampler:
    """Make torch's WeightedRandomSampler."""
    return WeightedRandomSampler(weights, num_samples, replacement)


def random_sampler(
    dataset: Any, replacement: bool = True, num_samples: int | None = None
) -> RandomSampler:
    """Make torch's RandomSampler of a dataset."""
    return RandomSampler(dataset, replacement, num_samples)
