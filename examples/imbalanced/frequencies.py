"""A callback that counts how often each class comes in training, over all processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from digits.report import ACCENT, LOSS, canvas
from lightning.pytorch import Callback, LightningModule, Trainer


class Frequencies(Callback):
    """Counts the labels of the batches, adds up what the processes have counted, and plots it."""

    def __init__(self, classes: int = 10) -> None:
        self.own = torch.zeros(classes, dtype=torch.int64)
        self.pooled = self.own
        self._data = np.zeros(classes)
        self._processes = 1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        labels = trainer.train_dataloader.dataset.labels
        self._data = np.bincount(labels, minlength=len(self.own)) / len(labels)
        self._processes = trainer.world_size

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self.own += torch.bincount(batch[1].cpu(), minlength=len(self.own))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.pooled = trainer.strategy.reduce(self.own.clone(), reduce_op="sum")
        if trainer.is_global_zero:
            self._plot(Path(trainer.default_root_dir))

    @property
    def _shares(self) -> np.ndarray:
        return self.pooled.numpy() / max(1, int(self.pooled.sum()))

    def _plot(self, directory: Path) -> None:
        figure, (axes,) = canvas(1, height=4)
        classes = np.arange(len(self.own))
        axes.bar(classes - 0.2, 100 * self._data, 0.4, color="0.7", label="in the data")
        label = f"in the batches of {self._processes} processes"
        axes.bar(classes + 0.2, 100 * self._shares, 0.4, color=LOSS, label=label)
        axes.axhline(100 / len(classes), color=ACCENT, lw=1, ls="--", label="all equal")
        axes.set(xlabel="digit", ylabel="% of the samples", xticks=classes)
        axes.legend(frameon=False)
        figure.savefig(directory / "frequencies.png")

    def figures(self) -> dict[str, Any]:
        """What goes into metrics.json."""
        data, drawn = 100 * self._data, 100 * self._shares
        return {
            "processes": self._processes,
            "samples": int(self.pooled.sum()),
            "frequencies_in_data": [round(float(share), 5) for share in self._data],
            "frequencies": [round(float(share), 5) for share in self._shares],
            "remark/frequencies": f"a digit is {data.min():.1f} to {data.max():.1f} % of the data "
            f"and {drawn.min():.1f} to {drawn.max():.1f} % of the {int(self.pooled.sum()):,} "
            f"samples that {self._processes} processes trained on",
        }
