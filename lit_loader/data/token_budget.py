"""`TokenBudgetBatchSampler`: batches of samples of different lengths, bounded by their tokens.

Samples are sorted into buckets of similar lengths, and cut into batches, once. In an epoch they
change places within their buckets. Neighbouring batches, which cost about the same, are those of a
step. The cuts depend on the buckets alone: a batch takes as many samples as the longest of the
bucket in which it begins allows. So every epoch has the same number of batches, of the same sizes,
whatever is shuffled.
(Lightning asks for the length once: an epoch with more batches would be cut off there, and one with
fewer would end without validation.) A bucket does not end in a small batch: its last one continues
with samples of the next bucket, which are shorter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lit_loader.core.options.checks import known_keywords, number, or_none, positive, refuse
from lit_loader.core.state.state_validation import Fingerprint
from lit_loader.data.by_length import BATCHES, ByTokens, halved, in_order
from lit_loader.describe import public
from lit_loader.errors import OptionError

__all__ = ["TokenBudgetBatchSampler"]

Numbers = npt.NDArray[np.int64]


@public
class TokenBudgetBatchSampler(ByTokens):
    """Puts samples of similar length into batches of at most ``max_tokens`` padded tokens.

    What a batch holds is a function of (lengths, options, seed, epoch). Ranks need no sampler of
    their own: the loader deals the batches out to them, ``num_replicas`` at a time.

    In a configuration it is a factory, which is called with the dataset::

        batch_sampler: {_target_: lit_loader.TokenBudgetBatchSampler, _partial_: true,
                        max_tokens: 8192, seed: 1}

    Args:
        lengths: Tokens of each sample, one whole number each; or a dataset with an attribute that
            holds them. An empty sample counts as one token.
        max_tokens: Upper bound of (longest sample) × (number of samples) in a batch.
        lengths_from: Name of the attribute in which a dataset has the lengths.
        max_samples: Upper bound of a batch's samples; None: unbounded.
        shuffle: Shuffle samples within their buckets, and the batches, in each epoch; False: the
            longest samples first, the same in every epoch.
        drop_last: Leave off the batch of the shortest samples if it is not full, and the last
            batches that do not divide evenly among the ranks; False: every sample comes once, and
            the batches of most tokens are cut in two until their number does.
        spread: How much shorter than the longest sample of its bucket a sample may be, as a share,
            0 … 1. The padding of a batch within one bucket is below it, on the average about half
            of it; larger buckets mix the samples more.
        pad_to_multiple_of: What the ``collate_fn`` pads lengths to a multiple of; counted in.
        too_long: What becomes of a sample of more than ``max_tokens`` tokens: "raise" an error,
            "skip" it, or count it as ``max_tokens`` long because the dataset will "truncate" it.
        num_replicas: Number of ranks. The ranks' batches of one step have samples of similar
            lengths. The number of batches is a multiple of it, if batches can be divided. None: the
            processes of ``torch.distributed``, 1 without. To resume on another number of ranks,
            pass one that all of them divide.
        seed: Seed of the orders; the loader's own ``seed`` is not known here.

    Attributes:
        epoch: The epoch whose batches come next.

    Raises:
        OptionError: An option is refused, or a sample is too long (a ValueError).

    Examples:
        >>> from lit_loader import TokenBudgetBatchSampler
        >>> lengths = [2, 9, 3, 8, 2, 9]
        >>> batches = TokenBudgetBatchSampler(lengths, 18, shuffle=False)
        >>> [[lengths[index] for index in batch] for batch in batches]
        [[9, 9], [8, 3], [2, 2]]
    """

    @known_keywords
    def __init__(
        self,
        lengths: object,
        max_tokens: int,
        *,
        lengths_from: str = "lengths",
        max_samples: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        spread: float = 0.1,
        pad_to_multiple_of: int = 1,
        too_long: str = "raise",
        num_replicas: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            *(lengths, lengths_from, max_tokens),
            shuffle=shuffle,
            drop_last=drop_last,
            too_long=too_long,
            num_replicas=num_replicas,
            seed=seed,
        )
        self.max_samples: int | None = or_none(positive)("max_samples", max_samples)
        self.pad_to_multiple_of = positive("pad_to_multiple_of", pad_to_multiple_of)
        if self.pad_to_multiple_of > self.max_tokens:
            raise OptionError(
                "pad_to_multiple_of must not exceed max_tokens, or no sample fits into a batch, "
                f"got pad_to_multiple_of={pad_to_multiple_of} and max_tokens={max_tokens}"
            )
        self.spread = float(number("spread", spread))
        if self.spread > 1:
            refuse("spread", "a number from 0 to 1", spread)
        self._tokens, kept = self._counted(self.lengths)
        order = np.argsort(-self._tokens[kept], kind="stable")
        self._longest_first: Numbers = kept[order]
        self._bucket, caps = self._buckets(self._tokens[self._longest_first])
        self._cuts = self._cut(self._bucket, caps)

    def __len__(self) -> int:
        """Return the number of batches, on all ranks together; the same in every epoch."""
        return len(self._cuts) - 1

    def plan(self, epoch: int) -> tuple[Numbers, Numbers]:  # noqa: D102
        cuts, samples = self._cuts, self._longest_first
        if not self.shuffle:
            return samples[: cuts[-1]], cuts
        ranks = self.shuffled(epoch, len(samples)).take(0, len(samples))
        samples = samples[np.lexsort((ranks, self._bucket))]
        # Batches of one step stay together. A rest, which only single samples leave, stays last.
        replicas, count = self.num_replicas, len(self)
        groups = self.shuffled(epoch, count // replicas, BATCHES).take(0, count // replicas)
        batches = (groups[:, None] * replicas + np.arange(replicas)).ravel()
        batches = np.concatenate([batches, np.arange(len(batches), count, dtype=np.int64)])
        return in_order(samples, cuts, batches)

    def state_fingerprint(self) -> Fingerprint:
        """Name what the batches depend on, besides the epoch and the number of ranks."""
        return {
            **super().state_fingerprint(),
            "max_samples": self.max_samples,
            "spread": float(self.spread),
            "pad_to_multiple_of": self.pad_to_multiple_of,
        }

    # --- which samples make a batch, once ---

    def _counted(self, lengths: Numbers) -> tuple[Numbers, Numbers]:
        """Return the tokens that each sample counts for, and the samples that are not left out."""
        multiple = self.pad_to_multiple_of
        budget = self.max_tokens // multiple * multiple
        tokens = np.maximum(-(-lengths // multiple) * multiple, multiple)
        kept = self._fitting(tokens, budget)
        return np.minimum(tokens, budget), kept

    def _buckets(self, tokens: Numbers) -> tuple[Numbers, list[int]]:
        """Cut tokens, longest first, into buckets: that of each sample, and the longest of each."""
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

    def _cut(self, bucket: Numbers, caps: Sequence[int]) -> Numbers:
        """Find where batches begin and end among the samples in their buckets' order.

        Batch ``i`` goes from element ``i`` of what is returned, int64, to the next one.
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
        # With fewer samples than ranks the loader's uneven_ranks decides.
        wanted = -(-(len(cuts) - 1) // self.num_replicas) * self.num_replicas
        return halved(np.array(cuts, np.int64), wanted, self._tokens[self._longest_first])
