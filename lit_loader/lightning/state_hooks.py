"""`StateHooks`: what makes a checkpoint hold exactly what was trained on, and resumes there.

Every Trainer gets one by itself (`lightning/trainer_plugin.py`), users pass one in
``Trainer(callbacks=[...])``, and `LoaderDataModule` brings one along where there is none::

    a fit:        setup ─▶ on_load_checkpoint ─▶ loaders are made: restore, or set the epoch
                  ─▶ Lightning takes a batch ahead, perhaps ─▶ on_train_start: correct its counts
    an epoch:     on_train_epoch_start: set_epoch
    a batch:      fetch ─▶ training_step ─▶ on_train_batch_end: commit ─▶ later hooks: checkpoints
    the end:      teardown, or on_exception: the workers are given back

Lightning asks a loader for its state whenever a checkpoint is written, also when a step has failed
half-way, and by itself restores it in some situations only. So the state that is saved is the one
committed after the last whole step, and it is restored here in all situations, before Lightning has
taken a batch. Of a loader this uses `commit`, `set_epoch`, `state_dict`, `load_state_dict`.

A position is in two places of a checkpoint: in the loaders' states, which are exact, and in the
Trainer's progress, from which it derives when an epoch ends. Where the second differs from the
first it is corrected here; ``tests/lightning`` fails where Lightning changes these counts.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lit_loader.errors import StateError
from lit_loader.lightning.rank_states import RankStates
from lit_loader.lightning.trainers import QuietHooks, our_loaders
from lit_loader.profiling import resources

if TYPE_CHECKING:
    from lit_loader.loader import DataLoader

__all__ = ["LoaderStateCallback", "StateHooks", "by_itself"]

State = dict[str, Any]

_STATES: Final = "combined_loader"
"""Where the fit loop's state has those of the training loaders."""

_FIELDS: Final = frozenset({"version", "epoch", "pass", "batches", "fingerprint"})
"""What each state of a loader of ours has."""

_COUNTS: Final = ("ready", "started", "processed", "completed")


