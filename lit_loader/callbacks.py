"""The Lightning callback that makes a checkpoint hold exactly what was trained on.

::

    Trainer: setup("fit") ─ load_state_dict ─ … loaders are made … ─ on_train_start ─▶ restore, mend
    each batch: fetch ─▶ training_step ─▶ on_train_batch_end ─▶ commit ─▶ checkpoints (later hooks)
    each epoch: on_train_epoch_start ─▶ set_epoch

Lightning asks a loader for its position whenever a checkpoint is written, also when a step has
failed half-way, and by itself restores it in some situations only. So the position that is saved is
the one committed after the last whole step, and it is restored here in all situations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader

from lit_loader.errors import StateError
from lit_loader.loader import DataLoader
from lit_loader.restoring import damaged

__all__ = ["LoaderStateCallback"]


class LoaderStateCallback(Callback):
    """Commits the training loaders' positions step by step, and resumes them exactly.

    `LoaderDataModule` puts one in front of the Trainer's other callbacks, so that it has committed
    a step before a checkpoint of it is written. Without that data module, pass one as the first of
    ``Trainer(callbacks=[...])``; then Lightning's own channel restores the positions in mid-epoch.

    Other loaders than `DataLoader` are left alone.
    """

    def __init__(self) -> None:
        self._restored: list[dict[str, Any]] = []
        self._loaders: list[DataLoader[Any]] = []  # found once an epoch: that takes 50 us

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def state(self, trainer: Trainer) -> dict[str, Any]:
        """Gives the positions of the Trainer's training loaders.

        Args:
            trainer: The Trainer, at any moment; starts nothing.

        Returns:
            Primitives, for `restore`; empty if there is nothing to remember.
        """
        states = self._restored or [loader.state_dict() for loader in _train_loaders(trainer)]
        return {"train": states} if states else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes positions in, for the training loaders of the run that begins next.

        Args:
            state: What `state` gave; an empty one forgets what was taken in before.

        Raises:
            StateError: It is something else. What it says of each loader is that loader's to take.
        """
        if not isinstance(state, Mapping):
            raise damaged("data module's part must be a dict", state, "checkpoint")
        positions = state.get("train", ())
        if not isinstance(positions, (list, tuple)) or not all(
            isinstance(position, Mapping) for position in positions
        ):
            raise damaged("train must be a list of the training loaders' states", positions)
        self._restored = list(positions)

    def restore_single(self, loader: DataLoader[Any]) -> None:
        """Brings a training loader that was just made to its position, if it is the only one.

        `on_train_start` does so for any number of loaders, but comes after the first batch of those
        that have no length: Lightning fetches that one while it sets up.
        """
        if len(self._restored) == 1:
            loader.load_state_dict(self._restored[0])

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Mends what the checkpoint says of Lightning's own progress."""
        if trainer.state.fn == "fit":
            _mend_saved_progress(checkpoint["loops"]["fit_loop"])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Mends Lightning's own progress, restores positions and begins to commit.

        Raises:
            StateError: The checkpoint has the positions of another number of loaders.
        """
        _begin_next_epoch(trainer.fit_loop)
        loaders = self._loaders = _train_loaders(trainer)
        restored, self._restored = self._restored, []
        if restored and len(restored) != len(loaders):
            raise StateError(
                f"the checkpoint has the positions of {len(restored)} training loaders, but there "
                f"are {len(loaders)}: resume with the loaders that it was made with"
            )
        ahead = _fetches_ahead(trainer)
        if not ahead:
            for loader, state in zip(loaders, restored, strict=False):
                loader.load_state_dict(state)
            self._set_epoch(trainer)
        self._commit(ahead)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tells loaders the epoch whose sampler Lightning cannot tell (iterable datasets, say)."""
        self._loaders = _train_loaders(trainer)
        if not _fetches_ahead(trainer):
            self._set_epoch(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Commits: the step that ends here will not be repeated."""
        self._commit(_fetches_ahead(trainer) and not trainer.is_last_batch)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Lets go of the loaders."""
        self._loaders = []

    def _set_epoch(self, trainer: Trainer) -> None:
        # What Lightning itself tells the samplers of the loaders.
        progress: Any = trainer.fit_loop.epoch_progress.current
        for loader in self._loaders:
            loader.set_epoch(progress.processed)

    def _commit(self, ahead: bool) -> None:
        for loader in self._loaders:
            loader.commit(ahead)


def _train_loaders(trainer: Trainer) -> list[DataLoader[Any]]:
    """The Trainer's training loaders that are ours, in the order in which it keeps them."""
    loaders = trainer.train_dataloader
    if loaders is None:
        return []
    return [
        loader for loader in CombinedLoader(loaders).flattened if isinstance(loader, DataLoader)
    ]


def _fetches_ahead(trainer: Trainer) -> bool:
    """Whether Lightning takes batches one ahead, as it does from loaders without length."""
    return math.isinf(trainer.num_training_batches)


def _mend_saved_progress(fit_loop: Mapping[str, Any]) -> None:
    """Correct what a checkpoint says of Lightning's progress, in place.

    Args:
        fit_loop: The checkpoint's ``["loops"]["fit_loop"]``.
    """
    batches, epochs = fit_loop["epoch_loop.batch_progress"], fit_loop["epoch_progress"]
    total = batches["total"]
    if total["ready"] != total["processed"]:
        # A step has failed and is repeated. Counted twice, it makes Lightning misread the next
        # checkpoint; and if it was an epoch's last one, the epoch would end without it.
        total["ready"] = total["started"] = total["processed"]
        batches["is_last_batch"] = False
    cut_off = batches["current"]["processed"] > 0 and not batches["is_last_batch"]
    if cut_off and epochs["current"]["processed"] == epochs["current"]["started"]:
        # Ended in mid-epoch by max_steps or should_stop, and saved after that: Lightning counts the
        # epoch as a whole one and would go on with the next.
        for counts in (epochs["current"], epochs["total"]):
            counts["processed"] = counts["completed"] = counts["started"] - 1


def _begin_next_epoch(fit_loop: Any) -> None:
    """Make Lightning begin an epoch if the checkpoint was saved between two.

    Depending on the hook that saved it, and on max_steps, Lightning would train on one batch more
    in the old epoch, or begin the new one without counting it. Private reach into its loops; there
    is no public way, and ``tests/test_lightning_resume.py`` fails where they change.
    """
    epochs = fit_loop.epoch_progress
    if not fit_loop.is_resuming or epochs.current.ready != epochs.current.processed:
        return
    if epochs.current.completed < epochs.current.processed:
        epochs.increment_completed()
    fit_loop.epoch_loop.restarting = False
    fit_loop._restarting = False  # the property does not take False when there is max_steps
    fit_loop.reset_restart_stage()
