"""Which source each draw of a mixture comes from: weights, also ones that change.

A `Schedule` draws by weights, block by block. A `Timeline` has one from each draw on at which the
weights change. What has been drawn of a source by then is counted on, so that none of its samples
comes twice in a pass, whatever the weights were.

A resumed run may change weights that are still to come, and no others: so a state needs no more
than the number of draws, and the weights to compare.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import numbers
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np

from lit_loader.core.options.checks import is_list, plain, whole_number
from lit_loader.core.sampling.orders import Indices, Permutation
from lit_loader.core.seeding.seeds import derive
from lit_loader.core.state.state_validation import brief
from lit_loader.data.by_length import summarise
from lit_loader.describe import short_repr
from lit_loader.errors import OptionError, StateError

__all__ = ["ALL_DRAWS", "Changes", "Schedule", "Timeline", "Weights", "named_changes"]

Weights = Mapping[str, float] | Sequence[float]

Changes = list[tuple[int, Sequence[float]]]
"""From which draw on which weights count; the first is 0."""

ALL_DRAWS: Final = 2**61
"""Where the sequence begins again."""

_SCHEDULE = 1  # keeps the order of sources apart from those within them
_BLOCK = 1024
_SMALLEST = Fraction(1, 1_000_000)


class Schedule:
    """Which source each draw of an endless sequence comes from, as a function of a seed.

    Draws are planned in blocks: of 1,024, or as many as a source of little weight needs to come
    once. After each block every source has had its share of all draws so far, give or take less
    than one; within a block the order is random. OptionError: the weights are refused.
    """

    def __init__(self, weights: Sequence[object], seed: int) -> None:
        self.shares = shares_of(weights)
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
        """Return how often each source comes in the first ``blocks`` blocks."""
        draws = blocks * self.block
        floors = [draws * bound.numerator // bound.denominator for bound in self._bounds]
        # Not negative from one block to the next, because block * share is at least 1 (or 0).
        return [after - before for before, after in itertools.pairwise(floors)]

    def among(self, draws: int) -> Indices:
        """Return how often each source comes in the first ``draws`` draws; int64."""
        blocks, rest = divmod(draws, self.block)
        within = np.bincount(self.at(blocks)[0][:rest], minlength=len(self.shares))
        return np.array(self.drawn(blocks), np.int64) + within

    def at(self, block: int) -> tuple[Indices, Indices]:
        """Return for each draw of a block its source, and how many of that source came before it.

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


def named_changes(weights: Any, names: Sequence[str]) -> Changes:
    """Return weights with the draws from which on they count; OptionError if they are refused."""
    change = is_list(weights) and all(
        is_list(entry) and len(entry) == 2 and hasattr(entry[1], "__len__") for entry in weights
    )
    pairs = weights if change and weights else [(0, weights)]
    changes: Changes = []
    for draw, each in pairs:
        draw = whole_number("weights' draw", draw, low=0, below=ALL_DRAWS)
        if draw <= changes[-1][0] if changes else draw:
            raise OptionError(
                "weights that change must begin at draw 0, and their draws must rise, got draws "
                f"{short_repr([draw for draw, _ in pairs])}"
            )
        changes.append((draw, _named(each, names)))
        shares_of(changes[-1][1])
    return changes


def _named(weights: Any, names: Sequence[str]) -> list[float]:
    """Return each source's weight; OptionError where weights and sources do not fit."""
    if isinstance(weights, Mapping):
        if set(weights) == set(names):
            return [plain(weights[name]) for name in names]
    elif hasattr(weights, "__len__") and len(weights) == len(names):
        return list(map(plain, weights))
    raise OptionError(
        f"weights must be one number for each of the datasets {', '.join(map(repr, names))}, in a "
        f"list or by name, got weights={short_repr(weights)}"
    )


