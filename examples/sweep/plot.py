"""A Hydra callback that compares the runs of a sweep: a table, the best one, a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hydra.experimental.callback import Callback
from omegaconf import DictConfig


class Run(NamedTuple):
    """One run of the sweep."""

    num_workers: int
    prefetch_factor: int
    batches_per_second: float
    wait_fraction: float


def read(directory: Path) -> list[Run]:
    """Reads the runs that lie in a sweep's directory; those that failed are left out."""
    runs = []
    for metrics in directory.glob("*/metrics.json"):
        overrides = yaml.safe_load((metrics.parent / ".hydra" / "overrides.yaml").read_text())
        # The last one counts, as for Hydra.
        chosen = dict(override.lstrip("+").split("=", 1) for override in overrides)
        figures = json.loads(metrics.read_text())
        runs.append(
            Run(
                int(chosen["loader.num_workers"]),
                int(chosen["loader.prefetch_factor"]),
                figures["batches_per_second"],
                figures["wait_fraction"],
            )
        )
    return sorted(runs)


def lines(runs: list[Run]) -> list[str]:
    """Returns the table and the line that names the best run."""
    best = max(runs, key=lambda run: run.batches_per_second)
    return [
        "num_workers  prefetch_factor  batches/s  waited",
        *(
            f"{run.num_workers:>11}  {run.prefetch_factor:>15}  {run.batches_per_second:>9.1f}"
            f"  {run.wait_fraction:>6.1%}"
            for run in runs
        ),
        f"fastest: loader.num_workers={best.num_workers} "
        f"loader.prefetch_factor={best.prefetch_factor}",
    ]


def draw(path: Path, runs: list[Run]) -> None:
    """Draws batches per second and the share of waiting against the number of workers."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    speed, wait = figure.subplots(1, 2)
    for factor in sorted({run.prefetch_factor for run in runs}):
        line = [run for run in runs if run.prefetch_factor == factor]
        workers = [run.num_workers for run in line]
        label = f"prefetch_factor {factor}"
        speed.plot(workers, [run.batches_per_second for run in line], "o-", label=label)
        wait.plot(workers, [100 * run.wait_fraction for run in line], "o-", label=label)
    speed.set(title="Speed", ylabel="batches a second")
    wait.set(title="Wait for data", ylabel="% of the training loop")
    for axes in (speed, wait):
        axes.set_ylim(bottom=0)
        axes.set(xlabel="num_workers", xticks=sorted({run.num_workers for run in runs}))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    speed.legend(frameon=False)
    figure.savefig(path)


class Compare(Callback):
    """Prints the table and writes sweep.png into the sweep's directory, when all runs are done."""

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        directory = Path(config.hydra.sweep.dir).absolute()
        runs = read(directory)
        if not runs:
            return
        draw(directory / "sweep.png", runs)
        print(*lines(runs), f"written to {directory / 'sweep.png'}", sep="\n")
