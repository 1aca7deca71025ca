"""`DeviceCopy`: copies the next batch to an accelerator while the current one is computed on.

::

    next batch ─stage─▶ side stream: host ══▶ device ─event─▶ take: the current stream waits, then
                                                               the batch is given out

- :meth:`DeviceCopy.stage` only queues the copy: it returns at once, if the batch is page-locked.
- The host's memory (a slot of the arena, or what the pin-memory thread made) stays with the staged
  batch until the copy's event has passed, so that no worker writes into it meanwhile.
- What was copied on the side stream is used on another one: every tensor is marked so, or its
  memory could be handed out again too early.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

Move = Callable[[object, torch.device], object]


class Staged(NamedTuple):
    """A batch on its way to the device."""

    batch: object  # there; complete once ``event``, recorded after the copy, has passed
    event: torch.cuda.Event
    source: object  # the batch on the host


class DeviceCopy:
    """Copies batches to a CUDA device on a stream of its own.

    ``move`` gives a batch with its tensors on a device, copied with ``non_blocking=True``.
    """

    def __init__(self, device: torch.device, move: Move) -> None:
        self._device, self._move = device, move
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._before: Staged | None = None

    def source(self, batch: object) -> object:
        """Return a batch as it was before it was staged."""
        return batch.source if isinstance(batch, Staged) else batch

    def stage(self, batch: object) -> Staged:
        """Queue the copy of a batch, unless that is done."""
        if isinstance(batch, Staged):
            return batch
        with torch.cuda.stream(self._stream):
            moved = self._move(batch, self._device)
        return Staged(moved, self._stream.record_event(), batch)

    def take(self, staged: Staged) -> object:
        """Return a batch that the current stream may use."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(staged.event)
        _mark(staged.batch, current)
        if self._before is not None:
            # Long past, for a whole step lies in between: this does not wait.
            self._before.event.synchronize()
        self._before = staged
        return staged.batch


def _mark(batch: object, stream: torch.cuda.Stream) -> None:
    """Tell the allocator that the tensors of a batch are used on ``stream``.

    Whatever refers to what: each object is looked into once.
    """
    seen: set[int] = set()
    left = [batch]
    while left:
        item = left.pop()
        if isinstance(item, torch.Tensor):
            if item.is_cuda:
                item.record_stream(stream)
        elif id(item) not in seen:
            seen.add(id(item))
            if isinstance(item, dict):
                left += item.values()
            elif isinstance(item, (list, tuple)):
                left += item
            elif hasattr(item, "__dict__"):
                left += vars(item).values()
