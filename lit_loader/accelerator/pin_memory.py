"""`PinMemoryThread`: copies batches into page-locked memory, from where accelerators copy fast.

Used by `iteration/pipeline.py`; `iteration/in_process.py` pins without a thread (`pin_batch`).

::

    source() ─batch─▶ [thread: pin] ─▶ queue ─▶ take()

- The thread takes from ``source`` as long as that gives something, pins, and puts the batch, or
  the exception that was raised instead, into the queue. It never drops anything.
- The consumer takes from the queue. Whatever ends the thread, the last thing it puts is a mark, so
  that a consumer never waits for a thread that is gone.
- The queue needs no bound: there are never more batches in it than are prefetched.
"""

from __future__ import annotations

import copy
import dataclasses
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch

from lit_loader.batch.collate import like
from lit_loader.errors import LoaderError, PinMemoryError

__all__ = ["PinMemoryThread", "choose", "find_accelerator", "pin_batch", "pin_tensor"]

T = TypeVar("T")


def pin_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor into page-locked memory. Tests put another function in its place."""
    return tensor.pin_memory()


def find_accelerator(device: str = "") -> int | None:
    """Find the accelerator to pin memory for.

    Args:
        device: A device such as ``"cuda:1"``; empty for the current one.

    Returns:
        Its index, or None if there is no accelerator.
    """
    if not torch.accelerator.is_available():
        return None
    if device:
        index = torch.device(device).index
        if index is not None:
            return index
    return torch.accelerator.current_device_index()


def choose(
    device: str, warn: Callable[[str], object]
) -> tuple[Callable[[Any], Any] | None, int | None]:
    """Choose what pins a loader's batches, and for which accelerator; None, None: nothing does.

    Args:
        device: As in :func:`find_accelerator`.
        warn: Called with a text where there is no accelerator.
    """
    index = find_accelerator(device)
    if index is None:
        warn(
            "pin_memory=True has no effect: there is no accelerator to pin memory for; set it to "
            "False on this machine"
        )
        return None, None
    return pin_batch, index


def pin_batch(batch: Any) -> Any:
    """Pin all tensors of a batch, keeping the type of everything that holds them.

    Tensors are pinned wherever they lie in mappings, sequences, namedtuples and dataclasses; an
    object with a ``pin_memory()`` method is replaced by what that returns; all else stays as it is.
    A container whose class cannot be filled anew is given back as a plain dict or list.

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


@dataclasses.dataclass
class _Item(Generic[T]):
    value: T | None = None
    error: BaseException | None = None


class PinMemoryThread(Generic[T]):
    """Runs ``source`` and ``pin`` in a thread of its own, ahead of the consumer.

    Args:
        source: Gives the next item, waiting for it; None ends the thread, and so does an exception,
            which is handed on to the consumer.
        pin: Pins an item; its exception takes the place of the item.
        device: Index of the accelerator to make current in the thread, or None.

    Attributes:
        waiting: Whether the consumer does nothing but wait; an exception that comes out of a signal
            handler meanwhile has broken into nothing.
    """

    def __init__(
        self,
        source: Callable[[], T | None],
        pin: Callable[[T], T],
        device: int | None = None,
    ) -> None:
        self._source = source
        self._pin = pin
        self._device = device
        self._items: deque[_Item[T] | None] = deque()  # None: the thread has ended
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.waiting = False
        # A daemon, so that no mistake can keep the interpreter from ending; join() is called.
        self._thread = threading.Thread(target=self._run, name="lit_loader pin memory", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            if self._device is not None:
                # Without, the thread would open a context on device 0.
                torch.accelerator.set_device_index(self._device)
            while self._forward():
                pass
        except BaseException as error:
            self._put(_Item(error=error))
        finally:
            self._put(None)

    def _put(self, item: _Item[T] | None) -> None:
        self._items.append(item)
        if self.waiting:
            self._bell.put(None)

    def _forward(self) -> bool:
        """Pin and hand on one item; nothing of it stays behind in the thread."""
        item = self._source()
        if item is None:
            return False
        try:
            pinned = _Item(self._pin(item))
        except Exception as error:
            pinned = _Item(error=error)
        self._put(pinned)
        return True

    @property
    def pinned(self) -> int:
        """Items that are pinned and were not taken."""
        return len(self._items)

    def take(self) -> T:
        """Return the next item.

        Raises:
            PinMemoryError: The thread has ended.
            Exception: What the source or the pinning raised.
        """
        self.waiting = True  # before the look: what is put from now on rings
        while not self._items:
            self._bell.get()
        self.waiting = False
        item = self._items.popleft()
        if item is None:
            self._items.append(None)  # for the next call
            raise PinMemoryError(
                "the pin-memory thread has ended and gives no more batches; iterate the loader anew"
            )
        if isinstance(item.error, Exception):
            raise item.error
        if item.error is not None:
            raise PinMemoryError(
                f"the pin-memory thread ended by {type(item.error).__name__}: {item.error}; "
                "iterate the loader anew"
            ) from item.error
        return item.value  # type: ignore[return-value]

    def take_at_once(self) -> T | None:
        """Return the next item if it is pinned already; an error is left to :meth:`take`."""
        item = self._items[0] if self._items else None
        if item is None or item.error is not None:
            return None
        self._items.popleft()
        return item.value

    def left(self) -> list[T]:
        """Wait for the thread, whose source must have ended; return the items not taken."""
        if threading.current_thread() is self._thread:
            return []  # the garbage collector, run by the thread itself, may end up here
        self._thread.join()
        items = []
        while (item := self._items.popleft()) is not None:
            if item.error is None:
                items.append(item.value)
        self._items.append(None)
        return items  # type: ignore[return-value]
