"""A callback that puts the training loader's speed into metrics.json."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lit_loader import DataLoader


class Speed(Callback):
    """Measures how fast the trainer got its batches."""

    def __init__(self) -> None:
        self._figures: dict[str, Any] = {}

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loader = trainer.train_dataloader
        assert isinstance(loader, DataLoader)
        statistics = loader.statistics()
        worker_seconds = statistics.seconds * max(1, loader.num_workers)
        self._figures = {
            "batches_per_second": statistics.batches / statistics.seconds,
            "wait_fraction": statistics.wait_fraction,
            "worker_busy": statistics.busy / worker_seconds,
        }

    def figures(self) -> dict[str, Any]:
        """Returns what goes into metrics.json; fractions are of the loop's time."""
        return self._figures
