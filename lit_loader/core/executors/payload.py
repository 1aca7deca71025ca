"""What a worker is given: `Links` to its parent, and the user's objects in a `Payload`."""

from __future__ import annotations

import dataclasses
import errno
import os
from typing import TYPE_CHECKING, Final

from lit_loader.core.batch.batch_spec import BatchSpec, Changes, DatasetAttributes, apply
from lit_loader.core.executors.process_start import main_is_importable
from lit_loader.core.system.shared_file import Descriptor, nameless_file, remedy
from lit_loader.errors import LoaderError

if TYPE_CHECKING:  # forked workers need none of it
    from lit_loader.core.transport.dataset_pickle import Frozen, Policy

NO_ROOM: Final = os.EX_OSERR
"""Exit code of a worker that has no room for the arena in its address space."""

_USERS: Final = ("dataset", "collate_fn", "worker_init_fn", "reseed_fn")
"""The parts of a spec that come from the user, and so may be such as cannot be pickled."""


@dataclasses.dataclass(frozen=True)
class Links:
    """What connects one worker with its parent."""

    worker: int  # the worker's number, from 0
    num_workers: int  # how many there were to be when it was started
    seed: int  # the worker's own seed (base seed + its number)
    token: int  # that of the epoch it begins with
    parent: int  # process id of the parent
    arena: Descriptor  # the arena's file
    mapped: int  # bytes of it to map
    board_bytes: int  # bytes of the status board at its start
    control: Descriptor  # read end of the pipe for this worker alone
    results: Descriptor  # write end of the result pipe
    stacks: Descriptor  # the file for the stacks of a worker that crashes


def freeze_spec(spec: BatchSpec, policy: Policy) -> Frozen:
    """Take the user's objects apart.

    Raises:
        TransportError: Something cannot be pickled; names the option and the place in it.
    """
    from lit_loader.core.transport.dataset_pickle import freeze

    return freeze(spec, policy, {name: getattr(spec, name) for name in _USERS})


class Payload:
    """The user's objects on their way to workers.

    Taken apart (`dataset_pickle.py`) once for all workers, and apart from the rest: so the
    worker is up, and can report it, when they cannot be put together. They go through a file: a
    pipe would hold up the parent until each, in turn, has come to reading it; ``shared_bytes`` of
    it are large buffers, which the workers share.

    A worker that is started later has the plain attributes that the others have (`attributes`).
    """

    def __init__(self, spec: BatchSpec) -> None:
        self.shared_bytes = 0
        self._spec: BatchSpec | None = spec
        self._fds: list[int] = []  # the file, and what goes along
        self.attributes = DatasetAttributes(spec.dataset)
        self._changes: Changes = {}

    def __getstate__(self) -> tuple[list[Descriptor], Changes]:
        return list(map(Descriptor, self._fds)), self.attributes.changes

    def __setstate__(self, state: tuple[list[Descriptor], Changes]) -> None:
        fds, self._changes = state
        self._spec, self._fds = None, [each.fd for each in fds]

    def prepare(self) -> None:
        """Write the file, unless that is done; a LoaderError if there is no room.

        A TransportError that names the option and the place in it, if something cannot be pickled.
        """
        if not self._fds and self._spec is not None:
            from lit_loader.core.transport.dataset_pickle import Policy

            frozen = freeze_spec(self._spec, Policy.workers(main_is_importable()))
            self._fds = frozen.fds
            try:
                self._fds.insert(0, nameless_file("lit_loader arrays")[0])
                frozen.write(self._fds[0])
            except OSError as error:
                self.close()
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise  # there is room
                raise LoaderError(
                    f"not enough memory for the dataset's arrays ({frozen.nbytes / 2**20:,.0f} MiB "
                    f"for all workers, {error}). {remedy(error)}, or use "
                    "multiprocessing_context='fork', which copies none [LL102]"
                ) from error
            except BaseException:
                self.close()
                raise
            self.shared_bytes = frozen.nbytes

    def open(self) -> BatchSpec:
        """Return the objects; raises whatever unpickling them does."""
        if self._spec is None:
            from lit_loader.core.transport.dataset_pickle import thaw

            file, *along = self._fds
            self._spec = thaw(file, along)
            os.close(file)  # what came along belongs to what was made of it
            apply(self._changes, self._spec.dataset)
        else:  # in a fork of the process that made it
            self.attributes.restore()
        return self._spec

    def close(self) -> None:
        """Close the file, and what goes along."""
        while self._fds:
            os.close(self._fds.pop())
