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

from collections import defaultdict
from typing import Any, Final

from lit_loader.context import reading
from lit_loader.core.batch.batch_spec import BatchSpec, BatchWithReport, Changes, apply
from lit_loader.core.batch.fetch import EndOfData
from lit_loader.core.batch.progress import Progress
from lit_loader.core.batch.worker_info import WorkerInfo, show, shown
from lit_loader.core.seeding.held_generators import NONE_HELD, Found
from lit_loader.core.seeding.seeds import PassSeeds, seed_globals
from lit_loader.core.transport.worker_exception import ReaderShare
from lit_loader.errors import OptionError
from lit_loader.streams.copies import DatasetCopies
from lit_loader.streams.reader import Reader
from lit_loader.streams.state_meter import StateMeter
from lit_loader.streams.stream_position import ReadPoint, shares_of

_START: Final = ReadPoint()


class ProcessInfo(WorkerInfo):
    """What worker_init_fn finds with ``num_shards``: the process, in which no shard is read."""

    def __getattribute__(self, name: str) -> object:
        if name == "dataset":
            raise OptionError(
                "worker_init_fn asks for get_worker_info().dataset, but with num_shards each shard "
                "is read from a copy of the dataset. Divide the dataset in its __iter__, by "
                "lit_loader.get_shard() or get_worker_info()"
            )
        return super().__getattribute__(name)


class Readers:
    """Makes the batches of a stream; used as a `BatchBuilder` is.

    ``worker`` is the process's number among ``num_workers``, and ``found`` are the generators that
    the dataset holds, where they are known for the first pass.
    """

    reads_table = False
    process_info = ProcessInfo
    """What ``get_worker_info()`` answers in a process of several shards while none is read."""

    def __init__(self, spec: BatchSpec, worker: int, num_workers: int, found: Found | None) -> None:
        self._spec, self._worker, self._found = spec, worker, found
        self._copies = None if spec.shards is None else DatasetCopies(spec.dataset)
        self._shares = shares_of(spec.shards, spec.rank, spec.num_replicas, num_workers)
        self._told = self._shares  # what `get_shard` answers
        if spec.job is not None:
            self._told = shares_of(None, *spec.job, num_workers)
        self._seeds: PassSeeds | None = None  # of the pass; None: none was entered
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
        for place in [*self._readers]:
            self._close(place)
        self._next.clear()
        self._fresh = self._seeds = None

    def enter(self, seeds: PassSeeds) -> None:
        """Take up a pass; search for the generators that the dataset holds."""
        self.begin_epoch()
        self._seeds = seeds
        if self._copies is None:
            self._fresh = self._reader(self._worker)
            self.held = self._fresh.held

    def whose(self, number: int) -> ReaderShare:
        """Return whose turn a batch is."""
        return self._shares[number % len(self._shares)]

    def load(
        self, indices: Any, number: int, epoch: int, seeds: PassSeeds, progress: Progress
    ) -> BatchWithReport:
        """Make batch ``number``, a turn of one of this rank's readers.

        ``indices`` is a `ReadPoint`: its reader is opened there. None: the reader continues,
        or begins at its start if it is not open here. Raises EndOfData, or Cancelled.
        """
        if self._seeds != seeds:
            self.enter(seeds)
        context, turns = reading(), len(self._shares)
        batch, place = number // turns, number % turns
        context.epoch, context.shard = epoch, self._told[place]
        if indices is None and self._next.get(place) != number:
            indices = _START
        self._next[place] = number + turns
        if indices is not None:
            self._close(place)
            if not indices.ended:
                self._readers[place], self._fresh = self._fresh or self._reader(place), None
        reader = context.maker = self._readers.get(place)
        if reader is None:
            raise EndOfData
        reader.seed_globals = self.seed_globals
        if self._copies is not None:
            before, (shard, shards) = shown(), self._shares[place]
            who = {"id": shard, "num_workers": shards, "dataset": reader.dataset}
            show(WorkerInfo(**who, seed=(seeds.seed >> 1) + shard))
        try:
            if indices is not None:
                reader.open(indices, batch, progress)
            context.tokens = 0
            made = reader.read(batch, progress)
        except EndOfData:
            self._close(place)  # with its copy of the dataset
            raise
        finally:
            if self._copies is not None:
                show(before)
        self.samples, progress.tokens = reader.samples, context.tokens
        return made

    def _close(self, place: int) -> None:
        reader = self._readers.pop(place, None)
        if reader is not None:
            reader.close()

    def _reader(self, place: int) -> Reader:
        """Return a reader of a shard, in this pass."""
        assert self._seeds is not None
        spec, found, self._found = self._spec, self._found, None
        if self._copies is not None:
            spec, found = spec._replace(dataset=self._copies.make()), None
        reader = Reader(spec, self._shares[place], self._meters[place], found)
        reader.enter(self._seeds)
        return reader
