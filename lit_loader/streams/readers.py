"""`Readers`: makes batches of several readers of an iterable dataset, in one process.

::

    task ─▶ number % readers ─▶ a reader ── Reader ─┬─ a copy of the dataset, of its own
                                                    ╰─ its iterator, generators, errors

These readers are a part of the data, and the processes that serve them are not.
So whatever a reader could be told from another one by is its own: the copy of the dataset, made
anew for each epoch as it was when the workers were started; the seeds; and what
`lit_loader.get_shard`, ``torch.utils.data.get_worker_info()`` and ``torch.initial_seed()`` answer
while it is served.

A reader that has ended may begin the next epoch while its process has nothing else to do
(:meth:`Readers.begin_ahead`): its first batch is kept until somebody asks for that epoch, with
that seed. It is a function of these, as all batches are; who asks for another epoch gets that.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict, deque
from typing import Any, Final, NamedTuple

import torch

from lit_loader.core.batch.batch_spec import BatchSpec
from lit_loader.core.batch.fetch import EndOfData
from lit_loader.core.batch.progress import Progress
from lit_loader.core.batch.worker_info import WorkerInfo, show, shown
from lit_loader.core.seeding.generator_state import Loan, OwnStreams
from lit_loader.core.seeding.seeds import PassSeeds, of_thread
from lit_loader.core.state.position import ReadPoint
from lit_loader.core.transport.worker_exception import ReaderShare
from lit_loader.errors import OptionError
from lit_loader.streams.copies import DatasetCopies
from lit_loader.streams.iterable_fetcher import StateMeter
from lit_loader.streams.other_streams import epochs_of_their_own
from lit_loader.streams.reader import Reader

__all__ = ["ProcessInfo", "Readers", "StreamMaker"]

_START: Final = ReadPoint()


class Readers:
    """Makes batches by a spec that says which readers there are; used as a `BatchBuilder` is."""

    reads_table = False
    quiet = -1  # they are always seeded
    reads: None = None  # each reader has them for itself

    def __init__(self, spec: BatchSpec, copies: DatasetCopies | None = None) -> None:
        assert spec.shards is not None
        self._spec, self._shards = spec, spec.shards.mine
        self._of = spec.shards.count
        self._copies = copies or DatasetCopies(spec.dataset)
        self._readers: dict[int, Reader | None] = {}  # None: it has come to its end
        self._next: dict[int, int] = {}  # the batch that each can go on with
        # Reader, epoch and seeds to begin.
        self._ended: deque[tuple[int, int, PassSeeds]] = deque()
        self._begun: dict[int, _Begun] = {}
        self._meters: defaultdict[int, StateMeter] = defaultdict(StateMeter)
        self.samples = 0
        """Samples of the batch made last."""

    def begin_epoch(self) -> None:
        """Forget the readers: each begins anew with its next :meth:`load`."""
        for reader in self._readers.values():
            if reader is not None:
                reader.begin_epoch()  # which closes its stream: readers are in cycles
        self._readers.clear()
        self._next.clear()
        self._ended.clear()

    def forget_reads(self) -> None:
        """Do nothing: what each has read ahead goes with it, in :meth:`begin_epoch`."""

    @property
    def may_begin_ahead(self) -> bool:
        """Whether there is something for :meth:`begin_ahead`."""
        return bool(self._ended) and len(self._begun) < self._spec.ahead

    def begin_ahead(self, progress: Progress) -> None:
        """Begin the next epoch of a reader that has ended; what goes wrong comes again later."""
        reader, epoch, seeds = self._ended.popleft()
        progress.begin(-1)
        try:
            loader = self._open(reader)
            batch = self._make(loader, _START, reader, epoch, seeds, progress)
        except BaseException:
            return
        self._begun[reader] = _Begun(epoch, seeds, loader, batch)

    def whose(self, number: int) -> ReaderShare:
        """Give whose turn a batch is."""
        return ReaderShare(self._shards[number % len(self._shards)], self._of)

    def take(self, indices: Any, progress: Progress) -> Any:
        """Give None: a batch of an iterable dataset is for :meth:`load` to make."""
        return None

    def lend(self, own: OwnStreams | None) -> Loan:
        """See `BatchBuilder.lend`."""
        return Loan(own)

    def load(
        self, indices: Any, number: int, epoch: int, seeds: PassSeeds, progress: Progress
    ) -> Any:
        """Make batch ``number``, a turn of one of this rank's readers; or EndOfData, or Cancelled.

        ``indices`` is a :class:`ReadPoint`: its reader is to begin (again) there; None: it goes on,
        or begins at its start if it is not open here, or at another place.
        """
        reader, after = number % len(self._shards), number + len(self._shards)
        if self._next.get(reader) != number and indices is None:
            indices = _START
            if number == reader and (begun := self._take_begun(reader, epoch, seeds)) is not None:
                self._readers[reader] = begun.loader
                self._next[reader] = after
                self.samples = begun.loader.samples
                progress.collating()
                return begun.batch
        if indices is not None:
            self._readers[reader] = None if indices.ended else self._open(reader)
        loader = self._readers[reader]
        self._next[reader] = after
        if loader is None:
            raise EndOfData
        try:
            batch = self._make(loader, indices, number, epoch, seeds, progress)
        except EndOfData:
            self._readers[reader] = None  # with its copy of the dataset
            if self._spec.ahead:
                self._ended.append((reader, epoch + 1, seeds.ahead(1)))
            raise
        self.samples = loader.samples
        return batch

    def _make(
        self,
        loader: Reader,
        indices: ReadPoint | None,
        number: int,
        epoch: int,
        seeds: PassSeeds,
        progress: Progress,
    ) -> Any:
        share, count = self.whose(number)
        own_seed = (seeds.of(epoch)[0] >> 1) + share
        generator = of_thread.generator or torch.default_generator
        if generator.initial_seed() != own_seed:  # another reader's; what is drawn is set below
            generator.manual_seed(own_seed)
        before = shown()
        try:
            show(WorkerInfo(id=share, num_workers=count, seed=own_seed, dataset=loader.dataset))
            return loader.load(indices, number, epoch, seeds, progress)
        finally:
            show(before)

    def _open(self, reader: int) -> Reader:
        """Give a reader another copy of the dataset."""
        spec = dataclasses.replace(self._spec, dataset=self._copies.make())
        loader = Reader(spec, reader, len(self._shards), self._copies)
        loader.meter = self._meters[reader]
        if loader.reads is not None:
            loader.reads.sharing = self._readers
        return loader

    def _take_begun(self, reader: int, epoch: int, seeds: PassSeeds) -> _Begun | None:
        """Take what was begun of a reader's epoch; what is of another epoch is thrown away."""
        if not self._begun:
            return None
        fits = {r: each for r, each in self._begun.items() if each[:2] == (epoch, seeds)}
        self._begun, found = fits, fits.pop(reader, None)
        return found


