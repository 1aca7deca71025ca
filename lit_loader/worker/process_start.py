"""`quiet_start`: a process is started without the parent's signals, handlers and held locks.

Used around every start of a worker or launcher. The new process calls `reset_signals` first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import BaseContext
from typing import Final

from lit_loader.errors import LoaderError
from lit_loader.seeding.seeds import await_draws, renew_numpy_generator
from lit_loader.system.accelerator_locks import renew_accelerator_locks
from lit_loader.system.fork_guard import unguarded_fork
from lit_loader.system.stdio_locks import renew_stream_locks

__all__ = ["await_end_of_fork_server", "quiet_start", "reset_signals"]

_ENDING: Final = 5.0
"""Seconds that a fork server is given which refuses connections, and so is about to end."""

_UNDISTURBED: Final = 0.05
"""Seconds that other threads leave to this one between the end of their draws and the fork."""

_TURNS: Final = 3
"""Threads that are at Python code, and are given their turn before."""

_interval: float | None = None
"""The switch interval of threads, while it is another one."""

_forking: set[int] = set()
"""The threads that fork a process of our own just now."""


@contextlib.contextmanager
def quiet_start(context: BaseContext) -> Iterator[None]:
    """Start a process with signals held back until it has called :func:`reset_signals`.

    Without, a Ctrl-C in that moment would run the parent's handler in the child. Helper processes
    of multiprocessing are started beforehand, or they would keep the signals blocked for good.

    A process that is forked gets locks of its own for the standard streams, logs, NumPy's global
    generator and torch's accelerators: other threads may hold those of this process.

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
        with unguarded_fork(), _no_warning_of_threads(), _renewed_locks():
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _renewed_locks() -> Iterator[None]:
    """Make locks new in processes that this thread forks meanwhile."""
    thread = threading.get_ident()
    _forking.add(thread)
    try:
        yield
    finally:
        _forking.discard(thread)


def _before_fork() -> None:
    """Wait for the end of a draw from torch's global generator, whose lock cannot be made new."""
    global _interval
    if threading.get_ident() not in _forking:
        return
    if _interval is None:
        _interval = sys.getswitchinterval()
        sys.setswitchinterval(_UNDISTURBED)
    # A thread that waits for its turn by now asks for it soon; one that comes later does not.
    for _ in range(_TURNS):
        time.sleep(0)
    await_draws()


def _after_fork_in_parent() -> None:
    global _interval
    if _interval is not None:
        sys.setswitchinterval(_interval)
        _interval = None


def _after_fork_in_child() -> None:
    _after_fork_in_parent()
    # First thing in the child: multiprocessing's own beginning needs the streams.
    if threading.get_ident() in _forking:
        renew_stream_locks()
        renew_numpy_generator()
        renew_accelerator_locks()
    _forking.clear()  # what is forked from here has no other thread's locks


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)


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

    # Private reach: the list can be set, and not be asked for. Unset it is this one.
    if forkserver._forkserver._preload_modules == ["__main__"]:  # type: ignore[attr-defined]
        context.set_forkserver_preload(["__main__", "lit_loader.worker.main"])


def await_end_of_fork_server() -> None:
    """Wait until Python's fork server, which did not answer, is seen to have ended.

    Until then ``multiprocessing`` takes it to be running, and starts no other.
    """
    from multiprocessing import forkserver

    # Private reach: nothing else gives the server's process id.
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if pid is None:
        return
    with contextlib.suppress(AttributeError, OSError):  # no pidfd here; it has ended already
        server = os.pidfd_open(pid)
        try:
            wait_for([server], _ENDING)
        finally:
            os.close(server)


@contextlib.contextmanager
def _no_warning_of_threads() -> Iterator[None]:
    """Silence Python's warning of any fork while threads live, and torch always has some.

    What could go wrong in the child is locks held by them: see `worker/launcher.py`.
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
