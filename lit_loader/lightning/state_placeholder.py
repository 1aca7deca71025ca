"""The Trainer's callback for loaders of ours, there without a line of the user's.

::

    Trainer() ─ entry point ─▶ LoaderStateOnDemand ─ a loader of ours ─▶ LoaderStateCallback
                                       ╰─ none when training starts ─▶ leaves the Trainer

Lightning saves and restores a loader's position by itself, but neither says which batches have been
trained on nor restores it in all situations; both take a callback (`lightning/state_callback.py`).
That one is put in here, so that a change of one import is enough: an installed package may name,
under ``lightning.pytorch.callbacks_factory``, callbacks for every Trainer of the environment.

- A program that has not imported lit_loader is given none (`lightning/trainer_plugin.py`).
- This one here imports no loader of ours, and leaves the Trainer before the first training step
  unless there is a loader to look after, or a checkpoint with the position of one.
- It steps back where the user, or `LoaderDataModule`, has brought a `LoaderStateCallback`.

Considered instead: a loader that knows by itself which batches were used. It would need the Trainer
for that, which nobody gives to a loader, or could take a batch for used when the next one is asked
for; but a checkpoint is written before that, and does not tell whether the step has failed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lit_loader.lightning.trainer_progress import positions_in

if TYPE_CHECKING:
    from lit_loader.lightning.state_callback import LoaderStateCallback

__all__ = ["LoaderStateOnDemand"]


class LoaderStateOnDemand(Callback):
    """Gives its place to a `LoaderStateCallback` once there is a loader of ours, or goes."""

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Makes way for the callback that restores, if there is something to restore."""
        needed = trainer.state.fn == "fit" and positions_in(checkpoint)
        if needed and (callback := self._make_way(trainer)) is not None:
            callback.on_load_checkpoint(trainer, pl_module, checkpoint)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Makes way for the callback that commits, if there is a loader of ours, and goes."""
        if "lit_loader.loader" in sys.modules:
            from lit_loader.lightning.state_callback import train_loaders

            if train_loaders(trainer):
                if callback := self._make_way(trainer):
                    callback.on_train_start(trainer, pl_module)
                return
        self._leave(trainer)

    def _make_way(self, trainer: Trainer) -> LoaderStateCallback | None:
        """Put a callback in the place of this one; None: the Trainer has one."""
        from lit_loader.lightning.state_callback import LoaderStateCallback, put_in_front

        self._leave(trainer)
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        if any(isinstance(other, LoaderStateCallback) for other in callbacks):
            return None
        callback = LoaderStateCallback()
        put_in_front(callback, trainer)
        return callback

    def _leave(self, trainer: Trainer) -> None:
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        # A new list: the Trainer is going through the old one.
        trainer.callbacks = [other for other in callbacks if other is not self]  # type: ignore[attr-defined]
