"""The report: tables on a rich Console, results.json, results.csv, a check against earlier ones.

Called by `bench/runner.py`: tables as the cases end, files at the end of a run.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lit_loader.bench.advice import Point
from lit_loader.bench.grid import Grid
from lit_loader.bench.rounds import LIMIT, Measurement, Spread
from lit_loader.bench.settings import CASES, OURS, Settings
from lit_loader.diagnostics.sentences import counted
from lit_loader.errors import OptionError

__all__ = ["FORMAT", "compare", "header", "read", "show_case", "show_grid", "write"]

FORMAT: Final = 1  # of results.json

_COLUMNS: Final = (
    "case", "row", "loader", "unit", "median", "low", "high", "rounds", "vs_torch", "of_limit",
    "limit", "limit_by", "cannot",
)  # fmt: skip


def header(
    console: Console, machine: Mapping[str, Any], settings: Settings, grid: Grid | None
) -> None:
    """Print where and with what it is measured."""
    quick = "; [yellow]quick=true: these figures mean little[/]" if settings.quick else ""
    how = (
        f"{settings.num_workers} workers, prefetch_factor {settings.prefetch_factor} where nothing "
        f"else is said, {counted(settings.rounds, 'round')}; medians, less is better"
    )
    if grid is not None:
        how = f"{grid.name} in {counted(grid.rounds, 'round')}, after one that does not count"
    for line in (
        f"[bold]lit-loader-bench[/]  {machine['processor']}, {machine['cores']:g} usable cores, "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB, load {machine['load']:.1f}, "
        f"{machine['system']}, Python {machine['python']}",
        ", ".join(f"{name} {version}" for name, version in machine["versions"].items()),
        f"{how}{quick}",
    ):
        console.print(line, highlight=False)


def show_case(console: Console, case: str, measurements: Sequence[Measurement]) -> None:
    """Print the table of a case, if some of it was measured."""
    columns = ("", "loader", "median", "", "low to high", "× torch", "of limit", "")
    rows = [list(_rows(measurement)) for measurement in measurements if measurement.case == case]
    if not rows:
        return
    used = [n for n in range(len(columns)) if any(row[n] for group in rows for row in group)]
    sheet = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for n in used:
        number = n in (2, 4, 5, 6)
        sheet.add_column(columns[n], justify="right" if number else "left", no_wrap=0 < n < 7)
    for group in rows:
        for row in group:
            sheet.add_row(*(row[n] for n in used))
        sheet.add_section()
    _show(console, f"{case}: {CASES[case][0]}", sheet)


def _rows(measurement: Measurement) -> Iterator[list[str | Text]]:
    """Lines of the table: what was loaded, loader, figures, what else is to be said."""
    title = measurement.name
    for name in measurement.loaders:
        figure, why = measurement.figure(name), measurement.cannot.get(name)
        style = "bold" if name == OURS else ""
        if figure is None:
            note = Text(f"cannot: {why or 'not measured'}", style="dim")
            yield [title, Text(name, style), "–", "", "", "", "", note]
        else:
            times, share = measurement.vs_torch(name), measurement.of_limit(name)
            yield [
                title,
                Text(name, style),
                Text(_number(figure.median), style),
                measurement.unit,
                _range(figure),
                "" if times is None else f"{_number(times.median)} {_range(times, '({})')}".strip(),
                "" if share is None else f"{100 * share.median:.0f} %",
                Text(f"then: {why}" if why else "", "dim"),  # figures of some rounds only
            ]
        title = ""
    limit = measurement.figure(LIMIT)
    if limit is not None:
        by = Text(measurement.limit_by, style="dim")
        yield ["", "limit", _number(limit.median), measurement.unit, "", "", "", by]


def _number(value: float) -> str:
    if value >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _range(spread: Spread, form: str = "{}") -> str:
    within = f"{_number(spread.low)} to {_number(spread.high)}"
    return form.format(within) if spread.low < spread.high else ""


def _show(console: Console, title: str, sheet: Table) -> None:
    """Print a table below its title, which is not broken where the table is narrower."""
    console.print(f"\n{title}", style="bold", markup=False, highlight=False, soft_wrap=True)
    console.print(sheet)


def show_grid(console: Console, grid: Grid) -> None:
    """Print the user's own dataset: every setting, then what to use and why."""
    units: dict[str, tuple[str, Callable[[float], float]]] = {
        "seconds_per_batch": ("samples/s", lambda value: grid.samples / value),
        "step_waits": ("step\nwaits, %", lambda value: 100 * value),
        "processor_seconds_per_batch": (
            "processor,\nµs/sample", lambda value: 1e6 * value / grid.samples,
        ),
        "memory_megabytes": ("memory,\nMB", float),
        "first_batch_seconds": ("first\nbatch, ms", lambda value: 1e3 * value),
        "descriptors": ("open\nfiles", float),
    }  # fmt: skip
    points = [*grid.points, *([grid.auto] if grid.auto else [])]
    if not any(point.figure(OURS, "step_waits") for point in points):
        del units["step_waits"]
    heads = ["samples/s", "low to high", *[head for head, _ in units.values()][1:]]
    sheet = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("num_\nworkers", "prefetch\nfactor", "loader", *heads, "workers\nbusy"):
        sheet.add_column(name, justify="left" if name == "loader" else "right", no_wrap=True)
    for point in points:
        for loader in point.loaders:
            found = [(point.figure(loader, name), show) for name, (_, show) in units.items()]
            busy = point.running if loader == OURS and point.num_workers and found[0][0] else None
            chosen = grid.chosen is point and loader == OURS
            sheet.add_row(
                _workers(point),
                str(point.prefetch_factor or ""),
                f"{loader} ◀" if chosen else loader,
                *_rates(point.figure(loader), grid.samples),
                *("–" if each is None else _number(show(each.median)) for each, show in found[1:]),
                "" if busy is None else f"{100 * busy.busy_fraction:.0f} %",
                style="bold green" if chosen else "",
            )
        sheet.add_section()
    _show(console, f"your dataset: {grid.name} (◀: use this)", sheet)
    for line in [*grid.told, *grid.advice]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _workers(point: Point) -> str:
    if point.threads:
        return f"{point.num_workers} thread" + "s" * (point.num_workers > 1)
    return f"auto: {point.num_workers}" if point.auto else str(point.num_workers)


