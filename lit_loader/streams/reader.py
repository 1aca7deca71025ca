"""`Reader`: makes the batches of one reader of an iterable dataset, from wherever it is to begin.

How a stream is resumed: whatever it draws between ``iter()`` and the place must be drawn alike. In
an epoch that is left alone, what comes before the first sample (a generator's body begins with the
first ``next()``) and that sample draw from the epoch's beginning, all else from its batch's seed. A
restored stream does both in one ``next()``: what comes before a first sample, and a sample of the
midst. No seed is right for both, and nobody can tell from outside who of the two draws, or whether
a state says all. So a state leads to a place two batches back, or more: it is not taken before
every batch (`StateMeter`). These batches are read again, and known by one mark of them all:

1. from the state, with these batches' seeds: right if nothing is drawn before the first sample;
2. from the state, up to the first sample with the beginning's seeds: right if that draws nothing;
3. from the epoch's start, which is right for every stream that depends on nothing but its seeds.

If not even that gives the batches again, the user is told, and 1. goes on. What is opened later (a
source of a mixture) may draw before its own first sample: so a mixture is not tried by 2., and not
believed in 1. until each source that draws as it begins has given a sample again.

One mark of them all, for the first of them shows best what draws before its first sample, and the
last what a state has left out. Two batches at least, for a single small one may be like another.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import pickle
import time
from contextlib import AbstractContextManager
from typing import Any, Final

from torch.utils.data import IterDataPipe

from lit_loader.context import READERS, WORKERS, reading
from lit_loader.core.batch.batch_builder import BEGINNING, SET_EPOCH, BatchBuilder
from lit_loader.core.batch.batch_spec import BatchSpec
from lit_loader.core.batch.fetch import OMITTED, EndOfData
from lit_loader.core.batch.progress import Cancelled, Progress
from lit_loader.core.batch.worker_info import WorkerInfo, show, shown
from lit_loader.core.seeding.generator_state import Rewind
from lit_loader.core.seeding.seeds import PassSeeds
from lit_loader.core.state.position import ReadPoint
from lit_loader.core.state.state_validation import resuming
from lit_loader.core.state.stateful import OpenStream
from lit_loader.errors import StateError, TransportError
from lit_loader.streams import datapipes
from lit_loader.streams.copies import DatasetCopies
from lit_loader.streams.iterable_fetcher import IterableFetcher, StateMeter
from lit_loader.streams.late_generators import note_generators_made
from lit_loader.streams.marks import joined, mark_of
from lit_loader.streams.stream_position import NOT_TAKEN

__all__ = ["Reader"]

_OLDER: Final = (
    "the state was saved by a release before 0.4, and what it knows of earlier batches cannot be "
    "compared here: the stream goes on from its own state, which is right unless it draws random "
    "numbers before its first sample; else begin this epoch from its start, by set_epoch [LL331]"
)

_ITER, _FIRST_NEXT = 1, 2  # stages of a beginning; 0 is that of set_epoch

_log = logging.getLogger("lit_loader.generator_watch")


class Reader(BatchBuilder):
    """Makes the batches of one reader, of so many of its rank.

    Copies of the dataset are made when they may be needed, if there is nothing that makes them.
    """

    _fetcher: IterableFetcher | None

    seeded_by_init: tuple[int, ...] = ()
    """What worker_init_fn has seeded torch's, NumPy's and Python's generator by; 0: by nothing."""

    def __init__(
        self,
        spec: BatchSpec,
        number: int = 0,
        num_readers: int = 1,
        copies: DatasetCopies | None = None,
    ) -> None:
        super().__init__(spec, number, num_readers)
        if spec.shards is not None:  # dealt out to the ranks one by one, and not in stretches
            self._share = (spec.shards.mine[number], spec.shards.count)
        self._copies = copies
        self._looks = number == 0  # for what others would find, too; once
        self._stale = self._begun = False
        self.meter = StateMeter()
        self._ended_at: int | None = None  # the batch at which it has ended while it was read again

    def begin_epoch(self) -> None:
        """Take up an epoch: the next :meth:`load` iterates the dataset anew."""
        self._fetcher, self._begun, self._stale = None, False, True

    def load(
        self, indices: Any, number: int, epoch: int, seeds: PassSeeds, progress: Progress
    ) -> Any:
        """Make the next batch, a `BatchWithReport`; see `BatchBuilder.load`.

        ``indices`` is a :class:`ReadPoint`, by which the epoch's first call finds the place to
        begin at; None is its start. Raises EndOfData, or Cancelled.
        """
        reading().epoch, reading().shard, reading().maker = epoch, self._share, self
        if self._epoch != (seeds, epoch):
            self._enter(seeds, epoch, progress)
        begins = not self._begun
        if begins:
            if self._stale:  # what it has made on the way is seeded from now on
                self._watch.search()
                self._stale = False
            self._begun = True  # if iter(dataset) raises, there is nothing to go on with
            point = indices or ReadPoint()
            with reading().unnoted():
                self._fetcher = self._open(point, number, progress)
            if self._fetcher is None and self._warn_if_short(point):
                return self._with_report(None, omitted=True)  # the end comes next time
        else:
            self._reseed_batch(number)
        fetcher = self._fetcher
        if fetcher is None:
            raise EndOfData
        state = self._take_state(fetcher, progress, begins)
        self.rng.progress, reading().tokens = progress, 0
        samples = fetcher.fetch(indices, progress)
        self.rng.progress = None
        if self.reads is not None:
            progress.waited, self.reads.waited = self.reads.waited, 0
        mark = self._mark_of(samples)
        omitted, batch = samples is OMITTED, None
        if omitted:
            self.samples = 0
        else:
            batch = self._collate(samples, number, progress)
        divided = self._divided() if begins else None
        if begins and self._looks:
            self._looks = False
            note_generators_made(self._watch)
        self.meter.made += time.monotonic_ns() - progress.began - progress.state
        return self._with_report(batch, state, mark, divided, omitted)

    def _take_state(self, fetcher: IterableFetcher, progress: Progress, begins: bool) -> Any:
        """Take the stream's state before a batch, if it is due."""
        # A mixture's is believed only where each source has given a sample since: as new as can be.
        if not (begins or self.meter.due or _is_composed(fetcher.opened)):
            return NOT_TAKEN
        began = time.monotonic_ns()
        state = _pickled(fetcher.state())
        if state:
            progress.state = time.monotonic_ns() - began
            self.meter.taken(progress.state)
        return state

    def _divided(self) -> int | None:
        """Say among whom the dataset has divided itself, if there are more; else None."""
        divided, spec = reading().shard_asked, self._spec
        # With num_shards get_worker_info() counts the readers of all ranks.
        enough = READERS if spec.shards is None and spec.num_replicas > 1 else WORKERS
        return divided if self._share[1] > 1 and divided < enough else None

    def _enter(self, seeds: PassSeeds, epoch: int, progress: Progress) -> None:
        super()._enter(seeds, epoch, progress)
        if any(self.seeded_by_init) and not seeds.older:
            own = zip(seeds, self.seeded_by_init, strict=False)
            self._globals = seeds._replace(
                **dict(zip(seeds._fields, (new or base for base, new in own), strict=False))
            ).of(epoch)
        self._stale = False

    def _reseed_beginning(self, stage: int) -> None:
        """Do as for all readers; without ``num_shards`` workers draw differently, as with torch.

        From the global generators. Those of the dataset are alike, which files are shuffled by.
        """
        super()._reseed_beginning(stage)
        # Not from rank to rank: these are seeded alike, and may shuffle their files before they
        # take their share of them.
        spec, worker = self._spec, self._share[0] % self._num_readers
        older = self._epoch is not None and self._epoch[0].older
        # A DataPipe's shuffle() takes its seed here, and comes before its shares.
        alike = older or stage == SET_EPOCH or isinstance(spec.dataset, IterDataPipe)
        alike = alike or spec.shards is not None
        if worker and not alike and spec.seeding != "worker":
            self._reseed_globals(BEGINNING, stage, worker)

    def beginning(self, part: int) -> AbstractContextManager[object]:
        """Set generators (not ``reseed_fn``'s) as before the first sample; then put them back."""
        if self._spec.seeding == "worker" or self._spec.shards is None:
            return super().beginning(part)
        held = self._watch.held

        def reseed() -> None:
            held.reseed(self._reseed_globals(BEGINNING, _FIRST_NEXT, part))
            self.rng.begin(BEGINNING, _FIRST_NEXT, part)
            self.rng.progress = None

        return Rewind(held.states, (self.rng.place, self.rng.go_back), seed=reseed)

    def drawn(self) -> str | None:
        """Say where generators are."""
        return self._mark_of(())

    def _mark_of(self, samples: Any) -> str | None:
        """What a batch is known by; None: its draws follow from no seed of its own."""
        if self._spec.seeding == "worker":
            return None
        held = self._watch.held.states
        return mark_of(samples, [*held, *self.rng.last])

    def _warn_if_short(self, point: ReadPoint) -> bool:
        """Have the user told if the stream has ended before the place that it was to begin at."""
        ended, self._ended_at = self._ended_at, None
        if ended is None or ended >= point.batches:
            return False
        self._watch.notes.append(
            f"the position that was resumed is beyond the stream's end: batch {point.batches:,} of "
            f"{ended:,} of a reader, whose epoch ends here; resume with the data that the state "
            "was taken with [LL320]"
        )
        return True

    def _open(self, point: ReadPoint, number: int, progress: Progress) -> IterableFetcher | None:
        """Begin to read an iterable dataset, up to where batch ``number`` comes next.

        See the head of this file. None: it ends before that.
        """
        ways, copies = [(point, False)], self._copies
        is_older = bool(point.skipped) and not all(mark.digest for mark in point.marks)
        if is_older:
            ways = [(point, True)]
        elif point.skipped and point.marks:  # else from the start, or there is nothing to compare
            copies = copies or self._copies_now()
            ways = [(point, True), *ways, (dataclasses.replace(point, state=None), False)]
        for place, midst in ways:
            if place is not point:
                _log.info(
                    "%s is read again from the epoch's start: its state does not lead to where it "
                    "was, for it draws before its first sample, or the state leaves out something",
                    type(self._spec.dataset).__name__,
                )
                self._take_copy(copies, progress)
            fetcher, alike = self._read_to(number, progress, place, midst)
            if alike:
                break
        if isinstance(fetcher, EndOfData):
            return None
        if is_older:
            self._watch.notes.append(_OLDER)
        elif not alike:
            if len(ways) > 1:
                fetcher, _ = self._read_to(number, progress, point, midst=True)
            self._watch.notes.append(
                "the batches before a resume were read again, and were others: it may lose samples "
                "and give some twice; have it draw from generators that its state or the loader "
                "sets (in its attributes, or global), and from nothing else [LL321]"
            )
        return None if isinstance(fetcher, EndOfData) else fetcher

    def _read_to(
        self, number: int, progress: Progress, point: ReadPoint, midst: bool
    ) -> tuple[IterableFetcher | EndOfData, bool]:
        """Read from a point's state up to where batch ``number`` comes next.

        ``midst``: the first sample finds generators as in the epoch's midst. Returns what goes on
        there, or why there is nothing; and whether the batches have their marks. A StateError if
        the dataset cannot begin where the state says.
        """
        state, readers = _unpickled(point.state), self._num_readers
        fetcher, first = self._new_fetcher(state), number % readers + point.skipped * readers
        if midst:
            self._reseed_batch(first)
        else:
            self._reseed_beginning(_FIRST_NEXT)
            fetcher.after_first = lambda: self._reseed_batch(first)
        # More may have been made, and not given out: of these there are no marks.
        marked = min((mark.first for mark in point.marks), default=number)
        found: dict[int, str] = {}
        for earlier in range(first, number, readers):
            batch = earlier // readers
            try:
                self.rng.progress = progress
                samples = fetcher.fetch(None, progress)
                if marked <= batch < point.batches:
                    found[batch] = self._mark_of(samples) or ""
            except (Cancelled, StateError):
                raise
            except EndOfData as end:  # right, behind all that was given out
                self._ended_at = batch
                return end, batch >= point.batches and _are_known(point, found)
            except Exception:
                if state is not None and earlier == first:
                    # A state is that before a batch which could be read.
                    with resuming(self._spec.dataset, "dataset"):
                        raise
                # Else it is that batch's outcome, which was given out.
            self._reseed_batch(earlier + readers)
        opened = fetcher.opened
        if (
            point.skipped
            and point.marks
            and _is_composed(opened)
            and (opened.unproven or not midst)
        ):
            return fetcher, False
        return fetcher, _are_known(point, found)

    def _new_fetcher(self, state: Any) -> IterableFetcher:
        """Open the dataset, at its start or where a state says."""
        spec, watch = self._spec, self._watch
        datapipes.shard(spec.dataset)

        def before_iter() -> None:
            if state:
                watch.follow()
            self._reseed_beginning(_ITER)

        good = None if spec.tolerance is None else spec.tolerance.stream(self._attempts)
        fetcher = IterableFetcher(
            spec.dataset, spec.batch_size, spec.drop_last, state, before_iter, good
        )
        if state:
            watch.follow()
        return fetcher

    def _copies_now(self) -> DatasetCopies | None:
        """Keep the dataset as it is before it takes a state; None: it cannot be copied."""
        try:
            return DatasetCopies(self._spec.dataset)
        except TransportError:
            return None

    def _take_copy(self, copies: DatasetCopies | None, progress: Progress) -> None:
        """Read a dataset that has not taken a state, if there is any, in this one's stead."""
        if copies is None:
            self._watch.follow()
            return
        former, dataset = self._spec.dataset, copies.make()
        self._spec = dataclasses.replace(self._spec, dataset=dataset)
        _show_in_place_of(former, dataset)
        notes, self._watch = self._watch.notes, self._spec.watch()
        self._watch.notes += notes
        entered, self._epoch = self._epoch, None
        if entered is not None:
            self._enter(*entered, progress)


