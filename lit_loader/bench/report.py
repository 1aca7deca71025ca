"""What is said of a measured `Grid`: a table, which setting to use, and what limits it."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from lit_loader.bench.grid import OURS, TORCHS, Grid, Setting
from lit_loader.diagnostics.sentences import duration, percent

__all__ = ["advice", "chosen", "show", "write"]

_NEAR = 0.95  # part of the fastest setting's rate that is as good
_UNSURE = 0.25  # of its median, that a setting's rates may differ by
_BUSY = 0.5  # CPU cores in use, of those there are, before anything is measured


def chosen(settings: list[Setting], samples_per_step: float | None = None) -> Setting | None:
    """Return the setting to use: the fewest workers that are as good as the fastest setting.

    With ``samples_per_step``, samples per second that the training step takes, those are as good
    that keep up with it. Threads and "auto" only where a fixed number of processes is not.
    """
    ours = [each for each in settings if each.loader == OURS and each.rates]
    if not ours:
        return None
    enough = _NEAR * max(each.rate for each in ours)
    if samples_per_step is not None:
        enough = min(enough, samples_per_step)
    good = [each for each in ours if each.rate >= enough]
    return min(good, key=lambda each: (
        each.num_workers == "auto", each.threads,
        each.num_workers if each.num_workers != "auto" else 0, each.prefetch_factor,
    ))  # fmt: skip


def advice(grid: Grid, step: float | None, cores: float, load: float) -> list[str]:
    """Return lines: which setting to use, why that may be wrong, what limits it.

    ``step``: samples per second that the training step takes; ``load``: CPU cores in use before
    anything was measured.
    """
    best = chosen(grid.settings, step)
    if best is None:
        return ["nothing was measured"]
    theirs = [each for each in grid.settings if each.loader == TORCHS and each.rates]
    lines = [f"use {best}: {_rates(best)}"]
    if theirs:
        torchs = max(theirs, key=lambda each: each.rate)
        times = best.rate / torchs.rate
        lines.append(f"torch's loader: at best {_rates(torchs)} with {torchs}; {times:.2f} x")
    spread = (max(best.rates) - min(best.rates)) / best.rate
    if len(best.rates) < 2:
        lines.append("not sure: there was one round only")
    elif spread > _UNSURE:
        lines.append(f"not sure: the rounds differ by {percent(spread)}; measure for longer")
    if load > _BUSY * cores:
        lines.append(f"not sure: other programs used {load:.1f} of {cores:g} CPU cores")
    numbers = [each.num_workers for each in grid.settings if each.num_workers != "auto"]
    limit = best.verdict
    if best.num_workers != "auto" and best.num_workers < max(numbers):
        limit = f"{limit.partition('Fix: ')[0]}Fix: none by workers: more were not faster"
    lines += limit.splitlines()
    failures = {each.failure: each for each in grid.settings if each.failure}
    lines += [f"no figures: {each}: {failure}" for failure, each in failures.items()]
    lines += [f"warning: {text}" for text in grid.warned.values() if text not in failures]
    return lines


def _rates(setting: Setting) -> str:
    low, high = min(setting.rates), max(setting.rates)
    return f"{setting.rate:,.0f} samples/s ({low:,.0f} to {high:,.0f})"


def show(console: Console, title: str, grid: Grid, lines: list[str], best: Setting | None) -> None:
    """Print the table and the lines below it."""
    sheet = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    stepping = any(any(each.waits) for each in grid.settings)
    heads = ["setting", "loader", "samples/s", "low to high", "CPU ms/sample", "MB", "first batch"]
    for name in [*heads, *(["step waits"] if stepping else [])]:
        sheet.add_column(name, justify="left" if name in heads[:2] else "right", no_wrap=True)
    for each in grid.settings:
        ahead = f", prefetch {each.prefetch_factor}" if each.prefetch_factor else ""
        name = f"{each.num_workers} {'threads' if each.threads else 'workers'}{ahead}"
        if each.num_workers == "auto":
            name = f"auto → {each.found} workers"
        if not each.rates:
            sheet.add_row(name, each.loader, "–")
            continue
        cells = [f"{each.rate:,.0f}", f"{min(each.rates):,.0f} to {max(each.rates):,.0f}"]
        cells.append(f"{1e3 * statistics.median(each.cpu):.3g}")
        cells.append(f"{statistics.median(each.memory):,.0f}")
        cells.append(duration(statistics.median(each.first)))
        cells += [percent(statistics.median(each.waits))] if stepping else []
        mark, style = (" ◀", "bold green") if each is best else ("", "")
        sheet.add_row(name + mark, each.loader, *cells, style=style)
    console.print(sheet)
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def write(path: Path, grid: Grid, lines: list[str], best: Setting | None) -> None:
    """Write everything as JSON."""
    found = {
        "format": 2,
        "chosen": best and str(best),
        "advice": lines,
        "settings": [asdict(each) for each in grid.settings],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False))
