"""`LoaderStateCallback`: makes a checkpoint hold exactly what was trained on, and resumes there.

Every Trainer gets one by itself (`lightning/trainer_plugin.py`), users pass one in
``Trainer(callbacks=[...])``, and the data modules of ours bring one along where there is none::

    a fit:        setup ─▶ on_load_checkpoint ─▶ loaders are made: restore, or set the epoch
                  ─▶ Lightning takes a batch ahead, perhaps ─▶ on_train_start: correct its counts
    an epoch:     (loaders made anew: go on behind those before) ─▶ on_train_epoch_start: set_epoch
    a batch:      fetch ─▶ training_step ─▶ on_train_batch_end: commit ─▶ later hooks: checkpoints
    a checkpoint: on_save_checkpoint: readers of all ranks; where validation's loaders are
    validation:   on_validation_start: after a resume, its loaders go on, too

Lightning asks a loader for its state whenever a checkpoint is written, also when a step has failed
half-way, and by itself restores it in some situations only. So the state that is saved is the one
committed after the last whole step, and it is restored here in all situations, before Lightning has
taken a batch. Lightning's own counts are corrected by `lightning/trainer_progress.py`.

Of a loader it uses what any program may: `commit`, `set_epoch`, `state_dict`, `load_state_dict`.

One that has come by itself makes way for another one, and leaves the Trainer before the first step
if there is no loader to look after. Until then it imports no loader: the program may have none of
ours, and may have had lit_loader imported by Hydra.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, Final

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch.utils.data import IterableDataset

from lit_loader.core.sampling.orders import EpochOrder
from lit_loader.core.seeding.bases import rehearsal
from lit_loader.describe import public
from lit_loader.errors import StateError
from lit_loader.lightning.names import Callback, combined
from lit_loader.lightning.rank_states import RankStates
from lit_loader.lightning.sampler_advice import advise_on_batch_sampler
from lit_loader.lightning.saved_by_lightning import CALLBACKS
from lit_loader.lightning.trainer_progress import (
    begin_next_epoch,
    correct_logged_step,
    correct_progress,
    is_amid,
    is_ours,
    mark_consumed,
    next_epoch,
    recount_batches,
    states_in,
)
from lit_loader.profiling import resources

if TYPE_CHECKING:
    from lit_loader.loader import DataLoader

__all__ = ["LoaderStateCallback", "our_loaders"]

State = dict[str, Any]

_STATES: Final = "combined_loader"
_VALIDATION: Final = "lit_loader_validation"
"""Where a checkpoint has the states of the loaders of training, and of validation."""

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
        self._rank_states = RankStates()
        self._forget()

    def _forget(self) -> None:
        self._saved: list[Any] = []  # states to restore, with those of other loaders
        self._epoch: int | None = None  # that they are to begin; None: they go on in the midst
        self._resumed: list[State] = []  # those that were restored, until the first step
        self._is_amid = False  # whether the checkpoint is of mid-epoch, and has no such states
        self._is_first = False  # whether what Lightning took ahead is of the epoch that comes
        self._loaders: list[DataLoader[Any]] = []
        self._validation: list[State | None] = []  # what validation's loaders are to restore

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Becomes the Trainer's first callback, and forgets what an earlier fit was to restore."""
        resources.ranks_here = trainer.num_devices
        if stage != "fit":
            return
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        others = [c for c in callbacks if isinstance(c, LoaderStateCallback) and c is not self]
        if self.came_by_itself and others:
            _put_first(others[0], trainer)
            return
        self._forget()
        _put_first(self, trainer)
        CALLBACKS.add(self)
        # reach: lightning: what it calls when it has made loaders, and no iterators of them yet
        own = type(trainer.fit_loop)._load_combined_loader_states

        def load() -> None:
            own(trainer.fit_loop)
            self._begin(trainer)

        # reach: lightning: the same
        trainer.fit_loop._load_combined_loader_states = load  # type: ignore[method-assign]

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keeps the loaders' states, and corrects the Trainer's progress in the checkpoint."""
        if trainer.state.fn != "fit":
            return
        saved = states_in(checkpoint).get(_STATES, [])
        self._validation = [*checkpoint.get(_VALIDATION, ())]
        if any(map(is_ours, saved)):
            self._saved = saved
            correct_progress(checkpoint["loops"]["fit_loop"])
            self._epoch = next_epoch(checkpoint["loops"]["fit_loop"])
        else:
            self._is_amid = is_amid(checkpoint)

    def _begin(self, trainer: Trainer) -> None:
        """Give loaders that have just been made their states, or else their epoch.

        Raises:
            StateError: The checkpoint has the states of another number of loaders.
        """
        before, self._loaders = self._loaders, train_loaders(trainer)
        states, self._saved = [*filter(is_ours, self._saved)], []
        if states and len(states) != len(self._loaders):
            raise StateError(
                f"the checkpoint has the positions of {len(states)} training loaders, but there "
                f"are {len(self._loaders)}: resume with the loaders that it was made with [LL328]"
            )
        for loader in self._loaders:
            if loader not in before:  # else a batch that was taken ahead would count as used
                loader.commit()
        for loader, state in zip(self._loaders, states, strict=False):
            loader.load_state_dict(state)
            if not _is_programs(loader):  # that which it is in
                loader.set_epoch(state.get("requested", state["epoch"]))
        for loader, other in zip(self._loaders, before, strict=False):
            if loader is not other:
                _follow(loader, other.state_dict())
        if not states or self._epoch is not None:
            epoch = _epoch(trainer) if self._epoch is None else self._epoch
            self._set_epoch(epoch)
            for sampler in (each for loader in self._loaders for each in _told(loader)):
                if epoch or isinstance(sampler, EpochOrder):
                    sampler.set_epoch(epoch)  # before a batch is taken ahead
        self._resumed, self._epoch, self._is_first = states, None, True

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Puts the readers of all ranks into the loaders' states, which hold those of one."""
        states = states_in(checkpoint)
        if self._saved:  # its loaders are not made
            states[_STATES] = [*self._saved]
        own = [*filter(is_ours, states.get(_STATES, ()))]
        merged = iter(self._rank_states.merged(own, trainer.current_epoch, trainer.global_step))
        if own:
            states[_STATES] = [next(merged) if is_ours(each) else each for each in states[_STATES]]
        if validation := self._validation or [*map(_next_pass, _val_loaders(trainer))]:
            checkpoint[_VALIDATION] = validation

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Corrects Lightning's own progress."""
        if self._saved:  # a learning rate finder has put a state back, behind the first fetch
            self._begin(trainer)
            if _fetches_ahead(trainer):
                iter(_fetcher(trainer))
        loaders = self._loaders
        if self.came_by_itself and not loaders:
            # A new list: the Trainer is going through the old one.
            trainer.callbacks = [c for c in trainer.callbacks if c is not self]  # type: ignore[attr-defined]
            return
        self._rank_states.begin_fit()
        if self._resumed and not begin_next_epoch(trainer.fit_loop):
            mark_consumed(trainer, loaders, self._resumed)
            recount_batches(trainer, loaders, self._resumed)
        is_amid, self._is_amid = self._is_amid, False
        if is_amid and loaders and not any(each.state_dict()["batches"] for each in loaders):
            rank_zero_warn(_NO_POSITION)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Sets the epoch of the loaders that have not begun it, where Lightning does not."""
        if not (self._is_first and _fetches_ahead(trainer)):
            self._set_epoch(_epoch(trainer))
        self._is_first = False

    def on_train_batch_start(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Corrects, with the first batch, what was counted."""
        self._is_first = False
        if self._resumed:
            self._resumed = []
            correct_logged_step(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Commits: the step that ends here will not be repeated."""
        within = not trainer.is_last_batch
        ahead = within and _fetches_ahead(trainer)
        for loader in self._loaders:
            loader.commit(ahead, within)

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keeps apart what is drawn: Lightning puts the generators back afterwards."""
        rehearsal.is_on = True

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ends that."""
        rehearsal.is_on = False

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lets loaders go on, after a resume, where those before it were."""
        if trainer.state.fn != "fit" or not self._validation:
            return
        loaders, states, self._validation = _val_loaders(trainer), self._validation, []
        for loader, state in zip(loaders, states, strict=False):
            if state is None:  # what the program seeds now is counted from now on
                loader.set_epoch(0)
            elif loader.seed is not None:
                _follow(loader, state)
                if not isinstance(loader.dataset, IterableDataset):
                    loader.set_epoch(_epoch(trainer))
        # reach: lightning: a batch that was taken ahead is of another pass
        fetcher: Any = trainer.fit_loop.epoch_loop.val_loop._data_fetcher
        if getattr(fetcher, "batches", ()):
            iter(fetcher)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Commits: a pass of a single batch was a pass, and the next one is another."""
        for loader in _val_loaders(trainer):
            if loader not in self._loaders:
                loader.commit()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Keeps no reference to the loaders."""
        rehearsal.is_on = False
        self._loaders = []
        CALLBACKS.discard(self)
        # reach: lightning: that of the class again
        vars(trainer.fit_loop).pop("_load_combined_loader_states", None)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Does so after an exception, where Lightning calls this instead."""
        advise_on_batch_sampler(exception)
        self.teardown(trainer, pl_module, "fit")

    def _set_epoch(self, epoch: int) -> None:
        for loader in self._loaders:
            if not (_told(loader) or _is_programs(loader)):
                loader.set_epoch(epoch)


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


def _epoch(trainer: Trainer) -> int:
    """What Lightning itself passes to the samplers of the loaders."""
    progress: Any = trainer.fit_loop.epoch_progress
    return int(progress.current.processed)


def _told(loader: DataLoader[Any]) -> list[Any]:
    """Those of a loader's samplers that Lightning itself tells the epoch."""
    samplers = loader.sampler, getattr(loader.batch_sampler, "sampler", None)
    return [each for each in samplers if callable(getattr(each, "set_epoch", None))]


def _is_programs(loader: DataLoader[Any]) -> bool:
    """Whether it is the program that tells the batch sampler an epoch, if anybody does."""
    return callable(getattr(loader.batch_sampler, "set_epoch", None)) and not _told(loader)


def _follow(loader: DataLoader[Any], state: State) -> None:
    """Let a loader that was made anew go on from a state; one of other data begins by itself."""
    before = state["fingerprint"]
    if loader.state_dict()["fingerprint"] | {"seed": before["seed"]} == before:
        loader.load_state_dict(state)


def _next_pass(loader: DataLoader[Any]) -> State | None:
    """Give the state of the pass that comes next: a validation may end before its loader does.

    None without ``seed=``: such a loader draws for itself, and what the program seeds counts.
    """
    if loader.seed is None:
        return None
    state = loader.state_dict()
    state.pop("requested", None)
    if state["batches"]:
        state |= {"epoch": state["epoch"] + 1, "batches": 0, "samples": 0, "ahead": []}
        for name in ("passed", "sampler", "readers", "workers", "since"):
            state.pop(name, None)
    return state
