"""What a checkpoint of Lightning's says of where training was: read, and mended once loaded.

::

    checkpoint ─ mend_saved ─▶ Trainer restores its loops ─ begin_next_epoch, follow ─▶ goes on
                                                           first batch ─ count_steps ─▶

A checkpoint holds two records of the same thing: the loaders' positions, which are exact, and the
Trainer's progress, from which it derives when an epoch ends, when to validate and which batch is
the last. Where the second says something else than the first, it is corrected here, by its public
counts as far as there are any; ``tests/lightning/test_lightning_resume.py`` fails where those
change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lightning.pytorch import Trainer

__all__ = ["Moved", "begin_next_epoch", "count_steps", "follow", "mend_saved", "positions_in"]

_COUNTS = ("ready", "started", "processed", "completed")

_FIELDS = frozenset({"version", "epoch", "batches", "samples", "fingerprint"})
"""What each state of a loader of ours has."""


def positions_in(checkpoint: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Find what Lightning has saved of the training loaders that are ours.

    Args:
        checkpoint: The Trainer's.

    Returns:
        Their states, in the order in which the Trainer keeps the loaders.
    """
    fit_loop = checkpoint.get("loops", {}).get("fit_loop", {})
    states = fit_loop.get("state_dict", {}).get("combined_loader", ())
    return [state for state in states if isinstance(state, dict) and state.keys() >= _FIELDS]


def mend_saved(fit_loop: Mapping[str, Any]) -> None:
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
    validation = fit_loop["epoch_loop.val_loop.batch_progress"]
    if validation["total"]["ready"] != validation["total"]["processed"]:
        # A validation was interrupted. Its loader begins anew, and Lightning would stop it after as
        # many batches as were left: it is run as a whole.
        validation["current"] = dict.fromkeys(_COUNTS, 0)
    cut_off = batches["current"]["processed"] > 0 and not batches["is_last_batch"]
    if cut_off and epochs["current"]["processed"] == epochs["current"]["started"]:
        # Ended in mid-epoch by max_steps or should_stop, and saved after that: Lightning counts the
        # epoch as a whole one and would go on with the next.
        for counts in (epochs["current"], epochs["total"]):
            counts["processed"] = counts["completed"] = counts["started"] - 1


def begin_next_epoch(fit_loop: Any) -> bool:
    """Make Lightning begin an epoch if the checkpoint was saved between two.

    Depending on the hook that saved it, and on max_steps, Lightning would train on one batch more
    in the old epoch, or begin the new one without counting it. Private reach into its loops; there
    is no public way.

    Args:
        fit_loop: The Trainer's, once it has been restored.

    Returns:
        Whether it was saved between two epochs.
    """
    epochs = fit_loop.epoch_progress
    if epochs.current.ready != epochs.current.processed:
        return False
    if epochs.current.completed < epochs.current.processed:
        epochs.increment_completed()
    fit_loop.epoch_loop.restarting = False
    fit_loop._restarting = False  # the property does not take False when there is max_steps
    fit_loop.reset_restart_stage()
    return True


class Moved(NamedTuple):
    """A loader's position in mid-epoch, in batches of this rank.

    Attributes:
        before: As the checkpoint has it.
        after: As it is for this loader, whose batches or ranks may be others.
        length: Batches in this loader's epoch; infinity if it has no length.
    """

    before: int
    after: int
    length: float


def follow(trainer: Trainer, loaders: Sequence[Moved]) -> None:
    """Count the batches of the epoch that is resumed as its loaders do, if these count anew.

    With twice the batch size, half as many batches are behind, and in an epoch. The batches of
    earlier epochs, and all optimizer steps, stay what they were.

    Args:
        trainer: A Trainer that resumes in mid-epoch.
        loaders: Its training loaders.
    """
    if all(loader.before == loader.after for loader in loaders):
        return
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress
    done: int = progress.current.processed
    length = trainer.num_training_batches
    # Others have ended before, or been gone through more than once: they do not tell.
    telling = [loader for loader in loaders if loader.before == done]
    if not telling:
        return
    last = progress.is_last_batch
    now = int(length) if last else _count(telling, loaders, length, trainer.limit_train_batches)
    for counts in (progress.current, progress.total):
        for name in _COUNTS:
            setattr(counts, name, getattr(counts, name) + now - done)
    if now == length and not last:
        # limit_train_batches: so many are behind as an epoch has now.
        trainer.fit_loop.epoch_progress.increment_processed()
        begin_next_epoch(trainer.fit_loop)


def count_steps(trainer: Trainer) -> None:
    """Let loggers go on with the step that comes next; called when the first batch after it begins.

    Whether the last batch before the checkpoint is counted as a step by then depends on the hook
    that saved it, on a validation due at that place and, with gradients accumulated, on the batch's
    number. Optimizer steps are what they should be.
    """
    loop: Any = trainer.fit_loop.epoch_loop
    module: Any = trainer.lightning_module
    # With manual optimization, a batch may have any number of steps.
    if module.automatic_optimization and abs(loop._batches_that_stepped - loop.global_step) == 1:
        loop._batches_that_stepped = loop.global_step


def _count(
    telling: Sequence[Moved], loaders: Sequence[Moved], length: float, limit: float | int | None
) -> int:
    """Give the batches behind, in the epoch, by what is left of it."""
    if math.isinf(length):
        return telling[0].after

    def limited(loader: Moved) -> float:
        if isinstance(limit, int):
            return min(loader.length, limit)
        return loader.length if limit is None else int(loader.length * limit)

    # Shorter than the longest loader: the shortest one ends it.
    choose = min if length < max(map(limited, loaders)) else max
    left = choose(limited(loader) - loader.after for loader in telling)
    return int(min(length, max(0, length - left)))
