"""`LoaderStateCallback`: makes a checkpoint hold exactly what was trained on, and resumes there.

Every Trainer gets one by itself (`lightning/trainer_plugin.py`), users pass one in
``Trainer(callbacks=[...])``, and the data modules of ours bring one along where there is none::

    a fit:      setup ─▶ on_load_checkpoint ─▶ loaders are made ─▶ on_train_start: restore, correct
    a checkpoint: on_save_checkpoint: the readers of a stream, of all ranks
    an epoch:   on_train_epoch_start: set_epoch
    validation: on_validation_start: new loaders go on from those before; on_validation_end: noted
    a batch:    fetch ─▶ training_step ─▶ on_train_batch_end: commit ─▶ later hooks: checkpoints

Lightning asks a loader for its state whenever a checkpoint is written, also when a step has failed
half-way, and by itself restores it in some situations only. So the state that is saved is the one
committed after the last whole step, and it is restored here in all situations, from where Lightning
has put it: with its own progress, which is corrected by `lightning/trainer_progress.py`.

One that has come by itself makes way for another one, and leaves the Trainer before the first step
if there is no loader to look after. Until then it imports no loader: the program may have none of
ours, and may have had lit_loader imported by Hydra.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch.utils.data import IterableDataset

from lit_loader.core.seeding.bases import rehearsal
from lit_loader.core.state.position import Position
from lit_loader.describe import public
from lit_loader.errors import StateError
from lit_loader.lightning.names import Callback, combined
from lit_loader.lightning.rank_states import RankStates
from lit_loader.lightning.sampler_advice import advise_on_batch_sampler
from lit_loader.lightning.saved_by_lightning import CALLBACKS
from lit_loader.lightning.trainer_progress import (
    before_first_fetch,
    begin_next_epoch,
    correct_logged_step,
    correct_progress,
    is_amid,
    is_ours,
    mark_consumed,
    recount_batches,
    states_in,
)

if TYPE_CHECKING:
    from lit_loader.loader import DataLoader

__all__ = ["LoaderStateCallback", "our_loaders"]

_STATES: Final = "combined_loader"
_WORKERS: Final = "lit_loader_workers"
_VALIDATION: Final = "lit_loader_validation"
"""Where a checkpoint has the loaders' states, how many workers "auto" has found best, and where
validation's loaders have left their seeds."""


_NO_POSITION: Final = (
    "lit_loader: the checkpoint was saved in mid-epoch, and has no position of a training loader: "
    "the run that saved it had another loader than lit_loader's. Lightning goes on in the middle "
    "of the epoch, but the loader begins at its start: samples that were trained on come again, "
    "and the rest of the epoch is left out. Resume from a checkpoint that was saved at the end of "
    "an epoch, and change the loader there [LL327]"
)


