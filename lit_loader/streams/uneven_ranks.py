"""How the ranks come to the end of a stream together: ``uneven_ranks="pad"`` with ``num_shards``.

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

import contextlib
import time
from collections import Counter
from multiprocessing import util
from typing import Any, ClassVar, Final, NamedTuple

import torch.distributed

from lit_loader.core.system.interrupts import HeldBack
from lit_loader.errors import LoaderError
from lit_loader.streams import rank_store
from lit_loader.streams.stream_position import StreamPosition

__all__ = ["ShardTail", "Talks", "tail_of"]

_SHORTEST_PAUSE: Final = 0.0001
_LONGEST_PAUSE: Final = 0.005
"""Seconds until others are asked again."""

_FAREWELL: Final = 5.0
"""Seconds that the first rank stays at its exit for those that have not read the last words."""

_loaders: Counter[str] = Counter()  # of each kind


class Word(NamedTuple):
    """What a rank has said: how many batches it has, and whether these are all."""

    batches: int = 0
    final: bool = False
    done: bool = False  # whether it asks no more


class ShardTail:
    """One rank's end of an epoch; the subject is the same on all ranks, and no other one's.

    A batch of a rank's own is given at once. When its readers have come to their end they begin
    again, as long as another rank has as many batches. A LoaderError if this is no job of so many
    processes, and whenever the first rank is gone.
    """

    # Lets the first rank's process stay for the others, which still have to read.
    farewell: ClassVar[util.Finalize[Any] | None] = None

    def __init__(self, subject: str, rank: int, ranks: int, where: str) -> None:
        self._rank, self._where = rank, where  # for messages
        distributed = torch.distributed
        world = 0
        if distributed.is_available() and distributed.is_initialized():
            world = distributed.get_world_size()
        if world < ranks:
            there = f"this one has {world} processes" if world else "there is none here"
            raise LoaderError(
                f"{ranks} ranks must tell each other when their readers come to an end, "
                f"through the job of torch.distributed, and {there}: call init_process_group "
                "first, or pass uneven_ranks='keep' [LL216]"
            )
        self._store = rank_store.store()
        self._keys = [f"lit_loader/{subject}/{each}" for each in range(ranks)]
        self._all_there = False
        self._has_store = distributed.get_rank() == 0  # this process, as long as it lives
        # Seconds that ranks wait for one another: ``init_process_group(timeout=...)``.
        self._patience: float = self._store.timeout.total_seconds()
        self._own = Word()
        self._words: list[Word | None] = [None] * ranks
        self._words[rank] = self._own
        self._number = 0  # of the batch that was admitted last

    def admits(self, position: StreamPosition) -> bool:
        """Whether there is to be another batch; waits for the other ranks where it must."""
        self._number = position.since + 1
        return not position.padding or self.agreed(self._number)

    def given(self, position: StreamPosition) -> None:
        """Note that the batch that was admitted is there; it may still be taken back."""
        if not position.padding:
            self.tell(self._number)

    def begins_again(self, position: StreamPosition) -> bool:
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
                "one sample, pass fewer num_shards, or uneven_ranks='keep' [LL217]"
            )
        return True

    def end(self) -> None:
        """Note that the epoch is over for all ranks: this one asks no more."""
        if self._own.done:
            return
        if self._has_store:
            # Also at the end of a process that multiprocessing has started, where atexit is not.
            if self.farewell is not None:
                self.farewell.cancel()
            ShardTail.farewell = util.Finalize(None, self._wait_for_readers, exitpriority=0)
        self._write(self._own._replace(done=True))

    def _wait_for_readers(self) -> None:
        """Stay until all others have come to the end, too: they still have to read this store."""
        until = time.monotonic() + _FAREWELL
        with contextlib.suppress(LoaderError):
            while time.monotonic() < until and not all(word and word.done for word in self._read()):
                time.sleep(_LONGEST_PAUSE)

    def tell(self, count: int, final: bool = False) -> None:
        """Say that this rank has so many batches; ``final``: and no more."""
        self._write(self._own._replace(batches=count, final=final))

    def agreed(self, number: int) -> bool:
        """Whether all ranks are to give a batch of this number, from 1 on; waits until it is known.

        A LoaderError if another rank says nothing.
        """
        asked, pause = time.monotonic(), 0.0
        while (verdict := self._verdict(number)) is None:
            waited = time.monotonic() - asked
            if waited > self._patience:
                raise self._silence(waited, number)
            time.sleep(pause)
            pause = min(2 * pause + _SHORTEST_PAUSE, _LONGEST_PAUSE)
            for rank, word in enumerate(self._read()):
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
            "time; if ranks are to stop apart, pass uneven_ranks='keep' [LL206]"
        )

    def _write(self, word: Word) -> None:
        """Write this rank's word, in the place of the one before."""
        try:
            self._store.set(self._keys[self._rank], " ".join(str(int(part)) for part in word))
        except RuntimeError as error:
            raise self._lost(error) from error
        self._own = self._words[self._rank] = word

    def _read(self) -> list[Word | None]:
        """Give each rank's word; None: it has not written yet. Does not wait for any."""
        store, keys = self._store, self._keys
        try:
            self._all_there = self._all_there or (store.has_extended_api() and store.check(keys))
            if self._all_there:
                return [_word(data) for data in store.multi_get(keys)]
            return [_word(store.get(key)) if store.check([key]) else None for key in keys]
        except RuntimeError as error:
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError) -> LoaderError:
        reason = " ".join(str(error).split())[:120]
        return LoaderError(
            f"the ranks' common store, in the first rank's process, is lost in {self._where} "
            f"({reason}): the first rank has ended; its own messages say why [LL207]"
        )

    def forget(self) -> None:
        """Take this rank's word away."""
        with contextlib.suppress(RuntimeError):
            self._store.delete_key(self._keys[self._rank])


