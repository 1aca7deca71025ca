"""Draws where the time of a training loop went: four panels a loader, as PNG, by matplotlib.

Used by ``LoaderMonitor(plot=…)``. The kept records of each loader come in, a picture goes out::

    time per batch in the training process   │   time per batch in the workers
    part of the time that the trainer waited │   how busy each worker was
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lit_loader.errors import OptionError
from lit_loader.statistics.records import LoaderTrace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["check_matplotlib", "draw", "write_plot"]

_BINS: Final = 120
"""Bars at most; each is the mean of as many batches as it takes."""

_COLOURS: Final = {
    "wait": "#d62728",
    "decode": "#ff9896",
    "transfer": "#9467bd",
    "pin": "#c5b0d5",
    "step": "#2ca02c",
    "read": "#08306b",
    "fetch": "#1f77b4",
    "collate": "#17becf",
    "encode": "#aec7e8",
}


class _Times(NamedTuple):
    """Columns with a value for each batch: times in milliseconds, and the worker that made it."""

    consumer: dict[str, NDArray[np.float64]]
    making: dict[str, NDArray[np.float64]]
    waited: NDArray[np.float64]
    worker: NDArray[np.int64]


def check_matplotlib(option: str) -> None:
    """Make sure, without importing it, that there is matplotlib.

    Raises:
        OptionError: There is none; names the option that needs it.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise OptionError(f"{option} needs matplotlib: pip install matplotlib, or leave it out")


def write_plot(path: Path, loaders: Sequence[LoaderTrace]) -> None:
    """Write the picture as PNG.

    Args:
        path: The file; its directory is made if need be.
        loaders: The records of each loader; those without batches are left out.

    Raises:
        OSError: It cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(loaders).savefig(path, format="png", dpi=120)


def draw(loaders: Sequence[LoaderTrace]) -> Figure:
    """Draw the picture, without touching matplotlib's global state.

    Args:
        loaders: The records of each loader; those without batches are left out.
    """
    from matplotlib.figure import Figure

    shown = [loader for loader in loaders if loader.records]
    figure = Figure(figsize=(12, 7.5 * max(1, len(shown))), layout="constrained")
    rows = figure.subfigures(max(1, len(shown)), 1, squeeze=False)[:, 0]
    for part, loader in zip(rows, shown, strict=False):
        count, every = len(loader.records), len(loader.records) + loader.left_out
        which = f"{every:,}" if count == every else f"the last {count:,} of {every:,}"
        unit = "batch" if every == 1 else "batches"
        part.suptitle(f"Where the time goes: {loader.name}, {which} {unit}", fontsize=14)
        (consumer, workers), (fraction, busy) = part.subplots(2, 2, width_ratios=(3, 2))
        times = _times(loader)
        first = loader.left_out
        _stack(consumer, times.consumer, first, "In the training process")
        own = (times.worker < 0).all()
        _stack(workers, times.making, first, "Making it" if own else "Making it, in a worker")
        _wait_fraction(fraction, times, first)
        _busy(busy, times)
    return figure


def _times(loader: LoaderTrace) -> _Times:
    records = loader.records
    column = {
        name: np.array([getattr(record, name) for record in records], np.int64)
        for name in (
            *("worker", "fetch", "collate", "encode", "wait", "decode", "pin", "step"),
            *("given", "waited", "read"),
        )
    }
    own = column["worker"] < 0
    transfer, whole = _steps(loader, column["given"])
    # What came between this batch and the next; the last one of an epoch has only its step.
    following = np.append(column["step"][1:], 0)
    step = np.maximum(np.where(following > 0, following, whole) - transfer, 0)
    consumer = {
        "wait": column["wait"],
        "decode": np.where(own | (column["pin"] > 0), 0, column["decode"]),
        "pin": np.where(own, column["pin"], 0),
        "transfer": transfer,
        "step": step,
    }
    making = {"read": column["read"], "fetch": column["fetch"] - column["read"]}
    making |= {name: column[name] for name in ("collate", "encode")}
    if not making["read"].any():
        del making["read"]  # nothing that the dataset marks
    return _Times(
        {name: values / 1e6 for name, values in consumer.items()},
        {name: values / 1e6 for name, values in making.items()},
        column["waited"] / 1e6,
        column["worker"],
    )


def _steps(
    loader: LoaderTrace, given: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each batch's transfer, and that with its step, in nanoseconds; 0 where it is not known."""
    steps = [step for step in loader.steps if step.given]
    nothing = np.zeros(len(given), np.int64)
    if not steps:
        return nothing, nothing
    moved, start, end = np.array(steps, np.int64).T
    which = np.searchsorted(start, given)
    known = which < len(start)
    which = np.minimum(which, len(start) - 1)
    # Its step began before the next batch was given out.
    known &= start[which] < np.append(given[1:], np.iinfo(np.int64).max)
    return (
        np.where(known, start[which] - moved[which], 0),
        np.where(known, end[which] - moved[which], 0),
    )


