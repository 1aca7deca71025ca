"""Measures subjects, the loaders and their limit, in rounds in which they take turns.

A case gives an opener for each subject, by way of `bench/measure/session.py`; the figures of each
round go into its `Measurement`. Taking turns, all meet the machine in the same moods: one round
lets every subject measure itself once, each time another one first. The first round is not counted:
it starts workers and touches memory. A subject that fails is left out from then on, and its
measurement says why; the others go on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from lit_loader.bench.core.results import NOT_LOADERS, Measurement
from lit_loader.bench.loaders.interface import CannotRun, LoaderAdapter, OpenLoader, Setup

__all__ = [
    "Figures",
    "Opener",
    "Subject",
    "measure_in_rounds",
    "in_one_line",
    "loader_opener",
    "seconds_per_batch",
]

Figures: TypeAlias = Mapping[str, float]
"""Name of a measurement of the row ("" where there is one only) to figure."""

Subject: TypeAlias = Callable[[], Figures]
"""What is measured; a call is its turn in a round."""

Opener: TypeAlias = Callable[[], "contextlib.AbstractContextManager[Subject]"]
"""Opens a subject, a loader with its workers say, for all rounds."""


def measure_in_rounds(
    measurements: Mapping[str, Measurement],
    openers: Mapping[str, Opener],
    rounds: int,
    tick: Callable[[str], None] = lambda name: None,
    uncounted: int = 1,
) -> None:
    """Measure subjects in rounds that take turns.

    Args:
        measurements: What the subjects' figures go to, by the names in them. A round is taken in
            when it is complete, so that an interrupt leaves whole ones.
        openers: Subject's name to what opens it; all stay open until the end.
        rounds: Rounds that count.
        tick: Called with the subject's name before each turn.
        uncounted: Rounds before those.
    """
    with contextlib.ExitStack() as stack:
        subjects: dict[str, Subject] = {}

        def fail(name: str, error: Exception) -> None:
            subjects.pop(name, None)
            for measurement in measurements.values():
                measurement.cannot[name] = in_one_line(error)

        for name, open_ in openers.items():
            try:
                subjects[name] = stack.enter_context(open_())
            except Exception as error:  # whatever another library raises
                fail(name, error)
        for number in range(uncounted + rounds):
            found: dict[str, Figures] = {}
            names = [name for name in subjects if name not in NOT_LOADERS]
            first = number % max(1, len(names))
            # A limit and its parts come last, in their own order: one turn measures all of them.
            names = names[first:] + names[:first] + [n for n in subjects if n in NOT_LOADERS]
            for name in names:
                tick(name)
                try:
                    found[name] = subjects[name]()
                except Exception as error:
                    fail(name, error)
            if number >= uncounted:
                for key, measurement in measurements.items():
                    figures = {name: found[name][key] for name in found if key in found[name]}
                    ordered = [name for name in openers if name in figures]
                    measurement.add_round({name: figures[name] for name in ordered})


def loader_opener(
    adapter: LoaderAdapter, dataset: Any, setup: Setup, figure: Callable[[OpenLoader], Figures]
) -> Opener:
    """Make the opener of a loader.

    Args:
        adapter: The loader.
        dataset: What it loads.
        setup: How.
        figure: Measures the open loader.
    """

    @contextlib.contextmanager
    def open_() -> Iterator[Subject]:
        opened = adapter.open(dataset, setup)

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

    return open_


def seconds_per_batch(
    opened: OpenLoader,
    *,
    skip: int,
    batches: int,
    leave: bool = False,
    step: Callable[[], object] | None = None,
) -> float:
    """Seconds a batch in the midst of an epoch.

    The first batches of an epoch, which may have been made ahead while others were measured, and
    the last ones, behind which nothing more may be in flight, are not clocked.

    Args:
        opened: The loader.
        skip: So many batches are taken before the clock starts, see `Setup.ahead`.
        batches: So many are clocked; fewer where the epoch ends before.
        leave: Whether the epoch is left then, else it is loaded to its end.
        step: What is done after each batch.
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
            if leave:
                break
    if end is None:
        end = time.perf_counter()
    return (end - begin) / max(1, min(count, batches))


def in_one_line(error: BaseException) -> str:
    """An error in one line: the last line of its text, which is the cause's own."""
    if isinstance(error, CannotRun):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:160].removesuffix(": ")
