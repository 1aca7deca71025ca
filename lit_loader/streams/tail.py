"""How the ranks come to the end of a stream together: ``shard_tail`` with ``num_shards``.

An iterator has one of these, if the ranks have to agree. Before each batch it asks `admits`, and
after it calls `given`; what this rank has, and what the others have, is compared by an `Agreement`.

- :class:`Padding` (``"pad"``): a batch of a rank's own is given at once. When its readers have come
  to their end they begin again, as long as another rank has as many batches.
- :class:`WholeRounds` (``"drop"``): the rest of a round is waited for before its first batch is
  given, and the other ranks are asked whether they have it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from lit_loader.checkpoint.position import EpochPosition, ReadPoint
from lit_loader.checkpoint.reader_states import Shards
from lit_loader.context import reading
from lit_loader.describe import short_repr
from lit_loader.errors import LoaderError
from lit_loader.streams.agreement import Agreement
from lit_loader.streams.job_store import Talks

__all__ = ["ShardTail", "least_depth", "tail_of"]

Hold = Callable[[bool], bool | None]
"""Has the next outcome ready ahead of its turn: called with whether to wait for it. Returns whether
it is a batch (False: a reader's end), or None if it is not there."""

ROUNDS_AHEAD: Final = 2
"""Rounds that workers are to be ahead, so that one is asked about while another is given out."""


class ShardTail:
    """What an iterator asks; there is a class for each rule."""

    def __init__(self, agreement: Agreement) -> None:
        self._agreement = agreement

    def admits(self, position: EpochPosition, hold: Hold) -> bool:
        """Whether there is to be another batch; waits for the other ranks where it must."""
        raise NotImplementedError

    def given(self, position: EpochPosition) -> None:
        """Note that the batch that was admitted is there; it may still be taken back."""

    def begins_again(self, position: EpochPosition) -> bool:
        """Let the readers begin again, as all are at their end; False: it is everyone's end.

        A LoaderError if they have nothing to give.
        """
        return False

    def restarted(self, position: EpochPosition) -> None:
        """Note that what was ready ahead is lost, and will be made again."""

    def end(self) -> None:
        """Note that the epoch is over for all ranks."""
        self._agreement.end()


class Padding(ShardTail):
    """``shard_tail="pad"``."""

    def __init__(self, agreement: Agreement, who: str) -> None:
        super().__init__(agreement)
        self._who = who  # the rank, for messages
        self._number = 0  # of the batch that was admitted last
        self._ended = False

    def admits(self, position: EpochPosition, hold: Hold) -> bool:
        self._number = position.since + 1
        return not position.padding or self._agreement.admits(self._number)

    def given(self, position: EpochPosition) -> None:
        if not position.padding:
            self._agreement.tell(self._number)

    def begins_again(self, position: EpochPosition) -> bool:
        since = position.since
        if not self._ended:
            self._ended = True
            self._agreement.tell(since, final=True)
        if not self._agreement.admits(since + 1):
            return False
        if not position.repeat():
            raise LoaderError(
                f"{self._who} has no batch that it could repeat, and others have more: its readers "
                "are all empty; give each at least one sample, pass fewer num_shards, or "
                "shard_tail='drop' or 'keep'"
            )
        return True


class WholeRounds(ShardTail):
    """``shard_tail="drop"``; with the points where this rank's readers begin."""

    def __init__(self, agreement: Agreement, points: Sequence[ReadPoint]) -> None:
        super().__init__(agreement)
        self._begun = [point.batches for point in points]
        self._lead = sum(self._begun)
        self._round = min(self._begun)
        self._full = 0  # batches since the start, in rounds that are full as far as is seen
        self._seen = 0  # batches since the start that are ready or given out
        self._ended = False
        if any(point.ended or point.before for point in points):
            self._end()

    def admits(self, position: EpochPosition, hold: Hold) -> bool:
        number = position.since + 1
        while not self._ended and (there := hold(False)) is not None:
            self._note(there)
        needed = number + self._agreement.excess
        while not self._ended and self._full < needed:
            self._note(bool(hold(True)))
        return self._full >= needed and self._agreement.admits(number)

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
                self._agreement.tell(self._full + self._lead)

    def _end(self) -> None:
        self._ended = True
        self._agreement.tell(self._full + self._lead, final=True)

    def restarted(self, position: EpochPosition) -> None:
        points = [position.reader(reader) for reader in range(len(self._begun))]
        self._seen = position.since
        self._round = min(point.batches for point in points)


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
    points = start.now().readers
    name = type(loader.dataset).__name__
    counts = None
    if ranks > 1:
        resumed = bool(start.start.readers)  # and so on all ranks
        counts = _promised(loader, shards.count, ranks, epoch, resumed)
    job = None
    if ranks > 1 and counts is None:
        job = talks.begin(f"{name}/{shards.count}/{ranks}/{tail}", epoch, start, rank, ranks)
    where = f"epoch {epoch} of {name}"
    final = counts is not None
    lead = sum(point.batches for point in points) if tail == "drop" else 0
    agreement = Agreement(tail, rank, counts or [0] * ranks, final, job, where, lead)
    if tail == "pad":
        return Padding(agreement, f"rank {rank} of {ranks} in {where}")
    return WholeRounds(agreement, points)


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
