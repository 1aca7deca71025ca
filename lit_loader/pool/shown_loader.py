"""`ShownLoader`: writes down for viewers in other processes what a loader's iterator begins.

The workers' page (`transport/loader_page.py`) is read by ``lit-loader-top``. What changes from
batch to batch is written by the session (`iteration/session.py`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Protocol

from torch.utils.data import Dataset

from lit_loader.batch.sample_errors import SampleError
from lit_loader.system.interrupts import let_handlers_through
from lit_loader.transport.loader_page import LoaderPage
from lit_loader.transport.own_page import AFTER, OwnPage, ShownHere

__all__ = ["ShownLoader"]

_WRAPPERS = 3
"""Datasets around another one that are named."""


class Loader(Protocol):
    """What is shown of a loader's options."""

    @property
    def dataset(self) -> object:
        """What it reads."""

    @property
    def batch_size(self) -> int | None:
        """Samples a batch; None: its sampler or dataset says so."""


class Plan(Protocol):
    """What is shown of the plan of its batches (`sampling/batch_plan.py`)."""

    @property
    def rank(self) -> int:
        """Which of the replicas this process is."""

    @property
    def num_replicas(self) -> int:
        """How many share the data."""

    def __len__(self) -> int:
        """Batches of an epoch."""


class Internals(Protocol):
    """What is shown of what a loader keeps (`iteration/internals.py`)."""

    role: str
    page: LoaderPage | None
    own_page: OwnPage | None
    first_here: int

    @property
    def replica(self) -> tuple[int, int]:
        """Which of the replicas this process is, and how many share the data."""

    @property
    def plan(self) -> Plan | None:
        """None for an iterable dataset."""


class Delivered(Protocol):
    """How far an epoch is."""

    @property
    def delivered(self) -> int:
        """Batches of it that were given out."""


class Position(Protocol):
    """Where an iterator is in its epoch."""

    def now(self) -> Delivered:
        """Where it is now."""


class Start(Protocol):
    """What an iterator has learned of its epoch (`sampling/epochs.py`)."""

    @property
    def epoch(self) -> int:
        """Its number."""

    @property
    def position(self) -> Position:
        """Where the iterator is."""


class ShownLoader:
    """Tells viewers in other processes of a loader.

    Args:
        loader: The loader.
        internals: The same loader's.
    """

    def __init__(self, loader: Loader, internals: Internals) -> None:
        self._loader = loader
        self._internals = internals

    def begin(self, page: LoaderPage, start: Start, size: tuple[int, int]) -> None:
        """Write that an iterator has the workers of this page.

        Args:
            page: The workers'.
            start: The iterator's.
            size: How many workers there are, and how many batches may be asked for ahead.
        """
        loader, internals = self._loader, self._internals
        plan = internals.plan
        if internals.own_page is not None and internals.own_page.page is not page:
            self.close()
        if internals.page is not page:
            page.describe(
                internals.role,
                _name(loader.dataset),
                loader.batch_size if isinstance(loader.batch_size, int) else 0,
                internals.replica,
                size[1],
            )
            if internals.page is not None:
                page.follow(internals.page)
            internals.page = page
        page.begin_epoch(start.epoch, start.position.now().delivered, _length(plan))

    def here(self, start: Start) -> ShownHere:
        """Give what shows an iterator that makes its batches in this process."""
        internals = self._internals

        def begin(now: int) -> OwnPage | None:
            internals.first_here = internals.first_here or now
            if now - internals.first_here < AFTER:
                return None
            own = internals.own_page
            if own is None or own.page.pid != os.getpid():  # in a forked copy it is the parent's
                with contextlib.suppress(OSError):  # nothing depends on it
                    internals.own_page = own = OwnPage()
            if own is not None:
                self.begin(own.page, start, (0, 0))
            return own

        return ShownHere(begin)

    def close(self) -> None:
        """Show no more of what is made in this process."""
        own, self._internals.own_page = self._internals.own_page, None
        if own is not None:
            own.close()

    def errors(self, errors: Sequence[SampleError]) -> None:
        """Write that samples could not be read."""
        page = self._internals.page
        if page is not None and page.pid == os.getpid():  # in a forked copy it is the parent's
            page.bad_samples([str(error) for error in errors])


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


def _length(plan: Plan | None) -> int:
    """Batches of an epoch; -1: not known."""
    try:
        return -1 if plan is None else len(plan)
    except Exception as error:  # a sampler of the user's, perhaps without a length
        let_handlers_through(error)
        return -1
