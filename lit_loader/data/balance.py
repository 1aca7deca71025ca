"""`BalancedBatchSampler`: batches of equal size and equal cost for all ranks of a step.

::

    shuffled order ─ runs of group × batch_size samples ─ deal ─▶ group batches of equal cost
                                     batch j goes to rank j % ranks: all are done at the same time

A run is dealt by two rules. The most expensive samples go first, one to each batch, the next to
the batches that cost least so far (Graham's longest processing time first, with as many samples for
each batch). Then the dearest and the cheapest batch exchange the two samples that bring them
closest, until no exchange helps. Both are done for many runs at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from lit_loader.core.options.checks import known_keywords, positive
from lit_loader.core.sampling.orders import Indices
from lit_loader.core.state.state_validation import Fingerprint
from lit_loader.data.by_length import ByLength
from lit_loader.describe import public

__all__ = ["BalancedBatchSampler", "deal"]

Costs = npt.NDArray[np.float64]

_AT_ONCE = 16_384
"""Samples that are dealt at once: about 5 ms, 5 us for each batch of 16."""

_EXCHANGES = 16
"""Exchanges of a run at most; after 16 of them hardly a run has one more that helps."""

_COMPARED = 64
"""Samples of a batch that are tried for an exchange: of more, many have one cost."""


@public
class BalancedBatchSampler(ByLength):
    """Deals the samples of each step so that all its batches cost the same.

    The shuffled order is cut into runs of ``group`` batches. Which of these batches has which
    samples of the run is chosen so that the sums of their lengths are as equal as they can be.
    Every batch has ``batch_size`` samples, except for those of a last run that is not full: its
    samples are spread over ``group`` batches whose sizes differ by one at most, or over as many
    batches as samples if that is fewer. Then the loader's ``uneven_ranks`` decides whether batches
    are repeated or left out, as a whole, so that all ranks have equally many.

    What a batch holds is a function of (lengths, options, seed, epoch). Ranks need no sampler of
    their own: rank r of R gets each R-th batch. A state can be loaded mid-epoch with another number
    of ranks, and at the edge of a group with another group.

    In a configuration it is a factory, which is called with the dataset::

        batch_sampler: {_target_: lit_loader.BalancedBatchSampler, _partial_: true,
                        batch_size: 16, lengths_from: milliseconds}

    Args:
        lengths: Length of each sample, or what else it costs (milliseconds): finite numbers of at
            least 0. Or a dataset with an attribute that holds them.
        batch_size: Samples in a batch.
        group: Batches whose costs are made equal: ranks × batches that one optimizer step
            accumulates. None: ranks × the Trainer's ``accumulate_grad_batches`` in
            `LoaderDataModule`, and the number of processes of ``torch.distributed`` elsewhere.
        lengths_from: Name of the attribute in which a dataset has the lengths.
        seed: Seed of the orders; the loader's own ``seed`` is not known here.
        shuffle: Shuffle the samples in each epoch; False: the dataset's order.
        drop_last: Leave off the last group, with all its samples, if it is not full.

    Attributes:
        epoch: The epoch whose batches come next.

    Raises:
        OptionError: An option or a length is refused (a ValueError).

    Examples:
        >>> from lit_loader import BalancedBatchSampler, DataLoader
        >>> lengths = [9, 1, 5, 5, 8, 2]
        >>> batches = BalancedBatchSampler(lengths, 2, group=3, shuffle=False)
        >>> [[lengths[index] for index in batch] for batch in batches]
        [[9, 1], [5, 5], [8, 2]]

        With ``num_replicas=3`` each of three ranks gets one of them:

        >>> loader = DataLoader(lengths, batch_sampler=batches, num_replicas=3, rank=0, seed=1)
        >>> [batch.tolist() for batch in loader]
        [[9, 1]]
    """

    numbers: ClassVar[str] = "fui"
    group_option: ClassVar[str] = "group"

    @known_keywords
    def __init__(
        self,
        lengths: object,
        batch_size: int,
        group: int | None = None,
        *,
        lengths_from: str = "lengths",
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        super().__init__(
            *(lengths, lengths_from), group=group, shuffle=shuffle, drop_last=drop_last, seed=seed
        )
        self.batch_size = positive("batch_size", batch_size)

    def __len__(self) -> int:
        """Return the number of batches, on all ranks together; the same in every epoch."""
        groups, rest = divmod(len(self.lengths), self.group * self.batch_size)
        return groups * self.group + (0 if self.drop_last else min(rest, self.group))

    def fit_step(self, ranks: int, accumulated: int) -> None:
        """Make a group of each optimizer step's batches, unless ``group`` was given.

        Args:
            ranks: Processes that share the data.
            accumulated: Batches of each process that a step accumulates.
        """
        if not self.group_is_given:
            self.group = ranks * accumulated
            self.__dict__.pop("_epochs", None)

    def batches(self, epoch: int) -> Callable[[int], Indices]:  # noqa: D102
        length, group, size = len(self.lengths), self.group, self.batch_size
        run, whole = group * size, length // (group * size)
        at_once = max(1, _AT_ONCE // run)
        order = self.shuffled(epoch, length) if self.shuffle else None
        dealt: tuple[int, Sequence[Indices]] = -1, ()

        def batch(number: int) -> Indices:
            nonlocal dealt
            part, place = divmod(number, group * at_once)
            first, batches = dealt
            if first != part:  # as a whole, for threads
                start = part * at_once
                stop = min(start + at_once, whole)
                places = np.arange(start * run, stop * run, dtype=np.int64)
                samples = (places if order is None else order.at(places)).reshape(-1, run)
                runs = np.arange(len(samples))[:, None, None]
                batches = [*samples[runs, deal(self.lengths[samples], group)].reshape(-1, size)]
                if stop == whole:
                    places = np.arange(whole * run, length, dtype=np.int64)
                    batches += self._spread(places if order is None else order.at(places))
                dealt = part, batches
            return batches[place]

        return batch

    def _spread(self, samples: Indices) -> list[Indices]:
        """Deal what is left of an epoch: a sample more or less in each batch."""
        batches = min(len(samples), self.group)
        if not batches:
            return []
        missing = -len(samples) % batches
        # Nothing, which costs nothing, is dealt too: last, and one to a batch at most.
        costs = np.concatenate([self.lengths[samples], np.full(missing, -1.0)])
        places = deal(costs[None], batches, exchange=False)[0]
        return [samples[each[each < len(samples)]] for each in places]

    def state_fingerprint(self) -> Fingerprint:
        """Name what the batches depend on, besides epoch and group."""
        return {**super().state_fingerprint(), "batch_size": self.batch_size}

    def _begins_alike(self, items: int, group: int) -> bool:
        return not items % group and not items % self.group


def deal(costs: Costs, batches: int, exchange: bool = True) -> Indices:
    """Deal samples to batches of equal size so that the batches cost the same.

    Args:
        costs: Of each sample; runs × samples, which are a multiple of the batches.
        batches: Of each run.
        exchange: Whether batches exchange samples after they are dealt.

    Returns:
        Runs × batches × samples of a batch: places in a run, int64. A batch has them in rising
        order, and that with a run's first sample comes first.
    """
    runs, samples = costs.shape
    size = samples // batches
    if batches == 1 or not runs:
        return np.broadcast_to(np.arange(samples).reshape(batches, -1), (runs, batches, size))
    order = np.argsort(-costs, axis=1, kind="stable")
    rounds = (runs, size, batches)
    order, sorted_costs = order.reshape(rounds), np.take_along_axis(costs, order, 1).reshape(rounds)
    places: Indices = np.empty((runs, batches, size), np.int64)
    parts: Costs = np.empty(places.shape)
    sums, run = np.zeros((runs, batches)), np.arange(runs)[:, None]
    for number in range(size):
        cheapest = np.argsort(sums, axis=1, kind="stable")
        sums[run, cheapest] += sorted_costs[:, number]
        parts[run, cheapest, number] = sorted_costs[:, number]
        places[run, cheapest, number] = order[:, number]
    if exchange:
        _exchange(places, parts, sums)
    places.sort(axis=2)
    first: Indices = np.argsort(places[:, :, 0], axis=1)
    return places[run, first]


def _exchange(places: Indices, parts: Costs, sums: Costs) -> None:
    """Exchange samples between the dearest and the cheapest batch of each run, in place."""
    step = -(-parts.shape[2] // _COMPARED)
    active = np.arange(len(sums))
    for _ in range(_EXCHANGES):
        now, row = sums[active], np.arange(len(active))
        dear, cheap = now.argmax(axis=1), now.argmin(axis=1)
        gap = now[row, dear] - now[row, cheap]
        # Of each pair: what is moved from one to the other. Half of the gap would close it.
        moved = parts[active, dear, ::step][:, :, None]
        moved = moved - parts[active, cheap, ::step][:, None, :]
        width = moved.shape[2]
        moved = moved.reshape(len(active), -1)
        left = np.abs(gap[:, None] - 2 * moved)
        best = left.argmin(axis=1)
        helps = left[row, best] < gap
        if not helps.any():
            return
        active, dear, cheap, best = active[helps], dear[helps], cheap[helps], best[helps]
        change = moved[helps, best]
        ours = active, dear, best // width * step
        theirs = active, cheap, best % width * step
        sums[active, dear] -= change
        sums[active, cheap] += change
        for array in (places, parts):
            array[ours], array[theirs] = array[theirs], array[ours]
