"""Draws where the time of a training loop went, as PNG, by matplotlib.

Used by ``LoaderMonitor(plot=…)``. Two panels a loader: time per batch in the training process, and
in the workers.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lit_loader.diagnostics.sentences import duration, percent
from lit_loader.errors import OptionError
from lit_loader.profiling.records import LoaderTrace

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


def check_matplotlib(option: str) -> None:
    """Refuse ``option`` if there is no matplotlib, which is not imported for it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise OptionError(
            f"{option} needs matplotlib: pip install matplotlib, or leave it out [LL708]"
        )


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
        consumer = _consumer(loader)
        whole = sum(sum(stages.values()) for stages in consumer)
        waited = sum(record.waited for record in loader.records) / max(whole, 1)
        part.suptitle(
            f"Where the time goes: {loader.name}, {which} {'batch' if every == 1 else 'batches'}; "
            f"the loop waited {percent(waited)} of the time",
            fontsize=14,
        )
        upper, lower = part.subplots(2, 1)
        _stack(upper, consumer, loader.left_out, "In the training process")
        own = all(record.worker < 0 for record in loader.records)
        making = [record.making for record in loader.records]
        _stack(lower, making, loader.left_out, "Making it" if own else "Making it, in a worker")
    return figure


def _consumer(loader: LoaderTrace) -> list[dict[str, int]]:
    steps = {step.given: step for step in loader.steps if step.given}
    found = []
    for record, following in itertools.zip_longest(loader.records, loader.records[1:]):
        step = steps.get(record.given)
        transfer = step.start - step.given if step else 0
        # What came between this batch and the next; the last one of an epoch has only its step.
        whole = following.step if following else 0
        whole = whole or (step.end - step.given if step else 0)
        found.append({**record.taking, "transfer": transfer, "step": max(0, whole - transfer)})
    return found


def _stack(axes: Axes, batches: Sequence[Mapping[str, int]], first: int, title: str) -> None:
    """Draw stages on top of each other; a bar is the mean of as many batches as it takes."""
    width = -(-len(batches) // _BINS)
    edges = np.arange(0, len(batches), width)
    total: Any = 0.0
    for name, colour in _COLOURS.items():  # milliseconds
        values = np.array([stages.get(name, 0) / 1e6 for stages in batches])
        if values.any():
            heights = np.add.reduceat(values, edges) / np.diff([*edges, len(values)])
            label = f"{name} {duration(float(values.mean()) / 1e3)}"
            left = first + edges
            axes.bar(left, heights, width, total, align="edge", color=colour, label=label)
            total = total + heights
    # A first batch takes as long as it takes to start the workers: the others would not be seen.
    usual, most = 1.5 * float(np.percentile(total, 95)), float(np.max(total))
    if usual and most > 1.5 * usual:
        axes.set_ylim(0, usual)
        title += f" (cut off; longest: {most:,.0f} ms)"
    axes.margins(x=0)
    axes.set(title=title, xlabel="batch", ylabel="ms per batch")
    axes.grid(axis="y", color="0.85")
    axes.set_axisbelow(True)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
