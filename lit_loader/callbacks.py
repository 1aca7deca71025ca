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
        """
        self._restored = list(state.get("train", ()))

    def restore_single(self, loader: DataLoader[Any]) -> None:
        """Brings a training loader that was just made to its position, if it is the only one.

        `on_train_start` does so for any number of loaders, but comes after the first batch of those
        that have no length: Lightning fetches that one while it sets up.
        """
        if len(self._restored) == 1:
            loader.load_state_dict(self._restored[0])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Mends Lightning's own progress, restores positions and begins to commit.

        Raises:
            StateError: The checkpoint has the positions of another number of loaders.
        """
        _mend_progress(trainer)
        loaders = self._loaders = _train_loaders(trainer)
        restored, self._restored = self._restored, []
        if restored and len(restored) != len(loaders):
            raise StateError(
                f"the checkpoint has the positions of {len(restored)} training loaders, but there "
                f"are {len(loaders)}: resume with the loaders that it was made with"
            )
        if _starts_late(trainer):
            return
        for loader, state in zip(loaders, restored, strict=False):
            loader.load_state_dict(state)
        self._set_epoch(trainer)
        self._commit()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tells loaders the epoch whose sampler Lightning cannot tell (iterable datasets, say)."""
        if not _starts_late(trainer):
            self._loaders = _train_loaders(trainer)
            self._set_epoch(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Commits: the step that ends here will not be repeated."""
        if not _starts_late(trainer):
            self._commit()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Lets go of the loaders."""
        self._loaders = []

    def _set_epoch(self, trainer: Trainer) -> None:
        # What Lightning itself tells the samplers of the loaders.
        progress: Any = trainer.fit_loop.epoch_progress.current
        for loader in self._loaders:
            loader.set_epoch(progress.processed)

    def _commit(self) -> None:
        for loader in self._loaders:
            loader.commit()


def _train_loaders(trainer: Trainer) -> list[DataLoader[Any]]:
    """The Trainer's training loaders that are ours, in the order in which it keeps them."""
    loaders = trainer.train_dataloader
    if loaders is None:
        return []
    return [
        loader for loader in CombinedLoader(loaders).flattened if isinstance(loader, DataLoader)
    ]


def _starts_late(trainer: Trainer) -> bool:
    """Whether Lightning fetches a batch ahead, as it does for loaders without length."""
    return math.isinf(trainer.num_training_batches)


def _mend_progress(trainer: Trainer) -> None:
    """Make Lightning count on correctly after a checkpoint from the end of an epoch.

    Private reach into Lightning's loops; there is no public way, and
    ``tests/test_lightning_resume.py`` fails where they change.
    """
    fit_loop = trainer.fit_loop
    progress: Any = fit_loop.epoch_progress
    if fit_loop.restarted_mid_epoch and progress.current.ready == progress.current.processed:
        # Saved after an epoch's last batch: that epoch is over, and the next one must be begun.
        fit_loop.reset_restart_stage()
    elif fit_loop.restarted_on_epoch_end:
        # Saved in on_train_epoch_end, with max_steps: Lightning would restart the epoch, by which
        # one batch more is taken.
        progress.increment_completed()
        fit_loop.epoch_loop.restarting = False
        fit_loop._restarting = False  # its property does not take False when there is max_steps
        fit_loop.reset_restart_stage()
