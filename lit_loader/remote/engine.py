"""`Engine`: what the relay asks of whatever makes batches elsewhere, and what goes to and fro.

::

    relay ─ join, hire ─▶ Engine ─▶ Hand (one a remote worker) ─ hello, make, ping, watch ─▶ Future

`remote/ray_engine.py` is the one that is used; tests have one of threads. Nothing in here waits but
:meth:`Engine.join`: answers come as futures, in whatever thread.
"""

from __future__ import annotations

import pickle
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Engine", "Fate", "Hand", "Hello", "Made", "Order", "Role", "UnreachableError"]


class UnreachableError(Exception):
    """There is no cluster; the text says what to do."""


class Role(NamedTuple):
    """Which worker a remote worker is.

    Attributes:
        worker: Its number, behind those of the workers here.
        num_workers: How many there are, here and elsewhere.
        seed: Its own seed.
    """

    worker: int
    num_workers: int
    seed: int


class Order(NamedTuple):
    """One batch to be made elsewhere.

    Attributes:
        packed: Its indices (`transport/messages.py`: ``pack_indices``).
        number: Position of the batch in the epoch.
        epoch: Its epoch.
        seed: Base seed of the epoch.
        capacity: Bytes of the slot; the report of an error is to fit.
    """

    packed: bytes
    number: int
    epoch: int
    seed: int
    capacity: int

    def pack(self) -> bytes:
        """Write it down: plain bytes are what an engine carries with the least work."""
        return pickle.dumps(tuple(self), pickle.HIGHEST_PROTOCOL)

    @classmethod
    def unpack(cls, data: bytes) -> Order:
        """Read what :meth:`pack` wrote."""
        return cls(*pickle.loads(data))


class Made(NamedTuple):
    """What has become of an order; times in nanoseconds.

    Attributes:
        status: As in a `Reply` (`transport/messages.py`).
        content: What goes into the slot, uint8 of one dimension; read-only, perhaps.
        at: Offset in there of the batch's descriptor, or of the exception.
        nbytes: Bytes of that.
        samples: Samples of the batch.
        fetch: Reading them.
        collate: Collating.
        encode: Writing the batch into one piece.
        slowest: The sample that took longest.
        slowest_at: Its position in the batch.
    """

    status: int
    content: NDArray[np.uint8]
    at: int
    nbytes: int
    samples: int
    fetch: int
    collate: int
    encode: int
    slowest: int
    slowest_at: int

    def pack(self) -> bytes:
        """Write it down, content and all."""
        status, content, *rest = self
        return pickle.dumps((status, content.tobytes(), *rest), pickle.HIGHEST_PROTOCOL)

    @classmethod
    def unpack(cls, data: bytes) -> Made:
        """Read what :meth:`pack` wrote."""
        status, content, *rest = pickle.loads(data)
        return cls(status, np.frombuffer(content, np.uint8), *rest)


class Hello(NamedTuple):
    """What a remote worker says of itself when it has come up.

    Attributes:
        node: Name of its machine.
        pid: Its process id there.
        versions: What its batches may depend on: package to version.
    """

    node: str
    pid: int
    versions: dict[str, str]


class Fate(NamedTuple):
    """What an exception of a future means.

    Attributes:
        reason: In words.
        gone: Whether its hand is gone.
        blamed: Whether the order may have been the reason; not where a machine or object was lost.
    """

    reason: str
    gone: bool
    blamed: bool


class Hand(Protocol):
    """A remote worker, which does one order after the other."""

    def hello(self) -> Future[Hello]:
        """Have it say what it is, once it is up."""

    def make(self, order: Order) -> Future[Made | bytes]:
        """Have it make a batch, which may come packed; behind what it has been given before."""

    def ping(self) -> Future[Any]:
        """Have it give a sign of life, whatever it is at."""

    def watch(self) -> Future[Any]:
        """Be told of its end: an exception, while it is at nothing, too."""

    def end(self) -> None:
        """End its process."""


class Engine(Protocol):
    """What has remote workers; `join` and `leave` are called in one thread, all else in another."""

    def join(self, payload: memoryview) -> None:
        """Reach the cluster, and bring the dataset there.

        Args:
            payload: The dataset and functions, pickled.

        Raises:
            UnreachableError: There is no cluster.
        """

    def hire(self, role: Role) -> Hand:
        """Ask for a worker, which comes up whenever there is room for it."""

    def explain(self, error: BaseException) -> Fate:
        """Say what an exception of a future means."""

    def room(self) -> str:
        """Say how many processors the cluster has, for a message."""

    def leave(self) -> None:
        """End all workers, and let go of the cluster."""
