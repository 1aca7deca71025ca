"""What crosses the border between the parent and its workers, and how it is written down.

Every message is :data:`SIZE` bytes, whatever it says. POSIX makes a pipe write of up to 512 bytes
atomic, and since every read and every write has the same size, no reader ever sees half a message:
neither side needs a lock, and a process killed at any instant leaves the pipes whole.

::

    parent ── Task, Attend ──────────────────▶ worker     (task pipe, read by all workers)
    parent ── Resume, Proceed, Grant, Stop ──▶ worker     (control pipe, one a worker)
    worker ── Up, Result, Ack, Grow ─────────▶ parent     (result pipe, written by all workers)

An idle worker blocks in a read of the task pipe, where the kernel wakes one reader for one message.
So what is for one worker alone is announced there: as many :class:`Attend` as there are workers.
A worker that takes one looks into its control pipe, and then waits there (for :class:`Proceed`)
until all have done so; none can take another's. Where tasks are dealt, not pulled, they come
through the control pipe too, and nothing is announced.

Batches do not travel in messages: a :class:`Task` names a slot of the arena that holds the task's
indices (:func:`pack_indices`), and the :class:`Result` says where in that slot the batch lies.
"""

from __future__ import annotations

import pickle
import struct
from array import array
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "SIZE",
    "Ack",
    "Attend",
    "Grant",
    "Grow",
    "Message",
    "Proceed",
    "Result",
    "Resume",
    "Status",
    "Stop",
    "Task",
    "Up",
    "pack_indices",
    "position_of",
    "task_number",
    "unpack",
    "unpack_indices",
]

# kind, status, worker, generation, and seven words of which one holds an unsigned seed; a result
# has six more in the place of the padding.
_LAYOUT: Final = struct.Struct("=BBHIQ6q64x")
_RESULT_LAYOUT: Final = struct.Struct("=BBHIQ12q16x")
SIZE: Final = _LAYOUT.size

_TASK, _ATTEND, _RESUME, _PROCEED, _GRANT, _STOP, _RESULT, _ACK, _GROW, _UP = range(10)


_POSITION_BITS: Final = 40
_EPOCHS: Final = 1 << 22


def task_number(epoch: int, position: int) -> int:
    """The number by which a task is told from all others that are under way.

    Args:
        epoch: The epoch; the last tasks of one may be under way together with the next one's first.
        position: Position of the batch in the epoch, from 0; less than 2**40.
    """
    return epoch % _EPOCHS << _POSITION_BITS | position


def position_of(number: int) -> int:
    """The position in its epoch of the batch that a task with this number makes."""
    return number & (1 << _POSITION_BITS) - 1


class Task(NamedTuple):
    """Load one batch into one slot.

    Attributes:
        generation: Counts how often all tasks were called off; a worker drops one of an older time.
        number: The task's (:func:`task_number`).
        epoch: Epoch that the batch belongs to.
        seed: Base seed of the epoch.
        offset: First byte of the slot in the arena's file.
        capacity: Bytes of the slot.
        nbytes: Bytes of packed indices at the start of the slot; 0 for an iterable dataset.
        issue: Counts how often pending tasks were issued again; a worker drops one of an older
            issue, for it is in the pipe a second time.
    """

    generation: int
    number: int
    epoch: int
    seed: int
    offset: int
    capacity: int
    nbytes: int
    issue: int = 0

    def pack(self) -> bytes:
        """Return the message as :data:`SIZE` bytes."""
        return _LAYOUT.pack(
            _TASK,
            0,
            0,
            self.generation,
            self.seed,
            self.number,
            self.epoch,
            self.offset,
            self.capacity,
            self.nbytes,
            self.issue,
        )


class Resume(NamedTuple):
    """Begin a new generation: forget older tasks, iterate an iterable dataset anew, acknowledge."""

    generation: int

    def pack(self) -> bytes:
        """Return the message as :data:`SIZE` bytes."""
        return _LAYOUT.pack(_RESUME, 0, 0, self.generation, 0, 0, 0, 0, 0, 0, 0)


class Grant(NamedTuple):
    """A larger slot for the batch that did not fit the task's own."""

    generation: int
    number: int
    offset: int
    capacity: int

    def pack(self) -> bytes:
        """Return the message as :data:`SIZE` bytes."""
        return _LAYOUT.pack(
            _GRANT, 0, 0, self.generation, 0, self.number, 0, self.offset, self.capacity, 0, 0
        )


class Attend(NamedTuple):
    """Look into your control pipe; means nothing to a worker that finds it empty."""

    def pack(self) -> bytes:
        """Return the message as :data:`SIZE` bytes."""
        return _bare(_ATTEND)


class Proceed(NamedTuple):
    """Every worker has acknowledged: take tasks."""

    def pack(self) -> bytes:
        """Return the message as :data:`SIZE` bytes."""
        return _bare(_PROCEED)


class Stop(NamedTuple):
    """End the worker process."""

    def pack(self) -> bytes:
        """Return the message as :data:`SIZE` bytes."""
        return _bare(_STOP)


