"""`Readers`: makes batches of the shards of a stream that one process reads.

::

    task ─▶ number % readers ─▶ a reader ── Reader ─┬─ its dataset
                                                    ╰─ its iterator, generators, errors

With ``num_shards`` a process reads several shards, and which process reads a shard is chance. So
whatever one shard could be told from another one by is its own: a copy of the dataset, made for
each pass as it was when the workers were started; the seeds; and the answers of
`lit_loader.get_shard` and ``torch.utils.data.get_worker_info()``. Without ``num_shards`` each
worker of each rank reads one shard, of the dataset that it has.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import Any, Final

from lit_loader.context import reading
from lit_loader.core.batch.batch_spec import BatchSpec, Changes, apply
from lit_loader.core.batch.fetch import EndOfData
from lit_loader.core.batch.progress import Progress
from lit_loader.core.batch.worker_info import WorkerInfo, show, shown
from lit_loader.core.seeding.held_generators import NONE_HELD
from lit_loader.core.seeding.seeds import PassSeeds, seed_globals
from lit_loader.core.transport.worker_exception import ReaderShare
from lit_loader.errors import OptionError
from lit_loader.streams.copies import DatasetCopies
from lit_loader.streams.read_point import ReadPoint, shares_of
from lit_loader.streams.reader import Reader
from lit_loader.streams.state_meter import StateMeter

_START: Final = ReadPoint()


class Readers:
    """Makes the batches of a stream; used as a `BatchBuilder` is.

    ``worker`` is the process's number among ``num_workers``, and ``found`` are the generators that
    the dataset holds, where they are known for the first pass.
    """

    reads_table = False

    def __init__(
        self,
        spec: BatchSpec,
        worker: int = 0,
        num_workers: int = 1,
        found: Any = None,
        copies: DatasetCopies | None = None,
    ) -> None:
        self._spec, self._worker, self._found = spec, worker, found
        self._copies = copies
        if spec.shards is not None:
            self._copies = copies or DatasetCopies(spec.dataset)
        self._shares = shares_of(spec.shards, spec.rank, spec.num_replicas, num_workers)
        self._pass: tuple[PassSeeds, int] | None = None
        self._readers: dict[int, Reader] = {}  # those that are open
        self._next: dict[int, int] = {}  # the task that each can continue with
        self._fresh: Reader | None = None  # one that has searched for generators
        self._meters: defaultdict[int, StateMeter] = defaultdict(StateMeter)
        self.held = NONE_HELD
        self.seed_globals: Any = seed_globals
        self.samples = 0
        """Samples of the batch made last."""

    def set_attributes(self, changes: Changes) -> None:
        """Set attributes of the dataset that the program has changed; they count in new copies."""
        apply(changes, self._spec.dataset)
        if self._copies is not None:
            self._copies = DatasetCopies(self._spec.dataset)

    def begin_epoch(self) -> None:
        """Leave all streams: each begins again with its next :meth:`load`."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        self._next.clear()
        self._fresh = self._pass = None

    def enter(self, seeds: PassSeeds, epoch: int) -> None:
        """Take up a pass; search for the generators that the dataset holds."""
        if self._pass == (seeds, epoch):
            return
        self.begin_epoch()
        self._pass = seeds, epoch
        if self._copies is None:
            self._fresh = self._reader(self._worker)
            self.held = self._fresh.held

    def whose(self, number: int) -> ReaderShare:
        """Return whose turn a batch is."""
        return ReaderShare(*self._shares[number % len(self._shares)])

    def load(
        self, indices: Any, number: int, epoch: int, seeds: PassSeeds, progress: Progress
    ) -> Any:
        """Make batch ``number``, a turn of one of this rank's readers.

        ``indices`` is a `ReadPoint`: its reader is opened there. None: the reader continues,
        or begins at its start if it is not open here. Raises EndOfData, or Cancelled.
        """
        self.enter(seeds, epoch)
        place, turns = number % len(self._shares), len(self._shares)
        opens = indices is not None or self._next.get(place) != number
        self._next[place] = number + turns
        share, context, before = self._shares[place], reading(), None
        context.epoch, context.shard = epoch, share
        if opens:
            self._close(place)
            point = indices or _START
            if point.ended:
                raise EndOfData
            reader, self._fresh = self._fresh or self._reader(place), None
        elif place in self._readers:
            reader = self._readers[place]
        else:
            raise EndOfData
        context.maker, reader.seed_globals = reader, self.seed_globals
        if self._copies is not None:
            before, seed = shown(), (seeds.seed >> 1) + share[0]
            show(WorkerInfo(id=share[0], num_workers=share[1], seed=seed, dataset=reader.dataset))
        try:
            if opens:
                reader.open(point, number // turns, progress)
                self._readers[place] = reader
            batch = reader.read(number // turns, progress)
        except EndOfData:
            self._close(place)  # with its copy of the dataset
            raise
        finally:
            if self._copies is not None:
                show(before)
        self.samples = reader.samples
        return batch

    def _close(self, place: int) -> None:
        reader = self._readers.pop(place, None)
        if reader is not None:
            reader.close()

    def _reader(self, place: int) -> Reader:
        """Return a reader of a shard, in this pass."""
        assert self._pass is not None
        spec, found, self._found = self._spec, self._found, None
        if self._copies is not None:
            spec, found = dataclasses.replace(spec, dataset=self._copies.make()), None
        reader = Reader(spec, self._shares[place], self._meters[place], found)
        reader.enter(*self._pass)
        return reader


class ProcessInfo(WorkerInfo):
    """What worker_init_fn finds with ``num_shards``: the process, in which no shard is read."""

    def __getattribute__(self, name: str) -> Any:
        if name == "dataset":
            raise OptionError(
                "worker_init_fn asks for get_worker_info().dataset, but with num_shards each shard "
                "is read from a copy of the dataset. Divide the dataset in its __iter__, by "
                "lit_loader.get_shard() or get_worker_info()"
            )
        return super().__getattribute__(name)


class StreamBuilders:
    """The seam: what a `BatchSpec` of an iterable dataset has as its ``streams``."""

    process_info = ProcessInfo
    """What ``get_worker_info()`` answers in a process of several shards while none is read."""

    def builder(self, spec: BatchSpec, worker: int, num_workers: int, found: Any = None) -> Readers:
        """Return what makes a process's batches, see `builder_of`."""
        return Readers(spec, worker, num_workers, found)
