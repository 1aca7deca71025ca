"""How the ranks come to the end of a stream together: ``shard_tail="pad"`` with ``num_shards``.

::

    tell(12), tell(13), tell(14, final) ─▶ this rank's word ─▶ JobStore
                                                                  ╰─ the ranks' words ─▶ admits(15)?

An iterator has one of these, if the ranks have to agree. Before each
batch it asks `admits`, and after it calls `given`. Each rank says of how many batches it is sure,
and when there will be no more. Whether all are to give a batch follows from what they have said,
and not from when: all come to the same answer. Batches are counted from where the epoch was begun,
or resumed.
"""

from __future__ import annotations

import time
from typing import Any, Final

from lit_loader.checkpoint.position import EpochPosition, Shards
from lit_loader.errors import LoaderError
from lit_loader.streams.job_store import LONGEST_PAUSE, JobStore, Talks, Word

__all__ = ["ShardTail", "tail_of"]

_SHORTEST_PAUSE: Final = 0.0001  # seconds until others are asked again


class ShardTail:
    """A batch of a rank's own is given at once.

    When its readers have come to their end they begin again, as long as another rank has as many
    batches.
    """

    def __init__(self, rank: int, ranks: int, job: JobStore, where: str) -> None:
        self._rank, self._job, self._where = rank, job, where
        self._own = Word()
        self._words: list[Word | None] = [None] * ranks
        self._words[rank] = self._own
        self._number = 0  # of the batch that was admitted last

    def admits(self, position: EpochPosition) -> bool:
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
                "one sample, pass fewer num_shards, or shard_tail='keep'"
            )
        return True

    def end(self) -> None:
        """Note that the epoch is over for all ranks."""
        if not self._own.done:
            self._job.end(self._own)
            self._own = self._own._replace(done=True)

    def tell(self, count: int, final: bool = False) -> None:
        """Say that this rank has so many batches; ``final``: and no more."""
        self._own = self._words[self._rank] = self._own._replace(batches=count, final=final)
        self._job.write(self._own)

    def agreed(self, number: int) -> bool:
        """Whether all ranks are to give a batch of this number, from 1 on; waits until it is known.

        A LoaderError if another rank says nothing.
        """
        asked, pause = time.monotonic(), 0.0
        while (verdict := self._verdict(number)) is None:
            waited = time.monotonic() - asked
            if waited > self._job.patience:
                raise self._silence(waited, number)
            time.sleep(pause)
            pause = min(2 * pause + _SHORTEST_PAUSE, LONGEST_PAUSE)
            for rank, word in enumerate(self._job.read()):
                if word is not None and rank != self._rank:
                    # A word may be older than one before, where two processes have the same rank.
                    self._words[rank] = max(word, self._words[rank] or word)
        return verdict

    def _verdict(self, number: int) -> bool | None:
        """What follows from the words for a batch; None: nothing."""
        if any(word is not None and number <= word.batches for word in self._words):
            return True
        return False if all(word is not None and word.final for word in self._words) else None

    def _silence(self, waited: float, number: int) -> LoaderError:
        silent = next(k for k, word in enumerate(self._words) if word is None or not word.final)
        return LoaderError(
            f"rank {silent} has not said for {waited:,.0f} s (the job's timeout) whether it has "
            f"a batch {number:,} in {self._where}: it has ended, is late, has left the epoch, or "
            "iterates another loader; if it is late, init_process_group(timeout=...) gives it more "
            "time; if ranks are to stop apart, pass shard_tail='keep'"
        )


def tail_of(
    loader: Any, shards: Shards | None, talks: Talks, start: EpochPosition
) -> ShardTail | None:
    """Begin to agree on the end of an epoch; None: each rank simply comes to its own.

    A LoaderError if the ranks have no way to tell each other.
    """
    if shards is None or loader.shard_tail == "keep" or shards.replicas == 1:
        return None
    rank, ranks, epoch = shards.rank, shards.replicas, start.start.epoch
    name = type(loader.dataset).__name__
    where = f"epoch {epoch} of {name}"
    job = talks.begin(f"{name}/{shards.count}/{ranks}", epoch, start, rank, ranks, where)
    return ShardTail(rank, ranks, job, where)
