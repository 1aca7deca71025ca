"""`NumWorkers`: a loader's ``num_workers``, always a whole number, and how it was asked for.

What was asked for, a number or "auto", is what the loader's ``__dict__`` has: so Lightning, which
builds a loader anew of its attributes, and copies ask for the same. With "auto" the number is the
one of the moment, of `tuning/auto_workers.py`.
"""

from __future__ import annotations

from typing import Any, Literal

from lit_loader.errors import OptionError

__all__ = ["NumWorkers", "check_resize", "why_not_resized"]

_NAME = "num_workers"


class NumWorkers:
    """The attribute, of the loader's class."""

    def __get__(self, loader: Any, owner: type) -> int:
        if loader is None:
            return self  # type: ignore[return-value]
        auto = loader._core.auto
        return vars(loader)[_NAME] if auto is None else auto.setting.workers  # type: ignore[no-any-return]

    def __set__(self, loader: Any, value: int | Literal["auto"]) -> None:
        core = loader._core
        if value == "auto" and _NAME in vars(loader):  # else the constructor has seen to it
            reason = loader._core.why_not_resized()
            if reason is not None:
                raise OptionError(f"{reason}: set a number, got num_workers='auto'")
            loader._core.end_idle_workers()  # they measure nothing
        core.set_auto(value == "auto")
        vars(loader)[_NAME] = value


def why_not_resized(iterable: bool, sharded: bool, assigned: bool) -> str | None:
    """Say why the number of workers cannot be changed while they live; None: it can be.

    Args:
        iterable: Whether the dataset is an iterable one.
        sharded: Whether it is read with ``num_shards``.
        assigned: Whether each worker's tasks are its own.
    """
    if iterable and not sharded:
        return (
            "an IterableDataset without num_shards is read in shares, one for each of its workers"
        )
    if assigned and not sharded:
        return "with seeding='worker' the number of workers is part of the data"
    return None


def check_resize(num_workers: Any, most: int, reason: str | None, running: bool) -> None:
    """Refuse a number of workers that a loader cannot be resized to.

    Args:
        num_workers: The number.
        most: Workers that there may be.
        reason: What `why_not_resized` says.
        running: Whether there is an iterator that has workers.

    Raises:
        OptionError: It is refused.
    """
    if num_workers == "auto":
        raise OptionError(
            "a loader is resized to a number of workers, got resize('auto'): set "
            "loader.num_workers = 'auto', which counts from the next epoch on"
        )
    if reason is not None:
        raise OptionError(
            f"{reason}, so it cannot be resized, got resize({num_workers}): set "
            f"loader.num_workers = {num_workers}, which counts from the next epoch on"
        )
    if num_workers > most:
        raise OptionError(
            f"a loader is resized to at most {most} workers, got resize({num_workers}): "
            "make a new loader if there are to be so many"
        )
    if num_workers == 0 and running:
        raise OptionError(
            "there is an iterator whose batches workers make, and which needs one of them, got "
            "resize(0): resize to 1, or set loader.num_workers = 0, which counts from the next "
            "epoch on"
        )
