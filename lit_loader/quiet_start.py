"""Starting a process such that nothing of the parent's gets into it that should not."""

from __future__ import annotations

import contextlib
import signal
import warnings
from collections.abc import Iterator
from multiprocessing.context import BaseContext

from lit_loader.fork_guard import unguarded_fork

__all__ = ["quiet_start", "reset_signals"]


@contextlib.contextmanager
def quiet_start(context: BaseContext) -> Iterator[None]:
    """Start a process with signals held back until it has called :func:`reset_signals`.

    Without, a Ctrl-C in that moment would run the parent's handler in the child. Helper processes
    of multiprocessing are started beforehand, or they would keep the signals blocked for good.
    """
    method = context.get_start_method()
    if method == "forkserver":
        from multiprocessing import forkserver

        forkserver.ensure_running()
    if method != "fork":
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        with unguarded_fork(), warnings.catch_warnings():
            # Python 3.12 warns of any fork while threads live, and torch always has some. What
            # could go wrong in the child is locks held by them; the worker takes none of those.
            warnings.filterwarnings(
                "ignore", message=".*multi-threaded.*fork", category=DeprecationWarning
            )
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def reset_signals() -> None:
    """Ignore Ctrl-C (it is the parent's to act on), and never run a handler of the parent's.

    SIGUSR1 and SIGUSR2 are ignored if the parent has a handler for them: a scheduler sends them to
    all processes of a job to announce its end, and only means the one that listens.
    """
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            announces = number in (signal.SIGUSR1, signal.SIGUSR2)
            signal.signal(number, signal.SIG_IGN if announces else signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