def _bare(kind: int) -> bytes:
    return _LAYOUT.pack(kind, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


class Status:
    """How a task ended."""

    BATCH: Final = 0
    FAILURE: Final = 1
    END: Final = 2


class Result(NamedTuple):
    """A task is done.

    Attributes:
        status: :attr:`Status.BATCH`, :attr:`Status.FAILURE` (an exception lies in the slot) or
            :attr:`Status.END` (the worker's share of an iterable dataset is used up).
        worker: Who did it.
        generation: The task's.
        number: The task's.
        offset: The slot that holds the outcome (the task's, or the one granted instead).
        at: Offset in the slot of the batch's descriptor, or of the failure.
        nbytes: Bytes of that descriptor or failure.
        samples: Samples of the batch.
        began: ``time.monotonic_ns()`` when the worker took the task up.
        fetch: Nanoseconds that it was reading samples.
        collate: Nanoseconds that it was collating.
        encode: Nanoseconds that it was writing the batch into the slot.
        slowest: Nanoseconds of the sample that took longest; 0 where samples are read all at once.
        slowest_at: Position of that sample in the batch.
    """

    status: int
    worker: int
    generation: int
    number: int
    offset: int
    at: int
    nbytes: int
    samples: int
    began: int = 0
    fetch: int = 0
    collate: int = 0
    encode: int = 0
    slowest: int = 0
    slowest_at: int = 0

    def pack(self) -> bytes:
        """Return the message as :data:`SIZE` bytes."""
        return _RESULT_LAYOUT.pack(
            _RESULT,
            self.status,
            self.worker,
            self.generation,
            0,
            self.number,
            0,
            self.offset,
            self.at,
            self.nbytes,
            self.samples,
            *self[8:],
        )


class Up(NamedTuple):
    """A worker has come up, as far as that is not the user's code: another may be started."""

    worker: int

    def pack(self) -> bytes:
        """Return the message as :data:`SIZE` bytes."""
        return _LAYOUT.pack(_UP, 0, self.worker, 0, 0, 0, 0, 0, 0, 0, 0)


class Ack(NamedTuple):
    """A worker has left every older generation behind."""

    worker: int
    generation: int

    def pack(self) -> bytes:
        """Return the message as :data:`SIZE` bytes."""
        return _LAYOUT.pack(_ACK, 0, self.worker, self.generation, 0, 0, 0, 0, 0, 0, 0)


class Grow(NamedTuple):
    """A batch needs a slot of ``nbytes`` bytes; the worker waits for a :class:`Grant`.

    ``offset`` is the slot of the task, by which a task issued twice is told from itself.
    """

    worker: int
    generation: int
    number: int
    offset: int
    nbytes: int

    def pack(self) -> bytes:
        """Return the message as :data:`SIZE` bytes."""
        return _LAYOUT.pack(
            _GROW, 0, self.worker, self.generation, 0, self.number, 0, self.offset, 0,
            self.nbytes, 0,
        )  # fmt: skip


Message = Task | Attend | Resume | Proceed | Grant | Stop | Up | Result | Ack | Grow


def unpack(data: bytes, start: int = 0) -> Message:
    """Read the message at ``data[start : start + SIZE]``."""
    if data[start] == _RESULT:
        _, status, worker, generation, _, number, _, offset, a, nbytes, samples, *times = (
            _RESULT_LAYOUT.unpack_from(data, start)
        )
        return Result(status, worker, generation, number, offset, a, nbytes, samples, *times)
    kind, _, worker, generation, seed, number, epoch, offset, a, nbytes, samples = (
        _LAYOUT.unpack_from(data, start)
    )
    if kind == _TASK:
        return Task(generation, number, epoch, seed, offset, a, nbytes, samples)
    if kind == _RESUME:
        return Resume(generation)
    if kind == _UP:
        return Up(worker)
    if kind == _ACK:
        return Ack(worker, generation)
    if kind == _GROW:
        return Grow(worker, generation, number, offset, nbytes)
    if kind == _GRANT:
        return Grant(generation, number, offset, a)
    if kind == _ATTEND:
        return Attend()
    return Proceed() if kind == _PROCEED else Stop()


_PICKLED: Final = b"p"
_INT64: Final = b"q"
_ONLY_INT: Final = {int}


def pack_indices(indices: Any) -> bytes:
    """Write one batch's indices down: 8 bytes each for a list of ints, a pickle for all else.

    Raises:
        Exception: Whatever pickling an index of the sampler's own making raises.
    """
    if type(indices) is list and set(map(type, indices)) == _ONLY_INT:
        try:
            return array("q", indices).tobytes() + _INT64
        except OverflowError:
            pass  # beyond 64 bits: as a pickle
    return pickle.dumps(indices, pickle.HIGHEST_PROTOCOL) + _PICKLED


def unpack_indices(packed: NDArray[np.uint8]) -> Any:
    """Read what :func:`pack_indices` wrote; ``packed`` is not referred to afterwards."""
    # The tag stands last, so that the integers begin where the slot does: aligned.
    data = packed.tobytes()
    if data[-1:] == _INT64:
        indices = array("q")
        indices.frombytes(data[:-1])
        return indices.tolist()
    return pickle.loads(data[:-1])
