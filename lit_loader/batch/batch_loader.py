"""`BatchLoader`: makes batches (seed, fetch, collate), in a worker or with ``num_workers=0``.

::

    indices ─▶ take: a table of tensors? one indexing ───────────────────────────╮
       ╰─────▶ load: seed ─▶ fetch the samples ─▶ (seed) ─▶ collate ─▶ report? ──┴─▶ batch

What comes in is what a task says (indices, batch number, epoch, seed); what goes out is a batch, or
a `BatchWithReport` where the parent is to know more. Generators that a batch has made on first use
are found afterwards, and the batch is made again with them seeded.

How a stream is resumed: whatever it draws between ``iter()`` and the place must be drawn alike. In
an epoch that is left alone, what comes before the first sample (a generator's body begins with the
first ``next()``) and that sample draw from the epoch's beginning, all else from its batch's seed. A
restored stream does both in one ``next()``: what comes before a first sample, and a sample of the
midst. No seed is right for both, and nobody can tell from outside who of the two draws. So a state
leads to a place two batches back. They are read again, and known by their marks (`mark_of`):

1. from the state, with these batches' seeds: right if nothing is drawn before the first sample.
   Both must have their marks;
2. from the state, up to the first sample with the beginning's seeds: right if the place does not
   depend on what that sample draws. The second must have its mark, for it is past all that, and
   begin with the state that it began with (`place_of`);
3. from the epoch's start, which is right for every stream that depends on nothing but its seeds.

If not even that gives the batches again, the user is told, and 1. goes on. What is opened later (a
source of a mixture) may draw before its own first sample: so a mixture is not tried by 2., and not
believed in 1. until each source that draws as it begins has given a sample again.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lit_loader.batch.batch_mark import mark_of, place_of
from lit_loader.batch.batch_spec import BatchSpec, BatchWithReport
from lit_loader.batch.collate import default_collate
from lit_loader.batch.dataset_copies import DatasetCopies
from lit_loader.batch.fetch import (
    EndOfData,
    Fetcher,
    IterableFetcher,
    MapFetcher,
    as_read,
)
from lit_loader.batch.sample_errors import Attempts
from lit_loader.batch.tolerant_fetch import (
    OMITTED,
    TolerantIterableFetcher,
    TolerantMapFetcher,
)
from lit_loader.batch.worker_info import show_in_place_of
from lit_loader.checkpoint.position import ReadPoint
from lit_loader.checkpoint.untrusted_state import resuming
from lit_loader.context import reading
from lit_loader.errors import StateError, TransportError
from lit_loader.seeding.batch_rng import BatchRng
from lit_loader.seeding.find_generators import HeldGenerators
from lit_loader.seeding.generator_state import Rewind
from lit_loader.seeding.generator_watch import LATE, GeneratorWatch
from lit_loader.seeding.seeds import derive, extend, sample_seed, seed_globals
from lit_loader.system.interrupts import let_handlers_through
from lit_loader.transport.progress import Cancelled, Progress
from lit_loader.transport.remote_error import ReaderShare

__all__ = ["BatchLoader"]

_FOR_EVER = 1 << 62
_REPLACEMENTS = 0x4E72  # keeps the choice of replacements apart from what samples draw
_BEGINNING = 0xBE61  # … and what comes before an epoch's first sample
_SET_EPOCH, _ITER, _FIRST_NEXT = range(3)

_SHORT = 16  # digits of a mark; those of a state follow

_log = logging.getLogger("lit_loader.generator_watch")


class BatchLoader:
    """Makes batches by a spec, in whichever process it lives.

    Args:
        spec: What to make.
        worker: This reader's number among those of this rank: that of the worker (0 with
            ``num_workers=0``), unless the spec says how many readers there are.
        num_readers: Number of readers of this rank: of workers (1 with ``num_workers=0``), unless
            the spec says how many there are.
        watch: The generators of the spec's dataset and functions, as far as they are known.
        copies: Make others of the dataset; None: they are made when they may be needed.
    """

    def __init__(
        self,
        spec: BatchSpec,
        worker: int = 0,
        num_readers: int = 1,
        watch: GeneratorWatch | None = None,
        copies: DatasetCopies | None = None,
    ) -> None:
        self._spec = spec
        self._copies = copies
        self._num_readers = num_readers
        self._share = (spec.rank * num_readers + worker, spec.num_replicas * num_readers)
        if spec.num_shards:  # dealt out to the ranks one by one, and not in stretches
            self._share = (worker * spec.num_replicas + spec.rank, spec.num_shards)
        self._collates_into_slot = spec.default_collation
        self._fetcher: Fetcher | None = None
        self._watch = watch
        self._unwatched = self._looked = 0  # batches until generators are looked for; times of it
        self._stale = False
        self._rewind: Rewind | None = None
        self._rewound: HeldGenerators | None = None  # those that it takes back
        self.rng = BatchRng(spec.batched)
        self._attempts = self._new_attempts()
        self._draws_first = False  # with the first next(), as far as it matters
        self.reads = spec.read_ahead()
        self._table = spec.table()
        self._epoch: tuple[int, int] | None = None
        self._epoch_seed = 0
        self.samples = 0
        """Samples of the batch made last."""

    def whose(self, number: int) -> ReaderShare | None:
        """Give whose turn a batch is; None: readers have no numbers of their own."""
        return None

    def holds(self, generators: Sequence[Any]) -> bool:
        """Whether these are all generators that it has found, in this order."""
        return self._watch is not None and self._watch.holds(generators)

    @property
    def dataset(self) -> Any:
        """What is read."""
        return self._spec.dataset

    @property
    def reads_table(self) -> bool:
        """Whether batches are made by `take`, which draws nothing, as far as indices allow."""
        return self._table is not None

    def begin_epoch(self) -> None:
        """Take up an epoch: the next :meth:`load` iterates an iterable dataset anew."""
        self._fetcher = None
        if self._spec.iterable:
            self._unwatched, self._stale = 0, self._watch is not None

    def take(self, indices: Any, progress: Progress) -> Any:
        """Make a batch by one indexing, where the dataset is a table.

        No code of the user's runs and nothing is drawn, so no generator need be seeded.

        Args:
            indices: The batch's indices.
            progress: Notes the first sample, and when the batch is made.

        Returns:
            What :meth:`load` would; None: it is for that to make the batch, or to raise.

        Raises:
            Cancelled: The batch is no longer wanted.
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

    def load(self, indices: Any, number: int, epoch: int, seed: int, progress: Progress) -> Any:
        """Make the batch ``number``.

        Args:
            indices: The batch's indices. For an iterable dataset a :class:`ReadPoint`, by which
                the epoch's first call finds the place to begin at; None is its start.
            number: Position of the batch in the epoch.
            epoch: The epoch.
            seed: Base seed of the epoch.
            progress: Notes each sample before it is read.

        Returns:
            The batch; a `BatchWithReport` for an iterable dataset, and where samples failed.

        Raises:
            EndOfData: An iterable dataset has no more.
            Cancelled: The batch is no longer wanted.
        """
        # At every batch: loaders with num_workers=0 may take turns in one process.
        reading.epoch, reading.shard, reading.maker = epoch, self._share, self
        if self._epoch != (seed, epoch):
            self._enter(seed, epoch, progress)
        if not self._unwatched:
            return self._load_watched((indices, number, epoch, seed, progress))
        self._unwatched -= 1
        spec, rng, fetcher = self._spec, self.rng, self._fetcher
        if spec.iterable:
            return self._load_next(indices, number, progress)
        if fetcher is None:
            fetcher = self._fetcher = self._new_map_fetcher()
        self._reseed_batch(number)
        rng.indices, rng.progress = indices, progress
        if self.reads is None:
            samples = fetcher.fetch(indices, progress)
        else:
            samples = self._fetch_reading(fetcher, indices, number, progress)
        rng.progress = None
        if samples is OMITTED:
            self.samples = 0
            return self._with_report(None, None, None, False, omitted=True)
        batch = self._collate(samples, number, progress)
        noted = self.reads is not None and self.reads.notes
        if noted or self._attempts.errors or self._attempts.retries:
            return self._with_report(batch, None, None, False)
        return batch

    def _fetch_reading(
        self, fetcher: Fetcher, indices: Any, number: int, progress: Progress
    ) -> Any:
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

    def _load_next(self, indices: Any, number: int, progress: Progress) -> BatchWithReport:
        """Make the next batch of an iterable dataset; see :meth:`load`."""
        begins = self._fetcher is None
        if begins:
            if self._stale:  # what it has made on the way is seeded from now on
                self._watch.search()  # type: ignore[union-attr]
                self._stale = False
            self._fetcher = _ENDED  # if iter(dataset) raises, there is nothing to go on with
            self._fetcher = self._open(indices or ReadPoint(), number, progress)
        else:
            self._reseed_batch(number)
        fetcher = self._fetcher
        assert fetcher is not None
        state = fetcher.state() if isinstance(fetcher, IterableFetcher) else None
        self.rng.progress = progress
        samples = fetcher.fetch(indices, progress)
        self.rng.progress = None
        if self.reads is not None:
            progress.waited, self.reads.waited = self.reads.waited, 0
        mark = self._mark_of(samples, state)
        if samples is OMITTED:
            self.samples = 0
            return self._with_report(None, state, mark, begins, omitted=True)
        batch = self._collate(samples, number, progress)
        return self._with_report(batch, state, mark, begins)

    def _collate(self, samples: Any, number: int, progress: Progress) -> Any:
        spec = self._spec
        self.samples = len(samples) if spec.batched else 1
        progress.collating()
        if spec.seeding == "sample":
            self._reseed_batch(number)  # for collate_fn, whatever the samples have drawn before
        if self._collates_into_slot:
            return default_collate(samples, progress.empty)
        return spec.collate_fn(samples)

    def _load_watched(self, task: tuple[Any, int, int, int, Progress]) -> Any:
        """Do as :meth:`load` does, and look for generators that the batch has made."""
        again = not self._spec.iterable and self._spec.seeding != "worker"
        begins = self._fetcher is None
        self._unwatched = 1
        batch = self.load(*task)
        watch = self._watch  # by now: a copy of the dataset may have been taken
        assert watch is not None
        self._unwatched = _FOR_EVER
        if again and self._looked:
            watch.search(late=True)
        elif again:
            if watch.search():  # on first use it has made one, which was not seeded
                progress, empty = task[-1], task[-1].empty
                if type(batch) is BatchWithReport:
                    watch.notes += batch.notes
                progress.empty = None  # what it gives lies behind the first one
                batch = self.load(*task)
                progress.empty = empty
            self._looked, self._unwatched = 1, LATE - 2
        elif begins and self._spec.iterable:
            watch.begun_to_iterate()
        if watch.notes:
            notes, watch.notes = tuple(watch.notes), []
            made = batch if type(batch) is BatchWithReport else BatchWithReport(batch, None, False)
            batch = made._replace(notes=(*made.notes, *notes))
        return batch

    def _with_report(
        self, batch: Any, state: Any, mark: str | None, begins: bool, omitted: bool = False
    ) -> BatchWithReport:
        attempts = self._attempts
        ignores_share = self._spec.iterable and begins and self._ignores_share()
        errors = tuple(attempts.errors)
        notes: tuple[str, ...] = ()
        if self.reads is not None and self.reads.notes:
            notes, self.reads.notes = tuple(self.reads.notes), []
        return BatchWithReport(
            batch, state, ignores_share, errors, omitted, attempts.retries, notes, mark
        )

    def _enter(self, seed: int, epoch: int, progress: Progress) -> None:
        """Note the epoch, and call the dataset's ``set_epoch`` if it has one."""
        if self._watch is None:
            self._watch = self._spec.watch()
            progress.beat()
        self._epoch, self._epoch_seed = (seed, epoch), derive(seed, epoch)
        self.rng.epoch_seed = self._epoch_seed
        set_epoch = getattr(self._spec.dataset, "set_epoch", None)
        if callable(set_epoch):
            self._reseed_beginning(_SET_EPOCH)
            set_epoch(epoch)
            self._watch.search()
            self._stale, self._looked, self._unwatched = False, 0, 0
        if self.reads is not None:
            self.reads.enter(self._epoch)

    def _reseed_beginning(self, stage: int) -> None:
        """Seed what comes before a reader's first sample from (seed, epoch) alone.

        There a dataset shuffles its files before it takes its share of them: all readers, on all
        ranks, must draw the same.
        """
        self.rng.begin(_BEGINNING, stage)
        self.rng.progress = None
        if self._spec.seeding != "worker":
            self._reseed(extend(self._epoch_seed, _BEGINNING, stage))

    def beginning(self, part: int) -> AbstractContextManager[object]:
        """Set generators (not ``reseed_fn``'s) as before the first sample; then put them back."""
        if self._spec.seeding == "worker" or not self._spec.num_shards:
            return nullcontext()
        held = self._watch.held  # type: ignore[union-attr]
        seed = extend(self._epoch_seed, _BEGINNING, _FIRST_NEXT, part)

        def reseed() -> None:
            seed_globals(seed)
            held.reseed(seed)
            self.rng.begin(_BEGINNING, _FIRST_NEXT, part)
            self.rng.progress = None

        return Rewind(held.states, (self.rng.place, self.rng.go_back), seed=reseed)

    def aside(self) -> AbstractContextManager[object]:
        """Put generators (not ``reseed_fn``'s) back, where this batch's seed has set them."""
        seeded = self._spec.seeding != "worker"
        held = self._watch.held.states if seeded else ()  # type: ignore[union-attr]
        return Rewind(held, (self.rng.place, self.rng.go_back))

    def drawn(self) -> str | None:
        """Say where generators are."""
        return self._mark_of(())

    def _reseed_batch(self, number: int) -> None:
        spec = self._spec
        position = number * spec.num_replicas + spec.rank
        self.rng.begin(position)
        if spec.seeding != "worker":
            self._reseed(extend(self._epoch_seed, position))

    def _reseed_for(self, index: Any) -> None:
        self._reseed(sample_seed(self._epoch_seed, index))
        self.rng.attempt(index)

    def _reseed(self, seed: int) -> None:
        """Set every generator that the dataset may draw from."""
        seed_globals(seed)
        self._watch.held.reseed(seed)  # type: ignore[union-attr]
        if self._spec.reseed_fn is not None:
            self._spec.reseed_fn(self._spec.dataset, seed)

    def _open(self, point: ReadPoint, number: int, progress: Progress) -> Fetcher:
        """Begin to read an iterable dataset, up to where batch ``number`` comes next.

        See the head of this file.
        """
        readers, marks = self._num_readers, point.marks
        # More may have been made, and not given out: of these there are no marks.
        place = number % readers + (point.batches - len(marks)) * readers
        wanted = {place + step * readers: mark for step, mark in enumerate(marks) if mark}
        if not (point.skipped and marks):  # from the epoch's start; or an older version's state
            fetcher, alike = self._read_to(number, progress, point, wanted)
        else:
            copies = self._copies or self._copies_now()
            fetcher, alike = self._read_to(number, progress, point, wanted, midst=True)
            second = {each: mark for each, mark in wanted.items() if each != place}
            if not alike and second and all(len(mark) > _SHORT for mark in second.values()):
                fetcher, alike = self._read_to(number, progress, point, second)
            if not alike:
                _log.info(
                    "%s is read again from the epoch's start: its state does not lead to where it "
                    "was, for it draws before its first sample",
                    type(self._spec.dataset).__name__,
                )
                self._take_copy(copies, progress)
                start = dataclasses.replace(point, state=None)
                fetcher, alike = self._read_to(number, progress, start, wanted)
            if not alike:
                fetcher, _ = self._read_to(number, progress, point, {}, midst=True)
        if not alike and self._watch is not None:
            self._watch.notes.append(
                "the batches before a resume were read again, and were others: it may lose samples "
                "and give some twice; have it draw from generators that its state or the loader "
                "sets (in its attributes, or global), and from nothing else"
            )
        if isinstance(fetcher, EndOfData):
            raise fetcher
        return fetcher

    def _read_to(
        self,
        number: int,
        progress: Progress,
        point: ReadPoint,
        wanted: Mapping[int, str],
        midst: bool = False,
    ) -> tuple[Fetcher | EndOfData, bool]:
        """Read from a state up to where batch ``number`` comes next.

        Args:
            number: The batch.
            progress: Notes each sample before it is read.
            point: Where the reader was; it begins at its state.
            wanted: Marks of batches.
            midst: Whether the first sample finds generators as in the epoch's midst.

        Returns:
            What goes on there, or why there is nothing; and whether the batches have their marks.

        Raises:
            StateError: The dataset cannot begin where the state says.
        """
        state, done, readers = point.state, point.skipped, self._num_readers
        fetcher, alike = self._new_fetcher(state), True
        first = number % readers + done * readers
        if midst:
            self._draws_first = False
            self._reseed_batch(first)
        else:
            self._reseed_beginning(_FIRST_NEXT)
            before = self._mark_of(())

            def after_first() -> None:
                self._draws_first = self._mark_of(()) != before and not fetcher.composed
                self._reseed_batch(first)

            fetcher.after_first = after_first
        for earlier in range(first, number, readers):
            mark = None
            try:
                self.rng.progress = progress
                own = fetcher.state() if self._draws_first and earlier in wanted else None
                mark = self._mark_of(fetcher.fetch(None, progress), own)
            except (Cancelled, StateError):
                raise
            except EndOfData as end:  # right, behind all that was given out
                return end, alike and earlier >= number % readers + point.batches * readers
            except Exception as error:
                let_handlers_through(error)
                if state is not None and earlier == first:
                    # A state is that before a batch which could be read.
                    with resuming(self._spec.dataset, "dataset"):
                        raise
                # Else it is that batch's outcome, which was given out.
            if earlier in wanted:
                digits = None if done and not midst else _SHORT
                alike = alike and mark is not None and wanted[earlier][:digits] == mark[:digits]
            if midst and not alike:
                break
            self._reseed_batch(earlier + readers)
        return fetcher, alike and not (wanted and fetcher.unproven)

    def _new_fetcher(self, state: Any) -> IterableFetcher:
        """Open the dataset, at its start or where a state says."""
        spec, watch = self._spec, self._watch
        assert watch is not None

        def before_iter() -> None:
            if state:
                watch.follow()
            self._reseed_beginning(_ITER)

        options = (spec.dataset, spec.batch_size, spec.drop_last, state, before_iter)
        fetcher = (
            IterableFetcher(*options)
            if spec.tolerance.none
            else TolerantIterableFetcher(*options, self._attempts)
        )
        if state:
            watch.follow()
        return fetcher

    def _mark_of(self, samples: Any, state: Any = None) -> str | None:
        """What a batch is known by; None: its draws follow from no seed of its own.

        Args:
            samples: As they were read.
            state: That before the batch.
        """
        if self._spec.seeding == "worker":
            return None
        held = self._watch.held.states  # type: ignore[union-attr]
        mark = mark_of(samples, [*held, *self.rng.last])
        return mark + place_of(state) if self._draws_first and state else mark

    def _copies_now(self) -> DatasetCopies | None:
        """Keep the dataset as it is before it takes a state; None: it cannot be copied."""
        try:
            return DatasetCopies(self._spec.dataset)
        except TransportError:
            return None

    def _take_copy(self, copies: DatasetCopies | None, progress: Progress) -> None:
        """Read a dataset that has not taken a state, if there is any, in this one's stead."""
        if copies is None:
            if self._watch is not None:
                self._watch.follow()
            return
        former, dataset = self._spec.dataset, copies.make()[0]
        self._spec = dataclasses.replace(self._spec, dataset=dataset)
        show_in_place_of(former, dataset)
        notes = self._watch.notes if self._watch is not None else []
        self._watch = self._spec.watch()
        self._watch.notes += notes
        (seed, epoch), self._epoch = self._epoch or (0, 0), None
        self._enter(seed, epoch, progress)

    def _new_map_fetcher(self) -> Fetcher:
        spec, by_sample = self._spec, self._spec.seeding == "sample"
        self.rng.together = bool(spec.batched and as_read(spec.dataset)[1])
        if spec.tolerance.none:
            before_sample = self._reseed_for if by_sample else None
            return MapFetcher(spec.dataset, spec.batched, before_sample)
        return TolerantMapFetcher(
            spec.dataset,
            spec.batched,
            self._attempts,
            together=not by_sample,
            from_all=spec.own_order,
            seed_for=self._replacement_seed,
        )

    def _new_attempts(self) -> Attempts:
        """What reads single samples, if some may fail."""
        spec = self._spec
        if spec.seeding == "sample" and not spec.iterable:
            # Whatever a failed attempt has drawn: the next one, the next sample and the collate_fn
            # are seeded anew.
            return Attempts(spec.tolerance, before=self._reseed_for, undo=lambda: None)
        return Attempts(spec.tolerance, before=self._mark, undo=self._back)

    def _mark(self, index: Any) -> None:
        assert self._watch is not None
        held = self._watch.held
        if self._rewind is None or self._rewound is not held:
            self._rewind, self._rewound = Rewind(held.states), held
        self._rewind.mark()
        self.rng.attempt(index)

    def _back(self) -> None:
        assert self._rewind is not None
        self._rewind.back()

    def _replacement_seed(self, index: Any) -> int:
        return sample_seed(extend(self._epoch_seed, _REPLACEMENTS), index)

    def _ignores_share(self) -> bool:
        """Whether the dataset has not asked for its share, though there are several readers."""
        return self._share[1] > 1 and not reading.shard_asked


class _Ended:
    def fetch(self, indices: Any, progress: Progress) -> Any:
        raise EndOfData


_ENDED = _Ended()
