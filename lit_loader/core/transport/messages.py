"""The messages between the parent and its workers: what each means, how it is written down.

::

    parent ── Task · Attributes · Resume · Space · Stop ─▶ worker k   (its own pipe, in order)
    parent ◀── Up · Reply · Need · Resumed ─────────────── workers    (one pipe, atomic writes)
    board: the token that is wanted; a row a worker: task, sample, stage, since when

    Task    one copy of a task, with its slot      Reply    the one end of that copy; names the slot
    Resume  begin a new epoch                      Resumed  every older task has had its Reply
    Space   a larger slot, in answer to Need       Need     the batch does not fit its slot
    Stop    end, after the tasks sent before       Up       ready; how many tasks at a time
    Attributes  what has changed of the dataset's plain attributes, in several messages

Every message is :data:`SIZE` bytes. POSIX makes a pipe write of up to 512 bytes atomic, so neither
side needs a lock, and a process killed at any instant leaves the pipes whole. A copy of a task has
one owner, the worker whose pipe it was written to, and one Reply, which gives its slot back; if the
owner dies first, its death does. Batches do not travel in messages: a Task names a slot of the
arena that holds its indices (:func:`pack_indices`), the Reply says where in it the batch lies.
"""

from __future__ import annotations

import pickle
import struct
from array import array
from enum import IntEnum
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from lit_loader.core.seeding.seeds import PassSeeds

_new: Final = tuple.__new__

SIZE: Final = 128

ATTRIBUTES_PART: Final = 112

_POSITION_BITS: Final = 40
POSITION: Final = (1 << _POSITION_BITS) - 1
"""The bits of a task's number that are its batch's position in the epoch."""

_EPOCHS: Final = 1 << 22


def task_number(epoch: int, position: int) -> int:
    """The number that no other task has; a batch's position in the epoch is less than 2**40.

    An epoch's last tasks may be under way together with the next one's first.
    """
    return epoch % _EPOCHS << _POSITION_BITS | position


def position_of(number: int) -> int:
    """The position in its epoch of the batch that a task with this number makes."""
    return number & POSITION


class Task(NamedTuple):
    """Load one batch into one slot."""

    token: int  # that of the epoch; a worker drops a task of another one than the board shows
    number: int  # the task's (:func:`task_number`)
    epoch: int  # epoch that the batch belongs to
    # Of the pass (`PassSeeds`):
    seed: int
    ordinal: int
    held: int
    dataset_epoch: int
    slot: int  # first byte of the slot in the arena's file; no other copy under way has it
    capacity: int  # bytes of the slot
    nbytes: int  # bytes of packed indices at the start of the slot; 0: there are none
    sequence: int  # counts the tasks sent to this worker; finds the bit that says it is not wanted

    @property
    def seeds(self) -> PassSeeds:
        """What its random numbers follow from."""
        return _new(PassSeeds, self[3:7])


class Attributes(NamedTuple):
    """A part of a pickle: what has changed of the dataset's plain attributes."""

    left: int  # bytes of the pickle from here on
    part: bytes  # its next `ATTRIBUTES_PART` bytes


class Resume(NamedTuple):
    """Begin a new epoch: iterate an iterable dataset again, and say so."""

    token: int


NOT_WANTED: Final = 0
NOT_TO_BE_HAD: Final = -1
"""In the place of the capacity of a larger slot."""


class Space(NamedTuple):
    """A larger slot for the batch that did not fit."""

    slot: int  # the slot that the task was sent with
    offset: int  # first byte of the larger one
    capacity: int  # bytes of that; :data:`NOT_WANTED`: drop the batch; :data:`NOT_TO_BE_HAD`


class Stop(NamedTuple):
    """End the worker process."""


class Status(IntEnum):
    """How a copy of a task ended."""

    DONE = 0
    """The batch lies in the slot."""
    FAILED = 1
    """An exception lies in the slot."""
    ENDED = 2
    """The reader of an iterable dataset has no more."""
    DROPPED = 3
    """It was not wanted any more, or is given back undone."""


