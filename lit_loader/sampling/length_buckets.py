"""Cutting samples of different lengths into batches, by tokens: the arithmetic of it.

::

    lengths ─counted─▶ tokens, longest first ─buckets─▶ bucket of each ─cut─▶ where batches begin

Used by `TokenBudgetBatchSampler` alone, once: the cuts are the same in every epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lit_loader.errors import OptionError

__all__ = ["LengthBuckets", "Numbers", "lengths_of"]

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LengthBuckets:
    """Rules by which samples of similar lengths come into one batch.

    Attributes:
        max_tokens: Upper bound of (longest sample) × (number of samples) in a batch.
        max_samples: Upper bound of a batch's samples; None: unbounded.
        drop_last: Leave off what is not full, or does not divide evenly among the ranks.
        spread: How much shorter than the longest sample of its bucket a sample may be, 0 … 1.
        pad_to_multiple_of: What lengths are padded to a multiple of.
        too_long: What becomes of a sample that is too long: "raise", "skip" or "truncate".
        num_replicas: Ranks.
    """

    max_tokens: int
    max_samples: int | None
    drop_last: bool
    spread: float
    pad_to_multiple_of: int
    too_long: str
    num_replicas: int

    def counted(self, lengths: Numbers) -> tuple[Numbers, Numbers]:
        """Give the tokens that each sample counts for, and the samples that are not left out."""
        multiple = self.pad_to_multiple_of
        budget = self.max_tokens // multiple * multiple
        tokens = np.maximum(-(-lengths // multiple) * multiple, multiple)
        fits = tokens <= budget
        if self.too_long == "raise" and not fits.all():
            first = int(np.argmin(fits))
            raise OptionError(
                f"samples are longer than max_tokens={self.max_tokens} allows ("
                f"{np.count_nonzero(~fits)} of {len(fits)}; sample {first} has {lengths[first]} "
                "tokens): raise max_tokens, or set too_long to 'skip' or 'truncate'"
            )
        kept = np.arange(len(lengths)) if self.too_long != "skip" else np.flatnonzero(fits)
        return np.minimum(tokens, budget), kept

    def buckets(self, tokens: Numbers) -> tuple[Numbers, list[int]]:
        """Cut tokens, longest first, into buckets.

        Returns:
            The bucket of each sample, counted from 0, and the longest tokens of each bucket.
        """
        bucket, rising = np.empty(len(tokens), np.int64), -tokens
        caps: list[int] = []
        start = 0
        while start < len(tokens):
            cap = int(tokens[start])
            shortest = cap - int(cap * self.spread)
            stop = int(np.searchsorted(rising, -shortest, side="right"))
            bucket[start:stop] = len(caps)
            caps.append(cap)
            start = stop
        return bucket, caps

    def cut(self, bucket: Numbers, caps: Sequence[int]) -> Numbers:
        """Find where batches begin and end among the samples in their buckets' order.

        Args:
            bucket: The bucket of each sample, rising.
            caps: The longest tokens of each bucket.

        Returns:
            int64: batch ``i`` goes from element ``i`` to the one behind it.
        """
        length, most = len(bucket), self.max_samples or len(bucket)
        sizes = [min(self.max_tokens // cap, most) for cap in caps]
        buckets, cuts, full = bucket.tolist(), [0], True
        while cuts[-1] < length:
            stop = cuts[-1] + sizes[buckets[cuts[-1]]]
            full = stop <= length
            cuts.append(min(stop, length))
        if self.drop_last:
            cuts = cuts[: len(cuts) - (not full)]
            return np.array(cuts[: len(cuts) - (len(cuts) - 1) % self.num_replicas], np.int64)
        return self._evened(np.array(cuts, np.int64), np.array(caps, np.int64)[bucket])

    def _evened(self, cuts: Numbers, longest: Numbers) -> Numbers:
        """Halve the largest batches until their number is a multiple of the ranks'."""
        while missing := -(len(cuts) - 1) % self.num_replicas:
            sizes = np.diff(cuts)
            padded = np.where(sizes > 1, sizes * longest[cuts[:-1]], 0)
            largest = np.argsort(-padded, kind="stable")[:missing]
            largest = largest[sizes[largest] > 1]
            if not len(largest):
                break  # fewer samples than ranks: the loader's shard_tail decides
            cuts = np.sort(np.concatenate([cuts, cuts[largest] + sizes[largest] // 2]))
        return cuts


def lengths_of(source: Any) -> Numbers:
    """Give the tokens of each sample, int64."""
    given = getattr(source, "lengths", source)
    lengths: npt.NDArray[Any] = np.empty((0, 0))
    # A dataset without lengths must not be read as if it were an array: perhaps it has no end.
    if isinstance(given, Sequence) or hasattr(given, "__array__"):
        lengths = np.asarray(given) if len(given) else np.empty(0, np.int64)
    if lengths.ndim != 1 or not np.issubdtype(lengths.dtype, np.integer):
        of = f" of {lengths.dtype}, shape {lengths.shape}" if lengths.size else ""
        raise OptionError(
            "source must be the samples' lengths, one whole number each, or a dataset with an "
            f"attribute 'lengths' that holds them, got {type(source).__name__}{of}"
        )
    if given is not source and hasattr(source, "__len__") and len(source) != len(lengths):
        raise OptionError(
            f"{type(source).__name__}.lengths must have a length for each sample, got "
            f"{len(lengths)} for {len(source)} samples: give the samples' lengths themselves"
        )
    if lengths.size and lengths.min() < 0:
        first = int(np.argmax(lengths < 0))
        raise OptionError(f"lengths must not be negative, got {lengths[first]} for sample {first}")
    return lengths.astype(np.int64)
