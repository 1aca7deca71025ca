"""How the ranks come to the end of a stream together: ``uneven_ranks="pad"``.

::

    tell(12), tell(13), tell(14, final) ─▶ this rank's word ─▶ the job's store
                                                                  ╰─ the ranks' words ─▶ admits(15)?

An iterator has a `ShardTail`, if the ranks have to agree. Before each
batch it asks `admits`, and after it calls `given`. Each rank says of how many batches it is sure,
and when there will be no more. Whether all are to give a batch follows from what they have said,
and not from when: all come to the same answer. Batches are counted from where the epoch was begun,
or resumed.

The store is the one by which the ranks of a ``torch.distributed`` job have found each other: a
table in the first rank's process, over connections of its own. Writing does not wait for an answer
(4 µs), reading does (70 µs on one machine). Nothing here is a collective operation: no rank waits
for another one but by asking again, and what the program's own process groups do meanwhile does not
matter, whatever the order.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from lit_loader.core.epoch.passes import Pass
from lit_loader.core.system.interrupts import HeldBack
from lit_loader.errors import LoaderError
from lit_loader.streams import rank_store
from lit_loader.streams.stream_position import StreamPosition


class Word(NamedTuple):
    """What a rank has said: how many batches it has, whether these are all, and that it is done."""

    batches: int = 0
    final: int = 0
    done: int = 0  # it asks no more


class ShardTail:
    """One rank's end of a pass; the subject is the same on all ranks, and no other one's.

    A batch of a rank's own is given at once. When its readers have come to their end they begin
    again, as long as another rank has as many batches. A LoaderError whenever the first rank is
    gone.
    """

    def __init__(self, subject: str, rank: int, ranks: int, where: str) -> None:
        self._rank, self._where = rank, where  # for messages
        self._store = rank_store.store()
        self._keys = [f"lit_loader/{subject}/{each}" for each in range(ranks)]
        self._all_there = False
        # Seconds that ranks wait for one another: ``init_process_group(timeout=...)``.
        self._patience: float = self._store.timeout.total_seconds()
        self._words = [Word()] * ranks
        self._number = 0  # of the batch that was admitted last

    def admits(self, position: StreamPosition) -> bool:
        """Whether there is to be another batch; waits for the other ranks where it must."""
        self._number = position.since + 1
        return not position.padding or self.agreed(self._number)

    def given(self, position: StreamPosition) -> None:
        """Note that the batch that was admitted is there; it may still be taken back."""
        if not position.padding:
            self.tell(Word(self._number))

    def begins_again(self, position: StreamPosition) -> bool:
        """Restart the readers, as all are at their end; False: all ranks are at the end.

        A LoaderError if they have nothing to give.
        """
        since = position.since
        if not self._words[self._rank].final:
            self.tell(Word(since, final=1))
        if not self.agreed(since + 1):
            return False
        if not position.repeat():
            raise LoaderError(
                f"rank {self._rank} of {len(self._words)} has no batch to repeat in {self._where}, "
                "because its shards are all empty, and other ranks have more. Give each shard at "
                "least one sample, pass fewer num_shards, or uneven_ranks='keep'"
            )
        return True

    def end(self) -> None:
        """Note that the pass is over for all ranks: this one asks no more."""
        own = self._words[self._rank]
        if not own.done:
            # The others still have to read this one's store, if it is the first.
            rank_store.linger("tail", lambda: all(word.done for word in self._read()))
            self.tell(own._replace(done=1))

    def tell(self, word: Word) -> None:
        """Write this rank's word, in the place of the one before."""
        with rank_store.watching(f" in {self._where}"):
            self._store.set(self._keys[self._rank], " ".join(map(str, word)))
        self._words[self._rank] = word

    def agreed(self, number: int) -> bool:
        """Whether all ranks are to give a batch of this number, from 1 on; waits until it is known.

        A LoaderError if another rank says nothing.
        """
        for waited in rank_store.waits():
            if any(number <= word.batches for word in self._words):
                return True
            if all(word.final for word in self._words):
                return False
            if waited > self._patience:
                silent = next(rank for rank, word in enumerate(self._words) if not word.final)
                raise LoaderError(
                    f"rank {silent} did not report batch {number:,} of {self._where} within "
                    f"{waited:,.0f} s. It crashed, left the loop early, or iterates another "
                    "loader: see its log. If it is only slow, raise "
                    "init_process_group(timeout=...); if ranks are to stop apart, pass "
                    "uneven_ranks='keep' [LL206]"
                )
            # A word may be older than one before, where two processes have the same rank.
            self._words = list(map(max, self._words, self._read()))
        raise AssertionError

    def _read(self) -> list[Word]:
        """Return each rank's word, as far as it has written one. Does not wait for any."""
        store, keys = self._store, self._keys
        with rank_store.watching(f" in {self._where}"):
            self._all_there = self._all_there or (store.has_extended_api() and store.check(keys))
            if self._all_there:
                found = store.multi_get(keys)
            else:
                found = [store.get(key) if store.check([key]) else b"" for key in keys]
        return [Word(*map(int, bytes(data).decode().split())) for data in found]


def tail_of(core: Any, made: Pass) -> ShardTail | None:
    """Begin to agree on the end of a pass; None: each rank simply comes to its own.

    A LoaderError if the shards are divided among ranks that have no way to tell each other.
    Without ``num_shards`` a stream is often divided by a program that is no job: it is warned.

    A subject has the same name on all ranks, and no other one has it, as long as all ranks begin
    loaders of one kind in the same order, and each epoch of each loader as often.
    """
    loader, (rank, ranks), kept = core.loader, core.replica, core.of_process
    if loader.uneven_ranks == "keep" or ranks == 1:
        return None
    shards, name, world = core.shards, type(loader.dataset).__name__, rank_store.processes()
    if world < ranks:
        text = (
            f"{name} is divided among {ranks} ranks, but this torch.distributed job has {world} "
            "processes, so uneven_ranks='pad' has no effect. If ranks yield different numbers of "
            "batches, a training step may hang. Call init_process_group first, or pass "
            "uneven_ranks='keep'"
        )
        if shards is not None:
            raise LoaderError(text)
        core.warn_once(text)
        return None
    begun, tail = kept.get("tail", (None, None))
    if begun is made:  # it was interrupted at its beginning
        return tail  # type: ignore[no-any-return]
    with HeldBack():  # else it would be counted here, and on no other rank
        if "tails" not in kept:
            kind = f"{name}/{shards.count if shards else 0}/{ranks}"
            kept["tails"] = rank_store.Name(f"end of {kind}"), Counter()
        loader_name, times = kept["tails"]
        subject = f"{loader_name}/{made.epoch}/{times[made.epoch]}"
        tail = ShardTail(subject, rank, ranks, f"epoch {made.epoch} of {name}")
        times[made.epoch] += 1
        kept["tail"] = made, tail
    return tail
