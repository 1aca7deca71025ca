"""`Maker`: makes batches in a remote worker, each as one piece of memory.

::

    Order ─▶ indices ▶ fetch ▶ collate ▶ encode into scratch memory ─▶ Made

What `workers/main.py` is for a process of this machine; both have a `BatchMaker`. It knows of no
engine, and imports none; the relay has one too, for batches that it makes again to compare.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from lit_loader.remote.engine import Hello, Made, Order, Role
from lit_loader.remote.versions import versions
from lit_loader.system.carrier import thaw_bytes
from lit_loader.transport.codec import SlotFull, SlotWriter, encode
from lit_loader.transport.messages import Status, unpack_indices
from lit_loader.transport.remote_error import RemoteError
from lit_loader.transport.status_board import Progress
from lit_loader.workers.making import BatchMaker

__all__ = ["Maker"]

_SCRATCH: Final = 64 << 20
"""Bytes that batches are written into at first; pages that are not touched cost nothing."""


_one_at_a_time: Final = threading.Lock()
"""Held while a batch is made: makers of one process share its global generators."""


class Maker:
    """A remote worker's side.

    Args:
        payload: The spec, pickled for other machines: uint8 of one dimension.
        role: Which worker it is.
    """

    def __init__(self, payload: NDArray[np.uint8], role: Role) -> None:
        self._node = platform.node()
        self._scratch = np.empty(_SCRATCH, np.uint8)
        who = f"in remote worker {role.worker} (node {self._node}, pid {os.getpid()})"
        unpack = partial(thaw_bytes, payload.data)
        torch.set_num_threads(1)
        with _one_at_a_time:
            self._maker = BatchMaker(who, role.worker, role.num_workers, role.seed, unpack)

    def hello(self) -> Hello:
        """Say what it is."""
        return Hello(self._node, os.getpid(), versions())

    def make(self, order: Order) -> Made:
        """Make a batch, or write down why there is none.

        Returns:
            Its content lies in memory that the next batch is written into.
        """
        # A thread of the engine's, in which nothing else has said what is to hold.
        with (
            _one_at_a_time,
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast("cpu", enabled=False),
        ):
            return self._make(order)

    def _make(self, order: Order) -> Made:
        maker, loader = self._maker, self._maker.loader
        if maker.broken is not None:
            return self._failed(order, maker.broken)
        assert loader is not None
        progress, indices = Progress(), None
        try:
            indices = unpack_indices(order.packed)
            writer = SlotWriter(self._scratch)
            progress.empty = writer.empty
            batch = maker.make(indices, order.number, order.epoch, order.seed, progress)
            progress.encoding()
            at, nbytes, used = self._encode(batch, writer)
        except BaseException as error:
            return self._failed(order, maker.failure(error, order.number, indices, progress))
        encoded, collated = time.monotonic_ns(), progress.collated
        fetched = progress.fetched or collated  # a batch that was omitted has not been collated
        return Made(
            Status.DONE,
            used,
            at,
            nbytes,
            loader.samples,
            fetched - progress.began,
            collated - fetched,
            encoded - collated,
            progress.slowest,
            progress.slowest_at,
        )

    def _encode(self, batch: Any, writer: SlotWriter) -> tuple[int, int, NDArray[np.uint8]]:
        """Write the batch into the scratch memory, or into more of it."""
        while True:
            try:
                at, nbytes = encode(batch, writer)
            except SlotFull as full:
                # What is collated lies in the old one, which the batch keeps alive meanwhile.
                self._scratch = np.empty(full.nbytes, np.uint8)
                writer = SlotWriter(self._scratch)
            else:
                return at, nbytes, writer.memory[: writer.position]

    def _failed(self, order: Order, error: RemoteError) -> Made:
        packed = np.frombuffer(error.pack(order.capacity), np.uint8)
        return Made(Status.FAILED, packed, 0, len(packed), 0, 0, 0, 0, 0, 0)
