"""`BatchBuilder`: builds batches (seed, fetch, collate), in a worker or with ``num_workers=0``.

::

    indices ─▶ take: a table of tensors? one indexing ───────────────────────────╮
       ╰─────▶ load: seed ─▶ fetch the samples ─▶ (seed) ─▶ collate ─▶ report? ──┴─▶ batch

`Reader` (`streams/reader.py`) does the same for an iterable dataset.

What comes in is what a task says (indices, batch number, epoch, seeds); what goes out is a batch,
or a `BatchWithReport` where the parent is to know more. Before each batch the generators of Python,
NumPy and torch are seeded, and those that the dataset holds, with ``seeding="sample"`` before each
sample.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from lit_loader.context import reading
from lit_loader.core.batch.batch_spec import BatchSpec, BatchWithReport, Changes, apply
from lit_loader.core.batch.collate import default_collate, why_not_collated
from lit_loader.core.batch.fetch import OMITTED, MapFetcher
from lit_loader.core.batch.progress import Progress
from lit_loader.core.seeding import loader_seeds
from lit_loader.core.seeding.held_generators import (
    MAX_OBJECTS,
    NONE_HELD,
    Found,
    HeldGenerators,
    find_generators,
)
from lit_loader.core.seeding.seeds import (
    BATCH,
    SAMPLE,
    UNTOLD,
    BatchRng,
    PassSeeds,
    extend,
    seed_globals,
)
from lit_loader.core.transport.worker_exception import ReaderShare
from lit_loader.describe import annotate

if TYPE_CHECKING:
    from lit_loader.core.batch.read_pool import ReadPool

_REPLACEMENTS: Final = 0x4E72  # keeps the choice of replacements apart from what samples draw
BEGINNING: Final = 0xBE61  # … and what comes before an epoch's first sample
SET_EPOCH: Final = 0
"""A stage of what comes before the first sample; see `streams/reader.py`."""

_new = tuple.__new__

_of_kind: Final = functools.lru_cache(maxsize=8)(extend)
"""Begins the seeds of one kind in one pass, which need it for each batch, or sample."""


class BatchBuilder:
    """Builds batches by a spec, in whichever process it lives.

    ``worker`` is this reader's number among the ``num_readers`` of this rank: the worker's, unless
    the spec says how many readers there are. ``found`` are the generators that the dataset holds,
    where they are known for the first pass: they are not searched for again.
    """

    held = NONE_HELD
    samples = 0  # of the batch made last
    _fetcher: MapFetcher | None = None
    _seeds = PassSeeds(0)  # of the pass
    _seeded: tuple[int, ...] = ()  # what was seeded for last
    _pool: ReadPool | None = None

    def __init__(
        self, spec: BatchSpec, worker: int = 0, num_readers: int = 1, found: Found | None = None
    ) -> None:
        self._spec = spec
        self._share = (spec.rank * num_readers + worker, spec.num_replicas * num_readers)
        self._collates_into_slot = spec.default_collation
        self._found = found
        # None: nothing draws from the global generators, so they are not seeded.
        self.seed_globals: Callable[[int], object] | None = seed_globals
        self.rng = BatchRng(spec.size, spec.rank, spec.num_replicas)
        self._notes: list[str] = []
        tolerance = spec.tolerance
        self._attempts = None if tolerance is None else tolerance.attempts(self._attempt)
        if spec.read_threads > 1:
            from lit_loader.core.batch.read_pool import ReadPool

            self._pool = ReadPool(spec, self)
        per_sample, threads = spec.per_sample, self._pool is not None
        self._seeds_samples = per_sample and not threads  # no thread has the generators to itself
        # Whether samples have drawn what collate_fn must not depend on.
        self._seeds_collation = per_sample or threads
        self._table = spec.table()
        # Whether batches are made by `take`, as far as indices allow.
        self.reads_table = self._table is not None

    def whose(self, number: int) -> ReaderShare | None:
        """Return whose turn a batch is; None: readers have no numbers of their own."""
        return None

    @property
    def dataset(self) -> Any:
        """What is read."""
        return self._spec.dataset

    def set_attributes(self, changes: Changes) -> None:
        """Set attributes of the dataset that the program has changed."""
        apply(changes, self._spec.dataset)

    def begin_epoch(self) -> None:
        """Take up an epoch."""
        self._fetcher = None

    def end(self) -> None:
        """End the threads that read samples, and let go of the board."""
        self._fetcher = self.rng.step = None
        if self._pool is not None:
            self._pool.end()

    def take(self, indices: object, progress: Progress) -> object:
        """Make a batch of a table by one indexing; None: `load` is to make it.

        For a builder that `reads_table`. No code of the user's runs and nothing is drawn, so no
        generator need be seeded.
        """
        own = self._spec.own_order
        if type(indices) is not list or not (own or {int} == set(map(type, indices))):
            return None  # a bool, say, means another thing to a tensor
        try:
            batch = self._table.batch(indices, progress.empty)
        except Exception:  # indices from the end, or out of range
            return None
        self.samples = len(indices)
        progress.collating(self.samples)
        return batch

    def enter(self, seeds: PassSeeds) -> None:
        """Take up a pass, and search for generators, unless that is done."""
        if self._seeds != seeds:
            self._seeds, self._fetcher = seeds, None
            self._search()

    def begin(self, seeds: PassSeeds, progress: Progress) -> MapFetcher:
        """Begin a pass in the dataset, unless that is done; return what reads its samples."""
        self.enter(seeds)
        if self._fetcher is None:
            progress.beat()
            self._announce_epoch()
            self._fetcher = self._new_map_fetcher()
        return self._fetcher

    def load(
        self, indices: object, number: int, epoch: int, seeds: PassSeeds, progress: Progress
    ) -> object:
        """Make a batch of a pass that has these seeds; a `BatchWithReport` if samples failed.

        Cancelled: it is no longer wanted.
        """
        spec, rng, context = self._spec, self.rng, reading()
        # At every batch: loaders with num_workers=0 may take turns in one process.
        context.epoch, context.shard, context.maker = epoch, self._share, self
        fetcher = self._fetcher
        if fetcher is None or self._seeds != seeds:
            fetcher = self.begin(seeds, progress)
        number = number * spec.num_replicas + spec.rank
        rng.begin(seeds.seed, number)
        if not self._seeds_samples:
            self._seed(BATCH, number)
        rng.step, context.tokens = progress, 0
        samples = fetcher.fetch(indices, progress)
        rng.step = None
        if samples is OMITTED:
            self.samples = 0
            return self.with_report(None, omitted=True)
        batch = self.collate(samples, progress, indices)
        progress.tokens = context.tokens
        tried = self._attempts
        if self._notes or (tried is not None and (tried.errors or tried.retries)):
            return self.with_report(batch)
        return batch

    def collate(self, samples: Any, progress: Progress, indices: object = None) -> object:
        """Make a batch of its samples, which have these indices if they are known."""
        spec = self._spec
        self.samples = len(samples) if spec.batched else 1
        progress.collating(self.samples)
        if self._seeds_collation:
            self._seed(BATCH, self.rng.batch)  # whatever the samples have drawn before
        if not self._collates_into_slot:
            return spec.collate_fn(samples)
        try:
            return default_collate(samples, progress.empty)
        except (RuntimeError, TypeError, LookupError) as error:
            if (text := why_not_collated(samples, indices)) is not None:
                annotate(error, text)
            raise

    def note(self, text: str) -> None:
        """Report something to the user, once, with the next batch."""
        if text not in self._notes:
            self._notes.append(text)

    def with_report(
        self,
        batch: object,
        state: object = None,
        divided: int | None = None,
        omitted: bool = False,
        digest: int = 0,
    ) -> BatchWithReport:
        """Return a batch with what the parent is to know."""
        tried, notes, self._notes = self._attempts, tuple(self._notes), []
        errors = () if tried is None else tuple(tried.errors)
        retries = 0 if tried is None else tried.retries
        fields = batch, state, divided, errors, omitted, retries, notes, digest
        return _new(BatchWithReport, fields)  # each batch of a stream has one

    # --- seeds ---

    @property
    def seed(self) -> int:
        """The seed of the batch, or sample, that is being made."""
        return extend(self._seeds.seed, *self._seeded) >> 1

    def _announce_epoch(self) -> None:
        """Tell the dataset its epoch if the program has told the loader one."""
        seeds = self._seeds
        if seeds.dataset_epoch == UNTOLD:
            return
        set_epoch = getattr(self._spec.dataset, "set_epoch", None)
        if callable(set_epoch):
            self.rng.begin(seeds.seed, BEGINNING)
            self._seed(BEGINNING, SET_EPOCH)
            set_epoch(seeds.dataset_epoch)
            self._search()  # it may have made other generators

    def _search(self) -> None:
        """Search for the generators that are to be seeded."""
        spec, found, self._found = self._spec, self._found, None
        if found is None:
            found = find_generators(spec.dataset, spec.collate_fn, spec.worker_init_fn)
        pairs = found.generators
        if spec.shared_generators is not None:  # a worker thread
            # Only a shard has a dataset of its own.
            mine = () if spec.shards is None else pairs
            pairs = tuple(pair for pair in mine if id(pair[1]) not in spec.shared_generators)
        elif self._pool is not None:
            self._pool.watch(pairs)
        self.held = HeldGenerators(pairs, spec.held, self._seeds) if pairs else NONE_HELD
        if spec.reseed_fn is not None:
            return
        for path, generator in found.generators:
            if isinstance(generator, random.SystemRandom):
                self.note(
                    f"{path} is a random.SystemRandom, which no seed determines, so batches differ "
                    "from run to run. Use random.Random"
                )
        if found.cut is not None:
            self.note(
                f"random generators beyond {found.cut} are not seeded, because it holds more than "
                f"{MAX_OBJECTS:,} objects. Draw from lit_loader.get_rng(), or pass reseed_fn"
            )

    def _seed(self, kind: int, *place: int) -> None:
        """Seed every generator that the dataset may draw from, for a place of some kind."""
        self._seeded = kind, *place
        if self.seed_globals is not None:
            self.seed_globals(extend(_of_kind(self._seeds.seed, kind), *place) >> 1)
        if self.held.tapes:
            self.held.reseed(kind, *place)
        if self._spec.reseed_fn is not None:
            self._spec.reseed_fn(self._spec.dataset, self.seed)

    def _seed_sample(self, place: int) -> None:
        self._seed(SAMPLE, self.rng.sample_seed(place))

    def _attempt(self, place: int) -> None:
        """Seed before an attempt to read a sample: another attempt draws the same numbers."""
        maker = reading().maker
        maker.rng.attempt()
        if maker is self:  # no other thread reads at the moment
            self._seed_sample(place)

    def _new_map_fetcher(self) -> MapFetcher:
        spec, pool, attempts = self._spec, self._pool, self._attempts
        if attempts is not None:
            seed = extend(self._seeds.seed, _REPLACEMENTS)
            return attempts.tolerance.map_fetcher(spec, attempts, seed, pool)
        before_sample = self._seed_sample if self._seeds_samples else None
        return MapFetcher(spec.dataset, spec.batched, before_sample, pool)


def builder_of(
    spec: BatchSpec, worker: int = 0, num_workers: int = 1, found: Found | None = None
) -> Any:
    """Return what builds a process's batches: a worker's, or without any the loader's.

    A `BatchBuilder`, or what an iterable dataset has in its place (`streams/readers.py`).
    """
    make = spec.streams or BatchBuilder
    return make(spec, worker, num_workers, found)


def make_batch(
    builder: Any, indices: object, number: int, epoch: int, seeds: PassSeeds, progress: Progress
) -> object:
    """Make a batch in a process whose global generators are its own: a worker, here or elsewhere.

    By a `BatchBuilder` or `Readers`; what goes in and comes out is as with `BatchBuilder.load`.
    """
    if builder.reads_table:
        batch = builder.take(indices, progress)
        if batch is not None:
            return batch
    with loader_seeds.lock:  # a thread of the dataset's may iterate a loader
        try:
            return builder.load(indices, number, epoch, seeds, progress)
        finally:
            reading().maker = None
