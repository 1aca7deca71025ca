"""What connects a worker with its parent: `Links`; and it ends when that does."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import select
import threading
from typing import NoReturn

from lit_loader.core.system.linux import open_process
from lit_loader.core.system.shared_file import Descriptor

__all__ = ["Descriptor", "Links", "follow_parent", "sentinel_of"]


@dataclasses.dataclass(frozen=True)
class Links:
    """What connects one worker with its parent; :meth:`of` makes another one's."""

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

    def of(self, worker: int, num_workers: int, token: int, control: int) -> Links:
        """What connects a worker, by its own control pipe, where this is what connects worker 0."""
        return dataclasses.replace(
            self,
            worker=worker,
            num_workers=num_workers,
            seed=self.seed + worker,
            token=token,
            control=Descriptor(control),
        )


def follow_parent(parent: int) -> None:
    """End this process when the parent does, even from within user code.

    A pidfd sees the parent itself die; a pipe's end, as multiprocessing has it, may be held open
    by any process that was forked meanwhile. PR_SET_PDEATHSIG would follow the *thread* that
    started the worker.
    """
    sentinel = sentinel_of(parent)
    if sentinel is None:
        return

    def wait() -> None:
        poll = select.poll()
        poll.register(sentinel, select.POLLIN)
        poll.poll()
        _leave()

    threading.Thread(target=wait, name="lit_loader parent watch", daemon=True).start()


def sentinel_of(parent: int) -> int | None:
    """What can be read from when the parent has ended; None: not known.

    Where the parent is gone already, so is this process.
    """
    try:
        return open_process(parent)
    except ProcessLookupError:
        _leave()
    except OSError:
        process = multiprocessing.parent_process()
        return None if process is None else int(process.sentinel)


def _leave() -> NoReturn:
    os._exit(1)