class _Begun(NamedTuple):
    """A reader that has begun an epoch, of which nobody knows yet."""

    epoch: int
    seeds: PassSeeds
    loader: Reader
    batch: Any


class ProcessInfo(WorkerInfo):
    """What worker_init_fn finds with ``num_shards``: the process, in which no reader is."""

    def __getattribute__(self, name: str) -> Any:
        if name == "dataset":
            raise OptionError(
                "worker_init_fn asks for get_worker_info().dataset, but with num_shards each "
                "reader has a copy of the dataset, whichever worker serves it: let the dataset "
                "take its share itself, in __iter__, by lit_loader.get_shard() or "
                "get_worker_info() [LL203]"
            )
        return super().__getattribute__(name)


class StreamMaker:
    """The seam: what a `BatchSpec` of an iterable dataset has as its ``streams``."""

    process_info = ProcessInfo
    """What ``get_worker_info()`` answers in a process of several readers while none is read."""

    def begin_worker(self) -> None:
        """Begin in a worker process, before the user's code."""
        epochs_of_their_own()

    def maker(self, spec: BatchSpec, worker: int, num_workers: int) -> Reader | Readers:
        """Give what makes a process's batches, see `maker_of`."""
        return Reader(spec, worker, num_workers) if spec.shards is None else Readers(spec)