def shares_of(weights: Sequence[object]) -> list[Fraction]:
    """Return each source's share, without rounding; OptionError where they are not weights."""
    exact: list[Fraction] = []
    if all(isinstance(weight, numbers.Number) for weight in weights):
        try:
            exact = [Fraction(plain(weight)) for weight in weights]
        except (TypeError, ValueError, OverflowError):  # complex, NaN or infinite
            exact = []
    if not any(exact) or min(exact) < 0:
        raise OptionError(
            "weights must be finite numbers of at least 0, and at least one of them above 0, got "
            f"weights={list(weights)!r}"
        )
    return [weight / sum(exact) for weight in exact]


class Timeline:
    """Which source each draw of an endless sequence comes from, where weights change.

    OptionError: weights are refused.
    """

    def __init__(self, names: Sequence[str], changes: Changes, seed: int) -> None:
        shares = [(draw, shares_of(weights)) for draw, weights in changes]
        self.changes = shares[:1]
        for change in shares[1:]:
            if change[1] != self.changes[-1][1]:
                self.changes.append(change)
        self._names = names
        self._starts = [draw for draw, _ in self.changes]
        # The first one's seed is that of weights that never change.
        self._schedules = [
            _schedule(tuple(shares), derive(seed, draw) if draw else seed)
            for draw, shares in self.changes
        ]
        before = np.zeros(len(names), np.int64)
        self._before = [before]
        for number, (start, end) in enumerate(itertools.pairwise(self._starts)):
            before = before + self._schedules[number].among(end - start)
            self._before.append(before)

    def at(self, draws: Indices) -> tuple[Indices, Indices]:
        """Return for draws their source, and how many of that source came before; both int64."""
        sources, counts = np.empty_like(draws), np.empty_like(draws)
        parts = np.searchsorted(self._starts, draws, side="right") - 1
        for part in np.unique(parts).tolist():
            schedule, before = self._schedules[part], self._before[part]
            within_part = parts == part
            blocks, within = np.divmod(draws - self._starts[part], schedule.block)
            for block in np.unique(blocks[within_part]).tolist():
                chosen = within_part & (blocks == block)
                block_sources, block_counts = schedule.at(block)
                sources[chosen] = block_sources[within[chosen]]
                counts[chosen] = block_counts[within[chosen]] + before[sources[chosen]]
        return sources, counts

    def source(self, draw: int) -> int:
        """Return the source of one draw."""
        part = self._part(draw)
        schedule = self._schedules[part]
        block, within = divmod(draw - self._starts[part], schedule.block)
        return int(schedule.at(block)[0][within])

    def shares(self, draw: int) -> list[Fraction]:
        """Return the shares that count at a draw."""
        return self.changes[self._part(draw)][1]

    def changes_at(self, draw: int) -> bool:
        """Whether other weights count from this draw on."""
        return draw in self._starts

    def needs(self, number: int, draw: int) -> bool:
        """Whether a source may be drawn from at a draw, or after it."""
        return any(shares[number] for _, shares in self.changes[self._part(draw) :])

    def to_state(self) -> list[tuple[int, str]]:
        """Return from which draw on sources have which shares, those of 0 left out.

        3 and 1 give the same shares as 0.75 and 0.25.
        """
        state = []
        for draw, shares in self.changes:
            named = zip(self._names, shares, strict=True)
            state.append((draw, summarise([f"{name}={share}" for name, share in named if share])))
        return state

    def check(self, state: Any, draw: int) -> None:
        """Compare the weights of all draws before this one; a StateError if they were others.

        ``state`` is what `to_state` returned, or anything else.
        """
        theirs = [
            (entry[0], entry[1])
            for entry in (state if is_list(state) else ())
            if is_list(entry) and [*map(type, entry)] == [int, str] and entry[0] < draw
        ]
        if theirs != [entry for entry in self.to_state() if entry[0] < draw]:
            raise StateError(
                f"the state was taken after {draw} draws by other weights: {brief(state)}. "
                "Keep the weights of past draws, and let others begin at a later one, as in "
                "weights=[(0, {'web': 3, 'books': 1}), (5000, {'web': 1, 'books': 1})]"
            )

    def _part(self, draw: int) -> int:
        return bisect.bisect_right(self._starts, draw) - 1


# Each worker makes those of all changes again.
_schedule = functools.lru_cache(maxsize=64)(Schedule)
