"""The messages between the parent and its workers: what each means, how it is written down.

Every message is :data:`SIZE` bytes, whatever it says. POSIX makes a pipe write of up to 512 bytes
atomic, and since every read and every write has the same size, no reader ever sees half a message:
neither side needs a lock, and a process killed at any instant leaves the pipes whole.

::

    parent ── Task, Attend ─────────────▶ worker     (task pipe, read by all workers)
    parent ── Resume, Proceed, Grant, … ▶ worker     (control pipe, one a worker)
    worker ── Up, Result, Ack, Grow, … ─▶ parent     (result pipe, written by all workers)

An idle worker blocks in a read of the task pipe, where the kernel wakes one reader for one message.
So what is for one worker alone is announced there: as many :class:`Attend` as there are workers.
A worker that takes one looks into its control pipe, and then waits there (for :class:`Proceed`)
until all have done so; none can take another's. Where tasks are assigned, not pulled, they come
through the control pipe too, and nothing is announced. A worker that is to leave learns it from the
status board when it has nothing in hand; one that waits already is woken by an :class:`Attend`, and
whoever else takes that says so (:class:`Spare`), so that another is sent. With tasks of its own it
finishes these first, and is woken by a :class:`Proceed` behind them.

Batches do not travel in messages: a :class:`Task` names a slot of the arena that holds the task's
indices (:func:`pack_indices`), and the :class:`Result` says where in that slot the batch lies.
"""

from __future__ import annotations

import pickle
import struct
from array import array
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ALL",
    "SIZE",
    "Ack",
    "Attend",
    "Grant",
    "Grow",
    "Message",
    "Part",
    "Proceed",
    "Result",
    "Resume",
    "Return",
    "Spare",
    "Status",
    "Stop",
    "Task",
    "Up",
    "pack",
    "pack_indices",
    "position_of",
    "task_number",
    "unpack",
    "unpack_indices",
]

SIZE: Final = 128

ALL: Final = -1
"""In the place of a reader."""

_POSITION_BITS: Final = 40
_EPOCHS: Final = 1 << 22


def task_number(epoch: int, position: int) -> int:
    """The number that no other task in flight has.

    Args:
        epoch: The epoch; its last tasks may be in flight together with the next one's first.
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


class Resume(NamedTuple):
    """Begin a new generation: forget older tasks, iterate an iterable dataset anew, acknowledge."""

    generation: int


class Grant(NamedTuple):
    """A larger slot for the batch that did not fit the task's own."""

    generation: int
    number: int
    offset: int
    capacity: int


class Attend(NamedTuple):
    """Look into your control pipe; means nothing to a worker that finds it empty."""


class Spare(NamedTuple):
    """An :class:`Attend` came to a worker that it meant nothing to."""

    worker: int


class Proceed(NamedTuple):
    """Every worker has acknowledged: take tasks, if this one is to stay."""


class Part(NamedTuple):
    """Close a reader of an iterable dataset: another worker serves it from now on.

    To a lane :data:`ALL` says so of all that it gave up: what it is sent from here on is meant.
    """

    reader: int


class Stop(NamedTuple):
    """End the worker process."""


class Status(IntEnum):
    """How a task ended."""

    BATCH = 0
    FAILURE = 1
    END = 2


class Result(NamedTuple):
    """A task is done.

    Attributes:
        status: :attr:`Status.BATCH`, :attr:`Status.FAILURE` (an exception lies in the slot) or
            :attr:`Status.END` (the worker's share of an iterable dataset is used up).
        worker: Who did it.
        generation: The task's.
        number: The task's.
        offset: The slot that holds the outcome (the task's, or the one granted instead).
        at: Offset in the slot of the batch's descriptor, or of the exception.
        nbytes: Bytes of that descriptor or exception.
        samples: Samples of the batch.
        began: ``time.monotonic_ns()`` when the worker took the task up.
        fetch: Nanoseconds that it was reading samples.
        collate: Nanoseconds that it was collating.
        encode: Nanoseconds that it was writing the batch into the slot.
        slowest: Nanoseconds of the sample that took longest; 0 where samples are read all at once.
        slowest_at: Position of that sample in the batch.
        processor: Nanoseconds of processor time, of all of the process's threads; 0: not measured.
        queued: Nanoseconds that the worker waited for a processor; 0: not measured.
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
    processor: int = 0
    queued: int = 0


class Up(NamedTuple):
    """A worker has come up, as far as that is not the user's code: another may be started.

    A process that serves for workers elsewhere sends it again when it has something to say.
    """

    worker: int


class Ack(NamedTuple):
    """A worker has left every older generation behind."""

    worker: int
    generation: int


class Grow(NamedTuple):
    """A batch needs a slot of ``nbytes`` bytes; the worker waits for a :class:`Grant`.

    ``offset`` is the slot of the task, which tells the two copies of a task issued twice apart.
    """

    worker: int
    generation: int
    number: int
    offset: int
    nbytes: int


class Return(NamedTuple):
    """A worker gives a task back undone, and will not write into its slot; another is to have it.

    ``offset`` is the slot of the task, as in :class:`Grow`. Where tasks are assigned all that it
    has is given back, with the places of its readers, whatever the number.
    """

    worker: int
    generation: int
    number: int
    offset: int


Message = (
    Task
    | Attend
    | Resume
    | Proceed
    | Grant
    | Part
    | Stop
    | Up
    | Result
    | Ack
    | Grow
    | Spare
    | Return
)


_FIELDS: Final[dict[type[Message], str]] = {
    Task: "IqqQqqqq",
    Attend: "",
    Resume: "I",
    Proceed: "",
    Grant: "Iqqq",
    Part: "q",
    Stop: "",
    Up: "H",
    Result: "BHI13q",
    Ack: "HI",
    Grow: "HIqqq",
    Spare: "H",
    Return: "HIqq",
}
"""How the fields are written, as :mod:`struct` names it; a message's kind is its place in here."""


def _layout(kind: str, fields: str) -> struct.Struct:
    padding = SIZE - struct.calcsize(f"={kind}{fields}")
    return struct.Struct(f"={kind}{fields}{padding}x")


_WRITTEN: Final = {
    message: (kind, _layout("B", fields).pack)
    for kind, (message, fields) in enumerate(_FIELDS.items())
}
_READ: Final = [
    (message._make, _layout("x", fields).unpack_from) for message, fields in _FIELDS.items()
]


def pack(message: Message) -> bytes:
    """Write a message down, in :data:`SIZE` bytes."""
    kind, write = _WRITTEN[type(message)]
    return write(kind, *message)


def unpack(data: bytes, start: int = 0) -> Message:
    """Read the message at ``data[start : start + SIZE]``."""
    make, read = _READ[data[start]]
    return make(read(data, start))


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
