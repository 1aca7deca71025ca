"""`Maker`: makes batches in a remote worker, each as one piece of memory.

What `core/executors/main.py` is for a process of this machine; both have a `WorkerSetup`. It knows
of no engine, and imports none.
"""

from __future__ import annotations

import os
import platform
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from lit_loader.core.batch.batch_builder import make_batch
from lit_loader.core.batch.batch_spec import USUAL_MODES, Changes
from lit_loader.core.batch.progress import Progress
from lit_loader.core.executors.worker_setup import WorkerSetup
from lit_loader.core.transport.codec import SlotFull, SlotWriter, encode
from lit_loader.core.transport.dataset_pickle import thaw_bytes
from lit_loader.core.transport.messages import (
    SIZE,
    Reply,
    Status,
    Task,
    pack,
    packed_reply,
    position_of,
    unpack,
    unpack_indices,
)
from lit_loader.remote.engine import Role

_SCRATCH: Final = 64 << 20
"""Bytes that batches are written into at first; pages that are not touched cost nothing."""


class Maker:
    """A remote worker's side; ``payload`` is the spec, pickled for other machines (uint8)."""

    def __init__(self, payload: NDArray[np.uint8], role: Role) -> None:
        self._scratch = np.empty(SIZE + _SCRATCH, np.uint8)
        who = f"in remote worker {role.worker} (node {platform.node()}, pid {os.getpid()})"
        unpack_spec = partial(thaw_bytes, payload.data)
        torch.set_num_threads(1)
        self._maker = WorkerSetup(who, role.worker, role.num_workers, role.seed, unpack_spec)

    def set_attributes(self, changes: Changes) -> None:
        """Set attributes of the dataset that the program has changed."""
        if self._maker.loader is not None:
            self._maker.loader.set_attributes(changes)

    def make(self, order: bytes) -> NDArray[np.uint8]:
        """Make a batch, or write down why there is none.

        Returns a `Reply`, of which the relay knows worker, slot and times better, and what goes
        into the slot: batch or exception. In memory that the next batch is written into.
        """
        # A thread of the engine's, in which nothing else has said what is to hold.
        spec = self._maker.spec
        with (USUAL_MODES if spec is None else spec.modes).held():
            return self._make(order)

    def _make(self, order: bytes) -> NDArray[np.uint8]:
        maker, progress, indices = self._maker, Progress(), None
        task: Any = unpack(order)
        try:
            indices = unpack_indices(order[SIZE:])
            return self._made(task, indices, progress)
        except BaseException as error:
            failure = maker.failure(error, position_of(task.number), indices, progress)
        packed = failure.pack(task.capacity)
        reply = Reply(Status.FAILED, 0, 0, 0, 0, len(packed), 0)
        return np.frombuffer(pack(reply) + packed, np.uint8)

    def _made(self, task: Task, indices: object, progress: Progress) -> NDArray[np.uint8]:
        loader = self._maker.loader
        assert loader is not None
        writer = SlotWriter(self._scratch[SIZE:])
        progress.empty = writer.empty
        number = position_of(task.number)
        batch = make_batch(loader, indices, number, task.epoch, task.seeds, progress)
        progress.encoding()
        at, nbytes, used = self._encode(batch, writer)
        measured = progress.stages(loader.samples, progress.idle())
        reply = packed_reply(Status.DONE, 0, 0, 0, at, nbytes, *measured)
        self._scratch[:SIZE] = np.frombuffer(reply, np.uint8)
        return self._scratch[: SIZE + used]

    def _encode(self, batch: object, writer: SlotWriter) -> tuple[int, int, int]:
        while True:
            try:
                at, nbytes = encode(batch, writer)
            except SlotFull as full:
                # What is collated lies in the old one, which the batch keeps alive meanwhile.
                self._scratch = np.empty(SIZE + full.nbytes, np.uint8)
                writer = SlotWriter(self._scratch[SIZE:])
            else:
                return at, nbytes, writer.position
