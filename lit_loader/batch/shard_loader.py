"""`ShardLoader`: makes batches of several readers of an iterable dataset, in one process.

::

    task ─▶ number % readers ─▶ a reader ── BatchLoader ─┬─ a copy of the dataset, of its own
                                                         ╰─ its iterator, generators, errors

With ``num_shards`` the readers are a part of the data, and the processes that serve them are not.
So whatever a reader could be told from another one by is its own: the copy of the dataset, made
anew for each epoch as it was when the workers were started; the seeds; and what
`lit_loader.get_shard`, ``torch.utils.data.get_worker_info()`` and ``torch.initial_seed()`` answer
while it is served.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import torch

from lit_loader.batch.batch_loader import BatchLoader
from lit_loader.batch.batch_spec import BatchSpec
from lit_loader.batch.collate import Empty
from lit_loader.batch.dataset_copies import DatasetCopies
from lit_loader.batch.fetch import EndOfData
from lit_loader.batch.worker_info import WorkerInfo, show, shown
from lit_loader.checkpoint.position import ReadPoint
from lit_loader.seeding.generator_watch import GeneratorWatch
from lit_loader.transport.remote_error import ReaderShare
from lit_loader.transport.status_board import Progress

__all__ = ["ShardLoader"]

_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
_START: Final = ReadPoint()


class ShardLoader:
    """Makes batches by a spec that says how many readers there are; used as a `BatchLoader` is.

    Args:
        spec: What to make.
        watch: The generators of the spec's dataset and functions, as far as they are known.

    Raises:
        TransportError: The dataset cannot be copied.
    """

    reads_table = False

    def __init__(self, spec: BatchSpec, watch: GeneratorWatch | None = None) -> None:
        self._spec = spec
        self._watch = watch or spec.watch()
        self._copies = DatasetCopies(spec.dataset, self._watch.held.generators)
        # Whether copies hold what they should, by the paths that it was found at: of the first
        # one that is looked at (a search takes long), after its set_epoch.
        self._alike: bool | None = None
        self._readers: dict[int, BatchLoader | None] = {}  # None: it has come to its end
        self._next: dict[int, int] = {}  # the batch that each can go on with
        self.samples = 0
        """Samples of the batch made last."""

    def begin_epoch(self) -> None:
        """Forget the readers: each begins anew with its next :meth:`load`."""
        self._readers.clear()
        self._next.clear()
        if callable(getattr(self._spec.dataset, "set_epoch", None)):
            self._alike = None

    def part_with(self, reader: int) -> None:
        """Close a reader: another process serves it from now on."""
        self._readers.pop(reader, None)
        self._next.pop(reader, None)

    def end_epoch(self) -> list[str]:
        """Give the notes for the user at the end of an epoch: none."""
        return []

    def whose(self, number: int) -> ReaderShare:
        """Give whose turn a batch is."""
        spec = self._spec
        shard = number % spec.num_readers * spec.num_replicas + spec.rank
        return ReaderShare(shard, spec.num_shards)

    def take(
        self,
        indices: Any,
        progress: Progress,
        on_collate: Callable[[], None],
        empty: Empty | None = None,
    ) -> Any:
        """Give None: a batch of an iterable dataset is for :meth:`load` to make."""
        return None

    def load(
        self,
        indices: Any,
        number: int,
        epoch: int,
        seed: int,
        progress: Progress,
        on_collate: Callable[[], None] | None = None,
        empty: Empty | None = None,
    ) -> Any:
        """Make the batch ``number``.

        Args:
            indices: A :class:`ReadPoint`: its reader is to begin (again) there; None: it goes on.
                One that is not open here, or is at another place, begins at its start.
            number: The batch's turn among those of this rank's readers.
            epoch: The epoch.
            seed: Base seed of the epoch.
            progress: Notes each sample before it is read.
            on_collate: Called when all are read.
            empty: Gives slot memory for what the default collate stacks.

        Raises:
            EndOfData: The reader has no more.
            Cancelled: The batch is no longer wanted.
        """
        reader = number % self._spec.num_readers
        if self._next.get(reader) != number and indices is None:
            indices = _START
        loader = self._reader(reader, indices)
        self._next[reader] = number + self._spec.num_readers
        if loader is None:
            raise EndOfData
        share, count = self.whose(number)
        own_seed = seed + share & _MASK
        if torch.initial_seed() != own_seed:  # another reader's; what is drawn is set below
            torch.default_generator.manual_seed(own_seed)
        before = shown()
        try:
            show(WorkerInfo(id=share, num_workers=count, seed=own_seed, dataset=loader.dataset))
            batch = loader.load(indices, number, epoch, seed, progress, on_collate, empty)
            if self._alike is None:
                self._alike = loader.holds(self._generators)
        except EndOfData:
            self._readers[reader] = None  # with its copy of the dataset
            raise
        finally:
            show(before)
        self.samples = loader.samples
        return batch

    def _reader(self, reader: int, point: ReadPoint | None) -> BatchLoader | None:
        """Give what makes a reader's batches; None: it has come to its end."""
        if point is not None:
            loader = None
            if not point.ended:
                dataset, self._generators = self._copies.make()
                spec, watch = dataclasses.replace(self._spec, dataset=dataset), None
                if self._alike:
                    roots = (dataset, *self._watch.roots[1:])
                    watch = self._watch.in_a_copy(roots, self._generators)
                loader = BatchLoader(spec, reader, spec.num_readers, watch)
            self._readers[reader] = loader
        return self._readers[reader]
