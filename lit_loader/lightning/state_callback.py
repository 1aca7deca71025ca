"""The Lightning callback that makes a checkpoint hold exactly what was trained on.

::

    Trainer: setup("fit") ─ load_state_dict ─ … loaders are made … ─ on_train_start ─▶ restore, mend
    each batch: fetch ─▶ training_step ─▶ on_train_batch_end ─▶ commit ─▶ checkpoints (later hooks)
    each epoch: on_train_epoch_start ─▶ set_epoch

Lightning asks a loader for its position whenever a checkpoint is written, also when a step has
failed half-way, and by itself restores it in some situations only. So the position that is saved is
the one committed after the last whole step, and it is restored here in all situations, from where
Lightning has put it; its own progress is mended in `lightning/trainer_progress.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader

from lit_loader.checkpoint.untrusted_state import damaged
from lit_loader.errors import StateError
from lit_loader.lightning.trainer_progress import (
    Moved,
    begin_next_epoch,
    count_steps,
    follow,
    mend_saved,
    positions_in,
)
from lit_loader.loader import DataLoader

__all__ = ["LoaderStateCallback", "train_loaders"]


class LoaderStateCallback(Callback):
    """Commits the training loaders' positions step by step, and resumes them exactly.

    `LoaderDataModule` brings one along. Without that data module the Trainer has one by itself if
    lit_loader is installed and imported before the Trainer is made
    (`lightning/automatic_callback.py`); else pass one in ``Trainer(callbacks=[...])``. It puts
    itself in front of the other callbacks, so that it has committed a step before a checkpoint of
    it is written.

    Other loaders than `DataLoader` are left alone.
    """

    __module__ = "lit_loader"

    def __init__(self) -> None:
        self._restored: list[dict[str, Any]] = []
        self._resumes = False
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
        states = self._restored or [loader.state_dict() for loader in train_loaders(trainer)]
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

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Goes in front of the other callbacks, and forgets what an earlier fit was to restore."""
        if stage == "fit":
            self.restore({})
            self._resumes = False
            put_in_front(self, trainer)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Takes in the positions of the loaders, and mends what is said of Lightning's progress."""
        if trainer.state.fn != "fit":
            return
        # A data module has handed its own in before; one that keeps none leaves it to Lightning.
        self._restored = self._restored or positions_in(checkpoint)
        if self._restored:
            mend_saved(checkpoint["loops"]["fit_loop"])
            self._resumes = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Mends Lightning's own progress, restores positions and begins to commit.

        Raises:
            StateError: The checkpoint has the positions of another number of loaders.
        """
        between = self._resumes and begin_next_epoch(trainer.fit_loop)
        loaders = self._loaders = train_loaders(trainer)
        restored, self._restored = self._restored, []
        if restored and len(restored) != len(loaders):
            raise StateError(
                f"the checkpoint has the positions of {len(restored)} training loaders, but there "
                f"are {len(loaders)}: resume with the loaders that it was made with"
            )
        ahead = _fetches_ahead(trainer)
        self._commit(ahead)
        if restored:
            moved = self._restore_loaders(trainer, restored, ahead, between)
            if not between:
                follow(trainer, moved)
        if not ahead:
            self._set_epoch(trainer)
        self._commit(ahead)

    def _restore_loaders(
        self, trainer: Trainer, states: Sequence[dict[str, Any]], ahead: bool, between: bool
    ) -> list[Moved]:
        """Bring the loaders to their positions; tell what that means in batches."""
        fit_loop: Any = trainer.fit_loop
        # Before an epoch later than the first, Lightning takes new iterators itself; not in recent
        # releases, if it has just been restored.
        renews = between and trainer.current_epoch > 0 and not getattr(fit_loop, "is_resuming", 0)
        begun = not ahead or renews or any(map(_is_elsewhere, self._loaders, states))
        moved = []
        for loader, state in zip(self._loaders, states, strict=True):
            if begun:
                loader.load_state_dict(state)
            after: int = loader.state_dict()["batches"]
            length = math.inf if ahead else len(loader)
            moved.append(Moved(state["batches"], after, length))
        if ahead and begun and not renews:
            # The batch that was taken ahead is of another place.
            iter(fit_loop._data_fetcher)
        return moved

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tells loaders the epoch whose sampler Lightning cannot tell (iterable datasets, say)."""
        self._loaders = train_loaders(trainer)
        if not _fetches_ahead(trainer):
            self._set_epoch(trainer)

    def on_train_batch_start(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Mends what Lightning counts before it comes to its first batch."""
        if self._resumes:
            self._resumes = False
            count_steps(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Commits: the step that ends here will not be repeated."""
        within = not trainer.is_last_batch
        self._commit(within and _fetches_ahead(trainer), within)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Lets go of the loaders."""
        self._loaders = []

    def _set_epoch(self, trainer: Trainer) -> None:
        # What Lightning itself tells the samplers of the loaders.
        progress: Any = trainer.fit_loop.epoch_progress.current
        for loader in self._loaders:
            loader.set_epoch(progress.processed)

    def _commit(self, ahead: bool, within: bool = False) -> None:
        for loader in self._loaders:
            loader.commit(ahead, within)


def put_in_front(callback: Callback, trainer: Trainer) -> None:
    """Let a callback be the Trainer's first, and the only one of its kind."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    # A new list: the Trainer may be going through the old one.
    others = [other for other in callbacks if not isinstance(other, type(callback))]
    trainer.callbacks = [callback, *others]  # type: ignore[attr-defined]


def train_loaders(trainer: Trainer) -> list[DataLoader[Any]]:
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


def _is_elsewhere(loader: DataLoader[Any], state: Mapping[str, Any]) -> bool:
    """Whether a loader that was restored or not, and then begun, did not begin where it should."""
    begun = loader.state_dict()
    return any(begun[name] != state.get(name) for name in ("epoch", "batches", "fingerprint"))
