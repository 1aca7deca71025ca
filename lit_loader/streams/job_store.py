"""`JobStore`: a word of each rank, which all other ranks can read.

It is the store by which the ranks of a ``torch.distributed`` job have found each other: a table in
the first rank's process, over connections of its own. Writing does not wait for an answer (4 µs),
reading does (70 µs on one machine). Nothing here is a collective operation: no rank waits for
another one but by asking again, and what the program's own process groups do meanwhile does not
matter, whatever the order.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from multiprocessing import util
from typing import Any, ClassVar, Final, NamedTuple

import torch.distributed
from torch.distributed import distributed_c10d

from lit_loader.errors import LoaderError
from lit_loader.system.interrupts import HeldBack

__all__ = ["LONGEST_PAUSE", "JobStore", "Talks", "Word", "common_store"]

LONGEST_PAUSE: Final = 0.005
"""Seconds until others are asked again."""

_FAREWELL: Final = 5.0
"""Seconds that the first rank stays at its exit for those that have not read the last words."""

_connections: dict[Any, Any] = {}
_loaders: Counter[str] = Counter()  # of each kind


class Word(NamedTuple):
    """What a rank has said: how many batches it has, and whether these are all."""

    batches: int = 0
    final: bool = False
    done: bool = False  # whether it asks no more


def common_store() -> Any:
    """The store by which the ranks of this job have found each other."""
    # reach: torch: no public way leads to the store of the default group
    return distributed_c10d._get_default_store()


class Talks:
    """One loader's subjects, each of which has the same name on all ranks, and none twice.

    That is so as long as all ranks begin loaders of one kind in the same order, and each epoch of
    each loader as often.
    """

    def __init__(self) -> None:
        self._loader: int | None = None
        self._times: Counter[int] = Counter()  # that an epoch was begun
        self._begun: list[JobStore] = []
        self._last: Any = None

    def begin(
        self, kind: str, epoch: int, start: object, rank: int, replicas: int, where: str
    ) -> JobStore:
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
            begun = JobStore(name, rank, replicas, where)
            self._times[epoch] += 1
            # All have begun the last one when its end was agreed on, and so are through with that
            # before it.
            self._begun.append(begun)
            if len(self._begun) > 2:
                self._begun.pop(0).forget()
            self._last = start
        return begun


class JobStore:
    """The words of all ranks on one subject.

    The subject is the same on every rank, and no other one's in this job. A LoaderError if this is
    no job of so many processes, and whenever the first rank is gone.
    """

    # Lets the first rank's process stay for the others, which still have to read.
    farewell: ClassVar[util.Finalize[Any] | None] = None

    def __init__(self, subject: str, rank: int, replicas: int, where: str) -> None:
        self._where = where  # for messages
        distributed = torch.distributed
        world = 0
        if distributed.is_available() and distributed.is_initialized():
            world = distributed.get_world_size()
        if world < replicas:
            there = f"this one has {world} processes" if world else "there is none here"
            raise LoaderError(
                f"{replicas} ranks must tell each other when their readers come to an end, "
                f"through the job of torch.distributed, and {there}: call init_process_group "
                "first, or pass shard_tail='keep'"
            )
        store = common_store()
        if store not in _connections:
            # Its own: another thread may wait for something, and hold the job's meanwhile.
            _connections.clear()
            _connections[store] = store.clone() if hasattr(store, "clone") else store
        self._store = _connections[store]
        self._keys = [f"lit_loader/{subject}/{each}" for each in range(replicas)]
        self._own = self._keys[rank]
        self._all_there = False
        self._has_store = distributed.get_rank() == 0  # this process, as long as it lives
        # Seconds that ranks wait for one another: ``init_process_group(timeout=...)``.
        self.patience: float = store.timeout.total_seconds()

    def write(self, word: Word) -> None:
        """Write this rank's word, in the place of the one before."""
        try:
            self._store.set(self._own, " ".join(str(int(part)) for part in word))
        except RuntimeError as error:
            raise self._lost(error) from error

    def read(self) -> list[Word | None]:
        """Give each rank's word; None: it has not written yet. Does not wait for any."""
        store, keys = self._store, self._keys
        try:
            self._all_there = self._all_there or (store.has_extended_api() and store.check(keys))
            if self._all_there:
                return [_read(word) for word in store.multi_get(keys)]
            return [_read(store.get(key)) if store.check([key]) else None for key in keys]
        except RuntimeError as error:
            raise self._lost(error) from error

    def end(self, word: Word) -> None:
        """Write the last word of this rank, which asks no more."""
        self.write(word._replace(done=True))
        if self._has_store:
            # Also at the end of a process that multiprocessing has started, where atexit is not.
            if self.farewell is not None:
                self.farewell.cancel()
            JobStore.farewell = util.Finalize(None, self._wait_for_readers, exitpriority=0)

    def _wait_for_readers(self) -> None:
        """Stay until all others have come to the end, too: they still have to read this store."""
        until = time.monotonic() + _FAREWELL
        with contextlib.suppress(LoaderError):
            while time.monotonic() < until and not all(word and word.done for word in self.read()):
                time.sleep(LONGEST_PAUSE)

    def _lost(self, error: RuntimeError) -> LoaderError:
        reason = " ".join(str(error).split())[:120]
        return LoaderError(
            f"the ranks' common store, in the first rank's process, is lost in {self._where} "
            f"({reason}): the first rank has ended; its own messages say why"
        )

    def forget(self) -> None:
        """Take this rank's word away."""
        with contextlib.suppress(RuntimeError):
            self._store.delete_key(self._own)


def _read(data: bytes) -> Word:
    batches, final, done = map(int, bytes(data).decode().split())
    return Word(batches, bool(final), bool(done))
