"""What the groups in ``conf/lit_loader`` name as ``_target_`` and is not the package's own.

From Hydra 1.4 on an application lists the targets that its configuration may call. With these,
``lit_loader.*`` admits all of the package's groups.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from torch.utils.data import RandomSampler, WeightedRandomSampler

from lit_loader.errors import OptionError

__all__ = ["SampleList", "load_weights", "random_sampler", "weighted_sampler"]


class SampleList:
    """A collate function: a batch is the list of its samples, as they are."""

    def __call__(self, samples: Iterable[Any]) -> list[Any]:
        """Return the samples as a new list."""
        return list(samples)


def load_weights(file: str) -> Any:
    """Read a ``.npy`` file with a number for each sample, float or int, shape (samples,).

    Raises:
        OptionError: They are not weights.
    """
    weights = np.load(file)
    wanted = f"weights.file={file!r} of the sampler must hold"
    if weights.ndim != 1 or weights.dtype.kind not in "fuib":
        raise OptionError(
            f"{wanted} one number for each sample, got {weights.dtype} of shape {weights.shape}"
        )
    good = (weights >= 0) & np.isfinite(weights)
    if not good.all():
        first = int(np.argmin(good))
        raise OptionError(
            f"{wanted} finite numbers of at least 0, got {weights[first].item()} for sample {first}"
        )
    if not weights.any():
        raise OptionError(f"{wanted} at least one number above 0, got {len(weights)} times 0")
    return weights


def weighted_sampler(
    weights: Any, num_samples: int, replacement: bool = True
) -> Callable[[Any], WeightedRandomSampler]:
    """Return a function that makes torch's WeightedRandomSampler from a dataset.

    An OptionError, where it does, if there is not one weight for each sample.
    """
    return functools.partial(
        _weighted, weights=weights, num_samples=num_samples, replacement=replacement
    )


def _weighted(dataset: Any, weights: Any, **options: Any) -> WeightedRandomSampler:
    if len(weights) != len(dataset):
        raise OptionError(
            f"the sampler's weights (weights.file) are {len(weights):,}, and the dataset "
            f"({type(dataset).__name__}) has {len(dataset):,} samples: give one weight for each "
            "sample of the split, in the dataset's order"
        )
    return WeightedRandomSampler(weights, **options)


def random_sampler(
    dataset: Any, replacement: bool = True, num_samples: int | None = None
) -> RandomSampler:
    """Make torch's RandomSampler of a dataset."""
    return RandomSampler(dataset, replacement, num_samples)
