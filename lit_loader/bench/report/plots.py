"""The report as pictures: a PNG with bars for each case, with lines for growth and for the grid.

Called by `bench/runner.py` at the end of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lit_loader.bench.core.names import CASES
from lit_loader.bench.core.results import LIMIT, Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from lit_loader.bench.own_dataset.grid import Grid

__all__ = ["write"]

_COLOURS: Final = {
    "lit_loader": "#d62728",
    "torch": "#1f77b4",
    "torchdata": "#17becf",
    "spdl": "#9467bd",
    "grain": "#2ca02c",
}


def _colour(name: str) -> str:
    return _COLOURS.get(name, "#7f7f7f")  # what is no loader, a number of workers say


def write(directory: Path, measurements: Sequence[Measurement], grid: Grid | None) -> list[str]:
    """Write a picture of each case that has figures; returns the files' names."""
    names = []
    for case in dict.fromkeys(m.case for m in measurements):
        found = [m for m in measurements if m.case == case and m.rounds]
        lines = [m for m in found if m.axis]
        figure = _lines(lines) if lines else _bars(CASES[case].title, found) if found else None
        if figure is not None:
            figure.savefig(directory / f"{case}.png", dpi=120)
            names.append(f"{case}.png")
    if grid is not None and grid.facts:
        _grid(grid).savefig(directory / "grid.png", dpi=120)
        names.append("grid.png")
    return names


def _bars(title: str, measurements: Sequence[Measurement]) -> Figure | None:
    """A panel for each unit: bars for loaders, a mark for the limit, in a logarithmic scale."""
    from matplotlib.figure import Figure

    units = list(dict.fromkeys(m.unit for m in measurements if m.loaders))
    groups = [[m for m in measurements if m.unit == unit] for unit in units]
    if not groups:
        return None
    bars = [sum(len(m.loaders) + 1 for m in group) for group in groups]
    height = 1.3 + sum(0.22 * count + 0.75 for count in bars)
    figure = Figure(figsize=(10, height), layout="constrained")
    figure.suptitle(title, fontsize=12, fontweight="bold")
    panels = figure.subplots(len(groups), 1, squeeze=False, height_ratios=[c + 2 for c in bars])
    for axes, unit, group in zip(panels[:, 0], units, groups, strict=True):
        _panel(axes, unit, group)
    handles: dict[str, Any] = {}
    for axes in panels[:, 0]:
        found, labels = axes.get_legend_handles_labels()
        handles.update(dict(zip(labels, found, strict=True)))
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", frameon=False,
        ncols=6 if all(len(label) < _LONG for label in handles) else 2,
    )  # fmt: skip
    return figure


_LONG: Final = 20
"""Letters of a label of which there is not room for six side by side."""

_AXES: Final = {
    "bytes": "bytes of a batch",
    "tensors": "tensors of a batch",
    "samples": "samples of the dataset",
}
"""What an axis of the growth's picture says, where it is not its name."""

_FEW_POWERS = 30
"""Times that an axis' end is its beginning; below, it has too few powers of ten for its marks."""


