"""`DeliveryPipeline`: brings outcomes from the pool to the iterator, in order and decoded.

::

    pool.receive ─Outcome─▶ buffer ─in order─▶ decode ─▶ [pin-memory thread] ─Delivery─▶ take

Used by `iteration/multi_process.py`. Without pinning all of it runs in the thread that calls
:meth:`DeliveryPipeline.take`; with pinning, in the pin-memory thread, and ``take`` only empties
that thread's queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from lit_loader.accelerator.pin_memory import PinMemoryThread
from lit_loader.batch.batch_spec import BatchWithReport
from lit_loader.errors import LoaderError, TransportError
from lit_loader.pool.healer import Healer
from lit_loader.pool.outcome import Outcome, WorkerDeath
from lit_loader.pool.pipes import PoolClosed
from lit_loader.pool.reorder_buffer import ReorderBuffer
from lit_loader.pool.worker_pool import WorkerPool
from lit_loader.sampling.epochs import EpochStart
from lit_loader.statistics.records import BatchRecord
from lit_loader.system.interrupts import HeldBack, let_handlers_through
from lit_loader.transport.codec import Divide, decode
from lit_loader.transport.messages import Reply, position_of

__all__ = ["DeliveryPipeline", "Pin", "Delivery"]

Pin = Callable[[Any], Any]


class Delivery(NamedTuple):
    """A task's outcome when its turn has come; neither batch nor error: a worker's data ended.

    Attributes:
        number: The task's.
        batch: The batch.
        error: What is raised in its place, or None.
        samples: Samples of the batch.
        ended: Whether this reader of an iterable dataset has nothing more to give.
        made: What came with the batch, or None.
        result: The worker's message, or None.
        arrived: ``time.monotonic_ns()`` when that was read.
        decode: Nanoseconds that it took to rebuild the batch.
        pin: Nanoseconds that it took to copy it into page-locked memory.
    """

    number: int
    batch: Any
    error: BaseException | None
    samples: int = 0
    ended: bool = False
    made: BatchWithReport | None = None
    result: Reply | None = None
    arrived: int = 0
    decode: int = 0
    pin: int = 0

    def note(self, start: EpochStart, turns: int) -> None:
        """Note in the position that a batch, or what takes its place, is given out.

        Args:
            start: Where the epoch began; has the position.
            turns: Readers of an iterable dataset, that take turns; 0: there are none.
        """
        number, position = position_of(self.number), start.position
        if self.error is not None:
            position.failed(number, number % (turns or 1))
        elif start.batches is not None:
            position.delivered(number)
        elif self.ended:
            position.exhausted(number % turns)
        elif self.made is None:
            position.read(number % turns, None)
        else:
            position.read(number % turns, self.made.state, self.made.mark)

    def record(self, epoch: int, asked: int, wait: int, step: int, indices: Any) -> BatchRecord:
        """Give the record of a batch that is given out.

        Args:
            epoch: Its epoch.
            asked: ``time.monotonic_ns()`` when the consumer asked for it.
            wait: Nanoseconds that the consumer has waited for it.
            step: Nanoseconds that the consumer was busy before.
            indices: What it was made of.
        """
        result = self.result
        assert result is not None
        at = result.slowest_at
        return BatchRecord(
            epoch,
            position_of(self.number),
            result.worker,
            self.samples,
            result.at + result.nbytes,
            result.began,
            result.fetch,
            result.collate,
            result.encode,
            self.arrived,
            asked,
            wait,
            self.decode,
            self.pin,
            step,
            result.slowest,
            indices[at] if type(indices) is list and at < len(indices) else indices,
            result.processor,
            result.queued,
        )


class DeliveryPipeline:
    """Takes outcomes from one pool, and gives them out in order, decoded.

    Does not refer to the iterator, which can be collected while the pin-memory thread waits here.

    Args:
        pool: The workers.
        buffer: Outcomes that came in and wait for their turn.
        pin: Pins a batch in a thread of its own, or None.
        device: Accelerator to make current in that thread.
        healer: Sees to workers that die or hang.
    """

    def __init__(
        self,
        pool: WorkerPool,
        buffer: ReorderBuffer[Outcome],
        pin: Pin | None,
        device: int | None,
        healer: Healer,
    ) -> None:
        self.pool = pool
        self.healer = healer
        self._buffer = buffer
        self._pin = pin
        self._device = device
        self._stopping = False
        self._thread: PinMemoryThread[Delivery] | None = None

    def start(self) -> None:
        """Begin to pin; from now on the thread takes from the buffer."""
        pin = self._pin
        if pin is not None:
            with HeldBack():  # a thread that has started is one that is known
                self._thread = PinMemoryThread(
                    self._next_delivery, lambda delivery: _pinned(delivery, pin), self._device
                )

    def take(self) -> Delivery:
        """Return the next outcome in order.

        Raises:
            WorkerDiedError: A worker has died, and may not be replaced.
            WorkerTimeoutError: A worker hangs, and may not be replaced.
            PinMemoryError: The pin-memory thread is gone.
        """
        if self._thread is not None:
            return self._thread.take()
        delivery = self._next_delivery()
        if delivery is None:
            raise LoaderError(
                "the loader was closed by another thread while a batch was awaited: iterate the "
                "loader anew"
            )
        return delivery

    def take_at_once(self) -> Delivery | None:
        """Return the next outcome in order if it is there; a death is left to :meth:`take`."""
        if self._thread is not None:
            return self._thread.take_at_once()
        try:
            while (entry := self._buffer.pop()) is None:
                outcome = self.pool.receive(0.0)
                if outcome is None:
                    return None
                self._buffer.put(outcome.number, outcome)
        except (WorkerDeath, PoolClosed):
            return None
        return _decoded(entry[1], self.pool.divide)

    def _next_delivery(self) -> Delivery | None:
        began = time.monotonic()
        while not self._stopping:
            entry = self._buffer.pop()
            if entry is not None:
                return _decoded(entry[1], self.pool.divide)
            outcome = self.healer.receive(self.pool, began)
            if outcome is not None:
                self._buffer.put(outcome.number, outcome)
        return None

    def was_waiting(self) -> bool:
        """Whether :meth:`take` was in a mere wait when an exception came out of it."""
        waits: WorkerPool | PinMemoryThread[Delivery] = self._thread or self.pool
        was, waits.waiting = waits.waiting, False
        return was

    @property
    def ready(self) -> int:
        """Batches that have been made and not taken."""
        pinned = 0 if self._thread is None else self._thread.pinned
        return len(self._buffer) + pinned + self.pool.unread

    def stop(self) -> list[Delivery]:
        """End the thread; returns what it had pinned and was not taken."""
        self._stopping = True
        if self._thread is None or self.pool.elsewhere:  # in a forked copy there is no thread
            return []
        if not self.pool.closed:  # else it has ended already, or is about to
            self.pool.wake()
        return self._thread.left()


def _pinned(delivery: Delivery, pin: Pin) -> Delivery:
    if delivery.error is not None or delivery.ended or (delivery.made and delivery.made.omitted):
        return delivery
    began = time.monotonic_ns()
    try:
        batch = pin(delivery.batch)
    except Exception as error:
        # This batch's outcome, like an error in a worker: the next one comes after it.
        return delivery._replace(batch=None, error=error)
    return delivery._replace(batch=batch, pin=time.monotonic_ns() - began)


def _decoded(outcome: Outcome, divide: Divide) -> Delivery:
    if outcome.error is not None:
        return Delivery(outcome.number, None, outcome.error)
    if outcome.failure is not None:
        return Delivery(outcome.number, None, outcome.failure.error())
    if outcome.memory is None:
        return Delivery(outcome.number, None, None, ended=True)
    began = time.monotonic_ns()
    try:
        batch = decode(outcome.memory, outcome.at, outcome.nbytes, divide)
    except Exception as error:
        let_handlers_through(error)
        number = position_of(outcome.number)
        broken = TransportError(
            f"batch {number} cannot be rebuilt in the training process: {error}"
        )
        broken.__cause__ = error
        return Delivery(outcome.number, None, broken)
    took = time.monotonic_ns() - began
    made = None
    if isinstance(batch, BatchWithReport):
        made = batch._replace(batch=None)  # what is pinned is another object
        batch = batch.batch
    return Delivery(
        outcome.number,
        batch,
        None,
        outcome.samples,
        False,
        made,
        outcome.result,
        outcome.arrived,
        took,
    )
