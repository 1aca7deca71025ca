"""Signals in a process of ours: what is sent to a whole job is the parent's affair.

A terminal, a scheduler or a limit of CPU time signals all processes of a job, and means the one
that listens. Workers and the relay go on while that lives, and end with it: see
`core/executors/process_start.py`.
"""

from __future__ import annotations

import signal
from typing import Any, Final

from lit_loader.core.system.interrupts import with_handlers

_MAY_SHOW: Final = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Those by which native handlers show something, and go on."""

_IGNORED: Final = (signal.SIGINT, signal.SIGHUP, *_MAY_SHOW)
"""Signals to a whole job that are none of a worker's business, nor of what it starts."""

_HEEDED_BY_PROGRAMS: Final = (
    *(signal.SIGTERM, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF),
    *(signal.SIGXCPU, signal.SIGTSTP),
)
"""Those that must do what they usually do in programs that a worker starts. Such a program would go
on ignoring what the worker ignores, so a worker handles them, and does nothing."""

SENT_TO_ALL: Final = frozenset((*_IGNORED, *_HEEDED_BY_PROGRAMS))


def reset_signals() -> None:
    """Leave signals that are sent to a whole job to the parent, and never run its handlers."""
    signal.set_wakeup_fd(-1)
    before = handled()
    # Ignored, it could not be learned how a child ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in before - SENT_TO_ALL:
        signal.signal(number, signal.SIG_DFL)
    for number in SENT_TO_ALL:
        if number in _MAY_SHOW and signal.getsignal(number) is None:
            continue  # faulthandler's, say, which works here too
        if number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        else:
            signal.signal(number, _do_nothing)
            signal.siginterrupt(number, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SENT_TO_ALL | before)


def _do_nothing(number: int, frame: Any) -> None:
    """Handle a signal that is the parent's affair."""


def handled() -> set[int]:
    """Signals that have a handler in Python, which a fork copies."""
    return set(with_handlers())
