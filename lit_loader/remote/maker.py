"""`Maker`: makes batches in a remote worker, each as one piece of memory.

::

    Order ─▶ indices ▶ fetch ▶ collate ▶ encode into scratch memory ─▶ Made

What `worker/main.py` is for a process of this machine: the same seeds, the same code. It knows of
no engine, and imports none; the relay has one too, for batches that it makes again to compare.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from lit_loader.batch.batch_loader import BatchLoader
from lit_loader.batch.collate import collate_privately
from lit_loader.batch.fetch import EndOfData
from lit_loader.batch.worker_info import WorkerInfo, show
from lit_loader.context import reading
from lit_loader.remote.engine import Hello, Made, Order, Role
from lit_loader.remote.payload import unpack_spec
from lit_loader.remote.versions import versions
from lit_loader.seeding.generator_lock import Turn
from lit_loader.seeding.seeds import seed_worker
from lit_loader.transport.codec import SlotFull, SlotWriter, encode
from lit_loader.transport.messages import Status, unpack_indices
from lit_loader.transport.remote_error import RemoteError, describe_batch
from lit_loader.transport.status_board import Progress

__all__ = ["Maker"]

_SCRATCH: Final = 64 << 20
"""Bytes that batches are written into at first; pages that are not touched cost nothing."""


_one_at_a_time: Final = threading.Lock()
"""Held while a batch is made: makers of one process share its global generators."""


class Maker:
    """A remote worker's side.

    Args:
        payload: What `pack_spec` gave: uint8 of one dimension.
        role: Which worker it is.
    """

    def __init__(self, payload: NDArray[np.uint8], role: Role) -> None:
        self._role = role
        self._node = platform.node()
        self._scratch = np.empty(_SCRATCH, np.uint8)
        self._loader: BatchLoader | None = None
        self._broken: RemoteError | None = None
        torch.set_num_threads(1)
        with _one_at_a_time:
            self._initialise(payload)

    def _initialise(self, payload: NDArray[np.uint8]) -> None:
        """Unpickle the user's objects, seed, call worker_init_fn; a failure answers every order."""
        role, where = self._role, f"{self._where()}, while its dataset was unpickled"
        try:
            seed_worker(role.seed)
            spec = unpack_spec(payload.data)
            where = f"{self._where()}, in worker_init_fn"
            reading.shard_asked = False
            number, workers = role.worker, role.num_workers
            show(WorkerInfo(id=number, num_workers=workers, seed=role.seed, dataset=spec.dataset))
            collate_privately()
            if spec.worker_init_fn is not None:
                spec.worker_init_fn(role.worker)
            self._loader = BatchLoader(spec, role.worker, role.num_workers)
        except BaseException as error:
            self._broken = RemoteError.capture(error, where)

    def _where(self) -> str:
        return f"in remote worker {self._role.worker} (node {self._node}, pid {os.getpid()})"

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
        if self._broken is not None:
            return self._failed(order, self._broken)
        progress, indices = Progress(), None
        times = [time.monotonic_ns()]

        def on_collate() -> None:
            now = time.monotonic_ns()
            progress.finish(now)
            times.append(now)

        try:
            if order.packed:
                indices = unpack_indices(np.frombuffer(order.packed, np.uint8))
            writer = SlotWriter(self._scratch)
            batch = self._load(order, indices, progress, on_collate, writer)
            times.append(time.monotonic_ns())
            at, nbytes, used = self._encode(batch, writer)
            times.append(time.monotonic_ns())
        except EndOfData:
            return Made(Status.ENDED, self._scratch[:0], 0, 0, 0, 0, 0, 0, 0, 0)
        except BaseException as error:
            shown = describe_batch(order.number, indices, progress)
            return self._failed(order, RemoteError.capture(error, f"{self._where()}, {shown}"))
        # A batch that was omitted has not been through all stages.
        times += times[-1:] * (4 - len(times))
        began, fetched, collated, encoded = times
        assert self._loader is not None
        return Made(
            Status.DONE,
            used,
            at,
            nbytes,
            self._loader.samples,
            fetched - began,
            collated - fetched,
            encoded - collated,
            progress.slowest,
            progress.slowest_at,
        )

    def _load(
        self, order: Order, indices: Any, progress: Progress, on_collate: Any, writer: SlotWriter
    ) -> Any:
        loader = self._loader
        assert loader is not None
        batch = loader.take(indices, progress, on_collate, writer.empty)
        if batch is not None:
            return batch
        turn = Turn()
        try:
            turn.take()  # a thread of the dataset's may iterate a loader
            return loader.load(
                indices,
                order.number,
                order.epoch,
                order.seed,
                progress,
                on_collate,
                writer.empty,
            )
        finally:
            turn.end()

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
