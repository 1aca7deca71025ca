"""`ReadAhead`: what a process reads ahead for the samples of its next batches.

::

    announce(batch, indices) ─▶ pending ─ there is room ─▶ begun ─▶ read, or an exception
                                  │                          │             │
    take(dataset, index) ◀─ now ──╯      ◀── waited for ─────╯─────────────╯
    end(batch): what nobody has asked for is cancelled, or dropped when it comes

- Read is for one sample of one batch, so a sample that comes twice is read twice, and what a sample
  does to what it was given is seen by no other.
- Room: at most ``reads`` are under way, as many again wait to be taken, and they hold no more bytes
  than ``limit``. What has come makes room for the next, whatever the batch's thread is at.
- Of an epoch nothing is begun before the dataset has been told of it (:meth:`ReadAhead.enter`).
- A method's first read is done when it is asked for, by the thread that makes the batch, and the
  generators are compared. One that draws is never read ahead: threads share global generators. One
  that draws later is told where it draws while a sample waits, and nothing else does.
- An exception is raised where the sample asks, and is taken with that: a retry reads anew.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Sized
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from lit_loader.batch.reads_background import Background, Call, read_now
from lit_loader.batch.reads_declared import Key, key_of, reads_of
from lit_loader.describe import short_repr
from lit_loader.seeding.draws import Draws
from lit_loader.system.interrupts import let_handlers_through
from lit_loader.transport.status_board import Progress

__all__ = ["ReadAhead"]

IN_VAIN: Final = 3
"""Batches in a row of whose reads none was asked for; then nothing is read ahead any more."""

LOOK: Final = 0.01
"""Seconds between two looks at the generators while a sample waits for its read."""


class _Read:
    """One read of one sample."""

    __slots__ = ("call", "epoch", "future", "given_up", "key", "over")

    def __init__(self, key: Key, call: tuple[Call, Any, Any], epoch: Any) -> None:
        self.key = key
        self.call = call
        self.epoch = epoch
        self.future: Future[Any] | None = None
        self.over = False  # taken, or dropped
        self.given_up = False  # dropped, and goes on


class ReadAhead:
    """Reads ahead for one loader in one process. Datasets take from any thread.

    Args:
        dataset: What is read.
        reads: Reads under way, at most; 0: each is done when it is asked for.
        limit: Bytes that these may hold; None: any number.
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
        self.draws: Draws | None = None  # sees whether a read draws; None before the first read
        self.background = Background(reads)
        self._lock = threading.RLock()
        self._owner = threading.get_ident()
        self._epoch: Any = None
        self._announced: dict[Any, list[_Read]] = {}  # by batch
        self._pending: deque[_Read] = deque()
        self._known: dict[Key, deque[_Read]] = {}
        self._under_way = 0
        self._beginning = False
        self._begun = 0  # and not taken
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
        reads = []
        first, self._first = self._first, False
        draws = Draws(self._dataset)
        marks = draws.mark() if first else []
        for index in indices:
            for one in index if type(index) is list else (index,):
                try:
                    calls = [*reads_of(self._dataset, one)]
                except Exception as error:  # of an index, the sample raises it as well
                    let_handlers_through(error)
                    if not self._told:
                        self._told = True
                        self.notes.append(
                            f"what sample {short_repr(one)} reads is not read ahead: "
                            f"{type(error).__name__}: {error}"
                        )
                    continue
                for call in calls:
                    if (key := key_of(*call)) is not None:
                        reads.append(_Read(key, call, epoch))
        if (drawn := draws.drawn(marks)) is not None:
            self.reads = 0
            self.notes.append(
                f"a reads_from draws from {drawn}, so reads are not made ahead: it has to depend "
                "on the index alone"
            )
            return
        with self._lock:
            self._announced[batch] = reads
            self._pending += reads
            for read in reads:
                self._known.setdefault(read.key, deque()).append(read)
            self._begin_more()

    def end(self, batch: Any, made: bool = False) -> None:
        """Drop what was read for a batch and not asked for; ``made``: all its samples were read."""
        with self._lock:
            reads = self._announced.pop(batch, ())
            begun = any(read.future is not None for read in reads)
            left = [read for read in reads if not read.over]
            for read in left:
                self._let_go(read)
                self._begun -= read.future is not None
            for read in left:
                if read.future is not None and not read.future.cancel():
                    read.given_up = not read.future.done()  # it may hang, and holds up nobody
                    self._under_way -= read.given_up
                read.future = None  # which has a reference to it
            if made and (begun or self._asked):
                self._in_vain = 0 if self._found else self._in_vain + 1
                if self._in_vain == IN_VAIN and self.reads:
                    self.reads = 0
                    self.notes.append(
                        f"reads are not made ahead: no sample of {IN_VAIN} batches in a row asked "
                        f"{type(self._dataset).__name__} for the read of its index; call the "
                        "reads_ahead method with the index that __getitem__ gets, or give the "
                        "dataset around it a method reads_from(index)"
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
        read = self._claim(key_of(method, dataset, index))
        try:
            if read is None or read.future is None:
                return self._now(method, dataset, index)
            return self.outcome(read.future, method, (dataset, index), mine)
        finally:
            with self._lock:
                if read is not None and read.future is not None:
                    self._begun -= 1
                    read.future = None  # with what was read, which is the sample's now
                self.waited += time.monotonic_ns() - began
                del read
            if progress is not None:
                progress.read_ends()
            with self._lock:
                self._begin_more()
            if mine and not self._pending and self.look_ahead:
                self.look_ahead()

    def _claim(self, key: Key | None) -> _Read | None:
        """Take the earliest read for a sample out of what is known."""
        with self._lock:
            self._asked += 1
            if key not in self._known:
                return None
            self._found += 1
            read = self._known[key][0]
            self._let_go(read)
            return read

    def _now(self, method: Call, dataset: Any, index: Any) -> Any:
        """Read at once; the first time, see whether that draws."""
        if not self.reads or method in self._checked:
            return read_now(method, (dataset, index))
        self.draws = draws = self.draws or Draws(dataset)
        marks = draws.mark()
        try:
            return read_now(method, (dataset, index))
        finally:
            drawn = draws.drawn(marks)
            self._checked[method] = drawn is None
            if drawn is not None:
                self.warn_of_draws(method, drawn, index)

    def outcome(
        self, future: Future[Any], method: Call, arguments: tuple[Any, ...], alone: bool = True
    ) -> Any:
        """Wait for a read, and see whether something draws meanwhile.

        What draws seldom, such as a client that waits a random time before it asks again, has not
        been seen in the first read. ``alone``: it is the thread that makes the batch which waits.
        """
        now = time.monotonic()
        draws = self.draws
        if future.done() or draws is None or not alone or now - self._looked < LOOK:
            return self.background.outcome(future, method, arguments)
        self._looked = now
        marks = draws.mark()
        try:
            return self.background.outcome(future, method, arguments)
        finally:
            drawn = draws.drawn(marks)
            if drawn is not None:
                self.draws = None  # once is enough
                self.notes.append(
                    f"something drew from {drawn} while sample {short_repr(arguments[-1])} waited "
                    f"for {_name(method)}, so random numbers of samples depend on when that was: "
                    "if it was the read (a client's retries may), have it draw from a generator of "
                    "its own, or set reads=0"
                )

    def warn_of_draws(self, method: Call, drawn: str, index: Any) -> None:
        """Have the user told that a read is not made ahead."""
        self.notes.append(
            f"{_name(method)} draws from {drawn} at {short_repr(index)}, so it is called when its "
            "sample asks and not ahead: draw behind the read, with what it gives"
        )

    def _begin_more(self) -> None:
        """Begin what there is room for; called under the lock."""
        if self._beginning:
            return  # by a read that has come at once
        pending, self._beginning = self._pending, True
        try:
            while pending and self._has_room():
                read = pending[0]
                # The epoch's time comes; and a first sample's are read when it asks.
                if not read.over and (read.epoch != self._epoch or not self._checked):
                    return
                pending.popleft()
                if not read.over and self._checked.get(read.call[0]):
                    self._begin(read)
        finally:
            self._beginning = False

    def _begin(self, read: _Read) -> None:
        method, *arguments = read.call
        read.future = self.background.start(method, tuple(arguments))
        self._begun += 1
        self._under_way += 1
        # Nothing that a thread holds keeps this object.
        read.future.add_done_callback(partial(_came, weakref.ref(self), read))

    def _has_room(self) -> bool:
        if self._under_way >= self.reads or self._begun >= 2 * self.reads:
            return False
        if self._limit is None or not self._begun:
            return True
        # Each may be as large as the largest one; before one has come, there is one at a time.
        return 0 < (self._begun + 1) * self._largest <= self._limit

    def _note(self, read: _Read, future: Future[Any]) -> None:
        """Note that a read has come to its end, and how large it is what has come."""
        weighed = self._limit is not None and not (future.cancelled() or future.exception())
        size = max(1, size_of(future.result())) if weighed else 0
        with self._lock:
            self._under_way -= not read.given_up
            self._largest = max(self._largest, size)
            self._begin_more()

    def _let_go(self, read: _Read) -> None:
        """Take a read out of what is known; its first, or any that nobody has taken."""
        reads = self._known[read.key]
        reads.remove(read)
        if not reads:
            del self._known[read.key]
        read.over = True


def _came(reads: weakref.ref[ReadAhead], read: _Read, future: Future[Any]) -> None:
    if (ahead := reads()) is not None:
        ahead._note(read, future)


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
