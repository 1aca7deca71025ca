"""Rounds in which the subjects take turns, so that all meet the machine in the same moods.

One round lets every subject measure itself once, each time another one first. The first round is
not counted: it starts workers and touches memory. A subject that fails is left out from then on,
and its measurement says why; the others go on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from lit_loader.bench.core.results import NO_LOADERS, Measurement
from lit_loader.bench.loaders.contenders import Cannot, Contender, Opened, Setup

__all__ = ["Figures", "Opener", "Subject", "interleave", "one_line", "opener", "per_batch"]

Figures: TypeAlias = Mapping[str, float]
"""Name of a measurement of the row ("" where there is one only) to figure."""

Subject: TypeAlias = Callable[[], Figures]
Opener: TypeAlias = Callable[[], "contextlib.AbstractContextManager[Subject]"]


def interleave(
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
                measurement.cannot[name] = one_line(error)

        for name, open_ in openers.items():
            try:
                subjects[name] = stack.enter_context(open_())
            except Exception as error:  # whatever another library raises
                fail(name, error)
        for number in range(uncounted + rounds):
            found: dict[str, Figures] = {}
            names = [name for name in subjects if name not in NO_LOADERS]
            first = number % max(1, len(names))
            # The parts of a limit are told after it, in the order they came in.
            names = names[first:] + names[:first] + [n for n in subjects if n in NO_LOADERS]
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


def opener(
    contender: Contender, dataset: Any, setup: Setup, figure: Callable[[Opened], Figures]
) -> Opener:
    """Make an opener of a loader.

    Args:
        contender: The loader.
        dataset: What it loads.
        setup: How.
        figure: Measures the open loader.
    """

    @contextlib.contextmanager
    def open_() -> Iterator[Subject]:
        opened = contender.open(dataset, setup)

        def turn() -> Figures:
            opened.before()
            try:
                return figure(opened)
            finally:
                opened.after()

        try:
            yield turn
        finally:
            opened.close()

    return open_


def per_batch(
    opened: Opened,
    *,
    skip: int,
    batches: int,
    leave: bool = False,
    step: Callable[[], object] | None = None,
) -> float:
    """Seconds a batch in the midst of an epoch.

    The first batches of an epoch, which may have been made ahead while others were measured, and
    the last ones, while which nothing more may be under way, are not clocked.

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


def one_line(error: BaseException) -> str:
    """An error in one line: the last line that says something, which is the cause's own."""
    if isinstance(error, Cannot):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:160].removesuffix(": ")