def _word(data: bytes) -> Word:
    batches, final, done = map(int, bytes(data).decode().split())
    return Word(batches, bool(final), bool(done))


class Talks:
    """One loader's subjects, each of which has the same name on all ranks, and none twice.

    That is so as long as all ranks begin loaders of one kind in the same order, and each epoch of
    each loader as often.
    """

    def __init__(self) -> None:
        self._loader: int | None = None
        self._times: Counter[int] = Counter()  # that an epoch was begun
        self._begun: list[ShardTail] = []
        self._last: Any = None

    def begin(
        self, kind: str, epoch: int, start: object, rank: int, replicas: int, where: str
    ) -> ShardTail:
        """Begin another subject; the last one again, if it was interrupted at its beginning.

        ``kind`` is that of the loader, and ``start`` what begins it: of each subject another
        object.
        """
        if start is self._last:
            return self._begun[-1]
        with HeldBack():  # else it would be counted here, and on no other rank
            if self._loader is None:
                self._loader = _loaders[kind]
                _loaders[kind] += 1
            name = f"{kind}/{self._loader}/{epoch}/{self._times[epoch]}"
            begun = ShardTail(name, rank, replicas, where)
            self._times[epoch] += 1
            # All have begun the last one when its end was agreed on, and so are through with that
            # before it.
            self._begun.append(begun)
            if len(self._begun) > 2:
                self._begun.pop(0).forget()
            self._last = start
        return begun


def tail_of(core: Any, start: StreamPosition) -> ShardTail | None:
    """Begin to agree on the end of an epoch; None: each rank simply comes to its own.

    A LoaderError if the ranks have no way to tell each other.
    """
    shards, loader = core.shards, core.loader
    if shards is None or loader.uneven_ranks == "keep" or shards.replicas == 1:
        return None
    talks: Talks = core.of_process.setdefault("talks", Talks())
    rank, ranks, epoch = shards.rank, shards.replicas, start.start.epoch
    name = type(loader.dataset).__name__
    where = f"epoch {epoch} of {name}"
    return talks.begin(f"{name}/{shards.count}/{ranks}", epoch, start, rank, ranks, where)
