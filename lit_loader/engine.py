"""From the pool to the consumer: reorder, decode and, where wanted, pin.

::

    pool.receive ─outcome─▶ window ─in order─▶ decode ─▶ [pin-memory thread] ─▶ take

Without pinning all of it runs in the thread that calls :meth:`Engine.take`; with pinning, in the
pin-memory thread, and ``take`` only empties that thread's queue.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from lit_loader.codec import decode
from lit_loader.errors import TransportError
from lit_loader.loading import Parcel
from lit_loader.pin_memory import PinMemoryThread
from lit_loader.reorder import ReorderBuffer
from lit_loader.worker_pool import Outcome, WorkerPool

__all__ = ["Engine", "Pin", "Ready"]

Pin = Callable[[Any], Any]


class Ready(NamedTuple):
    """A task's outcome on the consumer's side; neither batch nor error: a worker's data ended."""

    number: int
    batch: Any
    error: BaseException | None
    samples: int = 0
    ended: bool = False
    state: Any = None
    ignores_share: bool = False


class Engine:
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
        self._pin = pin
        self._device = device
        self._stopping = False
        self._thread: PinMemoryThread[Ready] | None = None

    def start(self) -> None:
        """Begin to pin; from now on the window is the thread's to take from."""
        pin = self._pin
        if pin is not None:
            self._thread = PinMemoryThread(
                self._next_ready, lambda ready: _pinned(ready, pin), self._device
            )

    def take(self, timeout: float | None) -> Ready | None:
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

    def _next_ready(self, timeout: float | None = None) -> Ready | None:
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

    def stop(self) -> list[Ready]:
        """End the thread; returns what it had pinned and nobody has taken."""
        self._stopping = True
        if self._thread is None or self.pool.closed:  # in a forked copy there is no thread
            return []
        self.pool.wake()
        return self._thread.left()


def _pinned(ready: Ready, pin: Pin) -> Ready:
    if ready.error is not None or ready.ended:
        return ready
    try:
        return ready._replace(batch=pin(ready.batch))
    except Exception as error:
        # This batch's outcome, like an error in a worker: the next one comes after it.
        return ready._replace(batch=None, error=error)


def _decoded(outcome: Outcome) -> Ready:
    if outcome.failure is not None:
        return Ready(outcome.number, None, outcome.failure.error())
    if outcome.memory is None:
        return Ready(outcome.number, None, None, ended=True)
    try:
        batch = decode(outcome.memory, outcome.at, outcome.nbytes)
    except Exception as error:
        broken = TransportError(f"batch {outcome.number} cannot be rebuilt in the parent: {error}")
        broken.__cause__ = error
        return Ready(outcome.number, None, broken)
    if isinstance(batch, Parcel):
        return Ready(
            outcome.number,
            batch.batch,
            None,
            outcome.samples,
            state=batch.state,
            ignores_share=batch.ignores_share,
        )
    return Ready(outcome.number, batch, None, outcome.samples)
