"""Measures loaders in rounds in which they take turns; figures and ratios.

Taking turns, all meet the machine in the same moods: one round lets each be measured once, each
time another one first. The first round is not counted: it starts workers and touches memory. What
fails is left out from then on, and its row says why; the others go on. `Session` is what a case of
`bench/cases.py` measures with, made by `bench/runner.py`; each row of a case is called with it
and fills a `Measurement` or two. Less is always better. Ratios are taken within each round; their
median over the rounds is shown, lowest and highest are its spread.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from lit_loader.bench.loaders import CannotRun, Open, OpenLoader, Setup
from lit_loader.bench.machine import wait_until_idle
from lit_loader.bench.settings import REFERENCE, Settings

__all__ = [
    "A_BATCH", "MICRO", "PROCESSOR", "Figures", "Measurement", "Rows", "Session", "Spread",
    "in_one_line", "seconds_per_batch",
]  # fmt: skip

MICRO: Final = 1e6  # microseconds a second: the unit of most rows

A_BATCH, PROCESSOR = "µs/batch", "processor µs/sample"  # units of rows

Figures: TypeAlias = Mapping[str, float]  # unit to figure
# What a case plans: what is loaded, to what measures it, which is called with that.
Rows: TypeAlias = "dict[str, Callable[[str, Session], None]]"


class Spread(NamedTuple):
    """Median, lowest and highest over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread | None:
        """The spread of these values; None: there are none."""
        return cls(statistics.median(values), min(values), max(values)) if values else None


@dataclass
class Measurement:
    """One row of a case, for all loaders."""

    case: str
    name: str  # what was loaded
    unit: str
    rounds: list[dict[str, float]] = field(default_factory=list)  # loader to figure
    cannot: dict[str, str] = field(default_factory=dict)  # loader to why it has no figures

    @property
    def loaders(self) -> list[str]:
        """Loaders with a figure, or with a reason for having none."""
        found = dict.fromkeys(name for figures in self.rounds for name in figures)
        return list(found | dict.fromkeys(self.cannot))

    def values(self, name: str) -> list[float]:
        """The figures of a loader round by round."""
        return [figures[name] for figures in self.rounds if name in figures]

    def figure(self, name: str) -> Spread | None:
        """A loader's figure; None: it has none."""
        return Spread.of(self.values(name))

    def vs_torch(self, name: str) -> Spread | None:
        """How many times torch's figure is a loader's: above 1 it is better than torch."""
        if name == REFERENCE:
            return None
        both = [figures for figures in self.rounds if REFERENCE in figures and figures.get(name)]
        return Spread.of([figures[REFERENCE] / figures[name] for figures in both])


@dataclass
class Session:
    """One run."""

    settings: Settings
    loaders: Mapping[str, Open]  # the chosen ones
    measurements: list[Measurement] = field(default_factory=list)  # with the one being made
    tick: Callable[[str], None] = lambda name: None  # before each turn, with whose it is

    def compare(
        self,
        case: str,
        name: str,
        dataset: Any,
        setup: Setup,
        figure: Callable[[OpenLoader], Figures],
        units: Sequence[str] = (A_BATCH,),
    ) -> None:
        """Measure a row in rounds in which the loaders take turns; all stay open until the end.

        ``figure`` gives a loader's figures, one for each of the ``units``. A round is taken in when
        it is complete, so that an interrupt leaves whole ones.
        """
        measurements = [Measurement(case, name, unit) for unit in units]
        self.measurements += measurements
        with contextlib.ExitStack() as stack:
            opened: dict[str, OpenLoader] = {}

            def fail(loader: str, error: Exception) -> None:
                opened.pop(loader, None)
                for measurement in measurements:
                    measurement.cannot[loader] = in_one_line(error)

            for loader, open_ in self.loaders.items():
                try:
                    opened[loader] = open_(dataset, setup)
                    stack.callback(opened[loader].close)
                except Exception as error:  # whatever another library raises
                    fail(loader, error)
            for number in range(1 + self.settings.rounds):
                found: dict[str, Figures] = {}
                loaders, first = [*opened], number % max(1, len(opened))
                for loader in [*loaders[first:], *loaders[:first]]:
                    self.tick(loader)
                    try:
                        found[loader] = figure(opened[loader])
                    except Exception as error:
                        fail(loader, error)
                    wait_until_idle()
                if number:
                    ordered = [loader for loader in self.loaders if loader in found]
                    for each in measurements:
                        each.rounds.append({loader: found[loader][each.unit] for loader in ordered})


def seconds_per_batch(
    opened: OpenLoader,
    *,
    skip: int,
    batches: int,
    step: Callable[[], object] | None = None,
) -> float:
    """Seconds a batch in the midst of an epoch, which is loaded to its end.

    Not clocked are the first batches (`skip`), which may have been made ahead while others were
    measured, and those behind `batches` more, after which nothing may be in flight. `step` is what
    is done after each batch.
    """
    count = -skip
    begin, end = time.perf_counter(), None
    for _ in opened.epoch():
        if step is not None:
            step()
        count += 1
        if count == 0:
            begin = time.perf_counter()
        elif count == batches:
            end = time.perf_counter()
    if end is None:
        end = time.perf_counter()
    return (end - begin) / max(1, min(count, batches))


def in_one_line(error: BaseException) -> str:
    """An error in one line: the last line of its text, which is the cause's own."""
    if isinstance(error, CannotRun):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:160].removesuffix(": ")
