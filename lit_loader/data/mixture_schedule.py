"""Weights, and the order of sources that they lead to: used by both kinds of mixtures.

::

    weights ─▶ exact shares ─▶ blocks of draws ─▶ Schedule.at(block): source of each draw

Everything is computed from a seed: any draw is reached at once, nothing is stored.
"""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from lit_loader.config.checks import plain
from lit_loader.describe import short_repr
from lit_loader.errors import OptionError
from lit_loader.sampling.orders import Indices
from lit_loader.sampling.permutation import Permutation
from lit_loader.seeding.seeds import derive

__all__ = ["Schedule", "Weights", "exact_weights", "named_weights"]

Weights = Mapping[str, float] | Sequence[float]

_SCHEDULE = 1  # keeps these random numbers apart from those of `data/mixture_sampler.py`
_BLOCK = 1024
_SMALLEST = Fraction(1, 1_000_000)


class Schedule:
    """Which source each draw of an endless sequence comes from, as a function of a seed.

    Draws are planned in blocks: of 1,024, or as many as a source of little weight needs to come
    once. After each block every source has had its share of all draws so far, give or take less
    than one; within a block the order is random. OptionError: the weights are refused.
    """

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        exact = exact_weights(weights)
        total = sum(exact)
        self.shares = [weight / total for weight in exact]
        least = min(share for share in self.shares if share)
        if least < _SMALLEST:
            raise OptionError(
                "weights must each be 0 or at least a millionth of their sum, for a source of less "
                f"would hardly ever come, got weights={weights!r}"
            )
        self.seed = seed
        self.block = max(_BLOCK, math.ceil(1 / least))
        # Exact fractions: rounding must neither lose a draw nor give one twice, however many.
        self._bounds = [Fraction(0), *itertools.accumulate(self.shares)]
        self._last: tuple[int, tuple[Indices, Indices]] | None = None

    def drawn(self, blocks: int) -> list[int]:
        """Give how often each source comes in the first ``blocks`` blocks."""
        draws = blocks * self.block
        floors = [draws * bound.numerator // bound.denominator for bound in self._bounds]
        # Not negative from one block to the next, because block * share is at least 1 (or 0).
        return [after - before for before, after in itertools.pairwise(floors)]

    def at(self, block: int) -> tuple[Indices, Indices]:
        """Give for each draw of a block its source, and how many of that source came before it.

        Counted from the sequence's beginning; two int64 arrays, not to be written to.
        """
        if self._last is None or self._last[0] != block:
            before, after = self.drawn(block), self.drawn(block + 1)
            quotas = np.subtract(after, before)
            shuffle = Permutation(self.block, derive(self.seed, _SCHEDULE, block))
            sources = np.repeat(np.arange(len(quotas)), quotas)[shuffle.take(0, self.block)]
            counts = np.empty(self.block, np.int64)
            firsts = np.cumsum(quotas) - quotas - before
            in_turn = np.arange(self.block) - np.repeat(firsts, quotas)
            counts[np.argsort(sources, kind="stable")] = in_turn
            self._last = block, (sources, counts)
        return self._last[1]


def named_weights(weights: Weights, names: Sequence[str]) -> list[float]:
    """Give each source's weight; OptionError where weights and sources do not fit."""
    if isinstance(weights, Mapping):
        if set(weights) != set(names):
            raise OptionError(
                f"weights must name the datasets {', '.join(map(repr, names))}, got "
                f"{', '.join(map(repr, weights))}"
            )
        return [plain(weights[name]) for name in names]
    if isinstance(weights, str) or not hasattr(weights, "__len__"):
        raise OptionError(
            "weights must be a list of numbers, one for each dataset, or a mapping from name to "
            f"number, got weights={short_repr(weights)}"
        )
    if len(weights) != len(names):
        raise OptionError(
            f"weights must be one for each of the {len(names)} datasets, got {len(weights)} weights"
        )
    return list(map(plain, weights))


def exact_weights(weights: Sequence[Any]) -> list[Fraction]:
    """Give weights without rounding; OptionError where they are not weights."""
    numeric = all(isinstance(weight, (numbers.Real, Decimal)) for weight in weights)
    if (
        not numeric
        or not all(0 <= weight < math.inf for weight in weights)
        or not any(weight > 0 for weight in weights)
    ):
        raise OptionError(
            "weights must be finite numbers of at least 0, and at least one of them above 0, got "
            f"weights={list(weights)!r}"
        )
    # Fraction knows float alone of the inexact kinds, and keeps NumPy's integers, which overflow.
    known = (numbers.Rational, Decimal)
    exact = (plain(weight) for weight in weights)
    return [Fraction(weight if isinstance(weight, known) else float(weight)) for weight in exact]
