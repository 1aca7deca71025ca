"""`faster_in_process`: which process makes the batches of a table; measured, once for a loader.

Used by the loader. A batch that one indexing makes (`batch/tensor_table.py`) may be had in less
time than a worker's batch takes on its way. Then workers are not started at all; the batches are
the same.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Final

import numpy as np

from lit_loader.batch.tensor_table import Table
from lit_loader.system.processors import usable_processors
from lit_loader.transport.codec import decode, encode
from lit_loader.transport.messages import (
    SIZE,
    Reply,
    Status,
    Task,
    pack,
    pack_indices,
    unpack,
    unpack_indices,
)
from lit_loader.transport.slot_writer import SlotWriter

__all__ = ["faster_in_process"]

_TIMES: Final = 7

_MOST: Final = 4
"""Times as long as on its way that a batch may take here, where no processor is to spare: what the
consumer then waits is still little, and workers would take the time from it anyway."""


def faster_in_process(table: Table, length: int, batch_size: int, num_workers: int) -> bool:
    """Whether batches had better be made in this process.

    Args:
        table: What they are made of.
        length: Number of samples.
        batch_size: Samples a batch.
        num_workers: Workers that could make them instead.
    """
    indices = np.random.default_rng(0).integers(0, length, min(batch_size, length)).tolist()
    try:
        batch = table.batch(indices)
    except Exception:  # indices that only reading by the sample understands
        return False
    room = 2 * sum(tensor.nbytes for tensor in batch) + 4096 * (1 + len(batch))
    writer = SlotWriter(np.zeros(room, np.uint8))
    reading, writing = os.pipe()
    try:
        here = statistics.median([_making(table, indices) for _ in range(_TIMES)])
        way = statistics.median(
            [_carrying(table, indices, writer, reading, writing) for _ in range(_TIMES)]
        )
    finally:
        os.close(reading)
        os.close(writing)
    spare = max(1, min(num_workers, usable_processors() - 1))
    return here <= max(way, min((here + way) / spare, _MOST * way))


def _making(table: Table, indices: list[int]) -> float:
    """Seconds that it takes to make a batch."""
    began = time.perf_counter()
    table.batch(indices)
    return time.perf_counter() - began


def _carrying(
    table: Table, indices: list[int], writer: SlotWriter, reading: int, writing: int
) -> float:
    """Seconds that a batch of another process takes besides, but for waking that process up."""
    writer.reset()
    batch = table.batch(indices, writer.empty)
    began = time.perf_counter()
    os.write(writing, pack(Task(0, 0, 0, 0, 0, 0, 0, 0)))
    unpack(os.read(reading, SIZE))
    unpack_indices(pack_indices(indices))
    at, nbytes = encode(batch, writer)
    os.write(writing, pack(Reply(Status.DONE, *[0] * 14)))
    unpack(os.read(reading, SIZE))
    decode(writer.memory, at, nbytes)
    return time.perf_counter() - began