class Reply(NamedTuple):
    """A copy of a task has ended; the one message that gives its slot back."""

    status: int  # one of :class:`Status`
    worker: int  # who had it; the relay names who has made it elsewhere
    slot: int  # the slot that it was sent with
    offset: int  # the slot that the outcome is in: that one, or the larger one
    at: int  # offset in that of the batch's descriptor, or of the exception
    nbytes: int  # bytes of that descriptor or exception
    samples: int  # samples of the batch
    # ``time.monotonic_ns()`` when the worker took the task up; 0: it has dropped it unread.
    began: int = 0
    fetch: int = 0  # nanoseconds that it was reading samples
    collate: int = 0  # nanoseconds that it was collating
    encode: int = 0  # nanoseconds that it was writing the batch into the slot
    slowest: int = 0  # nanoseconds of the sample that took longest; 0: not measured one by one
    slowest_at: int = 0  # position of that sample in the batch
    # Nanoseconds of CPU time, of all of the process's threads; 0: not measured.
    cpu_time: int = 0
    queued: int = 0  # nanoseconds that the worker waited for a CPU core; 0: not measured
    state: int = 0  # nanoseconds of ``fetch`` in which a stream's state was taken
    tokens: int = 0  # that samples or ``collate_fn`` have noted


class Up(NamedTuple):
    """A worker has come up, as far as that is not the user's code: another may be started."""

    worker: int  # its number
    # Tasks that it can be at together: 1 for a process that makes batches itself. The relay
    # of workers elsewhere says it again when that changes, or there is something to say.
    credit: int = 1


class Need(NamedTuple):
    """A batch needs a slot of ``nbytes`` bytes; the worker waits for a :class:`Space`."""

    worker: int
    slot: int
    nbytes: int


class Resumed(NamedTuple):
    """A worker has begun the epoch of this token; its older tasks have had their replies."""

    worker: int
    token: int


Message = Task | Attributes | Resume | Space | Stop | Up | Reply | Need | Resumed


_FIELDS: Final[dict[type[Message], str]] = {
    Task: "QqqQqqqqqqq",
    Attributes: f"q{ATTRIBUTES_PART}s",
    Resume: "Q",
    Space: "qqq",
    Stop: "",
    Up: "Hq",
    Reply: "BH4qI5qI4q",
    Need: "Hqq",
    Resumed: "HQ",
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
    (partial(_new, message), _layout("x", fields).unpack_from)
    for message, fields in _FIELDS.items()
]

packed_reply: Final = partial(_WRITTEN[Reply][1], _WRITTEN[Reply][0])
"""As :func:`pack` of a :class:`Reply` of these values, all of them: one is sent for each batch."""

packed_task: Final = partial(_WRITTEN[Task][1], _WRITTEN[Task][0])
"""The same of a :class:`Task`."""


def pack(message: Message) -> bytes:
    """Write a message down, in :data:`SIZE` bytes."""
    kind, write = _WRITTEN[type(message)]
    return write(kind, *message)


def packed_attributes(pickled: bytes) -> list[bytes]:
    """Return the packed `Attributes` that carry a pickle."""
    starts = range(0, len(pickled), ATTRIBUTES_PART)
    return [
        pack(Attributes(len(pickled) - at, pickled[at : at + ATTRIBUTES_PART])) for at in starts
    ]


def unpack(data: bytes) -> Message:
    """Read a message."""
    make, read = _READ[data[0]]
    return make(read(data))


def unpack_all(data: bytes) -> list[Message]:
    """Read several messages that lie behind one another."""
    messages: list[Message] = []
    for start in range(0, len(data), SIZE):
        make, read = _READ[data[start]]
        messages.append(make(read(data, start)))
    return messages


_PICKLED: Final = b"p"
_INT64: Final = b"q"
_ONLY_INT: Final = {int}


def pack_indices(indices: object, own: bool = False) -> bytes:
    """Write one batch's indices down: 8 bytes each for a list of ints, a pickle for all else.

    Those of an order of the loader's ``own`` are an int64 array, if they are several. Raises
    whatever pickling an index of the sampler's own making raises.
    """
    if own and type(indices) is np.ndarray:
        return indices.tobytes() + _INT64
    if type(indices) is list and set(map(type, indices)) == _ONLY_INT:
        try:
            return array("q", indices).tobytes() + _INT64
        except OverflowError:
            pass  # beyond 64 bits: as a pickle
    return pickle.dumps(indices, pickle.HIGHEST_PROTOCOL) + _PICKLED


def unpack_indices(data: bytes | memoryview) -> Any:
    """Read what :func:`pack_indices` wrote."""
    # The tag stands last, so that the integers begin where the slot does: aligned.
    if data[-1] == _INT64[0]:
        return memoryview(data)[:-1].cast("q").tolist()
    return pickle.loads(data[:-1])


def listed(indices: object) -> Any:
    """Return a batch's indices as datasets get them: a list, if they are an array."""
    return indices.tolist() if isinstance(indices, np.ndarray) else indices
