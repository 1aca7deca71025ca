"""What a language model's run leaves behind: metrics.json, training.png and the closing lines."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from digits.history import History
from digits.report import (
    ACCENT,
    ACCURACY,
    LOSS,
    WAIT,
    canvas,
    remarks,
    summary,
    trained,
    written,
)

__all__ = ["lines", "summary", "write"]

COLORS = (ACCENT, ACCURACY, WAIT, "#c44e52")
SMOOTHED = 20  # steps


def write(directory: Path, history: History, figures: dict[str, Any]) -> None:
    """Writes metrics.json and training.png."""
    (directory / "metrics.json").write_text(json.dumps(figures, indent=2) + "\n")
    figure, (bits, wait) = canvas(2)
    steps = range(1, len(history.loss) + 1)
    values = [loss / math.log(2) for loss in history.loss]
    bits.plot(steps, values, color=LOSS, lw=0.6, alpha=0.35)
    bits.plot(steps, _smooth(values), color=LOSS, lw=1.5, label="training")
    names = [n for n in (history.epochs or [{}])[-1] if n.startswith("val") and n.endswith("bits")]
    for name, color in zip(names, COLORS, strict=False):
        points = [(epoch["step"], epoch[name]) for epoch in history.epochs if name in epoch]
        bits.plot(*zip(*points, strict=True), "o-", ms=3, color=color, label=name)
    for name, style in (("baseline/unigram_bits", ":"), ("baseline/zlib_bits", "--")):
        if name in figures:
            label = f"{name.split('/')[1].removesuffix('_bits')}: {figures[name]:.2f}"
            bits.axhline(figures[name], color="0.3", ls=style, lw=1, label=label)
    bits.set(ylabel="bits per byte", ylim=(0, 8.2))
    bits.legend(frameon=False, ncols=2)
    wait.plot(steps, [1000 * w for w in history.wait], ".", ms=3, color=WAIT, label="wait")
    wait.plot(steps, [1000 * s for s in history.step], ".", ms=3, color="0.6", label="step itself")
    wait.set(xlabel="training step", ylabel="milliseconds", yscale="log")
    wait.legend(frameon=False, ncols=2)
    figure.savefig(directory / "training.png")


def _smooth(values: list[float]) -> list[float]:
    """The mean of each value and those shortly before it."""
    windows = (values[max(0, end - SMOOTHED) : end] for end in range(1, len(values) + 1))
    return [sum(window) / len(window) for window in windows]


def lines(directory: Path, figures: dict[str, Any]) -> list[str]:
    """Returns the lines that end a run on the console."""
    result = [trained(figures)]
    bits = {name: value for name, value in figures.items() if name.endswith("bits")}
    shown = {n: v for n, v in bits.items() if n.startswith(("test", "baseline"))} or bits
    if shown:
        result.append("bits per byte (8 without knowing anything):")
        result += [f"  {name:<26}{value:.3f}" for name, value in sorted(shown.items())]
    result += remarks(figures)
    if "sample" in figures:
        result.append("the model writes:")
        sample = (line.rstrip() for line in figures["sample"].splitlines())
        result += [f"  | {line[:100]}" for line in sample if line]
    return result + written(directory)
