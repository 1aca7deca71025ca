"""`Session`: what a case measures with; the chosen loaders, the options, the measurements so far.

Made by `bench/runner.py` for a run; each `Row` of a case is called with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lit_loader.bench.core.results import COPY, IN_PROCESS, LIMIT, Measurement
from lit_loader.bench.core.settings import Settings
from lit_loader.bench.loaders.interface import LoaderAdapter, OpenLoader, Setup
from lit_loader.bench.measure.limits import Limit
from lit_loader.bench.measure.rounds import (
    Figures,
    Opener,
    Subject,
    loader_opener,
    measure_in_rounds,
)

__all__ = ["Row", "Session"]

MICRO = 1e6
"""Microseconds a second: the unit of most rows."""


@dataclass
class Session:
    """One run.

    Attributes:
        settings: The options.
        adapters: The chosen loaders, by name.
        measurements: All so far, with the one that is being made.
        tick: Called with a subject's name before each of its turns.
        expect: Called with the number of turns that a row is going to take.
    """

    settings: Settings
    adapters: Mapping[str, LoaderAdapter]
    measurements: list[Measurement] = field(default_factory=list)
    tick: Callable[[str], None] = lambda name: None
    expect: Callable[[int], None] = lambda turns: None

    def compare(
        self,
        measurements: Measurement | Mapping[str, Measurement],
        openers: Mapping[str, Opener],
        rounds: int | None = None,
        uncounted: int = 1,
    ) -> None:
        """Measure subjects in rounds that take turns; see `measure_in_rounds`.

        Args:
            measurements: Where figures go: one, or several by their names in the figures.
            openers: Subject's name to what opens it.
            rounds: Rounds that count; None: as the settings say.
            uncounted: Rounds before those.
        """
        if isinstance(measurements, Measurement):
            measurements = {"": measurements}
        rounds = self.settings.rounds if rounds is None else rounds
        self.measurements += measurements.values()
        self.expect((rounds + uncounted) * len(openers))
        measure_in_rounds(measurements, openers, rounds, self.tick, uncounted)

    def loaders(
        self, dataset: Any, setup: Setup, figure: Callable[[OpenLoader], Figures]
    ) -> dict[str, Opener]:
        """Openers of all chosen loaders, each measured by `figure`."""
        return {
            name: loader_opener(adapter, dataset, setup, figure)
            for name, adapter in self.adapters.items()
        }

    def compare_with_limit(
        self,
        measurement: Measurement | Mapping[str, Measurement],
        openers: Mapping[str, Opener],
        limit: Limit,
    ) -> None:
        """Measure subjects beside the three parts of a limit, given in microseconds."""
        parts: dict[str, float] = {}

        def measured() -> Figures:
            parts.update({name: seconds * MICRO for name, seconds in limit().items()})
            return {"": parts[LIMIT]}

        def part(name: str) -> Opener:
            return plain_opener(lambda: {"": parts[name]})

        # Measured in one turn, entered in three.
        limits = {LIMIT: plain_opener(measured), IN_PROCESS: part(IN_PROCESS), COPY: part(COPY)}
        self.compare(measurement, {**openers, **limits})


def plain_opener(measure: Subject) -> Opener:
    """Make the opener of a subject that needs neither opening nor closing."""

    @contextlib.contextmanager
    def open_() -> Iterator[Subject]:
        yield measure

    return open_


@dataclass(frozen=True)
class Row:
    """A row that a case plans.

    Attributes:
        case: Name of the case.
        name: What is loaded.
        run: Measures it.
    """

    case: str
    name: str
    run: Callable[[Session], None]


def rows_of(case: str, named: Sequence[tuple[str, Callable[[Session], None]]]) -> list[Row]:
    """Rows of one case."""
    return [Row(case, name, run) for name, run in named]
