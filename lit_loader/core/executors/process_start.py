"""How a worker process begins: without the parent's signals, handlers and held locks.

And how it ends with its parent: `follow_parent`.

`quiet_start` is around every start of a process, which calls `reset_signals` first. A fork copies
the locks that other threads hold, and nobody in the copy releases them. So a worker that is forked
has new ones in their place before anything else runs (`os.register_at_fork`). A fork that the
program makes itself is left alone.

What a worker is given: `Links` to its parent, and the user's objects in a `Payload`.
"""

from __future__ import annotations

# reach: python: signals without an enumeration's member for each
import _signal  # type: ignore[import-not-found]
import contextlib
import dataclasses
import errno
import gc
import io
import logging
import multiprocessing
import os
import select
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch

from lit_loader.core.batch.batch_spec import BatchSpec, Changes, DatasetAttributes, apply
from lit_loader.core.options.checks import START_METHODS
from lit_loader.core.seeding.seeds import await_draws, renew_numpy_generator
from lit_loader.core.system.interrupts import SENT_TO_ALL, handled
from lit_loader.core.system.linux import open_process
from lit_loader.core.system.shared_file import Descriptor, nameless_file, remedy
from lit_loader.core.transport.arena import unguarded_fork
from lit_loader.errors import LoaderError

if TYPE_CHECKING:  # forked workers need none of it
    from lit_loader.core.transport.dataset_pickle import Frozen, Policy


_starting = threading.RLock()
"""Held by the thread that starts a process: much is set for all threads meanwhile."""

_forking: tuple[int, bool] | None = None
"""The thread that forks a worker now, and whether the garbage collector was on; None: none does."""


def default_context() -> BaseContext:
    """Return Python's default context, or fork where a library has set a method of its own.

    joblib's loky does so in its processes.
    """
    method = multiprocessing.get_start_method(allow_none=True)
    if method is not None and method not in START_METHODS:
        return multiprocessing.get_context("fork")
    return multiprocessing.get_context()


def main_is_importable() -> bool:
    """Whether ``__main__`` is a module or a file that a new process can import."""
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is not None:
        return True
    path = getattr(main, "__file__", None)
    return path is not None and Path(path).is_file()


@contextlib.contextmanager
def importable_main(hide: bool = False) -> Iterator[None]:
    """Hide the path of a ``__main__`` that has one and no file, such as ``<stdin>``; or any.

    A process that is started meanwhile would otherwise end, trying to run that file.
    """
    names, hidden = vars(sys.modules["__main__"]), dict[str, object]()
    if hide or not main_is_importable():
        hidden = {name: names[name] for name in ("__file__", "__spec__") if name in names}
    names.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        names.update(hidden)


@contextlib.contextmanager
def quiet_start(context: BaseContext) -> Iterator[None]:
    """Start a process with signals blocked until it has called `reset_signals`.

    Otherwise a Ctrl-C in that moment would run the parent's handler in the child. Helper processes
    of multiprocessing are started beforehand, or they would keep the signals blocked for good. The
    garbage collector rests: in a fork, it would finalize objects that wait for threads.

    Raises:
        LoaderError: Python's fork server cannot be used here.
    """
    global _forking
    method = context.get_start_method()
    held = SENT_TO_ALL | (handled() if method == "fork" else set())
    with _starting, _known_start_method(method), unguarded_fork(), _no_warning_of_threads():
        if method == "forkserver":
            # No other thread forks meanwhile: the child would keep the server's socket open, and
            # whoever asks a server that was killed would wait forever.
            _start_fork_server(context)
        if method != "fork":
            from multiprocessing import resource_tracker

            resource_tracker.ensure_running()
        before = _signal.pthread_sigmask(signal.SIG_BLOCK, held)
        if method == "fork":
            _forking = threading.get_ident(), gc.isenabled()
            gc.disable()
        try:
            yield
        finally:
            if _forking is not None and _forking[1]:
                gc.enable()
            _forking = None
            _signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _known_start_method(method: str) -> Iterator[None]:
    """Set a default start method that a new interpreter knows, for it is sent its name.

    It knows no method that a library has set in this process: loky's, in joblib's processes.
    """
    default = multiprocessing.get_start_method(allow_none=True)
    if method == "fork" or default is None or default in START_METHODS:
        yield
        return
    multiprocessing.set_start_method(method, force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(default, force=True)


def _start_fork_server(context: BaseContext) -> None:
    from multiprocessing import forkserver

    # It is to import once what every worker would, if the program has not said what it is to
    # import; too late for one that runs already.
    # reach: python: the list can be set, and not be asked for; unset it is this one
    if forkserver._forkserver._preload_modules == ["__main__"]:  # type: ignore[attr-defined]
        context.set_forkserver_preload(["__main__", "lit_loader.core.executors.main"])
    try:
        forkserver.ensure_running()
    except ChildProcessError as error:
        raise LoaderError(
            "Python's fork server cannot start workers, because it is not a child of this "
            "process. Either this process was forked by one that uses the server, or other code "
            "has waited for the server's end. Set multiprocessing_context='spawn' here"
        ) from error


@contextlib.contextmanager
def _no_warning_of_threads() -> Iterator[None]:
    """Silence Python's warning of any fork while threads live, since torch always has some.

    What can go wrong in the child is a lock that one of them holds: see `_renew_locks`.
    """
    if sys.version_info < (3, 12):  # which does not warn; and filters are of all threads
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=".*multi-threaded.*fork", category=DeprecationWarning
        )
        yield


