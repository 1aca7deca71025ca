"""How a process of ours begins: without the parent's signals, handlers and held locks; `Permit`.

And how it ends with its parent: `follow_parent`.

`quiet_start` is around every start. The new process calls `reset_signals` first; if it was forked,
`begin_fork` before. A fork copies the locks that other threads hold, and nobody in the copy gives
them back.
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import multiprocessing
import os
import select
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import torch

from lit_loader.core.options.checks import START_METHODS
from lit_loader.core.seeding.seeds import await_draws, renew_numpy_generator
from lit_loader.core.system.fork_guard import unguarded_fork
from lit_loader.core.system.linux import open_process
from lit_loader.core.system.shared_file import Descriptor
from lit_loader.core.system.signals import SENT_TO_ALL, handled
from lit_loader.errors import LoaderError

_ENDING: Final = 5.0
"""Seconds that a fork server is given which refuses connections, and so is about to end."""


def default_context() -> BaseContext:
    """Python's default context, if it is one that can start workers.

    joblib's loky sets a start method of its own in its processes, under which even an explicit
    "spawn" fails in the child: there, workers are forked.
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
    main: Any = sys.modules["__main__"]
    hidden = {}
    if hide or not main_is_importable():
        hidden = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
    if "__file__" in hidden:
        del main.__file__
    if "__spec__" in hidden:
        main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(hidden)


class Permit(NamedTuple):
    """What a process that is being started waits for, so that none works that nobody knows of."""

    waiting: Descriptor  # the end of a pipe that the process reads from
    # The other end, in a process that is a fork of the one that gives the permit; or -1.
    going: int = -1

    def wait(self) -> None:
        """Wait for it, in the process; if it is not given, end."""
        if self.going >= 0:
            os.close(self.going)
        if not os.read(self.waiting.fd, 1):
            os._exit(1)
        os.close(self.waiting.fd)


@contextlib.contextmanager
def permit(forks: bool = False) -> Iterator[Permit]:
    """Start a process in here, which may begin when all of it has gone well."""
    waiting, going = os.pipe()
    try:
        yield Permit(Descriptor(waiting), going if forks else -1)
        with contextlib.suppress(BrokenPipeError):  # it has been killed already
            os.write(going, b"!")
    finally:
        os.close(waiting)
        os.close(going)


@contextlib.contextmanager
def quiet_start(context: BaseContext) -> Iterator[bool]:
    """Start a process with signals held back until it has called :func:`reset_signals`.

    Gives what a fork is to call :func:`begin_fork` with.

    Without, a Ctrl-C in that moment would run the parent's handler in the child. Helper processes
    of multiprocessing are started beforehand, or they would keep the signals blocked for good.

    Raises:
        LoaderError: Python's fork server cannot be used here.
    """
    method = context.get_start_method()
    if method == "forkserver":
        _start_fork_server(context)
    if method != "fork":
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()
    held = SENT_TO_ALL | (handled() if method == "fork" else set())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    collects = gc.isenabled()
    gc.disable()  # it would finalise, in a fork, what waits for threads
    try:
        with unguarded_fork(), _no_warning_of_threads():
            if method == "fork":
                await_draws()
            yield collects
    finally:
        if collects:
            gc.enable()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_fork_server(context: BaseContext) -> None:
    from multiprocessing import forkserver

    # It is to import once what every worker would, if the program has not said what it is to
    # import; too late for one that runs already.
    # reach: python: the list can be set, and not be asked for; unset it is this one
    if forkserver._forkserver._preload_modules == ["__main__"]:  # type: ignore[attr-defined]
        context.set_forkserver_preload(["__main__", "lit_loader.core.executors.starters"])
    try:
        forkserver.ensure_running()
    except ChildProcessError as error:
        raise LoaderError(
            "workers cannot come from Python's fork server, for it is no child of this process: "
            "this one was forked by a process that uses the server, or something else has waited "
            "for the server's end; set multiprocessing_context='spawn' (or 'fork') here [LL019]"
        ) from error
    except OSError as error:
        if "AF_UNIX path too long" not in str(error):
            raise
        raise LoaderError(
            "workers cannot come from Python's fork server, for the path of its socket is too long "
            f"in the temporary directory {tempfile.gettempdir()}: set TMPDIR to a shorter one, or "
            "multiprocessing_context='spawn' [LL020]"
        ) from error


def await_end_of_fork_server() -> None:
    """Wait until Python's fork server, which did not answer, is seen to have ended.

    Until then ``multiprocessing`` takes it to be running, and starts no other.
    """
    from multiprocessing import forkserver

    # reach: python: nothing else gives the fork server's process id
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if pid is None:
        return
    with contextlib.suppress(OSError):  # no pidfds here; it has ended already
        server = open_process(pid)
        try:
            wait_for([server], _ENDING)
        finally:
            os.close(server)


@contextlib.contextmanager
def _no_warning_of_threads() -> Iterator[None]:
    """Silence Python's warning of any fork while threads live, and torch always has some.

    What could go wrong in the child is locks held by them: see `core/executors/launcher.py`.
    """
    if sys.version_info < (3, 12):  # which does not warn; and filters are of all threads
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=".*multi-threaded.*fork", category=DeprecationWarning
        )
        yield


# reach: torch: the accelerators' locks, which a fork copies held; other versions keep theirs
def begin_fork(collects: bool) -> None:
    """Keep the collector from the parent's objects, and make locks new that others may have held.

    - Of standard streams, and of the files that logs go to (Python makes those of logging new): a
      thread holds one while it writes, and one that waits for input all the time. What the buffers
      hold is dropped: it is a copy, which the parent writes or reads.
    - Of accelerators: ``torch.manual_seed`` takes them, also where there is none.
    - Of ``numpy.random``.
    """
    gc.freeze()  # else it copies their pages, and finalises its garbage
    if collects:
        gc.enable()
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
    # reach: python: the handlers, without a look at hundreds of loggers, which copies their pages.
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
