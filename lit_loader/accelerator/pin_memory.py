"""`PinMemoryThread`: copies batches into page-locked memory, from where accelerators copy fast.

Used by `core/epoch/iterator.py`; with ``num_workers=0`` batches are pinned without a thread.

::

    source() ─batch─▶ [thread: pin] ─▶ queue ─▶ take()

- The thread takes from ``source`` as long as that gives something, pins, and puts the batch into
  the queue. It never drops anything.
- The consumer takes from the queue. Whatever ends the thread, that rings, too, so that a consumer
  never waits for a thread that is gone.
- The queue needs no bound: there are never more batches in it than are prefetched.
"""

from __future__ import annotations

import copy
import dataclasses
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import torch

from lit_loader.core.batch.collate import like
from lit_loader.errors import LoaderError, PinMemoryError

T = TypeVar("T")


def pin_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor into page-locked memory. Tests put another function in its place."""
    return tensor.pin_memory()


def find_accelerator(device: str = "") -> int | None:
    """Find the accelerator to pin memory for: its index, or None if there is none.

    ``device`` is such as ``"cuda:1"``; empty for the current one.
    """
    if not torch.accelerator.is_available():
        return None
    index = torch.device(device).index if device else None
    return torch.accelerator.current_device_index() if index is None else index


_TOLD: Final[list[str]] = []
"""The devices that were asked for first where there is no accelerator, once that was told."""


class Pinning:
    """Pins a loader's batches: in a thread, in which ``device`` is current, if workers make them.

    It is called with a batch where they are made in this process.
    """

    def __init__(self, device: int) -> None:
        self._device = device

    def __call__(self, batch: object) -> object:
        """Pin a batch."""
        return pin_batch(batch)

    def thread(
        self, source: Callable[[], T | None], pinned: Callable[[T], T]
    ) -> PinMemoryThread[T]:
        """Begin to take from a source and to pin."""
        return PinMemoryThread(source, pinned, self._device)


def pinning_of(device: str, warn: Callable[[str], object]) -> Pinning | None:
    """Choose the accelerator; None, with a warning, if there is none."""
    index = find_accelerator(device)
    if index is not None:
        return Pinning(index)
    if not _TOLD:  # once in a process, whatever the number of its loaders
        _TOLD.append(device)
        warn(
            "pin_memory=True has no effect: there is no accelerator to pin memory for; set it "
            "to False on this machine"
        )
    return None


def pin_batch(batch: object) -> object:
    """Pin all tensors of a batch, keeping the type of everything that holds them.

    Tensors are pinned wherever they lie in mappings, sequences, namedtuples and dataclasses; an
    object with a ``pin_memory()`` method is replaced by what that returns; all else stays as it is.
    A container whose class cannot be rebuilt is returned as a plain dict or list.

    Raises:
        LoaderError: The batch contains itself.
    """
    try:
        return _pinned(batch)
    except RecursionError as error:
        raise LoaderError(
            f"a batch that contains itself cannot be pinned ({error}): leave the reference back "
            "out, give its class a pin_memory() method, or set pin_memory=False"
        ) from None


def _pinned(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return pin_tensor(batch)
    if hasattr(batch, "pin_memory"):
        return batch.pin_memory()
    if isinstance(batch, str | bytes | bytearray):
        return batch
    if isinstance(batch, Mapping):
        return like(batch, {key: _pinned(item) for key, item in batch.items()}, Exception)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_pinned(item) for item in batch))
    if isinstance(batch, Sequence):
        return like(batch, [_pinned(item) for item in batch], Exception)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        pinned = copy.copy(batch)
        for field in dataclasses.fields(batch):
            if hasattr(batch, field.name):
                # object.__setattr__: a frozen dataclass is copied, not changed, too.
                object.__setattr__(pinned, field.name, _pinned(getattr(batch, field.name)))
        return pinned
    return batch


class PinMemoryThread(Generic[T]):
    """Runs ``source`` and ``pin`` in a thread of its own, ahead of the consumer.

    ``source`` gives the next item, waiting for it; None ends the thread, and so does an exception,
    which the consumer gets after the items before it. ``pin`` does not raise any.
    """

    def __init__(
        self, source: Callable[[], T | None], pin: Callable[[T], T], device: int | None = None
    ) -> None:
        self._source, self._pin, self._device = source, pin, device
        self._items: deque[T] = deque()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._ended = False
        self._error: BaseException | None = None
        self._waiting = False  # whether the consumer waits for the bell
        # A daemon, so that no mistake can keep the interpreter from ending; join() is called.
        self._thread = threading.Thread(target=self._run, name="lit_loader pin memory", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            if self._device is not None:
                # Without, the thread would open a context on device 0.
                torch.accelerator.set_device_index(self._device)
            while self._forward():
                self._ring()
        except BaseException as error:
            self._error = error
        finally:
            self._ended = True
            self._ring()

    def _ring(self) -> None:
        if self._waiting:
            self._bell.put(None)

    def _forward(self) -> bool:
        """Pin and hand on one item; nothing of it stays behind in the thread."""
        item = self._source()
        if item is None:
            return False
        self._items.append(self._pin(item))
        return True

    @property
    def pinned(self) -> int:
        """Items that are pinned and were not taken."""
        return len(self._items)

    def take(self) -> T:
        """Return the next item; raises what the source raised, or PinMemoryError at the end."""
        self._waiting = True  # before the look: what is put from now on rings
        while not self._items and not self._ended:
            self._bell.get()
        self._waiting = False
        if self._items:
            return self._items.popleft()
        error, self._error = self._error, None
        if isinstance(error, Exception):
            raise error
        how = "has ended and gives no more batches"
        if error is not None:
            how = f"ended by {type(error).__name__}: {error}"
        raise PinMemoryError(f"the pin-memory thread {how}; iterate the loader again") from error

    def take_at_once(self) -> T | None:
        """Return the next item if it is pinned already; an error is left to :meth:`take`."""
        return self._items.popleft() if self._items else None

    def left(self) -> list[T]:
        """Wait for the thread, whose source must have ended; return the items not taken."""
        if threading.current_thread() is self._thread:
            return []  # the garbage collector, run by the thread itself, may end up here
        self._thread.join()
        items = [*self._items]
        self._items.clear()
        return items
