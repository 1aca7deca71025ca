"""The report as pictures: a PNG with bars for each case, one with lines for the user's own dataset.

Called by `bench/runner.py` at the end of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lit_loader.bench.grid import Grid
from lit_loader.bench.rounds import LIMIT, Measurement
from lit_loader.bench.settings import CASES, LOADERS, OURS

__all__ = ["write"]

_COLOURS: Final = dict(
    zip(LOADERS, ("#d62728", "#1f77b4", "#17becf", "#9467bd", "#2ca02c"), strict=True)
)
"""What is not here is no loader, a number of workers say: grey, with its name at the bar."""


def write(directory: Path, measurements: Sequence[Measurement], grid: Grid | None) -> list[str]:
    """Write a picture of each case that has figures; returns the files' names."""
    figures = {}
    for case in dict.fromkeys(m.case for m in measurements):
        found = [m for m in measurements if m.case == case and m.rounds and m.loaders]
        if found:
            figures[f"{case}.png"] = _bars(CASES[case][0], found)
    if grid is not None and grid.chosen is not None:
        figures["grid.png"] = _grid(grid)
    for name, figure in figures.items():
        figure.savefig(directory / name, dpi=120)
    return list(figures)


def _bars(title: str, measurements: Sequence[Measurement]) -> Figure:
    """A panel for each unit: bars for loaders, a mark for the limit, in a logarithmic scale."""
    units = list(dict.fromkeys(m.unit for m in measurements))
    groups = [[m for m in measurements if m.unit == unit] for unit in units]
    bars = [sum(len(m.loaders) + 1 for m in group) for group in groups]
    height = 1.3 + sum(0.22 * count + 0.75 for count in bars)
    figure = Figure(figsize=(10, height), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(len(groups), 1, squeeze=False, height_ratios=[c + 2 for c in bars])
    handles: dict[str, Any] = {}
    for axes, unit, group in zip(panels[:, 0], units, groups, strict=True):
        _panel(axes, unit, group)
        found, labels = axes.get_legend_handles_labels()
        handles.update(zip(labels, found, strict=True))
    columns = 6 if all(len(label) < 20 for label in handles) else 2
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=columns)
    return figure


def _panel(axes: Axes, unit: str, measurements: Sequence[Measurement]) -> None:
    place, ticks = 0.0, []
    for measurement in measurements:
        top = place
        for name in measurement.loaders:
            figure = measurement.figure(name)
            if figure is None:
                side = axes.get_yaxis_transform()
                axes.text(0, place, f" {name}: cannot", va="center", fontsize=7, transform=side)
            else:
                known = name in _COLOURS
                axes.barh(
                    place, figure.median, 0.8, color=_COLOURS.get(name, "#7f7f7f"),
                    xerr=[[figure.median - figure.low], [figure.high - figure.median]],
                    label=name if known else None, error_kw={"lw": 0.8, "ecolor": "0.3"},
                )  # fmt: skip
                text = f"{figure.median:,.0f}" if figure.median >= 100 else f"{figure.median:.3g}"
                text = f" {text}" if known else f" {text}  {name}"
                axes.text(figure.high, place, text, fontsize=7, va="center")
            place += 1
        limit = measurement.figure(LIMIT)
        if limit is not None:
            said, ends = f"limit: {measurement.limit_by}", [top - 0.5, place - 0.5]
            axes.plot([limit.median] * 2, ends, color="black", lw=1.5, label=said)
        ticks.append(((top + place - 1) / 2, measurement.name))
        place += 1
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks], fontsize=8)
    axes.set_ylim(place - 1, -1)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * (high / low) ** 0.15)  # room for the texts
    axes.set_xlabel(f"{unit}, logarithmic (less is better)", fontsize=8)
    axes.tick_params(axis="x", which="both", labelsize=8)
    axes.grid(axis="x", color="0.88")
    axes.set_axisbelow(True)


def _grid(grid: Grid) -> Figure:
    """Samples a second against num_workers, a line for each loader and prefetch_factor."""
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    prefetches = sorted({p.prefetch_factor for p in grid.points if p.num_workers}) or [0]
    for name in dict.fromkeys(name for p in grid.points for name in p.loaders):
        for number, prefetch in enumerate(prefetches):
            points = [
                p for p in grid.points if p.prefetch_factor in (prefetch, 0) and not p.threads
            ]
            found = [(p.num_workers, s.median) for p in points if (s := p.figure(name))]
            axes.plot(
                [x for x, _ in found], [grid.samples / median for _, median in found],
                marker="o", ms=4, color=_COLOURS[name], ls=("-", "--", ":", "-.")[number % 4],
                label=f"{name}, prefetch_factor {prefetch}",
            )  # fmt: skip
    for point, form, fill, label in (
        (grid.chosen, "o", "none", "use this"),
        (grid.auto, "*", "black", 'num_workers="auto"'),
    ):
        if point and (spread := point.figure(OURS)):
            at, there = point.num_workers, grid.samples / spread.median
            axes.plot(at, there, form, ms=13, mfc=fill, mec="black", label=label)
    axes.set_xticks(sorted({p.num_workers for p in grid.points}))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("num_workers")
    axes.set_ylabel("samples/s")
    axes.set_title(f"{grid.name}: samples a second")
    axes.grid(color="0.88")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure
