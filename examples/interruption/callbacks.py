"""What the three trainings of the comparison do in addition to training."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint


class Curve(Callback):
    """Writes the loss of each step to a file, at once: what a killed process has written stays.

    Args:
        path: A line of JSON for each step: ``{"step": 1, "loss": 2.3…}``, exact to the last bit.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.path.write_text("")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any
    ) -> None:
        line = json.dumps({"step": trainer.global_step, "loss": float(outputs["loss"])})
        with self.path.open("a") as file:
            file.write(f"{line}\n")


class EverySteps(ModelCheckpoint):
    """A checkpoint every few steps, the newest one kept; each is written as a whole.

    Args:
        path: The checkpoint's file.
        steps: Optimizer steps from one to the next.
    """

    def __init__(self, path: str, steps: int) -> None:
        file = Path(path)
        super().__init__(
            dirpath=file.parent,
            filename=file.stem,
            every_n_train_steps=steps,
            enable_version_counter=False,
            auto_insert_metric_name=False,
        )


class KillAt(Callback):
    """Kills its own process after a step, as the out-of-memory killer would: nothing is tidied up.

    Args:
        step: Number of optimizer steps done by then; null: never.
    """

    def __init__(self, step: int | None = None) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)
