"""Corrects Lightning's own count of epochs, batches and steps when a training is resumed.

Used by `lightning/state_callback.py`, in this order::

    checkpoint ── states_in ──▶ states of our loaders
        │
        ╰─ correct_progress, next_epoch ─▶ the Trainer restores its loops
                                             │
                                             ├─ begin_next_epoch  saved between two epochs
                                             ├─ mark_consumed, recount_batches  in the midst of one
                                             ╰─ correct_logged_step  when the first batch is there

A checkpoint says twice where training was: in the loaders' states, which are exact, and in the
Trainer's progress, from which it derives when an epoch ends, when to validate and which batch is
the last. Where the second differs from the first, it is corrected here, by its public counts as far
as there are any; ``tests/lightning/test_resume.py`` fails where those change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn

__all__ = [
    "begin_next_epoch",
    "correct_logged_step",
    "correct_progress",
    "is_amid",
    "is_ours",
    "mark_consumed",
    "next_epoch",
    "recount_batches",
    "states_in",
]

_COUNTS = ("ready", "started", "processed", "completed")

_FIELDS = frozenset({"version", "epoch", "batches", "samples", "fingerprint"})
"""What each state of a loader of ours has."""


def states_in(checkpoint: Mapping[str, Any]) -> Any:
    """What the fit loop has in a checkpoint of Lightning's besides its counts: loaders' states."""
    return checkpoint.get("loops", {}).get("fit_loop", {}).get("state_dict", {})


def is_ours(state: Any) -> bool:
    """Whether this is the state of a loader of ours."""
    return isinstance(state, dict) and state.keys() >= _FIELDS


def is_amid(checkpoint: Mapping[str, Any]) -> bool:
    """Whether a checkpoint, of any version of Lightning's, was saved in the midst of an epoch."""
    fit_loop = checkpoint.get("loops", {}).get("fit_loop", {})
    batches = fit_loop.get("epoch_loop.batch_progress", {})
    done = batches.get("current", {}).get("processed", 0)
    return done > 0 and not batches.get("is_last_batch")


def correct_progress(fit_loop: Mapping[str, Any]) -> None:
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
        # A validation was interrupted. Its loader begins anew, and Lightning would stop it after as
        # many batches as were left: it is run, and counted, as a whole.
        total["processed"] = total["completed"] = total["processed"] - current["processed"]
        validation["current"] = dict.fromkeys(_COUNTS, 0)
    # By these Lightning tells whether it was, and takes no more than one failed batch for that.
    total["ready"] = total["started"] = total["processed"] + failed
    cut_off = batches["current"]["processed"] > 0 and not batches["is_last_batch"]
    if cut_off and epochs["current"]["processed"] == epochs["current"]["started"]:
        # Ended in mid-epoch by max_steps or should_stop, and saved after that: Lightning counts the
        # epoch as a whole one and would go on with the next.
        for counts in (epochs["current"], epochs["total"]):
            counts["processed"] = counts["completed"] = counts["started"] - 1


def next_epoch(fit_loop: Mapping[str, Any]) -> int | None:
    """Give the epoch that corrected progress begins with; None: it goes on in the midst of one."""
    batches, epochs = fit_loop["epoch_loop.batch_progress"], fit_loop["epoch_progress"]["current"]
    epoch: int = epochs["processed"]
    if epochs["started"] == epoch:
        return epoch
    # Behind an epoch's last batch, which is not counted as one yet.
    return epoch + 1 if batches["is_last_batch"] and batches["current"]["processed"] else None


def begin_next_epoch(fit_loop: Any) -> bool:
    """Make Lightning begin an epoch if the checkpoint was saved between two; says whether it was.

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


def mark_consumed(trainer: Trainer, ours: Sequence[Any], states: Sequence[Any]) -> None:
    """Remind Lightning which loaders it has gone through in the resumed epoch.

    With ``max_size_cycle``, an epoch ends once it has gone through all; no checkpoint says which.
    """
    fit_loop: Any = trainer.fit_loop
    # reach: lightning: which loaders of max_size_cycle were gone through
    combined = fit_loop._combined_loader
    consumed: Any = getattr(combined._iterator, "_consumed", ())  # reach: lightning: the same
    done = fit_loop.epoch_loop.batch_progress.current.processed
    for loader, state in zip(ours, states, strict=True):
        if consumed and state["batches"] < done:  # it has begun again
            consumed[[each is loader for each in combined.flattened].index(True)] = True


def recount_batches(trainer: Trainer, ours: Sequence[Any], states: Sequence[Any]) -> None:
    """Count the resumed epoch's batches anew where the batches are others than before.

    With twice the batch size, or twice as many ranks, half as many are behind. The batches of
    earlier epochs, and all optimizer steps, stay what they were.
    """
    now = [_size(loader.state_dict()) for loader in ours]
    sizes = {*zip(map(_size, states), now, strict=True)}
    if all(before == after for before, after in sizes):
        return
    if len({before / after for before, after in sizes}) > 1:
        rank_zero_warn(
            "the batch sizes of the training loaders are others than in the checkpoint, and not by "
            "the same factor: Lightning goes on with its own count of batches, and may end this "
            "epoch earlier or later than its data ends. Resume with the batch sizes of the "
            "checkpoint, or from one that was saved at the end of an epoch"
        )
        return
    [(before, after), *_] = sizes
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress
    done: int = progress.current.processed
    # All ranks count alike: they wait for each other by what they count.
    length: Any = trainer.num_training_batches
    behind = int(min(length, -(-done * before // after)))
    for counts in (progress.current, progress.total):
        for name in _COUNTS:
            setattr(counts, name, getattr(counts, name) + behind - done)
    if behind == length and not progress.is_last_batch:
        # limit_train_batches: so many are behind as an epoch has now.
        trainer.fit_loop.epoch_progress.increment_processed()
        begin_next_epoch(trainer.fit_loop)


def _size(state: Mapping[str, Any]) -> int:
    """Samples of a batch, of all ranks together."""
    fingerprint = state["fingerprint"]
    return (fingerprint.get("batch_size") or 1) * (fingerprint.get("num_replicas") or 1)


def correct_logged_step(trainer: Trainer) -> None:
    """Let loggers go on with the step that comes next; called when the first batch is there.

    Which hook saved the checkpoint, and `begin_next_epoch`, decide whether Lightning has counted
    the last batch before it as a step by then. Optimizer steps are what they should be.
    """
    loop: Any = trainer.fit_loop.epoch_loop
    module: Any = trainer.lightning_module
    # With manual optimization, a batch may have any number of steps.
    # reach: lightning: the step that loggers are told
    if module.automatic_optimization and abs(loop._batches_that_stepped - loop.global_step) == 1:
        # reach: lightning: the step that loggers are told
        loop._batches_that_stepped = loop.global_step
