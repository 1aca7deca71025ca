"""The report: tables, results.json, results.csv.

Called by `bench/runner.py`: tables as the cases end, files at the end of a run.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lit_loader.bench.grid import Grid
from lit_loader.bench.rounds import Measurement, Spread
from lit_loader.bench.settings import CASES, OURS, Settings
from lit_loader.statistics.sentences import table

__all__ = ["FORMAT", "header", "show_case", "show_grid", "write"]

FORMAT: Final = 2  # of results.json

_COLUMNS: Final = (
    "case", "row", "loader", "unit", "median", "low", "high", "rounds", "vs_torch",
    "cannot",
)  # fmt: skip


def header(machine: Mapping[str, Any], settings: Settings) -> None:
    """Print where and with what it is measured."""
    rounds = "1 round" if settings.rounds == 1 else f"{settings.rounds} rounds"
    quick = "; quick=true: these figures mean little" if settings.quick else ""
    print(
        f"lit-loader-bench  {machine['processor']}, {machine['cores']:g} usable cores, "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB, load {machine['load']:.1f}, "
        f"{machine['system']}, Python {machine['python']}",
        ", ".join(f"{name} {version}" for name, version in machine["versions"].items()),
        f"{settings.num_workers} workers, prefetch_factor {settings.prefetch_factor} where nothing "
        f"else is said, {rounds}; medians, less is better{quick}",
        sep="\n",
        flush=True,
    )


def show_case(case: str, measurements: Sequence[Measurement]) -> None:
    """Print the table of a case, if some of it was measured."""
    rows = [row for each in measurements if each.case == case for row in _rows(each)]
    if rows:
        heads = ("", "loader", "median", "", "low to high", "× torch", "")
        _show(f"{case}: {CASES[case][0]}", heads, rows)


def _rows(measurement: Measurement) -> Iterator[list[str]]:
    """Lines of the table: what was loaded, loader, figures, what else is to be said."""
    title = measurement.name
    for name in measurement.loaders:
        figure, why = measurement.figure(name), measurement.cannot.get(name)
        if figure is None:
            yield [title, name, "–", "", "", "", f"cannot: {why or 'not measured'}"]
        else:
            times = measurement.vs_torch(name)
            yield [
                title,
                name,
                _number(figure.median),
                measurement.unit,
                _range(figure),
                "" if times is None else f"{_number(times.median)} {_range(times, '({})')}".strip(),
                f"then: {why}" if why else "",  # figures of some rounds only
            ]
        title = ""


def _number(value: float) -> str:
    """A number with about three digits, thousands separated."""
    if value >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _range(spread: Spread, form: str = "{}") -> str:
    within = f"{_number(spread.low)} to {_number(spread.high)}"
    return form.format(within) if spread.low < spread.high else ""


def _show(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print("", title, "", *table(heads, rows), sep="\n", flush=True)


def show_grid(grid: Grid) -> None:
    """Print the user's own dataset: every setting, then what to use and why."""
    units: dict[str, tuple[str, Callable[[float], float]]] = {
        "seconds_per_batch": ("samples/s", lambda value: grid.samples / value),
        "step_waits": ("step waits, %", lambda value: 100 * value),
        "processor_seconds_per_batch": ("cpu µs/sample", lambda value: 1e6 * value / grid.samples),
        "memory_megabytes": ("MB", float),
        "first_batch_seconds": ("first batch, ms", lambda value: 1e3 * value),
        "descriptors": ("open files", float),
    }
    points = [*grid.points, *([grid.auto] if grid.auto else [])]
    if not any(point.figure(OURS, "step_waits") for point in points):
        del units["step_waits"]
    heads = ["workers", "prefetch", "loader", *(head for head, _ in units.values()), "busy", ""]
    rows = []
    for point in points:
        for loader in point.loaders:
            found = [(point.figure(loader, name), show) for name, (_, show) in units.items()]
            busy = point.statistics if loader == OURS and point.num_workers else None
            rows.append(
                [
                    f"{'auto: ' if point is grid.auto else ''}{point.num_workers}",
                    str(point.prefetch_factor or ""),
                    f"{loader} ◀" if grid.chosen is point and loader == OURS else loader,
                    *("–" if each is None else _number(show(each.median)) for each, show in found),
                    "" if busy is None else f"{100 * busy.busy_fraction:.0f} %",
                    point.cannot.get(loader, ""),
                ]
            )
    _show(f"your dataset: {grid.name} (◀: use this)", heads, rows)
    print("", *grid.advice, sep="\n")


# --- files ---


def write(
    directory: Path,
    machine: Mapping[str, Any],
    measurements: Sequence[Measurement],
    grid: Grid | None,
    interrupted: bool,
) -> list[str]:
    """Write results.json with everything, results.csv with a line a figure; returns their names."""
    report: dict[str, Any] = {
        "format": FORMAT,
        "interrupted": interrupted,
        "machine": machine,
        "measurements": [],
        "grid": None if grid is None else grid.as_dict(),
    }
    lines: list[tuple[object, ...]] = [_COLUMNS]
    for m in measurements:
        loaders = {}
        for name in m.loaders:
            figure, ratio, why = m.figure(name), m.vs_torch(name), m.cannot.get(name)
            loaders[name] = {
                "figure": figure and figure._asdict(),
                "rounds": m.values(name),
                "vs_torch": ratio and ratio._asdict(),
                "cannot": why,
            }
            cells = (*(figure or ("", "", "")), len(m.values(name)), ratio and ratio.median, why)
            lines.append((m.case, m.name, name, m.unit, *cells))
        report["measurements"].append(
            {"case": m.case, "name": m.name, "unit": m.unit, "loaders": loaders}
        )
    (directory / "results.json").write_text(json.dumps(report, indent=1, ensure_ascii=False))
    with (directory / "results.csv").open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    return ["results.json", "results.csv"]