@public
class LoaderStateCallback(Callback):
    """Commits the training loaders' states step by step, and resumes them exactly.

    The Trainer has one by itself if lit_loader is installed and imported before the Trainer is
    made, and `LoaderDataModule` brings one along; else pass one in ``Trainer(callbacks=[...])``. It
    puts itself in front of the other callbacks, so that it has committed a step before a checkpoint
    of it is written.

    Other loaders than `DataLoader` are left alone.
    """

    came_by_itself = False

    def __init__(self) -> None:
        self._saved: list[Any] = []  # states to restore, with those of other loaders
        self._is_amid = False  # whether the checkpoint is of mid-epoch, and has no such states
        self._workers_hint: Any = None
        self._resumes = False
        self._has_begun = False  # whether the epoch's first batch was fetched before its hooks
        self._rank_states = RankStates()
        self._loaders: list[DataLoader[Any]] = []  # found once an epoch: that takes 50 µs
        self._reloaded: Any = None  # the epoch in which Lightning has reloaded them last
        # Validation's loaders, and where the last pass of each has left its seeds.
        self._validation: list[tuple[Callable[[], Any], dict[str, Any]]] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_validation": [(_nobody, place) for _, place in self._validation]}

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Becomes the Trainer's first callback, and forgets what an earlier fit was to restore."""
        if stage != "fit":
            return
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        others = [c for c in callbacks if isinstance(c, LoaderStateCallback) and c is not self]
        if self.came_by_itself and others:
            _put_first(others[0], trainer)
            return
        self._saved, self._workers_hint, self._is_amid, self._validation = [], None, False, []
        _put_first(self, trainer)
        CALLBACKS.add(self)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keeps the loaders' states, and corrects the Trainer's progress in the checkpoint."""
        if trainer.state.fn != "fit":
            return
        saved = states_in(checkpoint).get(_STATES, [])
        self._workers_hint = checkpoint.get(_WORKERS)
        self._validation = [(_nobody, each) for each in checkpoint.get(_VALIDATION, ())]
        if any(map(is_ours, saved)):
            self._saved = saved
            correct_progress(checkpoint["loops"]["fit_loop"])
            before_first_fetch(trainer.fit_loop, lambda: self._restore_streams(trainer))
        else:
            self._is_amid = is_amid(checkpoint)

    def _restore_streams(self, trainer: Trainer) -> None:
        """Give streams their states before Lightning has taken a batch of them."""
        loaders, states = train_loaders(trainer), [*filter(is_ours, self._saved)]
        if len(loaders) == len(states):  # else :meth:`on_train_start` says that they are not
            for loader, state in zip(loaders, states, strict=True):
                if _is_iterable(loader):
                    loader.load_state_dict(state)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Puts the readers of all ranks into the loaders' states, which hold those of one."""
        states = states_in(checkpoint)
        if self._saved:  # its loaders are not made, or not restored
            states[_STATES] = [*self._saved]
        own = [*filter(is_ours, states.get(_STATES, ()))]
        merged = iter(self._rank_states.merged(own, trainer.current_epoch, trainer.global_step))
        if own:
            states[_STATES] = [next(merged) if is_ours(each) else each for each in states[_STATES]]
        # A hint, and no part of the position: whatever it is, the data is the same.
        autos = [loader._core.auto for loader in train_loaders(trainer)]
        hint = [each.setting.workers if each and each.measured else 0 for each in autos]
        if any(hint):
            checkpoint[_WORKERS] = hint
        if self._validation:
            checkpoint[_VALIDATION] = [dict(each) for _, each in self._validation]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restores the loaders, corrects Lightning's own progress and begins to commit.

        Raises:
            StateError: The checkpoint has the states of another number of loaders.
        """
        loaders = self._loaders = train_loaders(trainer)
        self._reloaded = _reloaded(trainer)
        if self.came_by_itself and not loaders and not self._saved:
            # A new list: the Trainer is going through the old one.
            trainer.callbacks = [c for c in trainer.callbacks if c is not self]  # type: ignore[attr-defined]
            return
        self._rank_states.begin_fit()
        for loader in loaders:
            loader._core.epochs.tells = True
        states, self._saved = [*filter(is_ours, self._saved)], []
        self._resumes = bool(states)
        between = self._resumes and begin_next_epoch(trainer.fit_loop)
        hint, self._workers_hint = self._workers_hint, None
        for loader, workers in zip(loaders, hint if isinstance(hint, list) else (), strict=False):
            if loader._core.auto is not None and isinstance(workers, int):
                loader._core.auto.begin_with(workers)
        if states and len(states) != len(loaders):
            raise StateError(
                f"the checkpoint has the positions of {len(states)} training loaders, but there "
                f"are {len(loaders)}: resume with the loaders that it was made with [LL328]"
            )
        ahead = _fetches_ahead(trainer)
        self._commit(ahead)
        if states:
            self._restore_loaders(trainer, states, ahead, between)
        if states and not between:
            mark_consumed(trainer, loaders, states)
            recount_batches(trainer, loaders, states)
        # Else the batch that was taken ahead is thrown away: in a later fit, too.
        renews = _is_through(trainer) if states and not between else _renews(trainer)
        self._has_begun = ahead and not renews
        if not ahead:
            self._set_epoch(trainer)
        if ahead:
            for loader in loaders:
                loader._core.epochs.begun_for(_epoch(trainer))
        self._commit(ahead)
        is_amid, self._is_amid = self._is_amid, False
        if is_amid and loaders and not any(each._core.epochs.now().batches for each in loaders):
            rank_zero_warn(_NO_POSITION)

    def _restore_loaders(
        self, trainer: Trainer, states: Sequence[dict[str, Any]], ahead: bool, between: bool
    ) -> None:
        """Give each loader its state.

        ``ahead``: Lightning has fetched the first batch already; ``between``: the checkpoint was
        saved between two epochs.
        """
        renews = between and _renews(trainer)
        begun = not ahead or renews or any(map(_is_elsewhere, self._loaders, states))
        # Where others ended the epoch, Lightning has fetched from the middle of this one's.
        begun = begun or (between and any(state["batches"] for state in states))
        for loader, state in zip(self._loaders, states, strict=True):
            if begun:
                loader.load_state_dict(state)
            if ahead and between:  # as a later fetch would, where others have ended the epoch
                _begin_anew(loader, state, trainer)
        if ahead and begun and not renews:
            iter(_fetcher(trainer))  # the batch that was taken ahead is of another place

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Sets the epoch of loaders that Lightning does not: those of iterable datasets, say."""
        before, self._loaders = self._loaders, train_loaders(trainer)
        ahead = _fetches_ahead(trainer)
        is_reloaded, self._reloaded = self._reloaded != _reloaded(trainer), _reloaded(trainer)
        begins_again = is_reloaded and self._has_begun  # the batch ahead is of the loaders before
        if is_reloaded:
            for loader, other in zip(self._loaders, before, strict=False):
                if loader is not other or begins_again:
                    _count_on(loader, other)
        if not ahead:
            self._set_epoch(trainer)
        elif begins_again or not self._has_begun:
            self._set_epoch(trainer, iterable=False)  # those of iterable datasets count up
        if begins_again and not _renews(trainer):
            iter(_fetcher(trainer))
            for loader in self._loaders:
                loader._core.epochs.begun_for(_epoch(trainer))
            self._commit(True)

    def on_train_batch_start(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Corrects, with the first batch, what was counted."""
        self._has_begun = False
        if self._resumes:
            self._resumes = False
            correct_logged_step(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Commits: the step that ends here will not be repeated."""
        within = not trainer.is_last_batch
        self._commit(within and _fetches_ahead(trainer), within)

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keeps apart what is drawn: Lightning puts the generators back afterwards."""
        rehearsal.is_on = True

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ends that."""
        rehearsal.is_on = False

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lets loaders that are new, after a resume say, go on from where those before were."""
        if trainer.state.fn != "fit":
            return
        again = False
        for loader, (seen, place) in zip(_val_loaders(trainer), self._validation, strict=False):
            if seen() is not loader:
                epochs, begun = loader._core.epochs, loader._core.epochs.begun is not None
                epochs.follow(Position.from_pass(place))
                if begun and not _is_iterable(loader):  # Lightning has taken a batch ahead
                    epochs.set_epoch(_epoch(trainer))
                again = again or begun
        if again:
            # reach: lightning: the batch that was taken ahead is of another pass
            fetcher: Any = trainer.fit_loop.epoch_loop.val_loop._data_fetcher
            iter(fetcher)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Notes where the loaders' seeds are."""
        if trainer.state.fn == "fit":
            self._validation = []
            for loader in _val_loaders(trainer):
                position = loader._core.epochs.begun
                if position is not None:
                    position.end()  # also of a few batches: the next one is another pass
                    self._validation.append((weakref.ref(loader), position.now().as_pass()))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Keeps no reference to the loaders."""
        rehearsal.is_on = False
        for loader in self._loaders:
            loader._core.epochs.tells = False
        self._loaders = []
        CALLBACKS.discard(self)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Does so after an exception, where Lightning calls this instead."""
        advise_on_batch_sampler(exception)
        self.teardown(trainer, pl_module, "fit")

    def _set_epoch(self, trainer: Trainer, iterable: bool = True) -> None:
        for loader in self._loaders:
            if iterable or not _is_iterable(loader):
                # Not loader.set_epoch: Lightning tells the program's own samplers itself.
                loader._core.epochs.set_epoch(_epoch(trainer))

    def _commit(self, ahead: bool, within: bool = False) -> None:
        for loader in self._loaders:
            loader.commit(ahead, within)


def _put_first(callback: LoaderStateCallback, trainer: Trainer) -> None:
    """Make a callback the Trainer's first, whose hooks run first, and the only one of its kind."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    others = [each for each in callbacks if not isinstance(each, LoaderStateCallback)]
    # A new list: the Trainer may be going through the old one.
    trainer.callbacks = [callback, *others]  # type: ignore[attr-defined]


def our_loaders(loaders: Any) -> list[DataLoader[Any]]:
    """Those of a Trainer's loaders that are ours; it may have none, one, or a collection."""
    if loaders is None or "lit_loader.loader" not in sys.modules:
        return []
    from lit_loader.loader import DataLoader

    return [loader for loader in combined(loaders).flattened if isinstance(loader, DataLoader)]


def train_loaders(trainer: Trainer) -> list[DataLoader[Any]]:
    """The Trainer's training loaders that are ours, in the order in which it keeps them."""
    return our_loaders(trainer.train_dataloader)


def _val_loaders(trainer: Trainer) -> list[DataLoader[Any]]:
    return our_loaders(trainer.val_dataloaders)


def _nobody() -> None:
    """Stand for a weak reference to a loader of another process."""


def _fetches_ahead(trainer: Trainer) -> bool:
    """Whether Lightning fetches one batch ahead, of all loaders.

    It does so if their combination has no length, which depends on its mode and on limits; and not
    for a ``training_step`` that takes a ``dataloader_iter``.
    """
    return math.isinf(trainer.num_training_batches) and bool(
        getattr(_fetcher(trainer), "prefetch_batches", 0)
    )


def _fetcher(trainer: Trainer) -> Any:
    """What takes the batches of all loaders, and has the one that was taken ahead."""
    # reach: lightning: whether a batch is taken ahead, and which, is the fetcher's
    return trainer.fit_loop._data_fetcher


def _reloaded(trainer: Trainer) -> Any:
    """The epoch in which Lightning has asked for the loaders last."""
    # reach: lightning: reload_dataloaders_every_n_epochs, and that it counts from a resumed epoch
    return trainer.fit_loop._last_train_dl_reload_epoch


def _epoch(trainer: Trainer) -> int:
    """What Lightning itself passes to the samplers of the loaders."""
    progress: Any = trainer.fit_loop.epoch_progress
    return int(progress.current.processed)


def _is_through(trainer: Trainer) -> bool:
    """Whether Lightning goes on behind the last batch of an epoch."""
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress
    return bool(progress.is_last_batch and progress.current.processed > 0)


def _renews(trainer: Trainer) -> bool:
    """Whether Lightning takes new iterators for the first epoch.

    Before one later than the first it does; not in recent releases, if it was just restored.
    """
    return trainer.current_epoch > 0 and not getattr(trainer.fit_loop, "is_resuming", False)


def _begin_anew(loader: DataLoader[Any], state: Mapping[str, Any], trainer: Trainer) -> None:
    """Let a loader whose state is of an epoch's end begin the next epoch."""
    if not _is_iterable(loader):
        loader._core.epochs.set_epoch(_epoch(trainer))
    elif state["batches"]:
        loader.set_epoch(state["epoch"] + 1)


def _count_on(loader: DataLoader[Any], before: DataLoader[Any]) -> None:
    """Let a loader that was reloaded go on where the one before it has come to."""
    if loader is not before:
        loader.commit()  # its batches are not used as soon as they are given out
    if _is_iterable(loader):
        if loader is not before and not loader._core.seeds.chosen:
            loader._core.seeds.adopt(before._core.seeds.bases())
        position = before._core.epochs.now()
        # Loaded, and not set: a state that is taken before the first step has no look in it.
        epoch = position.epoch + bool(position.batches)
        start = Position(epoch, loader._core.seeds.bases(), **position.passes(epoch))
        loader._core.epochs.load(start)
    elif loader is not before:
        # Also if Lightning has taken a batch of it ahead, which is thrown away.
        epochs = before._core.epochs
        passed = epochs.now() if epochs.begun is None else epochs.begun.now()
        loader._core.epochs.follow(dataclasses.replace(passed, sampler=None))


def _is_iterable(loader: DataLoader[Any]) -> bool:
    return isinstance(loader.dataset, IterableDataset)


def _is_elsewhere(loader: DataLoader[Any], state: Mapping[str, Any]) -> bool:
    """Whether a loader that has begun an epoch has begun it elsewhere than a state says."""
    begun = loader.state_dict()
    return any(begun[name] != state.get(name) for name in ("epoch", "batches", "fingerprint"))
