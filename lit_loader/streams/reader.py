"""`Reader`: makes the batches of one shard of a stream, from wherever it is to begin.

::

    open:  the pass's seeds ─▶ set_epoch, load_state_dict, iter() ─▶ replay the batches since
    load:  the batch's seeds ─▶ its samples, and a digest of them ─▶ collate

*A stream with ``state_dict`` continues from its own state, and the few batches since then are
replayed with the seeds that they had. One without is replayed from the start of the epoch.* The
last batches that are replayed are compared by their digests with those that were delivered. If one
differs, the user is warned that the resume is not exact; nothing is tried a second time.

What a stream draws before its first sample follows from the pass alone, so that all shards shuffle
their files in the same way and can divide them. A generator's body begins with the first
``next()``, so that sample draws from the pass, too. After a resume from a state it
draws from its batch instead: an order that is drawn there must be in the state, or come from
``get_rng(name)``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, repeat
from types import GeneratorType
from typing import Any

from torch.utils.data import IterDataPipe

from lit_loader.context import READERS, WORKERS, reading
from lit_loader.core.batch.batch_builder import BEGINNING, BatchBuilder
from lit_loader.core.batch.batch_spec import BatchSpec, BatchWithReport
from lit_loader.core.batch.fetch import OMITTED, EndOfData
from lit_loader.core.batch.progress import Cancelled, Progress
from lit_loader.core.batch.worker_info import shown
from lit_loader.core.seeding.held_generators import Found, HeldGenerators, find_generators
from lit_loader.core.seeding.seeds import BATCH, UNTOLD, extend
from lit_loader.core.state.state_validation import resuming
from lit_loader.core.state.stateful import OpenStream
from lit_loader.core.transport.worker_exception import ReaderShare
from lit_loader.errors import StateError
from lit_loader.streams import datapipes
from lit_loader.streams.digest import digest_of
from lit_loader.streams.other_streams import open_stream, own_epochs
from lit_loader.streams.state_meter import StateMeter
from lit_loader.streams.stream_position import NOT_TAKEN, ReadPoint, pickled, unpickled

_ITER, _FIRST_NEXT = 1, 2  # stages of a beginning; 0 is that of set_epoch


class Reader(BatchBuilder):
    """Makes the batches of one shard.

    ``meter`` says when its state is due.
    """

    def __init__(
        self, spec: BatchSpec, share: ReaderShare, meter: StateMeter, found: Found | None = None
    ) -> None:
        super().__init__(spec, found=found)
        self._whose, self._meter = share, meter
        # Whether the global generators begin the same in all shards. A DataPipe's shuffle() takes
        # its seed there, and comes before its shares.
        self._same_start = spec.shards is not None or isinstance(spec.dataset, IterDataPipe)
        self._stream: OpenStream | None = None
        self._iterator: Iterator[object] | None = None  # None: it is at its end
        self._good: Any = None  # what passes over bad samples
        self._quickly: Any = None  # yields the samples that ``next(iterator)`` returns
        # Where no sample has been asked for: the state that led here.
        self._state_here: dict[str, object] | None = None
        self._at_start = False  # whether the first sample of the epoch comes next
        self._begins = True  # whether a batch comes next that tells how the stream is shared out

    # --- a batch ---

    def open(self, point: ReadPoint, batch: int, progress: Progress) -> None:
        """Open the stream where a batch, by its number in the shard, comes next."""
        differs = None
        expected = dict(enumerate(point.digests, point.batches - len(point.digests)))
        self._iterate(unpickled(point.state), point.first == 0, progress)
        for earlier in range(point.first, batch):
            try:
                self._begin_batch(earlier)
                samples = self._samples(progress)
                digest = 0 if samples is OMITTED else digest_of(samples)
                if differs is None and expected.get(earlier, 0) not in (0, digest):
                    differs = earlier
            except (Cancelled, StateError):
                raise
            except EndOfData:
                if earlier < point.batches:
                    self._note_end(point.batches, earlier)
                return
            except Exception:  # else it is that batch's outcome, which was delivered
                if point.state and earlier == point.first:
                    # A state is that before a batch which could be read.
                    with resuming(self._spec.dataset, "dataset"):
                        raise
            if point.state and self.held.tapes:
                self._follow_held()  # a generator's body takes up its state when it begins
        if differs is not None:
            self._note_difference(differs)

    def read(self, batch: int, progress: Progress) -> BatchWithReport:
        """Make a batch; or raise EndOfData, or Cancelled."""
        begins, self._begins = self._begins, False
        self._begin_batch(batch)
        state, meter = self._state(begins, progress), self._meter
        began = meter.clock()
        try:
            samples = self._samples(progress)
        except EndOfData:
            if not self._notes:
                raise
            samples = OMITTED  # the end comes next time
        if samples is OMITTED:
            self.samples = 0
            report = self.with_report(None, state, omitted=True)
        else:
            digest, divided = digest_of(samples), self._divided() if begins else None
            made = self.collate(samples, progress)
            report = self.with_report(made, state, divided, digest=digest)
        meter.made += meter.clock() - began
        return report

    def close(self) -> None:
        """Leave the stream: its ``finally`` blocks run."""
        self._stream = self._iterator = self._quickly = self._good = None

    def _begin_batch(self, batch: int) -> None:
        """Seed for a batch; before the epoch's first sample, for what comes before that."""
        self._number = batch * self._whose.of + self._whose.shard  # among those of all shards
        if self._at_start:
            self._seed_beginning(_FIRST_NEXT)
        else:
            self._seed_batch()

    def _seed_batch(self) -> None:
        self._at_start = False
        self.rng.begin(self._seeds.seed, self._number)
        if not self._seeds_samples:
            self._seed(BATCH, self._number)

    def _samples(self, progress: Progress) -> object:
        """Read the samples of the batch that was begun.

        Raises:
            EndOfData: Nothing is left, and there is nothing to report.
        """
        spec, good, iterator = self._spec, self._good, self._iterator
        size = spec.batch_size or 1
        if good is not None:
            good.begin(progress)
        if iterator is None:
            raise EndOfData
        self._state_here = None
        samples: list[object] = []
        try:
            if self._at_start:
                progress.step(0)
                samples.append(next(iterator))
                self._seed_batch()
            self.rng.step = progress
            if progress.is_quick and good is None and not self._seeds_samples:
                progress.samples = samples
                samples.extend(islice(self._quickly, size - len(samples)))
                if len(samples) < size:
                    raise StopIteration
            else:
                for place in range(len(samples), size):
                    progress.step(place)
                    if self._seeds_samples and good is None:
                        self._seed_sample(place)
                    samples.append(next(iterator))
        except StopIteration:
            self._iterator = None
            if not samples or (spec.drop_last and spec.batch_size is not None):
                if good is not None and good.noted:
                    return OMITTED  # the end comes next time
                raise EndOfData from None
        self.rng.step = None
        return samples[0] if spec.batch_size is None else samples

    def _state(self, begins: bool, progress: Progress) -> object:
        """Take the stream's state before a batch, if it is due; None: no state leads here.

        Empty: it was begun at its start, from which it is replayed.
        """
        stream, meter = self._stream, self._meter
        if stream is None or not stream.asked:
            return None
        if not (begins or meter.due):
            return NOT_TAKEN
        if not stream.stateful:
            return None
        began, here = meter.clock(), self._state_here
        # A generator that has not run knows no place.
        state = pickled(stream.state_now() if here is None else here)
        if state:
            progress.state = meter.clock() - began
            meter.taken(progress.state)
        return state

    def _divided(self) -> int | None:
        """Return among whom the dataset has divided itself, if there are more; else None."""
        divided, spec = reading().shard_asked, self._spec
        # With num_shards get_worker_info() counts the shards of all ranks.
        enough = READERS if spec.shards is None and spec.num_replicas > 1 else WORKERS
        return divided if self._whose.of > 1 and divided < enough else None

    # --- its beginning ---

    def _iterate(self, state: Any, at_start: bool, progress: Progress) -> None:
        """Iterate the dataset, at its start or where a state says."""
        spec, seeds = self._spec, self._seeds
        progress.beat()
        if seeds.dataset_epoch != UNTOLD and shown() is not None:  # this is a worker
            own_epochs(spec.dataset)
        self._announce_epoch()
        datapipes.shard(spec.dataset)
        self._seed_beginning(_ITER)
        self._at_start, self._state_here = at_start, state or {}
        self._stream = open_stream(spec.dataset, "dataset", state)
        iterator = self._stream.iterator
        if (attempts := self._attempts) is not None:
            self._good = iterator = attempts.tolerance.stream(attempts, iterator)
        self._iterator = iterator
        # Its __iter__ is not called again: that of a stream which is its own iterator starts over.
        is_generator = type(iterator) is GeneratorType
        self._quickly = iterator if is_generator else map(next, repeat(iterator))
        if self.held.tapes:  # iter() or load_state_dict() may have put others in their place
            self._follow_held()

    def _seed_beginning(self, stage: int, *part: int) -> None:
        """Seed all generators for what comes before the first sample.

        Those that the dataset holds are seeded equally in all shards: files are shuffled by them.
        """
        parts = BEGINNING, stage, *part
        self._seed(*parts)
        if not self._same_start:
            parts = *parts, self._whose.shard
            self._seeded = parts
            if self.seed_globals is not None:
                self.seed_globals(extend(self._seeds.seed, *parts) >> 1)
        self.rng.begin(self._seeds.seed, extend(*parts))

    @contextmanager
    def beginning(self, part: int) -> Iterator[None]:
        """Seed as before the first sample, for a source of a mixture that is opened in mid-pass."""
        kept, self.rng = self.rng, copy.copy(self.rng)
        self._seed_beginning(_FIRST_NEXT, part)
        try:
            yield
        finally:
            self.rng = kept
            self._seed(BATCH, kept.batch, part)

    def _attempt(self, place: int) -> None:
        """Seed before an attempt to read a sample; the first one of the epoch draws from that."""
        if self._at_start:
            self._seed_beginning(_FIRST_NEXT)
        else:
            self.rng.attempt()
            self._seed_sample(self.rng.step.place)

    def _follow_held(self) -> None:
        """Hold what is where the generators were that have been found."""
        spec = self._spec
        found = find_generators(spec.dataset, spec.collate_fn, spec.worker_init_fn)
        pairs = [pair for pair in found.generators if pair[0] in self.held.paths]
        self.held = HeldGenerators(pairs, spec.held, self._seeds)

    # --- what is reported ---

    def _note_difference(self, batch: int) -> None:
        which = f"Batch {batch}" + (f" of {self._whose!r}" if self._whose.of > 1 else "")
        self.note(
            f"the resume is not exact. {which} was replayed and differs from the original, so "
            "samples may be lost or repeated. Save the random generators of the stream, and what "
            "it draws before its first sample, in state_dict(); or draw from "
            "lit_loader.get_rng(name) [LL321]"
        )

    def _note_end(self, batches: int, ended: int) -> None:
        which = repr(self._whose).capitalize() if self._whose.of > 1 else "The stream"
        self.note(
            f"the stream ends before the resumed position. {which} had yielded {batches:,} "
            f"batches, and has {ended:,} now. Resume with the data of the state"
        )
