"""What a worker is given at its start: `Links` to the parent; a `Payload`, the user's objects."""

from __future__ import annotations

import dataclasses
import errno
import os
import tempfile
from collections import deque
from collections.abc import Sequence
from multiprocessing import reduction
from typing import Any, Final

from lit_loader.batch.batch_spec import BatchSpec
from lit_loader.errors import LoaderError
from lit_loader.system.carrier import (
    Frozen,
    Policy,
    can_carry_by_value,
    explain,
    freeze,
    main_is_importable,
    thaw,
)
from lit_loader.system.interrupts import let_handlers_through
from lit_loader.system.shared_file import nameless_file, remedy
from lit_loader.worker.shared_lists import SharedLists

__all__ = ["NO_ROOM", "Descriptor", "Links", "Payload", "freeze_spec"]

NO_ROOM: Final = os.EX_OSERR
"""Exit code of a worker that has no room for the arena in its address space."""

_USERS: Final = ("dataset", "collate_fn", "worker_init_fn", "reseed_fn")
"""The parts of a spec that come from the user, and so may be such as cannot be pickled."""


class Descriptor:
    """A file descriptor that goes along when a worker is started, by any start method."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _descriptor_from, (reduction.DupFd(self.fd),)


def _descriptor_from(duplicate: Any) -> Descriptor:
    return Descriptor(duplicate.detach())


def freeze_spec(spec: Any, policies: Sequence[Policy], instead: Any = None) -> Frozen:
    """Take the user's objects apart, by the first of some policies that will do.

    Raises:
        TransportError: Something cannot be pickled; names the option and the place in it.
    """
    for policy in policies:
        try:
            return freeze(spec, policy, instead)
        except Exception as error:
            let_handlers_through(error)
            if policy is policies[-1] or isinstance(error, RecursionError):
                users = {name: getattr(spec, name) for name in _USERS}
                raise explain(users, policy, error) from error
    raise AssertionError("no policy")


def _ways() -> list[bool]:
    """Whether to carry by value, in the order in which that is tried."""
    if not can_carry_by_value():
        return [False]
    return [False, True] if main_is_importable() else [True]


class Payload:
    """The user's objects on their way to workers.

    Taken apart (`system/carrier.py`) once for all workers, and apart from the rest: so the worker
    is up, and can report it, when they cannot be put together. They go through a file: a pipe would
    hold up the parent until each, in turn, has come to reading it.

    Args:
        spec: The objects.

    Attributes:
        notices: Messages for the consumer.
        shared_bytes: Bytes of large buffers that the workers share.
    """

    def __init__(self, spec: BatchSpec) -> None:
        self.notices: deque[str | Warning] = deque()
        self.shared_bytes = 0
        self._spec: BatchSpec | None = spec
        self._fds: list[int] = []  # the file, and what goes along
        self._lists: SharedLists | None = None
        if spec.share and spec.table() is None:
            self._lists = SharedLists(spec.dataset)

    def __reduce__(self) -> tuple[Any, ...]:
        return _payload_from, (list(map(Descriptor, self._fds)),)

    def prepare(self) -> None:
        """Write the file, unless that is done.

        Raises:
            TransportError: Something cannot be pickled; names the option and the place in it.
            LoaderError: There is no room.
        """
        if not self._fds:
            instead = None if self._lists is None else self._lists.instead
            policies = [Policy.workers(by_value) for by_value in _ways()]
            frozen = freeze_spec(self._spec, policies, instead)
            self._fds = frozen.fds
            try:
                self._fds.insert(0, self._written(frozen))
            except BaseException:
                self.close()
                raise
            self.shared_bytes = frozen.nbytes

    def _written(self, frozen: Frozen) -> int:
        """Write the file into memory, or to a disk; returns its descriptor."""
        size = f"({frozen.nbytes / 2**20:,.0f} MiB)"
        try:
            return _write(frozen)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # no want of room
            try:
                fd = _write(frozen, on_disk=True)
            except OSError as full:
                raise LoaderError(
                    f"no room for the dataset's arrays {size} in memory ({error}) nor in the "
                    f"temporary directory ({full}); {remedy(full)}"
                ) from full
            self.notices.append(
                f"the dataset's arrays {size} have found no room in memory ({error}): workers read "
                f"them from a file without a name in {tempfile.gettempdir()}, which may be slower; "
                "free memory"
            )
            return fd

    def open(self) -> BatchSpec:
        """Return the objects.

        Raises:
            Exception: Whatever unpickling them raises.
        """
        if self._spec is None:
            file, *along = self._fds
            self._spec = thaw(file, along)
            os.close(file)  # what came along belongs to what was made of it
        elif self._lists is not None:  # in a fork of the process that made it
            self._lists.put_in_place()
        return self._spec

    def close(self) -> None:
        """Let go of the file, and of what goes along."""
        while self._fds:
            os.close(self._fds.pop())


def _write(frozen: Frozen, on_disk: bool = False) -> int:
    """Write a file without a name.

    Raises:
        OSError: There is no room for it; nothing of it is left.
    """
    fd, _ = nameless_file("lit_loader arrays", on_disk)
    try:
        frozen.write(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _payload_from(fds: list[Descriptor]) -> Payload:
    payload = Payload.__new__(Payload)
    payload._spec, payload._lists, payload._fds = None, None, [each.fd for each in fds]
    return payload


@dataclasses.dataclass(frozen=True)
class Links:
    """What connects one worker with its parent; :meth:`of` makes another one's.

    Attributes:
        worker: The worker's number, from 0.
        num_workers: How many there were to be when it was started.
        seed: The worker's own seed (base seed + its number).
        token: That of the epoch it begins with.
        parent: Process id of the parent.
        arena: The arena's file.
        mapped: Bytes of it to map.
        board_bytes: Bytes of the status board at its start.
        control: Read end of the pipe for this worker alone.
        results: Write end of the result pipe.
        stacks: The file for the stacks of a worker that crashes.
    """

    worker: int
    num_workers: int
    seed: int
    token: int
    parent: int
    arena: Descriptor
    mapped: int
    board_bytes: int
    control: Descriptor
    results: Descriptor
    stacks: Descriptor

    def of(self, worker: int, num_workers: int, token: int, control: int) -> Links:
        """What connects a worker, where this is what connects worker 0.

        Args:
            worker: Its number.
            num_workers: How many there are now.
            token: That of the epoch it begins with.
            control: Read end of its control pipe.
        """
        return dataclasses.replace(
            self,
            worker=worker,
            num_workers=num_workers,
            seed=self.seed + worker,
            token=token,
            control=Descriptor(control),
        )
