"""How the ranks come to the end of a stream together: ``shard_tail`` with ``num_shards``.

::

    tell(12), tell(13), tell(14, final) ─▶ this rank's word ─▶ JobStore
                                                                  ╰─ the ranks' words ─▶ admits(15)?

An iterator has one of these, if the ranks have to agree. Before each
batch it asks `admits`, and after it calls `given`. Each rank says of how many batches it is sure,
and when there will be no more. Whether all are to give a batch follows from what they have said,
and not from when: all come to the same answer. Batches are counted from where the epoch was begun,
or resumed; under "drop", where rounds count, those before are added, of which a rank may have more
than another one: its lead, after a resume by more ranks in the midst of a round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from lit_loader.checkpoint.position import EpochPosition, ReadPoint, Shards
from lit_loader.context import reading
from lit_loader.describe import short_repr
from lit_loader.errors import LoaderError
from lit_loader.streams.job_store import LONGEST_PAUSE, JobStore, Talks, Word

__all__ = ["ShardTail", "least_depth", "tail_of"]

Hold = Callable[[bool], bool | None]
"""Has the next outcome ready ahead of its turn: called with whether to wait for it. Returns whether
it is a batch (False: a reader's end), or None if it is not there."""

ROUNDS_AHEAD: Final = 2
"""Rounds that workers are to be ahead, so that one is asked about while another is given out."""

_SHORTEST_PAUSE: Final = 0.0001  # seconds until others are asked again


class ShardTail:
    """``shard_tail="pad"``: a batch of a rank's own is given at once.

    When its readers have come to their end they begin again, as long as another rank has as many
    batches. ``promised``: the batches of each rank, where all are known beforehand. ``job`` has the
    ranks' words; None: they are promised, or there is one rank alone.
    """

    def __init__(
        self,
        rank: int,
        ranks: int,
        job: JobStore | None,
        where: str,
        promised: Sequence[int] = (),
        *,
        lead: int = 0,
    ) -> None:
        self._rank, self._job, self._where = rank, job, where
        self._promised = promised[rank] if promised else None
        self._words: list[Word | None] = [Word(count, final=True) for count in promised]
        self._own = Word(lead=lead)
        if not promised:
            self._words = [None] * ranks
            self._words[rank] = self._own
        self._sure = 0  # batches that all are to give, as far as is known
        self._number = 0  # of the batch that was admitted last

    def admits(self, position: EpochPosition, hold: Hold) -> bool:
        """Whether there is to be another batch; waits for the other ranks where it must."""
        self._number = position.since + 1
        return not position.padding or self.agreed(self._number)

    def given(self, position: EpochPosition) -> None:
        """Note that the batch that was admitted is there; it may still be taken back."""
        if not position.padding:
            self.tell(self._number)

    def begins_again(self, position: EpochPosition) -> bool:
        """Let the readers begin again, as all are at their end; False: it is everyone's end.

        A LoaderError if they have nothing to give.
        """
        since = position.since
        if not self._own.final:
            self.tell(since, final=True)
        if not self.agreed(since + 1):
            return False
        if not position.repeat():
            raise LoaderError(
                f"rank {self._rank} of {len(self._words)} in {self._where} has no batch that it "
                "could repeat, and others have more: its readers are all empty; give each at least "
                "one sample, pass fewer num_shards, or shard_tail='drop' or 'keep'"
            )
        return True

    def restarted(self, position: EpochPosition) -> None:
        """Note that what was ready ahead is lost, and will be made again."""

    def end(self) -> None:
        """Note that the epoch is over for all ranks."""
        if self._job is not None and not self._own.done:
            self._job.end(self._own)
            self._own = self._own._replace(done=True)

    def tell(self, count: int, final: bool = False) -> None:
        """Say that this rank has so many batches, its lead counted; ``final``: and no more.

        A LoaderError if there are not as many as was promised.
        """
        self._own = self._own._replace(batches=count, final=final)
        if self._promised is None:
            self._words[self._rank] = self._own
            if self._job is not None:
                self._job.write(self._own)
        elif final and count != self._promised:
            raise LoaderError(
                f"rank {self._rank} has {count:,} batches in {self._where}, but shard_length "
                f"of its dataset promised {self._promised:,}, on which all ranks rely: let "
                "shard_length(index, count) give what __iter__ gives that reader"
            )

    def agreed(self, number: int, come: Callable[[], bool] = lambda: False) -> bool:
        """Whether all ranks are to give a batch of this number, from 1 on; waits until it is known.

        ``come`` has more of this rank's own come in, and returns whether it has. A LoaderError if
        another rank says nothing.
        """
        asked, pause = time.monotonic(), 0.0
        while number > self._sure:
            verdict = self._verdict(number)
            if verdict is not None:
                return verdict
            if not come():
                time.sleep(pause)
                pause = min(2 * pause + _SHORTEST_PAUSE, LONGEST_PAUSE)
                self._hear(number, time.monotonic() - asked)
        return True

    def _verdict(self, number: int) -> bool | None:
        """What follows from the words for a batch that is not known to be sure; None: nothing."""
        self._sure = max(word.batches for word in self._words if word is not None)
        if number <= self._sure:
            return True
        return False if all(word is not None and word.final for word in self._words) else None

    def _hear(self, number: int, waited: float) -> None:
        """Read what the others have said last."""
        assert self._job is not None
        for rank, word in enumerate(self._job.read()):
            if word is not None and rank != self._rank:
                # A word may be older than one before, where two processes have the same rank.
                self._words[rank] = max(word, self._words[rank] or word)
        if waited <= self._job.patience or self._verdict(number) is not None:
            return
        silent = [
            rank
            for rank, word in enumerate(self._words)
            if word is None or not (word.final or word.batches >= number + self._most)
        ]
        raise LoaderError(
            f"rank {silent[0]} has not said for {waited:,.0f} s (the job's timeout) whether it has "
            f"a batch {number:,} in {self._where}: it has ended, is late, has left the epoch, or "
            "iterates another loader; if it is late, init_process_group(timeout=...) gives it more "
            "time; if ranks are to stop apart, pass shard_tail='keep'"
        )

    @property
    def _most(self) -> int:
        """The largest lead that is known."""
        return max(word.lead for word in self._words if word is not None)


class WholeRounds(ShardTail):
    """``shard_tail="drop"``: a batch is given if all ranks have all of its round.

    The rest of the round is waited for before its first batch is given. ``points`` are where this
    rank's readers begin.
    """

    def __init__(self, *told: Any, points: Sequence[ReadPoint]) -> None:
        self._begun = [point.batches for point in points]
        super().__init__(*told, lead=sum(self._begun))
        self._round = min(self._begun)
        self._full = 0  # batches since the start, in rounds that are full as far as is seen
        self._seen = 0  # batches since the start that are ready or given out
        self._ended = False
        if any(point.ended or point.before for point in points):
            self._end()

    def admits(self, position: EpochPosition, hold: Hold) -> bool:
        number = position.since + 1
        self._come(number, hold)
        return self.agreed(number, lambda: self._come(number, hold))

    def given(self, position: EpochPosition) -> None:
        """Nothing: the round was told of when it was there."""

    def begins_again(self, position: EpochPosition) -> bool:
        """Never: a reader's end is everyone's."""
        return False

    def _come(self, number: int, hold: Hold) -> bool:
        """Note what is ready, waiting for it if it is needed; returns whether there was any."""
        before, lead = self._seen, self._own.lead
        while not self._ended:
            there = hold(self._full + lead < number + self._most)
            if there is None:
                break
            self._note(there)
        return self._seen > before

    def _note(self, batch: bool) -> None:
        if not batch:
            self._end()
            return
        self._seen += 1
        # Readers that are a round ahead have no turn in the first one, after a resume.
        if self._seen == sum(max(0, self._round + 1 - begun) for begun in self._begun):
            self._round += 1
            if self._seen > self._full:
                self._full = self._seen
                self.tell(self._full + self._own.lead)

    def _end(self) -> None:
        self._ended = True
        self.tell(self._full + self._own.lead, final=True)

    def restarted(self, position: EpochPosition) -> None:
        points = [position.reader(reader) for reader in range(len(self._begun))]
        self._seen = position.since
        self._round = min(point.batches for point in points)

    def _verdict(self, number: int) -> bool | None:
        known, most = [word for word in self._words if word is not None], self._most
        if any(word.final and word.batches < number + most for word in known):
            return False
        if len(known) == len(self._words):
            self._sure = min(word.batches for word in known) - most
        return True if number <= self._sure else None


def least_depth(shards: Shards | None, tail: str) -> int:
    """How many batches workers must be ahead at least: a round is given when all of it is there."""
    return ROUNDS_AHEAD * len(shards.mine) if shards is not None and tail == "drop" else 0


def tail_of(
    loader: Any, shards: Shards | None, talks: Talks, start: EpochPosition
) -> ShardTail | None:
    """Begin to agree on the end of an epoch; None: each rank simply comes to its own.

    A LoaderError if the ranks have no way to tell each other.
    """
    tail = loader.shard_tail
    if shards is None or tail == "keep" or (tail == "pad" and shards.replicas == 1):
        return None
    rank, ranks, epoch = shards.rank, shards.replicas, start.start.epoch
    name = type(loader.dataset).__name__
    where = f"epoch {epoch} of {name}"
    promised, job = None, None
    if ranks > 1:
        resumed = bool(start.start.readers)  # and so on all ranks
        promised = _promised(loader, shards.count, ranks, epoch, resumed)
    if ranks > 1 and promised is None:
        kind = f"{name}/{shards.count}/{ranks}/{tail}"
        job = talks.begin(kind, epoch, start, rank, ranks, where)
    told = rank, ranks, job, where, promised or ()
    return ShardTail(*told) if tail == "pad" else WholeRounds(*told, points=start.now().readers)


def _promised(loader: Any, count: int, ranks: int, epoch: int, resumed: bool) -> list[int] | None:
    """Give the batches of each rank, as the dataset's ``shard_length`` says; None: it is not known.

    After a resume it is not used: where the other ranks' readers are is not known to this one.
    """
    promised = getattr(loader.dataset, "shard_length", None)
    if not callable(promised) or resumed or loader.on_sample_error == "skip":
        return None
    place = reading.leave()
    reading.epoch = epoch
    try:
        samples = [promised(index, count) for index in range(count)]
    finally:
        reading.return_to(place)
    for index, number in enumerate(samples):
        if type(number) is not int or number < 0:
            raise LoaderError(
                f"{type(loader.dataset).__name__}.shard_length({index}, {count}) must be the "
                f"samples that this reader gives, a whole number, got {short_repr(number)}"
            )
    size = loader.batch_size or 1
    batches = [number // size if loader.drop_last else -(-number // size) for number in samples]
    shares = [batches[rank::ranks] for rank in range(ranks)]
    if loader.shard_tail == "drop":
        return [len(share) * min(share) for share in shares]
    return [sum(share) for share in shares]
