"""A callback that keeps what the report shows: losses, accuracies, and the wait for each batch."""

from __future__ import annotations

import time

from lightning.pytorch import Callback, LightningModule, Trainer


class History(Callback):
    """Records one training.

    Attributes:
        loss: Training loss of each step.
        wait: Seconds between the end of a step and the start of the next one, for each step: the
            time that the loader keeps the model waiting, and Lightning's own share.
        step: Seconds of each step itself.
        epoch_starts: The number of each epoch's first step.
        epochs: One mapping for each validated epoch: "step" and Lightning's metrics.
    """

    def __init__(self) -> None:
        self.loss: list[float] = []
        self.wait: list[float] = []
        self.step: list[float] = []
        self.epoch_starts: list[int] = []
        self.epochs: list[dict[str, float]] = []
        self._since = 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.epoch_starts.append(len(self.wait))
        self._since = time.perf_counter()

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        now = time.perf_counter()
        self.wait.append(now - self._since)
        self._since = now

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        now = time.perf_counter()
        self.step.append(now - self._since)
        self.loss.append(float(outputs["loss"]))
        # Read again, so that the line above does not count as waiting.
        self._since = time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.epochs.append({"step": len(self.loss), **metrics})
