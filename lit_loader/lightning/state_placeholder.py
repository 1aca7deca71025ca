"""The callback that every Trainer gets; makes way for `LoaderStateCallback` where one is needed.

::

    Trainer() ─ entry point ─▶ LoaderStatePlaceholder ┬ a loader of ours ─▶ LoaderStateCallback
                                                      ╰ none of them ─────▶ leaves the Trainer

Lightning saves and restores a loader's state by itself, but neither says which batches have been
trained on nor restores it in all situations; both take a callback (`lightning/state_callback.py`).
For that to work with a change of one import, the callback must come without the user's help: an
installed package may name, under ``lightning.pytorch.callbacks_factory``, callbacks for every
Trainer of the environment.

- A program that has not imported lit_loader gets none (`lightning/trainer_plugin.py`).
- The placeholder itself imports no loader of ours, and leaves the Trainer before the first training
  step unless there is a loader to look after, or a checkpoint with the state of one.
- It leaves, too, where the user or a data module of ours has brought a `LoaderStateCallback`.

Considered instead: a loader that knows by itself which batches were trained on. It would need the
Trainer for that, which a loader is not given, or would have to take a batch for trained on when the
next one is asked for; but a checkpoint is written before that, and does not show whether the step
has failed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from lightning.pytorch import LightningModule, Trainer

from lit_loader.lightning.names import Callback
from lit_loader.lightning.trainer_progress import saved_states

if TYPE_CHECKING:
    from lit_loader.lightning.state_callback import LoaderStateCallback

__all__ = ["LoaderStatePlaceholder"]


class LoaderStatePlaceholder(Callback):
    """Gives its place to a `LoaderStateCallback` once there is a loader of ours, else leaves."""

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Makes way for the callback that restores, if there is something to restore."""
        needed = trainer.state.fn == "fit" and saved_states(checkpoint)
        if needed and (callback := self._make_way(trainer)) is not None:
            callback.on_load_checkpoint(trainer, pl_module, checkpoint)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Makes way for the callback that commits, if there is a loader of ours; leaves anyway."""
        if "lit_loader.loader" in sys.modules:
            from lit_loader.lightning.state_callback import train_loaders

            if train_loaders(trainer):
                if callback := self._make_way(trainer):
                    callback.on_train_start(trainer, pl_module)
                return
        self._leave(trainer)

    def _make_way(self, trainer: Trainer) -> LoaderStateCallback | None:
        """Put a callback in this one's place; None: the Trainer has one already."""
        from lit_loader.lightning.state_callback import LoaderStateCallback, put_first

        self._leave(trainer)
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        if any(isinstance(other, LoaderStateCallback) for other in callbacks):
            return None
        callback = LoaderStateCallback()
        put_first(callback, trainer)
        return callback

    def _leave(self, trainer: Trainer) -> None:
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        # A new list: the Trainer is going through the old one.
        trainer.callbacks = [other for other in callbacks if other is not self]  # type: ignore[attr-defined]
