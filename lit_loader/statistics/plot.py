"""Draws where the time of a training loop went: four panels a loader, as PNG, by matplotlib.

Used by ``LoaderMonitor(plot=…)``. The kept records of each loader come in, a picture goes out::

    time per batch in the training process   │   time per batch in the workers
    part of the time that the trainer waited │   how busy each worker was
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from lit_loader.errors import OptionError
from lit_loader.statistics.records import LoaderTrace
from lit_loader.statistics.sentences import duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["check_matplotlib", "draw", "write_plot"]

_BINS: Final = 120  # bars at most; each is the mean of as many batches as it takes

_COLOURS: Final = {
    "wait": "#d62728",
    "decode": "#ff9896",
    "transfer": "#9467bd",
    "pin": "#c5b0d5",
    "step": "#2ca02c",
    "waiting for reads": "#08306b",
    "fetch": "#1f77b4",
    "collate": "#17becf",
    "encode": "#aec7e8",
}

_Stages = dict[str, NDArray[np.float64]]  # by name: milliseconds of each batch


def check_matplotlib(option: str) -> None:
    """Refuse ``option`` if there is no matplotlib, which is not imported for it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise OptionError(f"{option} needs matplotlib: pip install matplotlib, or leave it out")


def write_plot(path: Path, loaders: Sequence[LoaderTrace]) -> None:
    """Write the picture as PNG; its directory is made if need be. OSError: it cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(loaders).savefig(path, format="png", dpi=120)


def draw(loaders: Sequence[LoaderTrace]) -> Figure:
    """Draw the picture of those that have batches, without touching matplotlib's global state."""
    from matplotlib.figure import Figure

    shown = [loader for loader in loaders if loader.records]
    figure = Figure(figsize=(12, 7.5 * max(1, len(shown))), layout="constrained")
    rows = figure.subfigures(max(1, len(shown)), 1, squeeze=False)[:, 0]
    for part, loader in zip(rows, shown, strict=False):
        count, every = len(loader.records), len(loader.records) + loader.left_out
        which = f"{every:,}" if count == every else f"the last {count:,} of {every:,}"
        unit = "batch" if every == 1 else "batches"
        part.suptitle(f"Where the time goes: {loader.name}, {which} {unit}", fontsize=14)
        (consumer, making, waited), workers = _times(loader)
        (one, two), (three, four) = part.subplots(2, 2, width_ratios=(3, 2))
        first = loader.left_out
        _stack(one, consumer, first, "In the training process")
        own = (workers < 0).all()
        _stack(two, making, first, "Making it" if own else "Making it, in a worker")
        _wait_fraction(three, waited, sum(consumer.values(), np.zeros(count)), first)
        _busy(four, making, workers, sum(float(each.sum()) for each in consumer.values()))
    return figure


def _times(loader: LoaderTrace) -> tuple[tuple[_Stages, _Stages, Any], NDArray[np.int64]]:
    """What each batch took the trainer and who made it, what the trainer waited; and who did."""
    records = loader.records
    steps = {step.given: step for step in loader.steps if step.given}
    consumer = []
    for record, following in itertools.zip_longest(records, records[1:]):
        step = steps.get(record.given)
        transfer = step.start - step.given if step else 0
        # What came between this batch and the next; the last one of an epoch has only its step.
        whole = following.step if following else 0
        whole = whole or (step.end - step.given if step else 0)
        stages = {**record.taking, "transfer": transfer, "step": max(0, whole - transfer)}
        consumer.append(stages)
    making = [record.making for record in records]
    waited = np.array([record.waited / 1e6 for record in records])
    workers = np.array([record.worker for record in records], np.int64)
    return (_columns(consumer), _columns(making), waited), workers


def _columns(stages: Sequence[Mapping[str, int]]) -> _Stages:
    """Those stages that took any time, in the order of their colours."""
    columns = {name: np.array([each.get(name, 0) / 1e6 for each in stages]) for name in _COLOURS}
    return {name: values for name, values in columns.items() if values.any()}


def _bins(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
    """Means over as many batches as it takes for `_BINS` bars, and that number."""
    width = -(-len(values) // _BINS)
    edges = np.arange(0, len(values), width)
    sums = np.add.reduceat(values, edges)
    return sums / np.diff(np.append(edges, len(values))), width


def _stack(axes: Axes, stages: _Stages, first: int, title: str) -> None:
    """Draw stages on top of each other, batch by batch."""
    total: Any = 0.0
    for name, values in stages.items():
        heights, width = _bins(values)
        left = first + width * np.arange(len(heights))
        label = f"{name} {duration(float(values.mean()) / 1e3)}"
        axes.bar(left, heights, width, total, align="edge", color=_COLOURS[name], label=label)
        total = total + heights
    # A first batch takes as long as it takes to start the workers: the others would not be seen.
    usual, most = 1.5 * float(np.percentile(total, 95)), float(np.max(total))
    if usual and most > 1.5 * usual:
        axes.set_ylim(0, usual)
        title += f" (cut off; longest: {most:,.0f} ms)"
    axes.margins(x=0)
    _finish(axes, title, "batch (below: means)", "ms per batch")


def _wait_fraction(axes: Axes, waited: Any, whole: Any, first: int) -> None:
    parts, width = _bins(waited)
    parts = 100 * parts / np.maximum(_bins(whole)[0], 1e-9)
    left = first + width * np.arange(len(parts))
    axes.bar(left, parts, width, align="edge", color=_COLOURS["wait"])
    mean = 100 * waited.sum() / max(whole.sum(), 1e-9)
    axes.axhline(mean, color="black", linestyle="--", label=f"mean: {mean:.1f} %")
    axes.set_ylim(0, 100)
    axes.margins(x=0)
    _finish(axes, "Part of the time that the trainer waited", "batch", "waited, %")


def _busy(axes: Axes, making: _Stages, workers: NDArray[np.int64], whole: float) -> None:
    numbers = np.unique(workers).tolist()
    parts = {
        stage: np.array([100 * values[workers == each].sum() for each in numbers]) / (whole or 1)
        for stage, values in making.items()
    }
    sums = sum(parts.values(), np.zeros(len(numbers)))
    names = [
        f"{'training process' if each < 0 else f'worker {each}'}: {part:.0f} %"
        for each, part in zip(numbers, sums, strict=True)
    ]
    left = np.zeros(len(numbers))
    for stage, part in parts.items():
        axes.barh(names, part, left=left, color=_COLOURS[stage], label=stage)
        left = left + part
    axes.set_xlim(0, 100)
    axes.invert_yaxis()
    _finish(axes, "Who made the batches", "busy, % of the time", "")


def _finish(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(axis="y" if y else "x", color="0.85")
    axes.set_axisbelow(True)
    if axes.get_legend_handles_labels()[0]:  # where it hides nothing
        below: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.17), "frameon": False}
        axes.legend(ncols=5, fontsize="small", handlelength=1, columnspacing=1.2, **below)
