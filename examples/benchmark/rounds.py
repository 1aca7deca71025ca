"""Measures loaders, and their limit, in rounds in which they take turns; figures and ratios.

Taking turns, all meet the machine in the same moods: one round lets each be measured once, each
time another one first. The first round is not counted: it starts workers and touches memory. What
fails is left out from then on, and its row says why; the others go on. `Session` is what a case of
`cases.py` measures with; each row of a case is called with it
and fills a `Measurement` or two. Less is always better. Ratios are taken within each round; their
median over the rounds is shown, lowest and highest are its spread.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from loaders import CannotRun, Open, OpenLoader, Setup

from lit_loader.errors import LitLoaderError

MICRO: Final = 1e6  # microseconds a second: the unit of most rows
REFERENCE: Final = "torch"  # whose time the others' are compared with
LIMIT: Final = "limit"  # the name, in a round's figures, of what no loader can undercut

# Name of a measurement of the row ("" where there is one only) to figure.
Figures: TypeAlias = Mapping[str, float]
# What is measured: entered, a loader with its workers say, for all rounds; a call is a turn.
Subject: TypeAlias = AbstractContextManager[Callable[[], Figures]]
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
    limit_by: str = ""  # what the limit is, in words
    rounds: list[dict[str, float]] = field(default_factory=list)  # loader, or LIMIT, to figure
    cannot: dict[str, str] = field(default_factory=dict)  # loader to why it has no figures

    @property
    def loaders(self) -> list[str]:
        """Loaders with a figure, or with a reason for having none."""
        found = dict.fromkeys(name for figures in self.rounds for name in figures)
        return [name for name in found | dict.fromkeys(self.cannot) if name != LIMIT]

    def values(self, name: str) -> list[float]:
        """The figures of a loader (or of the limit), round by round."""
        return [figures[name] for figures in self.rounds if name in figures]

    def figure(self, name: str) -> Spread | None:
        """A loader's figure; None: it has none."""
        return Spread.of(self.values(name))

    def vs_torch(self, name: str) -> Spread | None:
        """How many times torch's figure is a loader's: above 1 it is better than torch."""
        return None if name == REFERENCE else self._ratio(REFERENCE, name)

    def of_limit(self, name: str) -> Spread | None:
        """The limit over a loader's figure: 1 is the best there can be."""
        return self._ratio(LIMIT, name)

    def _ratio(self, upper: str, lower: str) -> Spread | None:
        both = [figures for figures in self.rounds if upper in figures and figures.get(lower)]
        return Spread.of([figures[upper] / figures[lower] for figures in both])


@dataclass
class Session:
    """One run."""

    settings: Any  # the options of `cases.py`
    loaders: Mapping[str, Open]  # the chosen ones
    measurements: list[Measurement] = field(default_factory=list)  # with the one being made
    tick: Callable[[str], None] = lambda name: None  # before each turn, with whose it is

    def subjects(
        self, dataset: Any, setup: Setup, figure: Callable[[OpenLoader], Figures]
    ) -> dict[str, Subject]:
        """All chosen loaders, each opened with the same options and measured by `figure`."""
        return {
            name: _loader(open_, dataset, setup, figure) for name, open_ in self.loaders.items()
        }

    def compare(
        self,
        measurements: Measurement | Mapping[str, Measurement],
        subjects: Mapping[str, Subject],
        rounds: int | None = None,
        uncounted: int = 1,
    ) -> None:
        """Measure in rounds that take turns; all subjects stay open until the end.

        Figures go to the measurement of their name. A round is taken in when it is complete, so
        that an interrupt leaves whole ones.
        """
        if isinstance(measurements, Measurement):
            measurements = {"": measurements}
        rounds = self.settings.rounds if rounds is None else rounds
        self.measurements += measurements.values()
        with contextlib.ExitStack() as stack:
            turns: dict[str, Callable[[], Figures]] = {}

            def fail(name: str, error: Exception) -> None:
                turns.pop(name, None)
                for measurement in measurements.values():
                    measurement.cannot[name] = in_one_line(error)[:160]

            for name, subject in subjects.items():
                try:
                    turns[name] = stack.enter_context(subject)
                except Exception as error:  # whatever another library raises
                    fail(name, error)
            for number in range(uncounted + rounds):
                found: dict[str, Figures] = {}
                names = [name for name in turns if name != LIMIT]
                first = number % max(1, len(names))
                for name in [*names[first:], *names[:first], *([LIMIT] if LIMIT in turns else [])]:
                    self.tick(name)
                    try:
                        found[name] = turns[name]()
                    except Exception as error:
                        fail(name, error)
                if number >= uncounted:
                    ordered = [name for name in subjects if name in found]
                    for key, measurement in measurements.items():
                        measurement.rounds.append(
                            {name: found[name][key] for name in ordered if key in found[name]}
                        )


@contextlib.contextmanager
def _loader(
    open_: Open, dataset: Any, setup: Setup, figure: Callable[[OpenLoader], Figures]
) -> Iterator[Callable[[], Figures]]:
    opened = open_(dataset, setup)

    def turn() -> Figures:
        opened.before_turn()
        try:
            return figure(opened)
        finally:
            opened.after_turn()

    try:
        yield turn
    finally:
        opened.close()


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
    text = error.text if isinstance(error, LitLoaderError) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}".removesuffix(": ")