def _bins(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
    """Means over as many batches as it takes for `_BINS` bars, and that number."""
    width = -(-len(values) // _BINS)
    edges = np.arange(0, len(values), width)
    sums = np.add.reduceat(values, edges)
    return sums / np.diff(np.append(edges, len(values))), width


def _stack(axes: Axes, stages: Mapping[str, NDArray[np.float64]], first: int, title: str) -> None:
    """Draw stages on top of each other, batch by batch."""
    total: NDArray[np.float64] = np.zeros(1)
    for name, values in stages.items():
        if not values.any():
            continue
        heights, width = _bins(values)
        bottom = total if len(total) == len(heights) else np.zeros(len(heights))
        left = first + width * np.arange(len(heights))
        label = f"{name} {_mean(values)}"
        axes.bar(left, heights, width, bottom, align="edge", color=_COLOURS[name], label=label)
        total = bottom + heights
    # A first batch takes as long as it takes to start the workers: the others would not be seen.
    usual = 1.5 * float(np.percentile(total, 95))
    if usual and total.max() > 1.5 * usual:
        axes.set_ylim(0, usual)
        title += f" (cut off; longest: {total.max():,.0f} ms)"
    axes.set_title(title)
    axes.set_xlabel("batch (below: means)")
    axes.set_ylabel("ms per batch")
    axes.grid(axis="y", color="0.85")
    axes.set_axisbelow(True)
    axes.margins(x=0)
    _legend_below(axes)


def _wait_fraction(axes: Axes, times: _Times, first: int) -> None:
    waited, width = _bins(times.waited)
    whole = np.maximum(_bins(np.sum(list(times.consumer.values()), axis=0))[0], 1e-9)
    left = first + width * np.arange(len(waited))
    axes.bar(left, 100 * waited / whole, width, align="edge", color=_COLOURS["wait"])
    mean = 100 * times.waited.sum() / sum(values.sum() for values in times.consumer.values())
    axes.axhline(mean, color="black", linestyle="--", label=f"mean: {mean:.1f} %")
    axes.set_ylim(0, 100)
    axes.margins(x=0)
    axes.set_title("Part of the time that the trainer waited")
    axes.set_xlabel("batch")
    axes.set_ylabel("waited, %")
    axes.grid(axis="y", color="0.85")
    axes.set_axisbelow(True)
    _legend_below(axes)


def _busy(axes: Axes, times: _Times) -> None:
    seconds = sum(float(values.sum()) for values in times.consumer.values())
    workers = np.unique(times.worker).tolist()
    names = ["training process" if worker < 0 else f"worker {worker}" for worker in workers]
    left = np.zeros(len(workers))
    for stage, values in times.making.items():
        part = np.array([100 * values[times.worker == worker].sum() for worker in workers])
        part /= max(seconds, 1e-9)
        if part.any():
            axes.barh(names, part, left=left, color=_COLOURS[stage], label=stage)
            left = left + part
    for position, percent in enumerate(left):
        inside = percent > 85
        axes.text(
            percent + (-1 if inside else 1),
            position,
            f"{percent:.0f} %",
            va="center",
            ha="right" if inside else "left",
            color="white" if inside else "black",
            fontweight="bold",
        )
    axes.set_xlim(0, 100)
    axes.set_ylim(-0.6, max(len(names), 3) - 0.4)
    axes.invert_yaxis()
    axes.set_title("Who made the batches")
    axes.set_xlabel("busy, % of the time")
    axes.grid(axis="x", color="0.85")
    axes.set_axisbelow(True)
    _legend_below(axes)


def _legend_below(axes: Axes) -> None:
    """Put the legend where it hides nothing."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(
            loc="upper center",
            bbox_to_anchor=(0.5, -0.17),
            ncols=5,
            frameon=False,
            fontsize="small",
            handlelength=1,
            handletextpad=0.4,
            columnspacing=1.2,
        )


def _mean(values: NDArray[np.float64]) -> str:
    mean = float(values.mean())
    return f"{mean:.1f} ms" if mean >= 1 else f"{1e3 * mean:.0f} µs"
