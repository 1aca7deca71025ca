"""What a worker is given when it is started: its links to the parent, and the user's objects."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

from lit_loader.loading import Recipe

__all__ = ["Descriptor", "Links", "Payload"]


class Descriptor:
    """A file descriptor that goes along when a worker is started, by any start method."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _descriptor_from, (reduction.DupFd(self.fd),)


def _descriptor_from(duplicate: Any) -> Descriptor:
    return Descriptor(duplicate.detach())


class Payload:
    """The user's objects on their way to a worker.

    Pickled apart from the rest, so that the worker is up, and can report it, when they cannot be
    unpickled (a class that only ``__main__`` has, say).
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe: Recipe | None = recipe
        self._pickled: bytes = b""

    def __reduce__(self) -> tuple[Any, ...]:
        # multiprocessing's pickler, for what only it can carry: locks, queues, shared tensors. It
        # is kept, for it keeps what was made on the way (a torch.Generator's state, say), whose
        # file descriptor must be open when the process is started.
        file = io.BytesIO()
        self._pickler = reduction.ForkingPickler(file)
        self._pickler.dump(self._recipe)
        return _payload_from, (file.getvalue(),)

    def open(self) -> Recipe:
        """Return the objects.

        Raises:
            Exception: Whatever unpickling them raises.
        """
        if self._recipe is None:
            self._recipe = pickle.loads(self._pickled)
        return self._recipe


def _payload_from(pickled: bytes) -> Payload:
    payload = Payload.__new__(Payload)
    payload._recipe, payload._pickled = None, pickled
    return payload


@dataclass(frozen=True)
class Links:
    """What connects one worker with its parent.

    Attributes:
        worker: The worker's number, from 0.
        num_workers: How many there are.
        seed: The worker's own seed (base seed + its number).
        generation: The generation it begins with.
        parent: Process id of the parent.
        arena: The arena's file.
        mapped: Bytes of it to map.
        board_bytes: Bytes of the status board at its start.
        tasks: Read end of the task pipe all workers share, or None if tasks are dealt.
        control: Read end of the pipe for this worker alone.
        results: Write end of the result pipe.
    """

    worker: int
    num_workers: int
    seed: int
    generation: int
    parent: int
    arena: Descriptor
    mapped: int
    board_bytes: int
    tasks: Descriptor | None
    control: Descriptor
    results: Descriptor