def _are_known(point: ReadPoint, found: dict[int, str]) -> bool:
    """Whether the batches that were read again are those that were given out, by their marks."""
    return all(
        joined(found.get(batch, "") for batch in range(mark.first, mark.last + 1)) == mark.digest
        for mark in point.marks
        if mark.digest
    )


def _is_composed(opened: OpenStream) -> bool:
    """Whether it is made of others, which begin one after the other (`MixtureStream`)."""
    return any(hasattr(thing, "unproven") for thing in opened.asked.values())


def _pickled(state: dict[str, Any] | None) -> Any:
    """Write a state down, for it may change; what cannot be pickled is copied."""
    if not state:
        return state
    try:
        return pickle.dumps(state, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return copy.deepcopy(state)


def _unpickled(state: Any) -> Any:
    """Read what `_pickled` gave, or give what came from a saved state as it is."""
    return pickle.loads(state) if type(state) is bytes else state


def _show_in_place_of(former: Any, dataset: Any) -> None:
    """Let a reader's dataset be answered where another was."""
    told, info = object.__getattribute__, shown()  # nobody has asked for a share
    if type(info) is WorkerInfo and told(info, "dataset") is former:
        rest = {name: told(info, name) for name in ("id", "num_workers", "seed")}
        show(WorkerInfo(**rest, dataset=dataset))
