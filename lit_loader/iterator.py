"""One pass over the data: the wiring of sampler, workers, reorder window and pin-memory thread.

::

    plan.batches ─indices─▶ dispatch ─▶ pool.submit … pool.receive ─▶ window ─▶ decode
                               │                                                  │
                          outstanding ◀── delivered ── next() ◀── [pin thread] ◀──┘

- **Nothing starts before the first** ``next()``: ``iter()`` is free, and one that is thrown away
  leaves no trace. That first ``next()`` claims the pool and fixes the epoch.
- **Sampler and dispatch** run in the thread that calls ``next()``, at most ``depth`` batches ahead.
- **Receive, reorder, decode** (:class:`_Engine`) run in that thread too, or in the pin-memory
  thread where there is one.
- **What was promised and not yet delivered** is kept as indices (``outstanding``). So a pool can be
  lost (a worker died, Ctrl-C in the middle of something, another iterator took the pool over, the
  process was forked) and the next ``next()`` goes on: it claims workers and issues again what had
  not come in. An iterable dataset cannot do that, and says so.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from lit_loader.board import Progress, Stage
from lit_loader.codec import decode
from lit_loader.diagnosis import died, timed_out
from lit_loader.errors import LoaderError, TransportError, WorkerError
from lit_loader.fetch import EndOfData
from lit_loader.loading import BatchLoader, Recipe
from lit_loader.pin_memory import PinMemoryThread
from lit_loader.reorder import ReorderBuffer
from lit_loader.seeding import preserved
from lit_loader.worker_pool import Outcome, WorkerDeath, WorkerPool

__all__ = [
    "Claim",
    "EpochStart",
    "Host",
    "InProcessIterator",
    "LoaderIterator",
    "MultiProcessIterator",
]

T_co = TypeVar("T_co", covariant=True)
Pin = Callable[[Any], Any]


@dataclass(frozen=True)
class EpochStart:
    """What an iterator learns at its first ``next()``.

    Attributes:
        epoch: The epoch's number.
        seed: Its base seed.
        first: Number of the first batch (not 0 when an epoch is resumed).
        batches: The indices of each batch from ``first`` on; None for an iterable dataset.
    """

    epoch: int
    seed: int
    first: int
    batches: Iterator[Any] | None


class Claim(NamedTuple):
    """Workers at the disposal of one iterator.

    Attributes:
        pool: The workers.
        release: Gives them back; called with whether they may be used again.
    """

    pool: WorkerPool
    release: Callable[[bool], object]


class Host(Protocol):
    """What an iterator needs of its loader."""

    lock: threading.RLock
    """Held in every ``next()``: iterators of one loader share workers."""

    def __len__(self) -> int:
        """Batches of an epoch."""

    def recipe(self) -> Recipe:
        """What a batch is made by."""

    def begin_epoch(self) -> EpochStart:
        """Begin the epoch that comes next."""

    def count_samples(self, samples: int) -> None:
        """Learn how many samples of an iterable dataset the iterator has given out."""

    def claim(self, iterator: MultiProcessIterator[Any], start: EpochStart) -> Claim:
        """Give workers that have begun the epoch to ``iterator``, for it alone."""


class LoaderIterator(Generic[T_co]):
    """What ``iter(loader)`` gives: an iterator over an epoch's batches."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._start: EpochStart | None = None
        self._samples = 0

    def __iter__(self) -> LoaderIterator[T_co]:
        return self

    def __next__(self) -> T_co:
        with self._host.lock:
            return self._next()

    def __len__(self) -> int:
        return len(self._host)

    def _next(self) -> T_co:
        raise NotImplementedError

    def _count(self, samples: int) -> None:
        """Note the samples of a batch that is about to be given out."""
        self._samples += samples
        if self._start is not None and self._start.batches is None:
            self._host.count_samples(self._samples)


class InProcessIterator(LoaderIterator[T_co]):
    """``num_workers=0``: makes each batch when it is asked for, in the calling thread.

    The global random generators are, after each ``next()``, as they were before.

    Args:
        host: The loader.
        pin: Pins a batch, or None.
    """

    def __init__(self, host: Host, pin: Pin | None) -> None:
        super().__init__(host)
        self._pin = pin
        self._progress = Progress()
        self._number = 0
        self._ended = False

    def _next(self) -> T_co:
        if self._ended:
            raise StopIteration
        start = self._begin()
        number = self._number
        try:
            # A sampler's exception ends nothing by itself: what it does when asked again decides.
            indices = None if start.batches is None else next(start.batches)
        except StopIteration:
            self._ended = True
            raise
        self._number += 1
        try:
            with preserved():
                batch = self._loader.load(indices, number, start.epoch, start.seed, self._progress)
        except EndOfData:
            self._ended = True
            raise StopIteration from None
        except StopIteration as error:
            # As it is, it would end the consumer's loop as if the epoch were over.
            raise WorkerError(f"the dataset or collate_fn raised StopIteration: {error}") from error
        self._count(self._loader.samples)
        return batch if self._pin is None else self._pin(batch)  # type: ignore[no-any-return]

    def _begin(self) -> EpochStart:
        if self._start is None:
            self._loader = BatchLoader(self._host.recipe())
            self._start = self._host.begin_epoch()
            self._number = self._start.first
        return self._start


