"""`ReadAhead`: what a process reads ahead for the samples of its next batches; `read_stream`.

Actors: the thread that makes batches announces and takes; threads of `_Background`, or the event
loop, read. What a batch is going to be made of is *announced*, and *pending* until there is room;
then it is *begun*, and *under way* until it has come. A sample *takes* what was begun for it, or
reads. When its batch ends, what nobody has taken is dropped.

- Read is for one sample of one batch, so a sample that comes twice is read twice, and what a sample
  does to what it was given is seen by no other.
- Room: at most ``reads`` are under way, as many again wait to be taken, and they hold no more bytes
  than ``limit``. What has come makes room for the next, whatever the batch's thread is at.
- An exception is raised where the sample asks, and is taken with that: a retry reads anew.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar, overload

from lit_loader.context import in_read, read_apart, reading, reading_here
from lit_loader.core.batch.progress import Progress
from lit_loader.core.system.interrupts import HeldBack
from lit_loader.describe import public, short_repr
from lit_loader.errors import OptionError
from lit_loader.storage.draws import Draws
from lit_loader.storage.reads_declared import (
    Call,
    Key,
    ReadResult,
    declares_reads,
    key_of,
    read_in_loop,
    read_now,
    reads_of,
)

__all__ = ["ReadAhead", "read_stream"]

IN_VAIN: Final = 3
"""Batches in a row of whose reads none was asked for; then nothing is read ahead any more."""

LOOK: Final = 0.01
"""Seconds between two looks at the generators while a sample waits for its read."""

CROWD: Final = 4
"""Times the reads at a time that there may be threads: some may hang in what nobody waits for."""


class _Background:
    """Daemon threads, as many as there is work for. An executor's are waited for at exit.

    ``reads`` are to be under way at a time. A fork's copies of the threads do nothing: the child
    reads by itself what it has not got. Whatever breaks into the main thread's `start` and `end`
    leaves no lock taken for which the threads would wait: the queues are one instruction each.
    """

    def __init__(self, reads: int) -> None:
        self._pid = os.getpid()
        self._most = CROWD * reads
        self._jobs: SimpleQueue[tuple[ReadResult, Call, tuple[Any, ...]] | None] = SimpleQueue()
        self._free: SimpleQueue[None] = SimpleQueue()  # an item for each thread without a job
        self._count = 0
        self._reading = reading_here()

    def start(self, result: ReadResult, read: Call, arguments: tuple[Any, ...]) -> None:
        """Begin a read, for what its result is to give."""
        if inspect.iscoroutinefunction(read):
            return read_in_loop(result, read, arguments)
        try:
            self._free.get_nowait()
        except Empty:
            if not self._start_thread():
                return  # whoever waits for the read does it himself
        self._jobs.put((result, read, arguments))  # never more jobs than threads that wait

    def _start_thread(self) -> bool:
        if self._count >= self._most:
            return False
        thread = threading.Thread(target=self._run, name="lit_loader read", daemon=True)
        with HeldBack(), suppress(RuntimeError):  # no more can be started
            thread.start()
            self._count += 1
            return True
        return False

    def outcome(self, result: ReadResult, read: Call, arguments: tuple[Any, ...]) -> Any:
        """Wait for a read, and give what it gives; what no thread has begun with is done here."""
        if not result.given:
            in_loop = inspect.iscoroutinefunction(read)
            if self._pid != os.getpid() or (not in_loop and result.claim()):
                return read_now(read, arguments)
        return result.wait()

    def end(self) -> None:
        """End the threads, as far as they do not read."""
        self._jobs.put(None)

    def _run(self) -> None:
        in_read.set(True)
        if self._reading is not None:
            read_apart(self._reading)
        while (job := self._jobs.get()) is not None:
            _read(*job)
            del job  # with what it has read
            self._free.put(None)
        self._jobs.put(None)  # for the next thread


def _read(result: ReadResult, read: Call, arguments: tuple[Any, ...]) -> None:
    if result.claim():
        try:
            value, failed = read(*arguments), None
        except BaseException as error:
            value, failed = None, error
        try:
            result.give(value, failed)
        finally:
            del result, failed  # its traceback holds this frame


@dataclass(eq=False)
class _Read:
    key: Key
    call: tuple[Call, Any, Any]
    epoch: Any
    result: ReadResult | None  # what it gives; None: it has been taken, or dropped


@dataclass(frozen=True)
class ReadsAhead:
    """The seam: what a `BatchSpec` has as its ``reads``; of it each process makes a `ReadAhead`."""

    reads: int
    limit: int | None

    def begin(self, dataset: Any) -> ReadAhead:
        """Give what reads ahead in a process."""
        return ReadAhead(dataset, self.reads, self.limit)


def reads_of_loader(core: Any) -> ReadsAhead | None:
    """Give what reads ahead for a loader; None: its dataset does not say what waits."""
    loader = core.loader
    if not (core.iterable or declares_reads(core.dataset)):
        return None
    budget = loader.memory_budget
    # What each process reads ahead takes a quarter of the budget, together.
    parts = 4 * max(1, loader.num_workers + loader.num_remote_workers)
    return ReadsAhead(loader.concurrent_reads, None if budget is None else budget // parts)


class ReadAhead:
    """Reads ahead for one loader in one process. Datasets take from any thread.

    At most ``reads`` are under way (0: each is done when it is asked for), and they hold at most
    ``limit`` bytes (None: any number).
    """

    def __init__(self, dataset: Any, reads: int, limit: int | None = None) -> None:
        self._dataset = dataset
        self.reads = reads
        self._limit = limit
        self.notes: list[str] = []  # what the user is to be warned of
        self.waited = 0  # nanoseconds that samples have waited, since it was last set to 0
        self.look_ahead: Callable[[], None] | None = None  # announces later batches; by the owner
        self.progress: Progress | None = None  # notes that a sample waits; None: nobody looks
        self.sharing: Sized = ()  # readers of a stream that share the reads
        self._draws: Draws | None = None  # sees whether a read draws; None before the first read
        self.background = _Background(reads)
        weakref.finalize(self, self.background.end)
        self._lock = threading.RLock()
        self._owner = threading.get_ident()
        self._epoch: Any = None
        self._announced: dict[Any, list[_Read]] = {}  # by batch
        self._pending: deque[_Read] = deque()
        self._known: dict[Key, deque[_Read]] = {}
        self._begun: set[ReadResult] = set()  # and not taken, or waited for
        self._under_way: set[ReadResult] = set()  # of these
        self._largest = 0  # bytes of all that was read so far
        self._asked = self._found = 0  # by a batch's samples; of these were announced
        self._in_vain = 0
        self._first = True
        self._told = False  # what cannot be read ahead
        self._looked = 0.0
        self._checked: dict[Call, bool] = {}  # whether it may be read ahead

    # --- batches ---

    def enter(self, epoch: Any) -> None:
        """Let reads of an epoch begin: the dataset has been told of it."""
        with self._lock:
            self._epoch = epoch
            self._begin_more()

    def announce(self, batch: Any, epoch: Any, indices: Any) -> None:
        """Say what a batch is going to be made of; once more does nothing."""
        if not self.reads or batch in self._announced or type(indices) is not list:
            return
        first, self._first = self._first, False
        draws = Draws(self._dataset)
        marks = draws.mark() if first else []
        reads = [
            _Read(key, call, epoch, ReadResult())
            for index in indices
            for one in (index if type(index) is list else (index,))
            for call in self._calls(one)
            if (key := key_of(*call)) is not None
        ]
        if (drawn := draws.drawn(marks)) is not None:
            self.reads = 0
            self.notes.append(
                f"a reads_from draws from {drawn}, so reads are not made ahead: it has to depend "
                "on the index alone [LL401]"
            )
            return
        with self._lock:
            for read in reads:
                self._known.setdefault(read.key, deque()).append(read)
            self._pending += reads
            self._announced[batch] = reads  # now that each is known, whatever breaks into this
            self._begin_more()

    def _calls(self, index: Any) -> Iterator[tuple[Call, Any, Any]]:
        try:
            yield from reads_of(self._dataset, index)
        except Exception as error:  # of an index, the sample raises it as well
            if not self._told:
                self._told = True
                self.notes.append(
                    f"what sample {short_repr(index)} reads is not read ahead [LL402]: "
                    f"{type(error).__name__}: {error}"
                )

    def end(self, batch: Any, made: bool = False) -> None:
        """Drop what was read for a batch and not asked for; ``made``: all its samples were read."""
        with self._lock:
            reads = self._announced.pop(batch, ())
            begun = self._begun & {self._let_go(read) for read in reads if read.result is not None}
            self._begun -= begun
            self._under_way -= begun  # what goes on may hang, and holds up nobody
            for result in begun:
                result.claim()  # so that nobody gives it
            if made and (begun or self._asked):
                self._in_vain = 0 if self._found else self._in_vain + 1
                if self._in_vain == IN_VAIN and self.reads:
                    self.reads = 0
                    self.notes.append(
                        f"reads are not made ahead: no sample of {IN_VAIN} batches in a row asked "
                        f"{type(self._dataset).__name__} for the read of its index; call the "
                        "reads_ahead method with the index that __getitem__ gets, or give the "
                        "dataset around it a method reads_from(index) [LL403]"
                    )
            self._asked = self._found = 0
            self._begin_more()

    # --- reads ---

    def take(self, method: Call, dataset: Any, index: Any) -> Any:
        """Give what was read for a sample of the dataset; or read it, and raise what it raises."""
        began = time.monotonic_ns()
        mine = threading.get_ident() == self._owner
        progress = self.progress if mine else None
        if progress is not None:
            progress.read_begins()
        result = self._claim_pool(key_of(method, dataset, index))
        try:
            if result not in self._begun:
                return self._now(method, dataset, index)
            return self.outcome(result, method, (dataset, index), mine)
        finally:
            with self._lock:
                self._begun.discard(result)
                self._under_way.discard(result)  # where it was read here
                self.waited += time.monotonic_ns() - began
                del result  # with what was read, which is the sample's now
            if progress is not None:
                progress.read_ends()
            with self._lock:
                self._begin_more()
            if mine and not self._pending and self.look_ahead:
                self.look_ahead()

    def _claim_pool(self, key: Key | None) -> ReadResult:
        """Take the earliest read for a sample out of what is known; else one that is not begun."""
        with self._lock:
            self._asked += 1
            if key not in self._known:
                return ReadResult()
            self._found += 1
            return self._let_go(self._known[key][0])

    def _let_go(self, read: _Read) -> ReadResult:
        """Take a read out of what is known; its first, or any that nobody has taken."""
        reads, result = self._known[read.key], read.result
        read.result = None  # first: what is broken into behind this is not let go of again
        reads.remove(read)
        if not reads:
            del self._known[read.key]
        assert result is not None
        return result

    def _now(self, method: Call, dataset: Any, index: Any) -> Any:
        if not self.reads or method in self._checked:
            return read_now(method, (dataset, index))
        may = partial(self._checked.__setitem__, method)
        return self.first(method, (dataset, index), dataset, may)

    def first(
        self, read: Call, arguments: tuple[Any, ...], root: Any, may: Callable[[bool], object]
    ) -> Any:
        """Do a first read in this thread, and see whether it draws; if so, it is told.

        ``may`` is told whether further ones may be made ahead.
        """
        self._draws = draws = Draws(root)
        marks = draws.mark()
        try:
            return read_now(read, arguments)
        finally:
            drawn = draws.drawn(marks)
            may(drawn is None)
            if drawn is not None:
                self.notes.append(
                    f"{_name(read)} draws from {drawn} at {short_repr(arguments[-1])}, so it is "
                    "called when its sample asks and not ahead: draw behind the read, with what it "
                    "gives [LL404]"
                )

    def outcome(
        self, result: ReadResult, method: Call, arguments: tuple[Any, ...], alone: bool = True
    ) -> Any:
        """Wait for a read, and see whether something draws meanwhile.

        What draws seldom, such as a client that waits a random time before it asks again, has not
        been seen in the first read. ``alone``: it is the thread that makes the batch which waits.
        """
        now = time.monotonic()
        draws = self._draws
        if result.given or draws is None or not alone or now - self._looked < LOOK:
            return self.background.outcome(result, method, arguments)
        self._looked = now
        marks = draws.mark()
        try:
            return self.background.outcome(result, method, arguments)
        finally:
            if (drawn := draws.drawn(marks)) is not None:
                self._draws = None  # once is enough
                self.notes.append(
                    f"something drew from {drawn} while sample {short_repr(arguments[-1])} waited "
                    f"for {_name(method)}, so random numbers of samples depend on when that was: "
                    "if it was the read (a client's retries may), have it draw from a generator of "
                    "its own, or set concurrent_reads=0 [LL407]"
                )

    def _begin_more(self) -> None:
        """Begin what there is room for; called under the lock."""
        pending = self._pending
        while pending and self._has_room():
            read = pending[0]
            # The epoch's time comes; and a first sample's are read when it asks.
            if read.result and (read.epoch != self._epoch or not self._checked):
                return
            pending.popleft()
            if read.result and self._checked.get(read.call[0]):
                self._begun.add(read.result)
                self._under_way.add(read.result)
                # Nothing that a thread holds keeps this object.
                read.result.arrived = partial(_came, weakref.ref(self))
                self.background.start(read.result, read.call[0], read.call[1:])

    def _has_room(self) -> bool:
        begun = len(self._begun)
        if len(self._under_way) >= self.reads or begun >= 2 * self.reads:
            return False
        if self._limit is None or not begun:
            return True
        # Each may be as large as the largest one; before one has come, there is one at a time.
        return 0 < (begun + 1) * self._largest <= self._limit


def _came(
    reads: weakref.ref[ReadAhead], value: Any, error: BaseException | None, result: ReadResult
) -> None:
    """Note that a read has come to its end, and how large it is what has come."""
    ahead = reads()
    if ahead is None:
        return
    size = 0  # what is not known leaves one at a time
    if ahead._limit is not None and error is None:
        with suppress(Exception):  # of the user's own container
            size = max(1, size_of(value))
    with ahead._lock:
        ahead._under_way.discard(result)
        ahead._largest = max(ahead._largest, size)
        ahead._begin_more()


def _name(method: Call) -> str:
    return getattr(method, "__qualname__", repr(method))


def size_of(value: Any, depth: int = 3) -> int:
    """About how many bytes of memory a value takes."""
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    if depth and isinstance(value, Mapping):
        value = [*value.values()]
    if depth and isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        return sum(size_of(each, depth - 1) for each in value)
    return sys.getsizeof(value)


# --- streams ---


_K = TypeVar("_K")
_R = TypeVar("_R")


@overload
def read_stream(
    keys: Iterable[_K], read: Callable[[_K], Coroutine[Any, Any, _R]]
) -> Iterator[tuple[_K, _R]]: ...
@overload
def read_stream(keys: Iterable[_K], read: Callable[[_K], _R]) -> Iterator[tuple[_K, _R]]: ...
@public
def read_stream(keys: Iterable[Any], read: Call) -> Iterator[tuple[Any, Any]]:
    """Give ``(key, read(key))`` for each key, read ahead; for the ``__iter__`` of a dataset.

    In a `DataLoader` up to ``concurrent_reads`` keys are read at a time, divided among the readers
    that a worker serves; elsewhere one after the other. The order is the keys'::

        def __iter__(self):
            index, count = lit_loader.get_shard()
            for key, data in lit_loader.read_stream(self.keys[index::count], client.get):
                yield decode(data)

    What holds of `reads_ahead` methods holds of ``read``. An exception of it is raised in its
    key's place; the next call of ``next()`` goes on behind that, or reads the key again if it is
    one of ``sample_retries``. Taking the next key must draw no random number, for it is taken
    early: shuffle a list of keys.

    Args:
        keys: What to read.
        read: Called with a key; a function, or an ``async def``.

    Raises:
        OptionError: Taking a key, other than the first, has drawn random numbers.
    """
    ahead = getattr(reading.maker, "reads", None)
    return _Stream(iter(keys), read, ahead)


class _Stream:
    """No generator, which an exception of a read would finish."""

    def __init__(self, keys: Iterator[Any], read: Call, ahead: ReadAhead | None) -> None:
        self._keys, self._read, self._ahead = keys, read, ahead
        self._coming: deque[tuple[Any, ReadResult]] = deque()
        self._failed: list[Any] = []  # the key whose read has raised an exception just now
        self._begun = self._ended = False

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self

    def __next__(self) -> tuple[Any, Any]:
        ahead = self._ahead
        again = bool(self._failed) and reading.again
        if again or ahead is None or not ahead.reads:
            key = self._failed[0] if again else next(self._keys)
            return self._given(key, read_now, self._read, (key,))
        if not self._begun:
            self._begun = True
            key = next(self._keys)  # which may shuffle them
            return self._given(key, ahead.first, self._read, (key,), self._read, self._may)
        # The one that is given next is among those that are under way.
        most = max(1, -(-ahead.reads // max(1, len(ahead.sharing))))
        while len(self._coming) < most and self._take_key(early=bool(self._coming)):
            pass
        if not self._coming:
            raise StopIteration
        key, result = self._coming.popleft()
        return self._given(key, ahead.outcome, result, self._read, (key,))

    def _take_key(self, early: bool) -> bool:
        """Take the next key and begin its read; returns whether there was one."""
        if self._ended:
            return False
        before = reading.drawn() if early else None
        try:
            key = next(self._keys)
        except StopIteration:
            self._ended = True
            return False
        if early and reading.drawn() != before:
            raise OptionError(
                "the keys of read_stream draw random numbers as they are taken, and are taken "
                "early: give it a list that is shuffled already, or set concurrent_reads=0 [LL406]"
            )
        assert self._ahead is not None
        self._coming.append((key, ReadResult()))
        self._ahead.background.start(self._coming[-1][1], self._read, (key,))
        return True

    def _may(self, ahead: bool) -> None:
        self._ahead = self._ahead if ahead else None

    def _given(self, key: Any, call: Call, *arguments: Any) -> tuple[Any, Any]:
        began = time.monotonic_ns()
        self._failed = [key]
        try:
            data = call(*arguments)
            self._failed = []
            return key, data
        finally:
            if self._ahead is not None:
                self._ahead.waited += time.monotonic_ns() - began

    def __del__(self) -> None:
        for _, result in self._coming:
            result.claim()
