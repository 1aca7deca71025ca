"""What a run leaves behind: ``metrics.json``, ``training.png`` and a few lines on the console."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from digits.history import History

LOSS, ACCURACY, WAIT = "#4c72b0", "#55a868", "#8172b3"
ACCENT = "#dd8452"

_WRITTEN = {
    "training.png": "loss and wait for each step",
    "predictions.png": "test images, mistakes first",
    "ranks.png": "each rank's losses",
    "padding.png": "the batches' shapes, and what padding they save",
    "mixture.png": "the sources' shares and losses",
    "frequencies.png": "how often each class comes, without and with weights",
    "metrics.json": "all figures of the run",
    "csv/metrics.csv": "the figures of each epoch",
    "checkpoints": "best.ckpt and last.ckpt",
    "train.log": "this log",
    ".hydra/config.yaml": "the configuration",
}


def canvas(rows: int, height: float = 3.0) -> tuple[Figure, Any]:
    """Returns a figure and its axes, one above the other; without pyplot: no display, no state."""
    figure = Figure(figsize=(8, height * rows), layout="constrained", dpi=130)
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, 1, squeeze=False)[:, 0]
    for each in axes:
        each.grid(alpha=0.25)
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def summary(history: History, test: dict[str, float], seconds: float) -> dict[str, Any]:
    """Returns the figures of a run as JSON-ready values; times in milliseconds or seconds."""
    waits = sorted(1000 * wait for wait in history.wait)
    last = {name: value for name, value in (history.epochs or [{}])[-1].items() if name != "step"}
    return {
        **last,
        **test,
        "epochs": len(history.epoch_starts),
        "steps": len(history.loss),
        "fit_seconds": round(seconds, 2),
        "wait_ms_median": round(statistics.median(waits), 3) if waits else None,
        "wait_ms_p95": round(waits[int(0.95 * (len(waits) - 1))], 3) if waits else None,
        "step_ms_median": round(1000 * statistics.median(history.step), 3) if waits else None,
    }


def write(directory: Path, history: History, figures: dict[str, Any]) -> None:
    """Writes metrics.json and training.png."""
    (directory / "metrics.json").write_text(json.dumps(figures, indent=2) + "\n")
    figure, (loss, accuracy, wait) = canvas(3)
    _plot_loss(loss, history)
    _plot_accuracy(accuracy, history, figures)
    _plot_wait(wait, history, figures)
    wait.set_xlabel("training step")
    for axes in (loss, accuracy, wait):
        axes.set_title(axes.get_title(), loc="left", weight="bold")
        axes.set_title("")
        axes.legend(frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 0.98))
    figure.savefig(directory / "training.png")


def _plot_loss(axes: Any, history: History) -> None:
    steps = range(1, len(history.loss) + 1)
    axes.plot(steps, history.loss, color=LOSS, lw=0.8, alpha=0.6, label="training, each step")
    _plot_epochs(axes, history, "val/loss", ACCENT, "validation")
    axes.set(title="Loss", ylabel="cross entropy", yscale="log")


def _plot_accuracy(axes: Any, history: History, figures: dict[str, Any]) -> None:
    _plot_epochs(axes, history, "train/acc", ACCURACY, "training")
    _plot_epochs(axes, history, "val/acc", ACCENT, "validation")
    if "test/acc" in figures:
        test = figures["test/acc"]
        axes.axhline(test, color="0.3", ls="--", lw=1, label=f"test: {test:.4f}")
    shown = [e[k] for e in history.epochs for k in ("train/acc", "val/acc") if k in e]
    # The first epochs would press the rest together at the top.
    lowest = min(shown[2:] or [0])
    axes.set(
        title="Accuracy",
        ylabel="share that is right",
        ylim=(max(0, lowest - 0.05 * (1 - lowest)), 1.005),
    )


def _plot_wait(axes: Any, history: History, figures: dict[str, Any]) -> None:
    first = set(history.epoch_starts)
    waits = [(step + 1, 1000 * wait, step in first) for step, wait in enumerate(history.wait)]
    inside = [(step, wait) for step, wait, is_first in waits if not is_first]
    starts = [(step, wait) for step, wait, is_first in waits if is_first]
    if inside:
        axes.plot(*zip(*inside, strict=True), ".", ms=3, color=WAIT, label="within an epoch")
    if starts:
        axes.plot(*zip(*starts, strict=True), "o", ms=4, color=ACCENT, label="first of an epoch")
        axes.axhline(
            figures["wait_ms_median"],
            color="0.3",
            ls="--",
            lw=1,
            label=f"median: {figures['wait_ms_median']:.2f} ms",
        )
    axes.set(title="Wait per step", ylabel="milliseconds", yscale="log")


def _plot_epochs(axes: Any, history: History, name: str, color: str, label: str) -> None:
    points = [(epoch["step"], epoch[name]) for epoch in history.epochs if name in epoch]
    if points:
        axes.plot(*zip(*points, strict=True), "o-", ms=3, color=color, label=label)


def lines(directory: Path, figures: dict[str, Any]) -> list[str]:
    """Returns the lines that end a run on the console."""
    result = [trained(figures)]
    if "test/acc" in figures:
        result.append(f"test/acc {figures['test/acc']:.4f}   test/loss {figures['test/loss']:.4f}")
    return result + remarks(figures) + written(directory)


def remarks(figures: dict[str, Any]) -> list[str]:
    """Returns what the callbacks have to say."""
    return [value for name, value in figures.items() if name.startswith("remark/")]


def written(directory: Path) -> list[str]:
    """Returns the lines that name what a run has left behind."""
    files = (f"  {k:<20}{v}" for k, v in _WRITTEN.items() if (directory / k).exists())
    return [f"written to {directory}:", *files]


def trained(figures: dict[str, Any]) -> str:
    """Returns the line that says how long the training took."""
    wait, step = _ms(figures["wait_ms_median"]), _ms(figures["step_ms_median"])
    return (
        f"trained {_counted(figures['epochs'], 'epoch')}, {_counted(figures['steps'], 'step')} in "
        f"{figures['fit_seconds']:.1f} s; median wait for a batch {wait}, median step {step}"
    )


def _ms(figure: float | None) -> str:
    return "none" if figure is None else f"{figure:.3g} ms"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
