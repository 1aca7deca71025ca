"""The batches of one rank in one epoch: computed, or drawn from a user's sampler.

::

    the loader's own order ─ any position at once ─▶ computed ─────────────────╮
    a user's sampler ─▶ SamplerCursor.groups ─▶ Shard.deal: this rank's items ─┴─▶ EpochBatches
"""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from lit_loader.checkpoint.position import EpochPosition
from lit_loader.describe import short_repr
from lit_loader.errors import OptionError
from lit_loader.sampling.batch_plan import BatchPlan
from lit_loader.sampling.orders import CHUNK
from lit_loader.sampling.sampler_cursor import SamplerCursor
from lit_loader.system.interrupts import is_interruption

__all__ = ["EpochBatches", "computed", "lookahead"]

_FIRST_CHUNK = 256
"""Indices that are computed at first, and twice as many each time up to `CHUNK`: an epoch's first
batch does not wait for those of the next hundred."""

_NOWHERE = -1


class EpochBatches(Iterator[Any]):
    """One rank's batches of an epoch; nothing is asked of the sampler before the first.

    Beyond the end there are none. ``state`` is what :meth:`state` gave at the start, where a
    position from outside is gone on from, empty if there is nothing.
    """

    position: int  # the batch that comes next
    at: int  # the same; -1 after an exception of a signal handler's, until one is drawn
    _batches: Iterator[Any]

    def __init__(
        self,
        plan: BatchPlan,
        epoch: int,
        seed: int,
        start: int = 0,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._plan, self._epoch, self._seed = plan, epoch, seed
        self.computed = plan.is_computed  # an own order has neither state nor marks
        self._begin_at(start, state)

    def __next__(self) -> Any:
        return self.draw(self.position)

    def draw(self, number: int, where: EpochPosition | None = None) -> Any:
        """Give batch ``number``: a list of indices, one index, or what the batch sampler yields.

        It is the one that comes next, or one before it: a signal handler's exception may have ended
        a sampler's iterator, which is a generator most times, or have kept the batch from whoever
        asked for it. ``where`` has what the sampler was there, and notes what it is behind this
        batch: samplers are drawn from ahead of delivery.
        """
        if self.at != number:
            state = None if where is None else where.sampler_at(number)
            self._plan.sampler.unpack(state or {})  # the program has set nothing in between
            self._begin_at(number, state)
        self.at = _NOWHERE
        try:
            batch = next(self._batches)
        except Exception as error:
            # An exception within this question leaves it nowhere, too.
            if not is_interruption(error):
                self.at = number
            raise
        finally:  # also at its end, which may draw: what is elsewhere later, the program has set
            marks = None if self.computed else self._plan.sampler.marks()
        self.position = self.at = number + 1
        if where is not None and not self.computed:
            where.drawn(number, self.state(), marks)
        return batch

    def _begin_at(self, position: int, state: Mapping[str, Any] | None) -> None:
        self.at = _NOWHERE
        self.position = position
        plan, epoch, seed = self._plan, self._epoch, self._seed
        if self.computed:
            self._batches = itertools.chain(
                _beginning(plan, epoch), computed(plan, epoch, seed, position)
            )
        else:
            self._cursor = SamplerCursor(plan, epoch, seed, position, state)
            self._batches = self._run(self._cursor)
        self.at = position

    def state(self) -> dict[str, Any] | None:
        """Give what the sampler must remember behind the batch drawn last; None: nothing."""
        return None if self.computed else self._cursor.state()

    def _run(self, cursor: SamplerCursor) -> Iterator[Any]:
        plan, shard, head = self._plan, self._plan.shard, cursor.head
        needed = shard.num_replicas - 1 if shard.tail == "pad" else 0  # again, at the end
        cursor.begin()
        for group in cursor.groups():
            if len(head) < needed:
                head += group[: needed - len(head)]
            mine = shard.deal(group, head)
            if not mine or (plan.drop_last and len(mine) < plan.size):
                continue
            if plan.batched and type(mine[0]) is not list:
                _refuse_single(mine[0])
            yield mine[0] if plan.single else mine


def _beginning(plan: BatchPlan, epoch: int) -> Iterator[Any]:
    plan.sampler.begin(epoch)  # when the first batch is asked for
    yield from ()


def lookahead(plan: BatchPlan, epoch: int, seed: int) -> Iterator[tuple[int, int, Any]]:
    """Give epoch, number and indices of the batches after an epoch, of one of the own orders."""
    for following in itertools.count(epoch + 1):
        position = -1
        for position, indices in enumerate(computed(plan, following, seed)):
            yield following, position, indices
        if position < 0:
            return  # an epoch without batches: so are all others


def computed(plan: BatchPlan, epoch: int, seed: int, position: int = 0) -> Iterator[Any]:
    """Compute the batches from a position on, of one of the loader's own orders.

    Nothing is begun by that, and no epoch set on any sampler. A batch is an int64 array, where it
    is not a single index.
    """
    length, order = len(plan.source), plan.order(epoch, seed)
    size, share = plan.size, plan.shard.share(length)
    if plan.drop_last:
        share -= share % size
    start, step = position * size, max(1, _FIRST_CHUNK // size) * size
    while start < share:
        stop = min(start + step, share)
        chunk = order(plan.shard.positions(start, stop, length))
        if plan.single:
            yield from chunk.tolist()
        else:
            for first in range(0, stop - start, size):
                yield chunk[first : first + size]
        start, step = stop, min(2 * step, max(1, CHUNK // size) * size)


def _refuse_single(batch: Any) -> None:
    """Refuse what a flat batch sampler gives; a batch may be any other object than a number."""
    if (
        batch is None
        or isinstance(batch, numbers.Number)
        or (isinstance(batch, (torch.Tensor, np.ndarray)) and not batch.ndim)
    ):
        raise OptionError(
            f"batch_sampler gave {short_repr(batch)} ({type(batch).__name__}), where a list of the "
            "batch's indices is expected: give lists, or use sampler with batch_size"
        )
