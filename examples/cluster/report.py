"""Compares the samples that a training on the cluster has had with those of one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

Step = dict[str, Any]


def read(folder: Path) -> list[list[Step]]:
    """Reads the steps of each attempt, those of its ranks put together.

    Returns:
        A list for each attempt, in the order in which they began.
    """
    by_start: list[tuple[int, int, list[Step]]] = []
    for path in folder.glob("*.jsonl"):
        start, rank, _ = path.name.split(".")
        lines = path.read_text().split("\n")[:-1]  # the last one may be cut
        by_start.append((int(start), int(rank[4:]), [json.loads(line) for line in lines]))
    attempts: list[dict[int, list[Step]]] = []
    for _, rank, steps in sorted(by_start):
        if not attempts or rank in attempts[-1]:
            attempts.append({})
        attempts[-1][rank] = steps
    return [_together(list(ranks.values())) for ranks in attempts]


def _together(ranks: list[list[Step]]) -> list[Step]:
    """Puts the steps that all ranks have done together."""
    found = []
    for parts in zip(*ranks, strict=False):
        if len({part["step"] for part in parts}) == 1 and len(parts) == parts[0]["ranks"]:
            ids = sorted(number for part in parts for number in part["ids"])
            loss = sum(part["loss"] for part in parts) / len(parts)
            found.append({**parts[0], "ids": ids, "loss": loss})
    return found


def verdict(attempts: list[list[Step]], expected: list[list[int]]) -> tuple[bool, str]:
    """Says whether each step has had the samples it would have in one process.

    Args:
        attempts: What :func:`read` gives.
        expected: The samples of each step, in order.
    """
    wrong = [s["step"] for steps in attempts for s in steps if s["ids"] != expected[s["step"] - 1]]
    done = {step["step"] for steps in attempts for step in steps}
    missing = sorted(set(range(1, len(expected) + 1)) - done)
    if wrong:
        return False, f"other samples at {len(wrong)} steps, first at step {min(wrong)}"
    if missing:
        return False, f"{len(missing)} steps are missing, first step {missing[0]}"
    parts = [
        f"steps {steps[0]['step']} to {steps[-1]['step']} on {steps[0]['ranks']} "
        f"rank{'' if steps[0]['ranks'] == 1 else 's'}"
        for steps in attempts
        if steps
    ]
    return True, f"the samples of one process at all {len(expected)} steps: {', '.join(parts)}"


def plot(path: Path, attempts: list[list[Step]], title: str) -> None:
    """Draws each attempt's steps over time, and the loss over the steps."""
    figure = Figure(figsize=(9, 6), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    course, losses = figure.subplots(2, 1)
    begin = min(step["time"] for steps in attempts for step in steps)
    for number, steps in enumerate(steps for steps in attempts if steps):
        color = f"C{number}"
        ranks = steps[0]["ranks"]
        label = f"attempt {number + 1}: {ranks} rank{'' if ranks == 1 else 's'}"
        places = [step["step"] for step in steps]
        course.plot(
            [s["time"] - begin for s in steps], places, ".-", ms=3, color=color, label=label
        )
        losses.plot(places, [step["loss"] for step in steps], color=color, lw=1.2)
        if number:
            losses.axvline(places[0] - 1, color="#55a868", lw=1, ls="--")
    course.set(xlabel="seconds", ylabel="training step")
    course.set_title(title, loc="left", weight="bold", fontsize=9)
    course.legend(frameon=False)
    losses.set(xlabel="training step", ylabel="loss", yscale="log")
    for axes in (course, losses):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