def _few_powers(axis: Axis, low: float, high: float) -> None:
    """Mark 1, 2 and 5 of each power of ten on a logarithmic axis that is short of these."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if high < _FEW_POWERS * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axis.set_minor_formatter(NullFormatter())


def _panel(axes: Axes, unit: str, measurements: Sequence[Measurement]) -> None:
    place, ticks = 0.0, []
    for measurement in measurements:
        top = place
        limit = measurement.figure(LIMIT)
        for name in measurement.loaders:
            figure = measurement.figure(name)
            if figure is None:
                axes.text(
                    0.005, place, f"{name}: cannot", va="center", fontsize=7, color="0.4",
                    transform=axes.get_yaxis_transform(),
                )  # fmt: skip
            else:
                spread = [[figure.median - figure.low], [figure.high - figure.median]]
                known = name in _COLOURS  # else the name is at the bar: all of these are grey
                axes.barh(
                    place, figure.median, 0.8, color=_colour(name), xerr=spread,
                    label=name if known else None, error_kw={"lw": 0.8, "ecolor": "0.3"},
                )  # fmt: skip
                text = _number(figure.median) + ("" if known else f"  {name}")
                axes.annotate(
                    text, (figure.high, place), (3, 0), fontsize=7, va="center",
                    textcoords="offset points",
                )  # fmt: skip
            place += 1
        if limit is not None:
            said = f"limit: {measurement.limit_by}" if measurement.limit_by else "limit"
            axes.plot(
                [limit.median] * 2, [top - 0.5, place - 0.5], color="black", lw=1.5, label=said
            )
        ticks.append(((top + place - 1) / 2, measurement.name))
        place += 1
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks], fontsize=8)
    axes.set_ylim(place - 1, -1)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    named = all(name in _COLOURS for each in measurements for name in each.loaders)
    axes.set_xlim(low, high * (high / low) ** (0.08 if named else 0.2))  # room for the texts
    _few_powers(axes.xaxis, low, high)
    axes.set_xlabel(f"{unit}, logarithmic (less is better)", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", color="0.88")
    axes.set_axisbelow(True)


def _lines(measurements: Sequence[Measurement]) -> Figure:
    """A panel for each axis: cost of a batch against x, both logarithmic."""
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(m.axis for m in measurements))
    figure = Figure(figsize=(11, 1 + 3.6 * ((len(kinds) + 1) // 2)), layout="constrained")
    figure.suptitle(CASES["growth"].title, fontsize=12, fontweight="bold")
    panels = figure.subplots((len(kinds) + 1) // 2, 2, squeeze=False)
    handles: dict[str, Any] = {}
    for axes, kind in zip(panels.flat, kinds, strict=False):
        points = [m for m in measurements if m.axis == kind]
        for name in [*dict.fromkeys(name for m in points for name in m.loaders), LIMIT]:
            found = [(m.x, spread) for m in points if m.x and (spread := m.figure(name))]
            if not found:
                continue
            style = {"color": "black", "ls": "--"} if name == LIMIT else {"color": _colour(name)}
            xs = [x for x, _ in found]
            axes.plot(xs, [s.median for _, s in found], marker="o", ms=4, label=name, **style)
            axes.fill_between(
                xs, [s.low for _, s in found], [s.high for _, s in found], alpha=0.15,
                color=style["color"], lw=0,
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        _few_powers(axes.yaxis, *axes.get_ylim())
        if kind == "workers":
            axes.set_xticks(numbers := [m.x for m in points], [f"{x:,.0f}" for x in numbers])
            axes.set_xticks([], minor=True)
        axes.set_xlabel(_AXES.get(kind, kind))
        axes.set_ylabel("µs/batch")
        axes.grid(color="0.88")
        labelled, labels = axes.get_legend_handles_labels()
        handles.update(dict(zip(labels, labelled, strict=True)))
    for axes in list(panels.flat)[len(kinds) :]:
        axes.set_visible(False)
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=6, frameon=False
    )
    return figure


def _grid(grid: Grid) -> Figure:
    """Samples a second against num_workers, a line for each loader and prefetch_factor."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    styles = ["-", "--", ":", "-."]
    prefetches = sorted({p.prefetch_factor for p in grid.points if p.num_workers}) or [0]
    for name in dict.fromkeys(name for p in grid.points for name in p.loaders):
        for prefetch, style in zip(prefetches, styles * len(prefetches), strict=False):
            points = [p for p in grid.points if p.prefetch_factor in (prefetch, 0)]
            found = [(p.num_workers, s) for p in points if (s := p.figure(name))]
            if found:
                axes.plot(
                    [x for x, _ in found], [grid.samples / s.median for _, s in found],
                    marker="o", ms=4, color=_colour(name), ls=style,
                    label=f"{name}, prefetch_factor {prefetch}",
                )  # fmt: skip
    chosen = grid.chosen
    spread = chosen and chosen.figure("lit_loader")
    if chosen and spread:
        axes.plot(
            chosen.num_workers, grid.samples / spread.median, "o", ms=13, mfc="none", mec="black",
            label="use this",
        )  # fmt: skip
    spread = grid.auto and grid.auto.figure("lit_loader")
    if grid.auto and spread:
        axes.plot(
            grid.auto.num_workers, grid.samples / spread.median, "*", ms=12, color="black",
            label='num_workers="auto"',
        )  # fmt: skip
    axes.set_xticks(sorted({p.num_workers for p in grid.points}))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("num_workers")
    axes.set_ylabel("samples/s")
    axes.set_title(f"{grid.name}: samples a second")
    axes.grid(color="0.88")
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
