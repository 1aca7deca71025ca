"""`BatchBuilder`: makes batches (seed, fetch, collate), in a worker or with ``num_workers=0``.

::

    indices ─▶ take: a table of tensors? one indexing ───────────────────────────╮
       ╰─────▶ load: seed ─▶ fetch the samples ─▶ (seed) ─▶ collate ─▶ report? ──┴─▶ batch

`Reader` (`streams/reader.py`) does the same for an iterable dataset.

What comes in is what a task says (indices, batch number, epoch, seeds); what goes out is a batch,
or a `BatchWithReport` where the parent is to know more. Generators that a batch has made on first
use are found afterwards, and the batch is made again with them seeded.

Most datasets draw nothing. So where the first `QUIET` batches have not moved a global generator,
batches are made without a seed, and it is seen behind each whether one has moved. Then that batch
is made again with a seed, as are all that follow. Which of this happens changes no byte. Streams
are always seeded: they cannot be read again.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeAlias

from lit_loader.context import reading
from lit_loader.core.batch.batch_spec import BatchSpec, BatchWithReport
from lit_loader.core.batch.collate import default_collate
from lit_loader.core.batch.fetch import OMITTED, MapFetcher, as_read
from lit_loader.core.batch.progress import Progress
from lit_loader.core.seeding import generator_lock
from lit_loader.core.seeding.bases import UNTOLD, PassSeeds
from lit_loader.core.seeding.find_generators import DrawnTables, GeneratorWatch, HeldGenerators
from lit_loader.core.seeding.generator_state import Loan, OwnStreams, Rewind, drawn_since
from lit_loader.core.seeding.global_states import GlobalStates
from lit_loader.core.seeding.seeds import (
    BatchRng,
    extend,
    extend_each,
    index_number,
    sample_seed,
    seed_globals,
)
from lit_loader.core.system.interrupts import let_handlers_through
from lit_loader.core.transport.worker_exception import ReaderShare

__all__ = ["QUIET", "BatchBuilder", "make_batch", "maker_of"]

_REPLACEMENTS = 0x4E72  # keeps the choice of replacements apart from what samples draw
BEGINNING = 0xBE61  # … and what comes before an epoch's first sample
SET_EPOCH = 0
"""A stage of what comes before the first sample; see `streams/reader.py`."""

QUIET: Final = 16
"""Batches that have drawn from no global generator, after which these are no longer seeded."""

_DRAWS: Final = -1

Learned: TypeAlias = tuple[GeneratorWatch, int, bool]
"""The generators that are known, how many batches drew nothing, and whether any was made."""


class BatchBuilder:
    """Makes batches by a spec, in whichever process it lives.

    ``worker`` is this reader's number among the ``num_readers`` of this rank: the worker's, unless
    the spec says how many readers there are.
    """

    def __init__(self, spec: BatchSpec, worker: int = 0, num_readers: int = 1) -> None:
        self._spec = spec
        self._num_readers = num_readers
        self._share = (spec.rank * num_readers + worker, spec.num_replicas * num_readers)
        self._collates_into_slot = spec.default_collation
        self._fetcher: Any = None  # a `MapFetcher`, but in a reader of a stream
        self._watch = spec.watch()
        # Whether generators are looked for after the next batch, too.
        self._first = spec.seeding != "worker"
        self._goes_on = False  # whether the next batch is the first one of another pass
        self._tables: DrawnTables | None = None  # while batches are looked at for them
        self._late_tables: DrawnTables | None = None  # those of batches without a seed
        self._rewind: Rewind | None = None
        self._rewound: HeldGenerators | None = None  # those that it takes back
        may_rest = not spec.iterable and spec.seeding != "worker" and spec.reseed_fn is None
        # How many batches were seen to draw nothing, or _DRAWS; those of earlier passes count.
        self.quiet = 0 if may_rest else _DRAWS
        self._seeds = True  # False: within a batch that is made without
        self._seeded: GlobalStates | None = None  # where a seed has put the generators, if known
        self._loan: Loan | None = None  # where they are the program's, and not this process's own
        self.rng = BatchRng(spec.batched)
        self._attempts = self._new_attempts()
        self.reads = spec.read_ahead()
        self._table = spec.table()
        # Whether batches are made by `take`, which draws nothing, as far as indices allow.
        self.reads_table = self._table is not None
        self._epoch: tuple[PassSeeds, int] | None = None
        self._epoch_seed = 0  # that of the pass
        # Those of the global generators, where these have seeds of their own.
        self._globals: tuple[int, int, int] | None = None
        self.samples = 0  # of the batch made last

    def whose(self, number: int) -> ReaderShare | None:
        """Give whose turn a batch is; None: readers have no numbers of their own."""
        return None

    @property
    def dataset(self) -> Any:
        """What is read."""
        return self._spec.dataset

    @property
    def generators(self) -> list[Any]:
        """The random generators that dataset and functions hold, as far as they are found."""
        return self._watch.held.generators

    @property
    def learned(self) -> Learned:
        """What batches so far have shown of dataset and functions, for `go_on_from`."""
        return self._watch, self.quiet, not self._first

    def go_on_from(self, learned: Learned | None) -> None:
        """Know what the pass before has learned, in this process, of the same objects.

        What they make on first use is there: so the first batch need not be seeded.
        """
        watch, quiet, made = learned or (None, 0, False)
        if watch is not None and watch.is_of(self._watch):
            self._watch, self._goes_on = watch, self._first and made
            self._first = self._first and not made
            if self.quiet == 0:
                self.quiet = quiet

    def begin_epoch(self) -> None:
        """Take up an epoch."""
        self._fetcher = None

    def forget_reads(self) -> None:
        """Drop what was read ahead, in whatever state an interruption has left that."""
        if self.reads is not None:
            self.reads.background.end()
            self.reads = self._spec.read_ahead()
            self.reads.enter(self._epoch)

    def take(self, indices: Any, progress: Progress) -> Any:
        """Make a batch by one indexing, where the dataset is a table; None: `load` is to make it.

        No code of the user's runs and nothing is drawn, so no generator need be seeded.
        """
        if self._table is None or type(indices) is not list:
            return None
        if not (self._spec.own_order or {int} == set(map(type, indices))):
            return None  # a bool, say, means another thing to a tensor
        progress.step(0)
        try:
            batch = self._table.batch(indices, progress.empty)
        except Exception as error:  # indices from the end, or out of range
            let_handlers_through(error)
            return None
        self.samples = len(indices)
        progress.collating()
        return batch

    def load(
        self, indices: Any, number: int, epoch: int, seeds: PassSeeds, progress: Progress
    ) -> Any:
        """Make a batch of a pass that has these seeds; a `BatchWithReport` if samples failed.

        Cancelled: it is no longer wanted.
        """
        # At every batch: loaders with num_workers=0 may take turns in one process.
        reading.epoch, reading.shard, reading.maker = epoch, self._share, self
        if self._epoch != (seeds, epoch):
            self._enter(seeds, epoch, progress)
        if self._first or self._tables is not None:
            return self._load_watched(indices, number, progress)
        if self.quiet < QUIET or self._watch.held.needs_seeds:
            batch = self._make(indices, number, progress)
        else:
            batch = self._make_unseeded(indices, number, progress)
        if self._goes_on:
            self._goes_on = False
            if self._watch.search(first_batch=True):  # it makes one in each pass
                batch = self._noted(self._make_again(indices, number, progress))
        return batch

    def lend(self, own: OwnStreams | None) -> Loan:
        """Give the loan of the program's generators within which the next batch is to be made."""
        self._loan = Loan(own, idle=self.quiet >= QUIET)
        return self._loan

    def _make(self, indices: Any, number: int, progress: Progress) -> Any:
        """Make a batch for which generators are seeded, and see whether it draws."""
        self._seeded = None
        batch = self._read(indices, number, progress)
        if self._seeded is not None:
            self._look()
            self.quiet += self.quiet >= 0
        return batch

    def _make_unseeded(self, indices: Any, number: int, progress: Progress) -> Any:
        """Make a batch that is not expected to draw; if it has, again, with a seed."""
        before = self._seeded if self._loan is None else self._loan.before
        if before is None:
            return self._make(indices, number, progress)
        if self._late_tables is None:
            self._late_tables = DrawnTables(self._watch.objects)
        self._seeds = False
        try:
            batch = self._read(indices, number, progress)
            if GlobalStates.now() == before:
                if self._loan is not None:
                    self._loan.before = None
                return batch
            if type(batch) is BatchWithReport:
                self._watch.notes += batch.notes
        except Exception as error:  # which may follow from what was drawn
            let_handlers_through(error)
            if GlobalStates.now() == before:
                raise
        finally:
            self._seeds = True
        self.quiet = 0
        try:
            batch = self._make_again(indices, number, progress)
        finally:
            drew, self.quiet = self.quiet < 0, _DRAWS
        if not drew:  # it has kept what it drew at first
            self._watch.note_tables(self._late_tables.made(), "a later batch")
        return self._noted(batch)

    def _make_again(self, indices: Any, number: int, progress: Progress) -> Any:
        empty, progress.empty = progress.empty, None  # what it gives lies behind the first one
        batch = self._make(indices, number, progress)
        progress.empty = empty
        return batch

    def _look(self) -> None:
        """See whether anything was drawn since the seed."""
        if self._seeded is not None and GlobalStates.now() != self._seeded:
            self.quiet = _DRAWS

    def _read(self, indices: Any, number: int, progress: Progress) -> Any:
        rng, fetcher = self.rng, self._fetcher
        if fetcher is None:
            fetcher = self._fetcher = self._new_map_fetcher()
        if self._seeds:
            self._reseed_batch(number)
        else:
            rng.begin(number * self._spec.num_replicas + self._spec.rank)
        rng.indices, rng.progress, reading.tokens = indices, progress, 0
        if self.reads is None:
            samples = fetcher.fetch(indices, progress)
        else:
            samples = self._fetch_reading(fetcher, indices, number, progress)
        rng.progress = None
        if samples is OMITTED:
            self.samples = 0
            return self._with_report(None, omitted=True)
        batch = self._collate(samples, number, progress)
        noted = self._watch.notes or (self.reads is not None and self.reads.notes)
        tried = self._attempts
        if noted or (tried is not None and (tried.errors or tried.retries)):
            return self._with_report(batch)
        return batch

    def _fetch_reading(self, fetcher: Any, indices: Any, number: int, progress: Progress) -> Any:
        """Read samples whose reads may have been made ahead, and more of them meanwhile."""
        reads, epoch, made = self.reads, self._epoch, False
        assert reads is not None
        reads.waited, reads.progress = 0, progress
        reads.announce((epoch, number), epoch, indices if self._spec.batched else [indices])
        try:
            samples = fetcher.fetch(indices, progress)
            made = True
            return samples
        finally:
            reads.end((epoch, number), made)
            progress.waited, reads.progress = reads.waited, None

    def _collate(self, samples: Any, number: int, progress: Progress) -> Any:
        spec = self._spec
        self.samples = len(samples) if spec.batched else 1
        progress.collating()
        if spec.seeding == "sample":
            self._reseed_batch(number)  # for collate_fn, whatever the samples have drawn before
        if self._collates_into_slot:
            batch = default_collate(samples, progress.empty)
        else:
            batch = spec.collate_fn(samples)
        progress.tokens = reading.tokens
        return batch

    def _load_watched(self, indices: Any, number: int, progress: Progress) -> Any:
        """Make a batch, and look for generators and tables that it has made."""
        watch, spec, first, tables = self._watch, self._spec, self._first, self._tables
        if first and spec.seeding == "batch":
            tables = DrawnTables(watch.objects)
        self._tables = None
        batch = self._make(indices, number, progress)
        self._first = self._goes_on = False
        if tables is not None:
            found = tables.after_batch(lambda: self._drawn_in(number))
            self._tables = tables if found is None else None
            watch.note_tables(found or ())
        # On first use it has made one, which was not seeded.
        if first and watch.search(first_batch=True):
            if type(batch) is BatchWithReport:
                watch.notes += batch.notes
            batch = self._make_again(indices, number, progress)
        return self._noted(batch)

    def _noted(self, batch: Any) -> Any:
        """Put what is to be told beside a batch."""
        if not self._watch.notes:
            return batch
        made = batch if type(batch) is BatchWithReport else BatchWithReport(batch, None, None)
        return made._replace(notes=(*made.notes, *self._notes()))

    def _drawn_in(self, number: int) -> set[int]:
        held = self._watch.held

        def reseed() -> None:
            held.reseed(self._reseed_globals(self._position(number)))

        return drawn_since(reseed, held.states)

    def note(self, text: str) -> None:
        """Have the user warned of something, with the next batch."""
        self._watch.notes.append(text)

    def _notes(self) -> tuple[str, ...]:
        """Take what the user is to be warned of."""
        found: list[str] = []
        for each in (self.reads, self._watch):
            if each is not None and each.notes:
                found += each.notes
                each.notes = []
        return tuple(found)

    def _with_report(
        self,
        batch: Any,
        state: Any = None,
        mark: str | None = None,
        divided: int | None = None,
        omitted: bool = False,
    ) -> BatchWithReport:
        tried = self._attempts
        errors, retries = (), 0
        if tried is not None:
            errors, retries = tuple(tried.errors), tried.retries
        return BatchWithReport(batch, state, divided, errors, omitted, retries, self._notes(), mark)

    def _enter(self, seeds: PassSeeds, epoch: int, progress: Progress) -> None:
        """Note the pass, and tell the dataset its epoch if the program has told one."""
        # Only the dataset's own code can have made one since this process's last epoch.
        self._watch.search(late=self._epoch is not None and not self._spec.iterable)
        progress.beat()
        derived = seeds.of(epoch)
        main = self._epoch_seed = self.rng.epoch_seed = derived[0]
        self._epoch = seeds, epoch
        self._globals = None if derived == (main, main, main) else derived
        set_epoch = getattr(self._spec.dataset, "set_epoch", None)
        if seeds.told != UNTOLD and callable(set_epoch):
            self._reseed_beginning(SET_EPOCH)
            set_epoch(seeds.told)
            self._watch.search()
            self._first = self._spec.seeding != "worker"
        if self.reads is not None:
            self.reads.enter(self._epoch)

    def _reseed_beginning(self, stage: int) -> None:
        """Seed what comes before a reader's first sample from the pass alone.

        There a dataset shuffles its files before it takes its share of them: all readers, on all
        ranks, must draw the same.
        """
        self.rng.begin(BEGINNING, stage)
        self.rng.progress = self._seeded = None
        if self._spec.seeding != "worker":
            self._reseed(BEGINNING, stage)

    def beginning(self, part: int) -> AbstractContextManager[object]:
        """See `context`: what is indexed has no beginning."""
        return nullcontext()

    def aside(self) -> AbstractContextManager[object]:
        """Put generators (not ``reseed_fn``'s) back, where this batch's seed has set them."""
        seeded = self._spec.seeding != "worker"
        held = self._watch.held.states if seeded else ()
        return Rewind(held, (self.rng.place, self.rng.go_back))

    def drawn(self) -> str | None:
        """See `context`: what is indexed is not read again."""
        return None

    def _reseed_batch(self, number: int) -> None:
        position = self._position(number)
        self.rng.begin(position)
        if self._spec.seeding != "worker":
            self._reseed(position)

    def _position(self, number: int) -> int:
        return number * self._spec.num_replicas + self._spec.rank

    def _reseed_for(self, index: Any) -> None:
        if self._seeds:
            self._reseed(index_number(index))
        self.rng.attempt(index)

    def _reseed_globals(self, *parts: int) -> int:
        """Set the global generators by these parts of the pass; returns the seed."""
        if self._loan is not None:
            self._loan.lend()
        own = self._globals
        if own is None:
            seed = extend(self._epoch_seed, *parts)
            seed_globals(seed)
            return seed
        seeds = extend_each(own, parts)
        seed_globals(*seeds)
        same = own[0] == self._epoch_seed  # not if worker_init_fn has seeded torch's
        return seeds[0] if same else extend(self._epoch_seed, *parts)

    def _reseed(self, *parts: int) -> None:
        """Set every generator that the dataset may draw from, unless it is not expected to draw."""
        if not self._seeds:
            return
        held = self._watch.held
        looks = self.quiet >= 0 and not held.needs_seeds
        if looks:
            self._look()
        seed = self._reseed_globals(*parts)
        if looks:
            self._seeded = GlobalStates.now()
            if self._seeded is None:  # this cannot be seen here
                self.quiet = _DRAWS
        if held.generators:
            held.reseed(seed)
        if self._spec.reseed_fn is not None:
            self._spec.reseed_fn(self._spec.dataset, seed)

    def _new_map_fetcher(self) -> MapFetcher:
        spec = self._spec
        self.rng.together = bool(spec.batched and as_read(spec.dataset)[1])
        if spec.tolerance is not None:
            fetcher: MapFetcher = spec.tolerance.map_fetcher(
                spec, self._attempts, self._replacement_seed
            )
            return fetcher
        before_sample = self._reseed_for if spec.seeding == "sample" else None
        return MapFetcher(spec.dataset, spec.batched, before_sample)

    def _new_attempts(self) -> Any:
        """What reads single samples, if some may fail; else None."""
        spec = self._spec
        if spec.tolerance is None:
            return None
        if spec.seeding == "sample" and not spec.iterable:
            # Whatever a failed attempt has drawn: the next one, the next sample and the collate_fn
            # are seeded anew.
            return spec.tolerance.attempts(self._reseed_for, self._undo)
        return spec.tolerance.attempts(self._mark, self._undo)

    def _mark(self, index: Any) -> None:
        held = self._watch.held
        if self._seeds:
            if self._rewind is None or self._rewound is not held:
                self._rewind, self._rewound = Rewind(held.states), held
            self._rewind.mark()
        self.rng.attempt(index)

    def _undo(self) -> None:
        """Take back what a failed attempt has drawn; without a seed the batch is made again."""
        if self._seeds and self._rewind is not None:
            self._look()
            self._rewind.back()

    def _replacement_seed(self, index: Any) -> int:
        return sample_seed(extend(self._epoch_seed, _REPLACEMENTS), index)


def maker_of(spec: BatchSpec, worker: int = 0, num_workers: int = 1) -> Any:
    """Give what makes a process's batches: that of a worker, or without any of the loader's.

    A `BatchBuilder`, or what an iterable dataset has in its place (`streams/readers.py`).
    """
    if spec.streams is not None:
        return spec.streams.maker(spec, worker, num_workers)
    return BatchBuilder(spec, worker, num_workers)


def make_batch(
    loader: Any, indices: Any, number: int, epoch: int, seeds: PassSeeds, progress: Progress
) -> Any:
    """Make a batch in a process whose global generators are its own: a worker, here or elsewhere.

    By a `BatchBuilder` or `Readers`; what goes in and comes out is as with `BatchBuilder.load`.
    """
    if loader.reads_table:
        batch = loader.take(indices, progress)
        if batch is not None:
            return batch
    with generator_lock.lock:  # a thread of the dataset's may iterate a loader
        try:
            return loader.load(indices, number, epoch, seeds, progress)
        finally:
            reading.maker = None