def _before_fork() -> None:
    if _forking is not None and _forking[0] == threading.get_ident():
        await_draws()


def _in_child() -> None:
    global _forking, _starting
    forking, _forking = _forking, None
    _starting = threading.RLock()
    if forking is not None:
        thread, collects = forking
        if thread == threading.get_ident():
            gc.freeze()  # or it copies the pages of the parent's objects, and finalizes its garbage
            _renew_locks()
        if collects:
            gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)


# reach: torch: the accelerators' locks, which a fork copies held; other versions keep theirs
def _renew_locks() -> None:
    """Make the locks new that a worker needs, and that another thread may have held at the fork.

    - Of standard streams, and of the files that logs go to (Python makes those of logging new): a
      thread holds one while it writes, and one that waits for input all the time. What the buffers
      hold is dropped: it is a copy, which the parent writes or reads.
    - Of accelerators: ``torch.manual_seed`` takes them, also where there is none.
    - Of ``numpy.random``.

    That of torch's generator cannot be made new: `await_draws` waits for it just before the fork.
    """
    for stream in _streams():
        buffer = getattr(stream, "buffer", stream)
        for kind in (io.BufferedWriter, io.BufferedReader):
            if type(buffer) is kind:
                with contextlib.suppress(ValueError, OSError):  # closed, or detached
                    kind.__init__(buffer, buffer.raw)  # gives it a new lock and an empty buffer
    accelerator: Any
    for accelerator in (torch.cuda, torch.xpu, torch.mtia):
        if hasattr(accelerator, "_initialization_lock"):
            accelerator._initialization_lock = threading.Lock()
    renew_numpy_generator()


def _streams() -> Iterator[Any]:
    yield from (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
    # reach: python: the handlers, without reading hundreds of loggers, which copies their pages.
    for handler in [*logging._at_fork_reinit_lock_weakset]:  # type: ignore[attr-defined]
        yield getattr(handler, "stream", None)


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
    """Return a file that can be read from when the parent has ended; None: there is none.

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
        if self._fds or self._spec is None:
            return
        from lit_loader.core.transport.dataset_pickle import Policy

        frozen = freeze_spec(self._spec, Policy.workers(main_is_importable()))
        self._fds = frozen.fds
        try:
            self._fds.insert(0, nameless_file("lit_loader arrays")[0])
            frozen.write(self._fds[0])
        except BaseException as error:
            self.close()
            if not isinstance(error, OSError) or error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # there is room
            raise LoaderError(
                f"not enough memory for the dataset's arrays ({frozen.nbytes / 2**20:,.0f} MiB "
                f"for all workers, {error}). {remedy(error)}, or use "
                "multiprocessing_context='fork', which copies none [LL102]"
            ) from error
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
