"""Which source each draw of a mixture comes from: weights, also ones that change.

A `Schedule` draws by weights, block by block. A `Timeline` has one from each draw on at which the
weights change. What has been drawn of a source by then is counted on, so that none of its samples
comes twice in a pass, whatever the weights were.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import math
import numbers
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import numpy as np

from lit_loader.core.options.checks import is_list, plain, whole_number
from lit_loader.core.sampling.orders import Indices
from lit_loader.core.sampling.permutation import Permutation
from lit_loader.core.seeding.seeds import derive
from lit_loader.core.state.state_validation import damaged, is_count
from lit_loader.data.by_length import summarise
from lit_loader.describe import short_repr
from lit_loader.errors import OptionError

__all__ = ["ALL_DRAWS", "Changes", "Schedule", "Timeline", "Weights", "named_changes", "summary"]

Weights = Mapping[str, float] | Sequence[float]

Changes = list[tuple[int, list[Any]]]
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


def named_weights(weights: Weights, names: Sequence[str]) -> list[float]:
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


def exact_weights(weights: Sequence[Any]) -> list[Fraction]:
    """Return weights without rounding; OptionError where they are not weights."""
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


def named_changes(weights: Any, names: Sequence[str]) -> Changes:
    """Return weights with the draws from which on they count; OptionError if they are refused."""
    timed = is_list(weights) and [
        entry for entry in weights if is_list(entry) and len(entry) == 2 and not is_number(entry[1])
    ]
    if not timed or len(timed) != len(weights):
        changes = [(0, named_weights(weights, names))]
    else:
        changes = [
            (
                whole_number("weights' draw", draw, low=0, below=ALL_DRAWS),
                named_weights(each, names),
            )
            for draw, each in timed
        ]
        draws = [draw for draw, _ in changes]
        if draws[0] != 0 or draws != sorted({*draws}):
            raise OptionError(
                "weights that change must begin at draw 0, and their draws must rise, got draws "
                f"{short_repr(draws)}"
            )
    for _, each in changes:
        exact_weights(each)
    return changes


def is_number(value: Any) -> bool:
    """Whether this is one weight, and not the weights of all sources."""
    return isinstance(plain(value), (numbers.Real, Decimal))


def summary(changes: Changes) -> str:
    """Name weights in a state, as shares: 3 and 1 give the same order as 0.75 and 0.25."""
    if len(changes) == 1:
        return summarise(shares_of(changes[0][1]))
    return summarise([f"from {draw}: {summarise(shares_of(each))}" for draw, each in changes])


def shares_of(weights: Sequence[Any]) -> list[Fraction]:
    """Return each source's exact share."""
    exact = exact_weights(weights)
    return [weight / sum(exact) for weight in exact]


class Timeline:
    """Which source each draw of an endless sequence comes from, where weights change.

    It is what a state has of a mixture: the names of the sources that a run has drawn from so far,
    and by which shares. Sources are numbered, and stay so when others are added or taken out; those
    that are not there any more have the weight 0 by then. OptionError: weights are refused.
    """

    def __init__(self, names: Sequence[str], changes: Changes, seed: int) -> None:
        self.names, self.seed = list(names), seed
        self.changes = [(draw, shares_of(weights)) for draw, weights in changes]
        self._starts = [draw for draw, _ in changes]
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

    def part(self, draw: int) -> int:
        """Return the number of the change whose weights count at a draw."""
        return bisect.bisect_right(self._starts, draw) - 1

    def source(self, draw: int) -> int:
        """Return the source of one draw."""
        part = self.part(draw)
        schedule = self._schedules[part]
        block, within = divmod(draw - self._starts[part], schedule.block)
        return int(schedule.at(block)[0][within])

    def needs(self, number: int, draw: int) -> bool:
        """Whether a source may be drawn from at a draw, or after it."""
        return any(shares[number] for _, shares in self.changes[self.part(draw) :])

    def going_on(self, now: Timeline, draw: int) -> Timeline:
        """Return this timeline up to a draw, and ``now`` from there on."""
        names = [*self.names, *(name for name in now.names if name not in self.names)]
        changes = [
            (at, _placed(shares, self.names, names)) for at, shares in self.changes if at < draw
        ]
        for at, shares in now.changes[now.part(draw) :]:
            placed = _placed(shares, now.names, names)
            if at >= draw or not changes or changes[-1][1] != placed:
                changes.append((max(at, draw), placed))
        return Timeline(names, changes, self.seed)

    def to_state(self) -> dict[str, Any]:
        """Return it as primitives."""
        shares = [[draw, [*map(str, each)]] for draw, each in self.changes]
        return {"names": list(self.names), "shares": shares}

    @classmethod
    def from_state(cls, place: str, state: Any, seed: int) -> Timeline:
        """Read what `to_state` returned; a StateError, which names the place, if it is not that."""
        known: Mapping[str, Any] = state if isinstance(state, Mapping) else {}
        names: Any = known.get("names")
        changes: Any = known.get("shares")
        if (
            is_list(names)
            and all(type(name) is str for name in names)
            and 0 < len(names) == len({*names})
            and is_list(changes)
            and all(_is_change(each, len(names)) for each in changes)
        ):
            draws = [draw for draw, _ in changes]
            if draws[:1] == [0] and draws == sorted({*draws}):
                with contextlib.suppress(OptionError):
                    exact: Changes = [(draw, [*map(Fraction, each)]) for draw, each in changes]
                    return cls(names, exact, seed)
        raise damaged(f"{place} must have names, and from which draw on which shares count", state)


# Each resume makes those of all changes again, and each state is looked at twice.
_schedule = functools.lru_cache(maxsize=64)(Schedule)

_FRACTION = re.compile(r"\d{1,1200}(/[1-9]\d{0,1199})?")


def _is_change(entry: Any, sources: int) -> bool:
    """Whether this is [draw, a share of each source]."""
    if not (is_list(entry) and len(entry) == 2 and is_count(entry[0], ALL_DRAWS)):
        return False
    shares = entry[1]
    return (
        is_list(shares)
        and len(shares) == sources
        and all(type(each) is str and bool(_FRACTION.fullmatch(each)) for each in shares)
    )


def _placed(shares: Sequence[Any], of: Sequence[str], names: Sequence[str]) -> list[Any]:
    known = dict(zip(of, shares, strict=True))
    return [known.get(name, Fraction(0)) for name in names]
