"""A measurement: the figures of every round, and what is made of them. Less is always better.

Ratios are taken within each round, because loaders that take turns in one round meet the machine in
the same mood; the median over the rounds is the ratio that is told, lowest and highest its spread.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lit_loader.bench.core.names import OURS, REFERENCE

__all__ = ["COPY", "IN_PROCESS", "LIMIT", "NO_LOADERS", "Measurement", "Spread", "Target"]

LIMIT: Final = "limit"
IN_PROCESS: Final = "in process"
COPY: Final = "memory copy"
NO_LOADERS: Final = frozenset({LIMIT, IN_PROCESS, COPY})


class Spread(NamedTuple):
    """Median, lowest and highest over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread | None:
        """Of some values; None of none."""
        return cls(statistics.median(values), min(values), max(values)) if values else None


@dataclass(frozen=True)
class Target:
    """What our loader is to reach.

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
        """Whether it is reached; None: that was not measured."""
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
        limit_by: What the limit is, in words; "": see `bound`.
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
        """Take in what one whole round has given."""
        self.rounds.append(dict(figures))

    @property
    def loaders(self) -> list[str]:
        """Loaders with a figure, or with a reason for having none."""
        found = dict.fromkeys(name for figures in self.rounds for name in figures)
        found.update(dict.fromkeys(self.cannot))
        return [name for name in found if name not in NO_LOADERS]

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
    def bound(self) -> str:
        """What the limit is made by."""
        if self.limit_by or not self.values(LIMIT):
            return self.limit_by
        copy, limit = self.figure(COPY), self.figure(LIMIT)
        return (
            "memory copy" if copy and limit and copy.median >= limit.median else "fetch + collate"
        )
