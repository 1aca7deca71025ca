"""`Measurement`: one row of a table; the figures of every round, their ratios, and the targets.

Filled by `bench/measure/rounds.py`, read by the report. Less is always better. Ratios are taken
within each round, because loaders that take turns in one round meet the machine in the same mood;
the median over the rounds is the ratio that is shown, lowest and highest are its spread.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lit_loader.bench.core.names import OURS, REFERENCE

__all__ = ["COPY", "IN_PROCESS", "LIMIT", "NOT_LOADERS", "Measurement", "Spread", "Target"]

LIMIT: Final = "limit"
IN_PROCESS: Final = "in process"
COPY: Final = "memory copy"
NOT_LOADERS: Final = frozenset({LIMIT, IN_PROCESS, COPY})
"""Names in a round's figures that are no loaders: the limit and its two parts."""


class Spread(NamedTuple):
    """Median, lowest and highest over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread | None:
        """The spread of these values; None: there are none."""
        return cls(statistics.median(values), min(values), max(values)) if values else None


@dataclass(frozen=True)
class Target:
    """A bound that our loader's figure or ratio is to reach.

    Attributes:
        of: "vs_torch" (torch's figure over ours, at least), "of_limit" (the limit over our figure,
            at least) or "figure" (our figure itself, at most).
        bound: The number.
    """

    of: str
    bound: float

    def __str__(self) -> str:
        if self.of == "vs_torch":
            return f"≥ {self.bound:g} × torch"
        if self.of == "of_limit":
            return f"≥ {100 * self.bound:.0f} % of limit"
        return f"≤ {self.bound:g}"

    def met(self, measurement: Measurement) -> bool | None:
        """Whether it is reached; None: it was not measured."""
        if self.of == "figure":
            found = measurement.figure(OURS)
            return None if found is None else found.median <= self.bound
        ratio = measurement.vs_torch(OURS) if self.of == "vs_torch" else measurement.of_limit(OURS)
        return None if ratio is None else ratio.median >= self.bound


@dataclass
class Measurement:
    """One row of a case, for all loaders.

    Attributes:
        case: Name of the case.
        name: What was loaded.
        unit: Of the figures; "ratio": they are one already.
        targets: For our loader.
        axis: What `x` counts, where the row is a point of a line; "": it is none.
        x: The point's place on that axis.
        limit_by: What the limit is, in words; "": see `limit_source`.
        rounds: For each counted round loader (or `LIMIT`, `IN_PROCESS`, `COPY`) to figure.
        cannot: Loader to why it has no figures.
        notes: Further lines for the reader.
    """

    case: str
    name: str
    unit: str
    targets: tuple[Target, ...] = ()
    axis: str = ""
    x: float | None = None
    limit_by: str = ""
    rounds: list[dict[str, float]] = field(default_factory=list)
    cannot: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add_round(self, figures: Mapping[str, float]) -> None:
        """Add the figures of one whole round."""
        self.rounds.append(dict(figures))

    @property
    def loaders(self) -> list[str]:
        """Loaders with a figure, or with a reason for having none."""
        found = dict.fromkeys(name for figures in self.rounds for name in figures)
        found.update(dict.fromkeys(self.cannot))
        return [name for name in found if name not in NOT_LOADERS]

    def values(self, name: str) -> list[float]:
        """The figures of a loader (or of the limit), round by round."""
        return [figures[name] for figures in self.rounds if name in figures]

    def figure(self, name: str) -> Spread | None:
        """A loader's figure; None: it has none."""
        return Spread.of(self.values(name))

    def ratio(self, upper: str, lower: str) -> Spread | None:
        """One's figure over another's; None: there is no round in which both were measured."""
        return Spread.of(
            [
                figures[upper] / figures[lower]
                for figures in self.rounds
                if upper in figures and figures.get(lower, 0) > 0
            ]
        )

    def vs_torch(self, name: str) -> Spread | None:
        """How many times torch's figure is a loader's: above 1 it is better than torch."""
        return None if name == REFERENCE else self.ratio(REFERENCE, name)

    def of_limit(self, name: str) -> Spread | None:
        """The limit over a loader's figure: 1 is the best there can be."""
        return self.ratio(LIMIT, name)

    @property
    def limit_source(self) -> str:
        """What the limit is, in words."""
        if self.limit_by or not self.values(LIMIT):
            return self.limit_by
        copy, limit = self.figure(COPY), self.figure(LIMIT)
        return (
            "memory copy" if copy and limit and copy.median >= limit.median else "fetch + collate"
        )
