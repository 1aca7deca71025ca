"""`show_loader`: writes down for viewers in other processes what a loader's iterator begins.

The workers' page (`transport/loader_page.py`) is read by ``lit-loader-top``. What changes from
batch to batch is written by the session (`iteration/session.py`).
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

from lit_loader.iteration.internals import LoaderInternals
from lit_loader.sampling.batch_plan import BatchPlan
from lit_loader.sampling.epochs import EpochStart
from lit_loader.transport.loader_page import LoaderPage

__all__ = ["show_loader"]

_WRAPPERS = 3
"""Datasets around another one that are named."""


def show_loader(
    page: LoaderPage,
    loader: Any,
    internals: LoaderInternals,
    replica: tuple[int, int],
    depth: int,
    start: EpochStart,
) -> None:
    """Write that an iterator has the workers of this page.

    Args:
        page: The workers'.
        loader: The loader.
        internals: The same loader's.
        replica: Its rank, and how many there are.
        depth: Batches that may be asked for ahead.
        start: What the iterator has learned of its epoch.
    """
    if internals.page is not page:
        page.describe(
            internals.role,
            _name(loader.dataset),
            loader.batch_size if isinstance(loader.batch_size, int) else 0,
            replica,
            depth,
        )
        if internals.page is not None:
            page.follow(internals.page)
        internals.page = page
    page.begin_epoch(start.epoch, start.position.now().delivered, _length(internals.plan))


def _name(dataset: object) -> str:
    """Name a dataset, and the one in it: ``Subset of Images``."""
    names: list[str] = []
    while len(names) < _WRAPPERS:
        names.append(type(dataset).__name__)
        inner = getattr(dataset, "__dict__", {}).get("dataset")
        if not isinstance(inner, Dataset):
            break
        dataset = inner
    return " of ".join(names)


def _length(plan: BatchPlan | None) -> int:
    """Batches of an epoch; -1: not known."""
    try:
        return -1 if plan is None else len(plan)
    except Exception:  # a sampler of the user's, perhaps without a length
        return -1