class _Ready(NamedTuple):
    """A task's outcome on the consumer's side; neither batch nor error: a worker's data ended."""

    number: int
    batch: Any
    error: BaseException | None
    samples: int = 0
    ended: bool = False


class _Engine:
    """One iterator's use of a pool: takes outcomes in, gives them out in order, decoded.

    Knows the iterator not, so that a forgotten iterator can be collected while the pin-memory
    thread waits in here.

    Args:
        pool: The workers.
        window: Outcomes that came in and wait for their turn.
        pin: Pins a batch in a thread of its own, or None.
        device: Accelerator to make current in that thread.
    """

    def __init__(
        self, pool: WorkerPool, window: ReorderBuffer[Outcome], pin: Pin | None, device: int | None
    ) -> None:
        self.pool = pool
        self._window = window
        self._stopping = False
        self._thread: PinMemoryThread[_Ready] | None = None
        if pin is not None:
            self._thread = PinMemoryThread(
                self._next_ready, lambda ready: ready._replace(batch=_pinned(ready, pin)), device
            )

    def take(self, timeout: float | None) -> _Ready | None:
        """Return the next outcome in order, or None when ``timeout`` seconds have passed.

        Raises:
            WorkerDeath: A worker is gone.
            PinMemoryError: The pin-memory thread is gone.
        """
        if self._thread is None:
            return self._next_ready(timeout)
        try:
            return self._thread.take(timeout)
        except queue.Empty:
            return None

    def _next_ready(self, timeout: float | None = None) -> _Ready | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._stopping:
            entry = self._window.pop()
            if entry is not None:
                return _decoded(entry[1])
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            outcome = self.pool.receive(left)
            if outcome is not None:
                self._window.put(outcome.number, outcome)
            elif left == 0.0:
                return None
        return None

    def stop(self) -> list[_Ready]:
        """End the thread; returns what it had pinned and nobody has taken."""
        self._stopping = True
        if self._thread is None:
            return []
        self.pool.wake()
        return self._thread.left()


def _pinned(ready: _Ready, pin: Pin) -> Any:
    return ready.batch if ready.error is not None or ready.ended else pin(ready.batch)


def _decoded(outcome: Outcome) -> _Ready:
    if outcome.failure is not None:
        return _Ready(outcome.number, None, outcome.failure.error())
    if outcome.memory is None:
        return _Ready(outcome.number, None, None, ended=True)
    try:
        batch = decode(outcome.memory, outcome.at, outcome.nbytes)
    except Exception as error:
        broken = TransportError(f"batch {outcome.number} cannot be rebuilt in the parent: {error}")
        broken.__cause__ = error
        return _Ready(outcome.number, None, broken)
    return _Ready(outcome.number, batch, None, outcome.samples)


