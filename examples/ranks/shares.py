"""A callback that logs how the data was divided among the ranks, and draws their losses."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

log = logging.getLogger(__name__)


class Shares(Callback):
    """Logs a line for each rank at the end of training, and draws each rank's losses.

    Args:
        path: The picture's file.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._losses: list[float] = []
        self._samples: list[int] = []
        self._all: list[dict[str, Any]] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._samples.append(0)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any
    ) -> None:
        self._samples[-1] += len(batch[1])
        self._losses.append(float(outputs["loss"]))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        mine = {
            "rank": trainer.global_rank,
            "node": trainer.node_rank,
            "pid": os.getpid(),
            "samples": self._samples,
            "losses": self._losses,
        }
        self._all = [mine]
        if dist.is_initialized():
            self._all = [{} for _ in range(trainer.world_size)]
            dist.all_gather_object(self._all, mine)
        if trainer.is_global_zero:
            for rank in self._all:
                log.info(
                    "rank %(rank)d (process %(pid)d of node %(node)d): %(samples)s images an epoch",
                    {**rank, "samples": " or ".join(map(str, sorted(set(rank["samples"]))))},
                )
            self._draw()

    def figures(self) -> dict[str, Any]:
        """Returns what goes into metrics.json: images of each rank in each epoch."""
        return {"images_of_ranks": [rank["samples"] for rank in self._all]}

    def _draw(self) -> None:
        figure = Figure(figsize=(9, 4), layout="constrained", dpi=120)
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        steps = range(1, len(self._all[0]["losses"]) + 1)
        for rank in self._all:
            axes.plot(steps, rank["losses"], lw=0.8, alpha=0.6, label=f"rank {rank['rank']}")
        columns = zip(*(rank["losses"] for rank in self._all), strict=True)
        axes.plot(steps, [sum(c) / len(c) for c in columns], color="0.2", lw=1.5, label="mean")
        axes.set(xlabel="training step", ylabel="loss of each rank's part", yscale="log")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        figure.savefig(self.path)
