"""`quiet_start`: a process is started without the parent's signals and handlers; `Permit`.

Used around every start of a worker or launcher. The new process calls `reset_signals` first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import BaseContext
from typing import Any, Final

from lit_loader.errors import LoaderError
from lit_loader.seeding.seeds import await_draws
from lit_loader.system.fork_guard import unguarded_fork
from lit_loader.system.linux import open_process
from lit_loader.workers.parent import Descriptor

__all__ = ["Permit", "await_end_of_fork_server", "quiet_start", "reset_signals"]

_ENDING: Final = 5.0
"""Seconds that a fork server is given which refuses connections, and so is about to end."""


class Permit:
    """What a process that is being started waits for: so none works that nobody knows of.

    Whoever starts it gives it when the process is noted; if it is closed before, as by an exception
    in the midst of the start, the process ends.

    Attributes:
        waiting: The end that the process reads from.
    """

    def __init__(self, waiting: int = -1) -> None:
        self.waiting, self._going = (waiting, -1) if waiting >= 0 else os.pipe()

    def __reduce__(self) -> tuple[Any, ...]:
        return _permit_from, (Descriptor(self.waiting),)

    def __enter__(self) -> Permit:
        return self

    def __exit__(self, *error: object) -> None:
        for end in (self.waiting, self._going):
            if end >= 0:
                os.close(end)
        self.waiting = self._going = -1

    def give(self) -> None:
        """Let the process begin."""
        with contextlib.suppress(BrokenPipeError):  # it has been killed already
            os.write(self._going, b"!")

    def wait(self) -> None:
        """Wait for it, in the process; if it is not given, end."""
        if self._going >= 0:  # a forked copy
            os.close(self._going)
            self._going = -1
        with self:
            if not os.read(self.waiting, 1):
                os._exit(1)


def _permit_from(waiting: Descriptor) -> Permit:
    return Permit(waiting.fd)


@contextlib.contextmanager
def quiet_start(context: BaseContext) -> Iterator[None]:
    """Start a process with signals held back until it has called :func:`reset_signals`.

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
    held = {signal.SIGINT, signal.SIGTERM} | (_handled() if method == "fork" else set())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        with unguarded_fork(), _no_warning_of_threads():
            if method == "fork":
                await_draws()
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_fork_server(context: BaseContext) -> None:
    from multiprocessing import forkserver

    _preload(context)
    try:
        forkserver.ensure_running()
    except ChildProcessError as error:
        raise LoaderError(
            "workers cannot come from Python's fork server, for it is no child of this process: "
            "this one was forked by a process that uses the server, or something else has waited "
            "for the server's end; set multiprocessing_context='spawn' (or 'fork') here"
        ) from error


def _preload(context: BaseContext) -> None:
    """Let Python's fork server import once what every worker would.

    Only if the program has not said what it is to import; and too late for one that runs already.
    """
    from multiprocessing import forkserver

    # reach: python: the list can be set, and not be asked for; unset it is this one
    if forkserver._forkserver._preload_modules == ["__main__"]:  # type: ignore[attr-defined]
        context.set_forkserver_preload(["__main__", "lit_loader.workers.starters"])


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

    What could go wrong in the child is locks held by them: see `workers/launcher.py`.
    """
    if sys.version_info < (3, 12):  # which does not warn; and filters are of all threads
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=".*multi-threaded.*fork", category=DeprecationWarning
        )
        yield


def reset_signals() -> None:
    """Ignore Ctrl-C (it is the parent's to act on), and never run a handler of the parent's.

    SIGUSR1 and SIGUSR2 are ignored: a scheduler sends them to all processes of a job to announce
    its end, and only means the one that listens.
    """
    signal.set_wakeup_fd(-1)
    handled = _handled()
    signal.signal(
        signal.SIGCHLD, signal.SIG_DFL
    )  # ignored, it could not be learned how a child ended
    for number in handled:
        signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is not None:  # faulthandler's, say, which works here too
            signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM} | handled)


def _handled() -> set[int]:
    """Signals that have a handler in Python, which a fork copies."""
    return {number for number in signal.valid_signals() if callable(signal.getsignal(number))}