class StateHooks(QuietHooks):
    """Commits the training loaders' states step by step, and resumes them exactly."""

    came_by_itself = False

    def __init__(self) -> None:
        super().__init__()
        self._rank_states = RankStates()
        self._forget()

    def _forget(self) -> None:
        self._saved: list[object] = []  # states to restore, with those of other loaders
        self._next_epoch: int | None = None  # the one that begins, if they are of an epoch's end
        self._resumed: list[State] = []  # those that were restored, until the first step
        self._is_amid = False  # whether the checkpoint is of mid-epoch, and has no such states
        self._loaders: list[DataLoader[object]] = []
        self._is_told = False  # that one loader is under several keys

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Becomes the Trainer's first callback, and forgets what an earlier fit was to restore."""
        resources.ranks_here = trainer.num_devices
        if stage != "fit":
            return
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        others = [c for c in callbacks if isinstance(c, StateHooks) and c is not self]
        if self.came_by_itself and others:
            _put_first(others[0], trainer)
            return
        self._forget()
        _put_first(self, trainer)
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
        saved = _states_in(checkpoint).get(_STATES, [])
        fit_loop = checkpoint.get("loops", {}).get("fit_loop", {})
        if any(map(_is_ours, saved)):
            self._saved = saved
            _correct_progress(fit_loop)
            self._next_epoch = _next_epoch(fit_loop)
        else:
            batches = fit_loop.get("epoch_loop.batch_progress", {})
            done = batches.get("current", {}).get("processed", 0)
            self._is_amid = done > 0 and not batches.get("is_last_batch")

    def _begin(self, trainer: Trainer) -> None:
        """Restore loaders that have just been made, or set their epoch.

        Raises:
            StateError: The checkpoint has the states of another number of loaders.
        """
        before, self._loaders = self._loaders, our_loaders(trainer.train_dataloader)
        states, self._saved = [*filter(_is_ours, self._saved)], []
        if states and len(states) != len(self._loaders):
            raise StateError(
                f"the checkpoint has the positions of {len(states)} training loaders, but there "
                f"are {len(self._loaders)}. Resume with the loaders of the checkpoint"
            )
        kinds = sys.modules.get("lit_loader.lightning.random_state")
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        random = [c for c in callbacks if kinds and isinstance(c, kinds.RandomStateCallback)]
        for callback in random:  # before iterators draw their seeds
            callback.restore()
        is_reloaded = bool(self._resumed) and not states
        if random and is_reloaded and any(loader.seed is None for loader in self._loaders):
            rank_zero_warn(
                "lit_loader: reload_dataloaders_every_n_epochs has made the loaders again, and a "
                "resumed Trainer makes one iterator less of them. Without seed= the epochs from "
                "here on have other orders and random numbers than the uninterrupted run. Pass "
                "seed= to the loader"
            )
        for loader in self._loaders:
            if loader not in before:  # else a batch that was taken ahead would count as used
                loader.commit()
        if self._next_epoch is None:
            self._warn_of_one_loader(states)
        for loader, state in zip(self._loaders, states, strict=False):
            loader.load_state_dict(state)
            _warn_of_other_batches(state, loader)
        if not states:
            self._set_epoch(_epoch(trainer))
        for loader, state in zip(self._loaders, states, strict=False):
            # Samplers, too: a batch may be taken ahead before Lightning sets their epoch.
            loader.set_epoch(state["epoch"] if self._next_epoch is None else self._next_epoch)
            if self._next_epoch is not None:
                loader._core.passes.leave()
        self._resumed = states

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Puts the readers of all ranks into the loaders' states, which hold those of one."""
        states = _states_in(checkpoint)
        if self._saved:  # its loaders are not made
            states[_STATES] = [*self._saved]
        own = [*filter(_is_ours, states.get(_STATES, ()))]
        if not trainer.is_last_batch:
            self._warn_of_one_loader(own)
        merged = iter(self._rank_states.merged(own, trainer.current_epoch, trainer.global_step))
        if own:
            states[_STATES] = [next(merged) if _is_ours(each) else each for each in states[_STATES]]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Corrects Lightning's own progress."""
        if self._saved:  # a learning rate finder has put a state back, after the first fetch
            self._begin(trainer)
            if _fetches_ahead(trainer):
                iter(_fetcher(trainer))
        ours = self._loaders or our_loaders(trainer.val_dataloaders)
        if self.came_by_itself and not ours:
            # A new list: the Trainer is going through the old one.
            trainer.callbacks = [c for c in trainer.callbacks if c is not self]  # type: ignore[attr-defined]
            return
        self._rank_states.begin_fit()
        if self._resumed:
            if not _begin_next_epoch(trainer.fit_loop):
                self._mark_consumed(trainer)
            elif not getattr(trainer.fit_loop, "is_resuming", False):
                # This Lightning makes iterators once more; those of before may have had a batch.
                self._saved = [*self._resumed]
                self._begin(trainer)
            at = self._loaders[0].position
            rank_zero_info(f"lit_loader: continues epoch {at.epoch} at batch {at.batches}")
        is_amid, self._is_amid = self._is_amid, False
        if is_amid and self._loaders and not any(each.position.batches for each in self._loaders):
            rank_zero_warn(
                "lit_loader: the checkpoint was saved mid-epoch by a run with another loader, so "
                "it has no position in the data. Lightning continues in the middle of the epoch, "
                "but the loader begins at its start, so samples are repeated and the rest of "
                "the epoch is skipped. Change loaders at a checkpoint of an epoch's end [LL327]"
            )

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Sets the epoch; Lightning calls this for all epochs but one that is resumed."""
        self._set_epoch(_epoch(trainer))

    def on_train_batch_start(self, trainer: Trainer, *args: object, **kwargs: object) -> None:
        """Corrects the step that loggers see, with the first batch after a resume."""
        if not self._resumed:
            return
        self._resumed = []
        loop = trainer.fit_loop.epoch_loop
        module = trainer.lightning_module
        # With manual optimization, a batch may have any number of steps.
        # reach: lightning: which hook saved the checkpoint decides whether the last batch counts
        ahead = loop._batches_that_stepped - loop.global_step
        if module.automatic_optimization and abs(ahead) == 1:
            loop._batches_that_stepped = loop.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: object, **kwargs: object
    ) -> None:
        """Commits: the step that ends here will not be repeated."""
        within = not trainer.is_last_batch
        ahead = within and _fetches_ahead(trainer)
        for loader in self._loaders:
            loader.commit(ahead, within)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Gives the workers of the Trainer's loaders back."""
        for loaders in (
            *(trainer.train_dataloader, trainer.val_dataloaders),
            *(trainer.test_dataloaders, trainer.predict_dataloaders),
        ):
            for loader in our_loaders(loaders):
                loader.close()
        self._loaders = []
        # reach: lightning: that of the class again
        vars(trainer.fit_loop).pop("_load_combined_loader_states", None)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Does so after an exception, where Lightning calls this instead."""
        self.teardown(trainer, pl_module, "fit")

    def _warn_of_one_loader(self, states: list[State]) -> None:
        """Report states of mid-epoch if one loader, which has one position, has several passes."""
        has_begun = any(state["batches"] for state in states)
        if self._is_told or not has_begun or len({*map(id, self._loaders)}) == len(self._loaders):
            return
        self._is_told = True
        rank_zero_warn(
            "lit_loader: one training loader is under several keys. A checkpoint of mid-epoch has "
            "one position for it, so a resume from there repeats and skips samples. Make a loader "
            "for each key"
        )

    def _mark_consumed(self, trainer: Trainer) -> None:
        """Remind Lightning which loaders have ended in the resumed epoch, and have begun again.

        With ``max_size_cycle`` an epoch ends once all have ended; no checkpoint says which have.
        """
        fit_loop: Any = trainer.fit_loop
        # reach: lightning: which loaders of max_size_cycle have ended
        combined = fit_loop._combined_loader
        consumed = getattr(combined._iterator, "_consumed", ())  # reach: lightning: the same
        done = fit_loop.epoch_loop.batch_progress.current.processed
        for loader, state in zip(self._loaders, self._resumed, strict=True):
            if consumed and state["batches"] < done:
                consumed[[each is loader for each in combined.flattened].index(True)] = True

    def _set_epoch(self, epoch: int) -> None:
        for loader in self._loaders:  # Lightning calls set_epoch of their samplers itself
            inner = getattr(loader.batch_sampler, "sampler", None)
            loader._core.set_epoch(epoch, informed=(loader.sampler, inner))


class LoaderStateCallback(StateHooks, Callback):
    """What a program gets that has imported ``lightning`` alone: its copy takes long to import."""


def by_itself() -> StateHooks:
    """Return the callback of a Trainer whose program has not passed one."""
    of_both = sys.modules.get("lit_loader.lightning.state_callback")
    callback: StateHooks = (of_both or sys.modules[__name__]).LoaderStateCallback()
    callback.came_by_itself = True
    return callback


def _put_first(callback: StateHooks, trainer: Trainer) -> None:
    """Make a callback the Trainer's first, whose hooks run first, and the only one of its kind."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    others = [each for each in callbacks if not isinstance(each, StateHooks)]
    # A new list: the Trainer may be going through the old one.
    trainer.callbacks = [callback, *others]  # type: ignore[attr-defined]