def _rates(spread: Spread | None, samples: float) -> tuple[str, str]:
    if spread is None:
        return "–", ""
    return _number(samples / spread.median), _range(
        Spread(0, samples / spread.high, samples / spread.low)
    )


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
        row = {"case": m.case, "name": m.name, "unit": m.unit, "limit_by": m.limit_by}
        limit, loaders = m.figure(LIMIT), {}
        for name in m.loaders:
            spreads = (m.figure(name), m.vs_torch(name), m.of_limit(name))
            figure, torchs, best = (spread and spread._asdict() for spread in spreads)
            loaders[name] = {
                "figure": figure,
                "rounds": m.values(name),
                "vs_torch": torchs,
                "of_limit": best,
                "cannot": m.cannot.get(name),
            }
            ratios = [spread and spread.median for spread in (*spreads[1:], limit)]
            cells = (*(spreads[0] or ("", "", "")), len(m.values(name)), *ratios)
            lines.append((m.case, m.name, name, m.unit, *cells, m.limit_by, m.cannot.get(name)))
        report["measurements"].append(
            {**row, "limit": limit and limit._asdict(), "loaders": loaders}
        )
    (directory / "results.json").write_text(json.dumps(report, indent=1, ensure_ascii=False))
    with (directory / "results.csv").open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    return ["results.json", "results.csv"]


def read(path: Path) -> Mapping[str, Any]:
    """Read the report of a run to compare with; an `OptionError` says why it is none."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise OptionError(f"check cannot be read: {error}, got check={path}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise OptionError(
            f"check must be a results.json of this benchmark (format {FORMAT}), got check={path}"
        )
    return found


def compare(
    earlier: Mapping[str, Any], measurements: Sequence[Measurement], tolerance: float
) -> tuple[list[str], bool]:
    """Compare our ratios with those of an earlier report; they may be lower by `tolerance`.

    Times are not compared: they belong to a machine and its mood, and ratios far less so. Gives
    lines to print, and whether anything is worse. Nothing in common counts as worse.
    """
    before = {(row["case"], row["name"]): row["loaders"] for row in earlier["measurements"]}
    lines, pairs = [], 0
    for m in measurements:
        old = before.get((m.case, m.name), {}).get(OURS, {})
        for key, said, ratio in (
            ("vs_torch", "times as good as torch", m.vs_torch(OURS)),
            ("of_limit", "of the limit", m.of_limit(OURS)),
        ):
            if ratio is None or not old.get(key):
                continue
            pairs, now, was = pairs + 1, ratio.median, old[key]["median"]
            if now < was * (1 - tolerance):
                lines.append(
                    f"check: WORSE {m.case}, {m.name}, {said}: {now:.3g}, was {was:.3g} "
                    f"({100 * (now / was - 1):+.0f} %, {100 * tolerance:.0f} % are tolerated)"
                )
    if not pairs:
        return ["check: nothing of this run is in the earlier report: run the same cases"], True
    good = f"check: {pairs - len(lines)} of {pairs} ratios are as good as before"
    return [*lines, good], bool(lines)
