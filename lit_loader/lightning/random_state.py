"""`RandomStateCallback`: keeps the training process's random generators in checkpoints."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer

from lit_loader.describe import public
from lit_loader.lightning.names import Callback
from lit_loader.lightning.trainers import our_loaders

__all__ = ["RandomStateCallback"]


@public
class RandomStateCallback(Callback):
    """Saves the random generators of the training process, and restores them on a resume.

    Lightning does not. With this callback a resumed run is the uninterrupted one bit for bit, with
    dropout, and loaders without ``seed=`` continue with the passes that would have come.

    It keeps the generators of torch (CUDA too), NumPy and Python. Each rank restores what the first
    rank has saved.

    Examples:
        >>> from lightning.pytorch import Trainer
        >>> from lightning.pytorch.callbacks import ModelCheckpoint
        >>> from lit_loader import RandomStateCallback
        >>> checkpoint = ModelCheckpoint("checkpoints", every_n_train_steps=500, save_last=True)
        >>> trainer = Trainer(callbacks=[checkpoint, RandomStateCallback()], logger=False)

        Then ``trainer.fit(model, ckpt_path="last")`` continues the run that was interrupted.
    """

    def __init__(self) -> None:
        super().__init__()
        self._saved: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the generators."""
        legacy: Any = np.random.get_state(legacy=False)
        words = legacy["state"].pop("key", None)
        state = {"torch": torch.get_rng_state(), "python": random.getstate()}
        state["numpy"] = {**legacy, "key": None if words is None else words.tolist()}
        if torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state_all()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the states until the training begins."""
        self._saved = state_dict

    def restore(self) -> bool:
        """Set the generators to what a checkpoint has; return whether there was one."""
        saved = self._saved
        if saved is None:
            return False
        torch.set_rng_state(saved["torch"].cpu())
        version, words, reserve = saved["python"]
        random.setstate((version, tuple(words), reserve))
        state = {**saved["numpy"], "state": dict(saved["numpy"]["state"])}
        if (words := state.pop("key")) is not None:
            state["state"]["key"] = np.array(words, np.uint32)
            np.random.set_state(state)
        if "cuda" in saved and torch.cuda.is_available():
            torch.cuda.set_rng_state_all([each.cpu() for each in saved["cuda"]])
        return True

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, *args: object
    ) -> None:
        """Restore them once more: what comes before the first step may have drawn."""
        if self.restore():
            self._saved = None
            for loader in our_loaders(trainer.train_dataloader):
                loader._core.draw_again()