class MultiProcessIterator(LoaderIterator[T_co]):
    """``num_workers > 0``: batches made by worker processes.

    Args:
        host: The loader.
        depth: Batches that may be under way at the same time.
        num_workers: Worker processes.
        in_order: Whether batches come in the sampler's order, or as they are finished.
        timeout: Seconds that one ``next()`` may wait; 0 for ever.
        pin: Pins a batch, or None.
        device: Accelerator to make current in the pin-memory thread.
    """

    def __init__(
        self,
        host: Host,
        depth: int,
        num_workers: int,
        in_order: bool,
        timeout: float,
        pin: Pin | None,
        device: int | None,
    ) -> None:
        super().__init__(host)
        self._depth = depth
        self._num_workers = num_workers
        self._timeout = timeout or None
        self._pin = pin
        self._device = device
        self._pid = os.getpid()
        self._next_number = 0
        self._outstanding: dict[int, Any] = {}
        self._in_order = in_order
        self._window: ReorderBuffer[Outcome] = ReorderBuffer(in_order)
        self._leftover: deque[_Ready] = deque()
        self._sampler_error: Exception | None = None
        self._all_issued = False
        self._exhausted: set[int] = set()
        self._ended = False
        self._closed = False
        self._engine: _Engine | None = None
        self.superseded = False
        """Whether another iterator has taken this one's workers."""

    def _next(self) -> T_co:
        if self._closed:
            raise LoaderError(
                "the loader was closed while this iterator was in use: iterate the loader anew"
            )
        if self._ended:
            raise StopIteration
        if self._pid != os.getpid():
            self._leave_behind()
        try:
            ready = self._advance()
        except BaseException:
            # Also Ctrl-C in mid-message: nobody knows what the pool's pipes then hold.
            self.disconnect(sound=False)
            raise
        if ready is None:
            self._ended = True
            self.disconnect(sound=True)
            raise StopIteration
        if ready.error is not None:
            raise ready.error
        self._count(ready.samples)
        return ready.batch  # type: ignore[no-any-return]

    def _advance(self) -> _Ready | None:
        """Keep the workers busy until the next batch, or error, is there; None: all are out."""
        start = self._start
        if start is None:
            start = self._start = self._host.begin_epoch()
            self._next_number = start.first
        while True:
            engine = self._connect(start)
            self._dispatch(start, engine.pool)
            if not self._outstanding:
                error, self._sampler_error = self._sampler_error, None
                return None if error is None else _Ready(-1, None, error)
            ready = self._leftover.popleft() if self._leftover else self._take(engine)
            del self._outstanding[ready.number]
            if ready.ended:
                self._exhausted.add(ready.number % self._num_workers)
                continue
            self._dispatch(start, engine.pool)
            return ready

    def _connect(self, start: EpochStart) -> _Engine:
        """Have workers that know the epoch and hold everything outstanding."""
        if self._engine is not None:
            return self._engine
        if start.batches is None and self._next_number > 0:
            raise LoaderError(
                "this iterator over an iterable dataset has lost its workers and cannot go on, for "
                "what they had read is gone: iterate the loader anew"
            )
        pool, release = self._host.claim(self, start)
        engine = _Engine(pool, self._window, self._pin, self._device)
        self._finalizer = weakref.finalize(self, _let_go, engine, release)
        self._engine = engine
        taken = {ready.number for ready in self._leftover}
        missing = [number for number in self._outstanding if number not in taken]
        for number in self._window.restart(missing):
            pool.submit(number, self._outstanding[number], start.epoch, start.seed)
        return engine

    def _dispatch(self, start: EpochStart, pool: WorkerPool) -> None:
        """Issue tasks until ``depth`` are under way or there are no more."""
        while len(self._outstanding) < self._depth and not self._all_issued:
            if start.batches is None:
                if len(self._exhausted) == self._num_workers:
                    self._all_issued = True
                elif self._next_number % self._num_workers not in self._exhausted:
                    self._issue(None, start, pool, self._next_number % self._num_workers)
                self._next_number += 1
                continue
            try:
                indices = next(start.batches)
            except StopIteration:
                self._all_issued = True
            except Exception as error:
                # Comes out in its turn, after the batches before it.
                self._all_issued = True
                self._sampler_error = error
            else:
                self._issue(indices, start, pool, None)
                self._next_number += 1

    def _issue(self, indices: Any, start: EpochStart, pool: WorkerPool, worker: int | None) -> None:
        number = self._next_number
        # Before it is sent: whatever goes wrong then, it will be issued again.
        self._outstanding[number] = indices
        self._window.expect(number)
        pool.submit(number, indices, start.epoch, start.seed, worker)

    def _take(self, engine: _Engine) -> _Ready:
        while True:
            try:
                ready = engine.take(self._timeout)
            except WorkerDeath as death:
                raise died(death, self._outstanding) from None
            if ready is not None:
                return ready
            rows = engine.pool.rows()
            # The interpreter and torch are still being imported: not yet the user's time.
            if self._timeout is None or all(row.stage == Stage.STARTING for row in rows):
                continue
            error = timed_out(self._timeout, rows, engine.pool.pids, self._outstanding)
            engine.pool.kill()  # what hangs would not stop by being asked
            raise error

    def disconnect(self, sound: bool) -> None:
        """Give the workers back, keeping what has come in.

        Args:
            sound: Whether the workers may be used again.
        """
        engine, self._engine = self._engine, None
        if engine is None:
            return
        detached = self._finalizer.detach()
        assert detached is not None
        release = detached[2][1]
        self._leftover.extend(engine.stop())
        release(sound)

    def close(self) -> None:
        """End the iterator: its workers are given back, and it gives no more batches."""
        self._closed = not self._ended
        self.disconnect(sound=True)
        self._leftover.clear()
        self._outstanding.clear()

    def _leave_behind(self) -> None:
        """After a fork: the workers, and the memory of what has come in, are the parent's."""
        self._pid = os.getpid()
        self._leftover.clear()
        self._window = ReorderBuffer(self._in_order)
        if self._engine is not None:
            self._finalizer.detach()
            self._engine = None

    @property
    def connected(self) -> bool:
        """Whether workers are at this iterator's disposal."""
        return self._engine is not None


def _let_go(engine: _Engine, release: Callable[[bool], object]) -> None:
    """Give an engine's workers back when its iterator has been collected."""
    engine.stop()
    release(True)