def _fetches_ahead(trainer: Trainer) -> bool:
    """Whether Lightning fetches one batch ahead, of all loaders.

    It does so if their combination has no length, which depends on its mode and on limits; and not
    for a ``training_step`` that takes a ``dataloader_iter``.
    """
    return math.isinf(trainer.num_training_batches) and bool(
        getattr(_fetcher(trainer), "prefetch_batches", 0)
    )


def _fetcher(trainer: Trainer) -> Any:
    # reach: lightning: whether a batch is taken ahead, and which, is the fetcher's
    return trainer.fit_loop._data_fetcher


def _epoch(trainer: Trainer) -> int:
    """Return what Lightning itself passes to the samplers of the loaders."""
    progress: Any = trainer.fit_loop.epoch_progress
    return int(progress.current.processed)


# --- Lightning's own progress ---


def _states_in(checkpoint: Mapping[str, Any]) -> Any:
    """Return what the fit loop has in a checkpoint besides its counts: loaders' states."""
    return checkpoint.get("loops", {}).get("fit_loop", {}).get("state_dict", {})


def _is_ours(state: object) -> TypeGuard[State]:
    return isinstance(state, dict) and state.keys() >= _FIELDS


def _correct_progress(fit_loop: Mapping[str, Any]) -> None:
    """Correct ``checkpoint["loops"]["fit_loop"]`` in place, before the Trainer restores it."""
    batches, epochs = fit_loop["epoch_loop.batch_progress"], fit_loop["epoch_progress"]
    total = batches["total"]
    if total["ready"] != total["processed"]:
        # A step has failed and is repeated. Counted twice, it makes Lightning misread the next
        # checkpoint; and if it was an epoch's last one, the epoch would end without it.
        total["ready"] = total["started"] = total["processed"]
        batches["is_last_batch"] = False
    validation = fit_loop["epoch_loop.val_loop.batch_progress"]
    total, current = validation["total"], validation["current"]
    failed = current["ready"] - current["processed"]
    if failed:
        # A validation was interrupted. Its loader begins again, and Lightning would stop it after
        # as many batches as were left: it is run, and counted, as a whole.
        total["processed"] = total["completed"] = total["processed"] - current["processed"]
        validation["current"] = dict.fromkeys(_COUNTS, 0)
    # By these Lightning tells whether it was, and takes no more than one failed batch for that.
    total["ready"] = total["started"] = total["processed"] + failed
    cut_off = batches["current"]["processed"] > 0 and not batches["is_last_batch"]
    if cut_off and epochs["current"]["processed"] == epochs["current"]["started"]:
        # Ended mid-epoch by max_steps or should_stop, and saved after that: Lightning counts the
        # epoch as a whole one and would continue with the next.
        for counts in (epochs["current"], epochs["total"]):
            counts["processed"] = counts["completed"] = counts["started"] - 1


