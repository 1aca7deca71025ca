"""The report on the console: head, a table for each case, advice on the user's own dataset.

Called by `bench/runner.py` as the cases end; everything is printed through a rich Console.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lit_loader.bench.core.names import OURS
from lit_loader.bench.core.results import LIMIT, Measurement, Spread
from lit_loader.bench.core.settings import Settings

if TYPE_CHECKING:
    from rich.console import JustifyMethod

    from lit_loader.bench.own_dataset.grid import Grid

__all__ = ["grid", "header", "number", "table", "written"]

_COLUMNS = ("", "loader", "median", " ", "low to high", "× torch", "of limit", "target")
_NUMBERS = ("median", "low to high", "× torch", "of limit")
_NARROW = ("loader", " ", *_NUMBERS)

_WIDE: Final = 96
"""Characters a line from which on the table of a user's dataset has room for every column."""

_STYLES = {True: "green", False: "red", None: "dim"}
_SIGNS = {True: "✓", False: "✗", None: "?"}


def header(console: Console, machine: Mapping[str, Any], settings: Settings) -> None:
    """Print where and with what it is measured."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    console.print(
        f"[bold]lit-loader-bench[/]  {machine['processor']}, {machine['cores']:g} usable cores, "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB, load {machine['load']:.1f}, "
        f"{machine['system']}, Python {machine['python']}",
        highlight=False,
    )
    console.print(versions, highlight=False)
    rounds = "1 round" if settings.rounds == 1 else f"{settings.rounds} rounds"
    console.print(
        f"{settings.num_workers} workers, prefetch_factor {settings.prefetch_factor} where nothing "
        f"else is said, {rounds}; medians, less is better"
        + ("; [yellow]quick=true: these figures mean little[/]" if settings.quick else ""),
        highlight=False,
    )


def table(console: Console, title: str, measurements: Sequence[Measurement]) -> None:
    """Print the table of a case."""
    sheet = _sheet()
    rows = [row for measurement in measurements for row in _rows(measurement)]
    for place, name in enumerate(_COLUMNS):
        if any(row[place] for row in rows):
            side: JustifyMethod = "right" if name in _NUMBERS else "left"
            sheet.add_column(name.strip(), justify=side, no_wrap=name in _NARROW)
    used = [place for place in range(len(_COLUMNS)) if any(row[place] for row in rows)]
    for measurement in measurements:
        for row in _rows(measurement):
            sheet.add_row(*(row[place] for place in used))
        sheet.add_section()
    _show(console, f"{measurements[0].case}: {title}", sheet)


def _rows(measurement: Measurement) -> Iterator[list[str | Text]]:
    """Lines of the table, a cell for each of `_COLUMNS`."""
    title = measurement.name
    for name in measurement.loaders:
        figure = measurement.figure(name)
        style = "bold" if name == OURS else ""
        if figure is None:
            why = Text(f"cannot: {measurement.cannot.get(name, 'not measured')}", style="dim")
            yield [title, Text(name, style), "–", "", "", "", "", why]
        else:
            yield [
                title,
                Text(name, style),
                Text(number(figure.median), style),
                measurement.unit,
                _range(measurement, figure),
                _ratio(measurement, measurement.vs_torch(name)),
                _percent(measurement.of_limit(name)),
                _targets(measurement) if name == OURS else _cut_short(measurement, name),
            ]
        title = ""
    limit = measurement.figure(LIMIT)
    if limit is not None:
        source = Text(measurement.limit_source, style="dim")
        yield ["", "limit", number(limit.median), measurement.unit, "", "", "", source]


def _cut_short(measurement: Measurement, name: str) -> Text:
    """Why a loader has figures of some rounds only; empty: it has one of each."""
    return Text(f"then: {measurement.cannot[name]}" if name in measurement.cannot else "", "dim")


def _targets(measurement: Measurement) -> Text:
    text = Text()
    for target in measurement.targets:
        met = target.met(measurement)
        text.append(f"{', ' if text else ''}{_SIGNS[met]} {target}", _STYLES[met])
    if OURS in measurement.cannot:
        text.append_text(_cut_short(measurement, OURS))
    return text


def number(value: float) -> str:
    """A number with about three digits, thousands separated."""
    if value >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _range(measurement: Measurement, spread: Spread) -> str:
    if len(measurement.rounds) < 2:
        return ""
    return f"{number(spread.low)} to {number(spread.high)}"


def _ratio(measurement: Measurement, spread: Spread | None) -> str:
    if spread is None:
        return ""
    within = _range(measurement, spread)
    return number(spread.median) + (f" ({within})" if within else "")


def _sheet() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False)


def _show(console: Console, title: str, sheet: Table) -> None:
    """Print a table below its title, which is not broken where the table is narrower."""
    console.print(f"\n{title}", style="bold", markup=False, highlight=False, soft_wrap=True)
    console.print(sheet)


def _percent(spread: Spread | None) -> str:
    return "" if spread is None else f"{100 * spread.median:.0f} %"


def grid(console: Console, measured: Grid) -> None:
    """Print the user's own dataset: every setting, then what to use and why."""
    sheet = _sheet()
    columns = ["num_\nworkers", "prefetch\nfactor", "loader", "ms/batch", "low to high"]
    columns += ["samples/s", "first\nbatch, ms", "workers\nbusy"]
    narrow = console.width < _WIDE
    if narrow:
        columns.remove("low to high")
    for name in columns:
        sheet.add_column(name, justify="left" if name == "loader" else "right", no_wrap=True)
    unable = any(point.cannot for point in measured.points)
    if unable:
        sheet.add_column("", overflow="fold")
    auto = [] if measured.auto is None else [measured.auto]
    for point in [*measured.points, *auto]:
        for loader in point.loaders:
            figure, first = point.figure(loader), point.first(loader)
            cells = ["–", *[""] * (2 if narrow else 3)]
            if figure is not None and first is not None:
                cells = [
                    number(figure.median * 1e3),
                    *[f"{number(figure.low * 1e3)} to {number(figure.high * 1e3)}"] * (not narrow),
                    number(measured.samples / figure.median),
                    number(first.median * 1e3),
                ]
            busy = point.statistics if loader == OURS and point.num_workers else None
            chosen = measured.chosen is point and loader == OURS
            sheet.add_row(
                f"auto: {point.num_workers}" if point in auto else str(point.num_workers),
                str(point.prefetch_factor) if point.prefetch_factor else "",
                f"{loader} ◀" if chosen else loader,
                *cells,
                "" if busy is None else f"{100 * busy.busy_fraction:.0f} %",
                *[point.cannot.get(loader, "")] * unable,
                style="bold green" if chosen else "",
            )
        sheet.add_section()
    _show(console, f"your dataset: {measured.name} (◀: use this)", sheet)
    for line in measured.advice:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def written(console: Console, directory: Path, names: Sequence[str]) -> None:
    """Print what was written, and where."""
    console.print(f"\nwritten to {directory}: {', '.join(names)}", highlight=False, soft_wrap=True)
