"""What a worker is given at its start: `Links` to the parent; a `Payload`, the user's objects."""

from __future__ import annotations

import dataclasses
import errno
import mmap
import os
import tempfile
from collections import deque
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import Any, Final, NamedTuple

from lit_loader.batch.batch_spec import BatchSpec
from lit_loader.describe import find_failing_object, short_repr
from lit_loader.errors import LoaderError, TransportError
from lit_loader.system.buffer_file import Layout, Place, map_buffers
from lit_loader.system.interrupts import let_handlers_through
from lit_loader.system.pickling import Pickled, can_carry_by_value, dump, load
from lit_loader.system.shared_file import nameless_file, remedy, write_all
from lit_loader.worker.shared_lists import SharedLists

__all__ = ["NO_ROOM", "Descriptor", "Links", "Payload"]

NO_ROOM: Final = os.EX_OSERR
"""Exit code of a worker that has no room for the arena in its address space."""

_USERS: Final = ("dataset", "collate_fn", "worker_init_fn", "reseed_fn")
"""The parts of a spec that come from the user, and so may be such as cannot be pickled."""

_ADVICE: Final = {
    True: "leave it out in __getstate__ and make it in the worker (on first use, or in "
    "worker_init_fn)",
    False: "define it at the top level of a module, pip install cloudpickle (which carries "
    "lambdas, closures, local classes and those of notebooks)",
}
"""What can be done, with cloudpickle installed and without."""


class Descriptor:
    """A file descriptor that goes along when a worker is started, by any start method."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _descriptor_from, (reduction.DupFd(self.fd),)


def _descriptor_from(duplicate: Any) -> Descriptor:
    return Descriptor(duplicate.detach())


class Payload:
    """The user's objects on their way to workers.

    Pickled apart from the rest, so that the worker is up, and can report it, when they cannot be
    unpickled. Pickled once for all workers, and into a file: a pipe would hold up the parent
    until each, in turn, has come to reading it. Only what brings descriptors of its own along
    (locks, queues, shared tensors) is pickled for each worker anew.

    Large buffers (arrays, tensors) are not in the pickle: they lie in a file of their own, which
    every worker maps.

    Args:
        spec: The objects.
        by_value: Carry functions and classes by value where they cannot be imported; else this is
            done if they cannot be pickled otherwise, and cloudpickle is installed.

    Attributes:
        notices: Messages for the consumer.
    """

    def __init__(self, spec: BatchSpec, by_value: bool = False) -> None:
        self.notices: deque[str | Warning] = deque()
        self._spec: BatchSpec | None = spec
        self._by_value = by_value
        self._fd = -1
        self._for_all = False
        self._buffers: _BufferFile | None = None
        self._lists: SharedLists | None = None
        if spec.share and spec.table() is None:
            self._lists = SharedLists(spec.dataset)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._fd < 0:
            self._write()
        return _payload_from, (Descriptor(self._fd), self._buffers)

    @property
    def shared_bytes(self) -> int:
        """Bytes of large buffers that the workers share."""
        return 0 if self._buffers is None else self._buffers.nbytes

    def _write(self) -> None:
        """Pickle the objects, as a part of starting a process.

        Raises:
            TransportError: One cannot be pickled; names the option and the place in it.
        """
        # Private reach: the descriptors that go along with the process that is being started.
        popen: Any = get_spawning_popen()
        noted = len(popen._fds)
        try:
            instead = None if self._lists is None else self._lists.instead
            pickled = dump(self._spec, self._by_value, instead)
        except Exception as error:
            let_handlers_through(error)
            if self._by_value or isinstance(error, RecursionError) or not can_carry_by_value():
                raise self._explained(error) from error
        else:
            self._for_all = len(popen._fds) == noted
            self._store(pickled)
            return
        # From now on, for all workers; what the attempt wanted to take along stays here.
        self._by_value = True
        del popen._fds[noted:]
        self._write()

    def _store(self, pickled: Pickled) -> None:
        """Write the files: one of the large buffers, and one of where they lie and the pickle."""
        layout = Layout(pickled.buffers)
        # For a worker started later: the same bytes, unless the parent has changed them.
        if self._buffers is None or not layout.is_in(*self._buffers):
            self._drop_buffers()
            if layout.nbytes:
                self._buffers = self._buffer_file(layout)
        self._pickler = None if self._for_all else pickled.pickler
        fd, _ = nameless_file("lit_loader dataset")
        try:
            write_all(fd, pickled.stream)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def _buffer_file(self, layout: Layout) -> _BufferFile:
        """Write the large buffers into memory, or to a disk.

        Raises:
            LoaderError: There is no room on either.
        """
        size = f"({layout.nbytes / 2**20:,.0f} MiB)"
        try:
            return _BufferFile.written(layout)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # no want of room
            try:
                file = _BufferFile.written(layout, on_disk=True)
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
            return file

    def started(self) -> None:
        """Let go of what was for one worker alone, which has been started."""
        if not self._for_all:
            self._drop_stream()

    def close(self) -> None:
        """Let go of the files."""
        self._drop_stream()
        self._drop_buffers()

    def _drop_stream(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _drop_buffers(self) -> None:
        if self._buffers is not None:
            os.close(self._buffers.fd)
            self._buffers = None

    def _explained(self, error: Exception) -> Exception:
        """Name what cannot be pickled, and what to do."""

        def attempt(value: object) -> None:
            dump(value, self._by_value)

        for name in _USERS:
            value = getattr(self._spec, name)
            try:
                attempt(value)
            except Exception as refusal:
                place = find_failing_object(value, refusal, attempt, name, inside=self._by_value)
                how = ", not by cloudpickle either" if self._by_value else ""
                return TransportError(
                    f"{place.path}: {short_repr(place.value)} cannot be pickled{how}, as every "
                    f"start method but 'fork' needs ({type(place.error).__name__}: {place.error}); "
                    f"{_ADVICE[can_carry_by_value()]}, or use multiprocessing_context='fork'"
                )
        return error

    def open(self) -> BatchSpec:
        """Return the objects.

        Raises:
            Exception: Whatever unpickling them raises.
        """
        if self._spec is None:
            # Mapped, and not read: all workers have one file position in common.
            with mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ) as stream:
                file = self._buffers
                self._spec = load(stream, [] if file is None else map_buffers(*file))
            self.close()
        elif self._lists is not None:  # in a fork of the process that made it
            self._lists.put_in_place()
        return self._spec


class _BufferFile(NamedTuple):
    """The file of large buffers: its descriptor, its length, and where in it they lie."""

    fd: int
    nbytes: int
    places: list[Place]

    def __reduce__(self) -> tuple[Any, ...]:
        return _buffer_file_from, (Descriptor(self.fd), self.nbytes, self.places)

    @classmethod
    def written(cls, layout: Layout, on_disk: bool = False) -> _BufferFile:
        """Write one.

        Raises:
            OSError: There is no room for it; nothing of it is left.
        """
        fd, _ = nameless_file("lit_loader arrays", on_disk)
        try:
            os.ftruncate(fd, layout.nbytes)
            layout.write(fd)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, layout.nbytes, layout.places)


def _buffer_file_from(descriptor: Descriptor, nbytes: int, places: list[Place]) -> _BufferFile:
    return _BufferFile(descriptor.fd, nbytes, places)


def _payload_from(stream: Descriptor, buffers: _BufferFile | None) -> Payload:
    payload = Payload.__new__(Payload)
    payload._spec, payload._fd, payload._buffers, payload._lists = None, stream.fd, buffers, None
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