def _next_epoch(fit_loop: Mapping[str, Any]) -> int | None:
    """Return the epoch that begins if corrected progress is of an epoch's end; None: it is not."""
    batches, epochs = fit_loop["epoch_loop.batch_progress"], fit_loop["epoch_progress"]["current"]
    # After an epoch's last batch, which is not counted as one yet, perhaps.
    ended = batches["is_last_batch"] and batches["current"]["processed"]
    return epochs["started"] if ended or epochs["started"] == epochs["processed"] else None


def _begin_next_epoch(fit_loop: Any) -> bool:
    """Make Lightning begin an epoch if the checkpoint was saved between two; return whether it was.

    Depending on the hook that saved it, and on max_steps, Lightning would train on one batch more
    in the old epoch, or begin the new one without counting it.
    """
    epochs = fit_loop.epoch_progress
    if epochs.current.ready != epochs.current.processed:
        return False
    if epochs.current.completed < epochs.current.processed:
        epochs.increment_completed()
    fit_loop.epoch_loop.restarting = False
    # reach: lightning: the property does not take False with max_steps
    fit_loop._restarting = False
    fit_loop.reset_restart_stage()
    return True


def _warn_of_other_batches(state: State, loader: DataLoader[object]) -> None:
    """Warn if the batches differ from the checkpoint's: Lightning counts them, not samples."""
    if not state["batches"]:
        return
    now = loader.state_dict()["fingerprint"]
    names = [n for n in ("batch_size", "num_replicas") if state["fingerprint"].get(n) != now.get(n)]
    if names:
        warnings.warn(
            f"lit_loader: {' and '.join(names)} differ from the checkpoint's, and Lightning counts "
            "batches, so it may end the resumed epoch before its data ends. The loader itself "
            "continues exactly; resume from a checkpoint of an epoch's end to avoid this [LL330]",
            stacklevel=2,
        )
