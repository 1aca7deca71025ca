"""Compares the curves of the three trainings, to the last bit, and draws them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

Losses = dict[int, float]  # step -> loss


def read(path: Path) -> Losses:
    """Reads what `interruption.callbacks.Curve` wrote."""
    return {line["step"]: line["loss"] for line in map(json.loads, path.read_text().splitlines())}


def verdict(whole: Losses, killed: Losses, resumed: Losses) -> tuple[bool, str]:
    """Returns whether both parts are the uninterrupted curve, and a line that says so."""
    different = [
        step for part in (killed, resumed) for step in part if part[step] != whole.get(step)
    ]
    missing = whole.keys() - killed.keys() - resumed.keys()
    if different:
        return False, f"different at {len(different)} steps, first at step {min(different)}"
    if missing:
        return False, f"{len(missing)} steps are missing, first step {min(missing)}"
    return True, (
        f"identical over {len(whole)} steps: killed after step {max(killed)}, "
        f"resumed at step {min(resumed)}"
    )


def same_weights(one: Path, other: Path) -> bool:
    """Whether two checkpoints hold the same weights, bit for bit."""
    first, second = (torch.load(p, weights_only=True)["state_dict"] for p in (one, other))
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def plot(path: Path, whole: Losses, killed: Losses, resumed: Losses, title: str) -> None:
    """Draws the three curves, one over the other, and the difference below them."""
    figure = Figure(figsize=(9, 6), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    curves, difference = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    curves.plot(*zip(*whole.items(), strict=True), color="0.75", lw=5, label="uninterrupted")
    for part, color, label in ((killed, "#dd8452", "killed"), (resumed, "#4c72b0", "resumed")):
        curves.plot(*zip(*part.items(), strict=True), color=color, lw=1.2, label=label)
        delta = [part[step] - whole.get(step, float("nan")) for step in part]
        difference.plot(list(part), delta, ".", ms=4, color=color)
    for axes in (curves, difference):
        axes.axvline(max(killed), color="#c44e52", lw=1, ls="--")
        axes.axvline(min(resumed) - 1, color="#55a868", lw=1, ls="--")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    place = curves.get_xaxis_transform()
    curves.text(max(killed), 0.98, " SIGKILL", color="#c44e52", va="top", transform=place)
    curves.text(
        min(resumed) - 1, 0.98, "checkpoint ", color="#55a868", va="top", ha="right",
        transform=place,
    )  # fmt: skip
    curves.set(ylabel="training loss", yscale="log")
    curves.set_title(title, loc="left", weight="bold", fontsize=10)
    curves.legend(frameon=False, loc="upper right")
    difference.set(xlabel="training step", ylabel="difference")
    if all(part[step] == whole.get(step) for part in (killed, resumed) for step in part):
        difference.set_ylim(-1, 1)
    figure.savefig(path)
