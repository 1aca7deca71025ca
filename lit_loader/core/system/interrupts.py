"""Ctrl-C and other signals: `HeldBack` delays what their handlers raise until a work is done.

A handler runs in the main thread, between any two instructions of whatever that is doing. Ctrl-C in
the middle of starting or ending processes would leave some of them, and open files, behind. So such
work is done under `HeldBack`: handlers run at once, but what they raise comes out when the work is
done. Everywhere else an exception may come at any moment, and is treated as any other.

`reset_signals` is for processes of our own: what is sent to a whole job is the parent's affair. A
terminal, a scheduler or a limit of CPU time signals all processes of a job, and means the one that
listens. Workers and the relay go on while that lives, and end with it: see
`core/executors/process_start.py`.
"""

from __future__ import annotations

# reach: python: the handlers, without an enumeration's member for each
import _signal  # type: ignore[import-not-found]
import _thread
import collections
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, TracebackType
from typing import Any, Final

Hurry = Callable[[], object]

_SIGNALS: Final = tuple(sorted(signal.valid_signals()))

_PATIENCE: Final = 1.0
"""Seconds in which work may end after an exception was held back."""

_LEAVING: Final = 0.005
"""Seconds that the main thread has to leave a finalizer before a signal is raised again."""


class HeldBack:
    """Work that no exception out of a signal handler breaks into; for ``with``, main thread or not.

    The first exception is raised at the end of the work, whatever the work itself raises. Others
    that come within a second are dropped, because somebody may press Ctrl-C again and again; but a
    KeyboardInterrupt or SystemExit takes the first one's place. A later one comes through, so that
    work that hangs can be left. Within another work held back, this is a part of that.

    Args:
        hurry: Called when there is an exception to raise, so that the work ends soon.
        unnoticed: The work is done by a finalizer, where whatever is raised is lost. The handlers
            are called after it, then.
    """

    active: HeldBack | None = None  # only the main thread ever sets it

    def __init__(self, hurry: Hurry | None = None, unnoticed: bool = False) -> None:
        self.hurries = [] if hurry is None else [hurry]
        # When the program exits, what a finalizer raises is shown; and no thread can be started.
        self._unnoticed = unnoticed and threading.main_thread().is_alive()
        self._outer: HeldBack | None = None
        self.handlers: dict[int, Any] = {}
        self.held: BaseException | None = None
        self._until = 0.0  # when another exception comes through
        self.missed: list[int] = []

    def __enter__(self) -> HeldBack:
        if threading.current_thread() is not threading.main_thread():
            return self
        outer = HeldBack.active
        if outer is not None:
            self._outer = outer
            outer.hurries += self.hurries
            if outer.held is not None or outer.missed:
                outer.hasten()
            return self
        HeldBack.active = self
        try:
            _for_each(self._stand_in, with_handlers())
        except BaseException:
            self._put_back()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        hurries, self.hurries = self.hurries, []
        if self._outer is not None:
            for hurry in hurries:
                self._outer.hurries.remove(hurry)
        elif HeldBack.active is self:
            late = self._put_back()
            for number in self.missed:
                # Not here: it is to run when the finalizer is over.
                _thread.start_new_thread(_trip, (number,))
            held, self.held = self.held or late, None
            if held is not None:
                try:
                    raise held
                finally:
                    del held  # or its traceback would hold this frame, and this frame it

    def _run(self, number: int, frame: FrameType | None) -> None:
        """Stand in for a signal's handler."""
        handler = self.handlers[number]
        # One that is left behind: two more came while the handlers were put back.
        if HeldBack.active is not self:
            handler(number, frame)
        elif self._unnoticed:
            self.missed.append(number)
            if number in (signal.SIGINT, signal.SIGTERM):
                self.hasten()
        else:
            try:
                handler(number, frame)
            except BaseException as error:
                now = time.monotonic()
                if self.held is None:
                    self.held, self._until = error, now + _PATIENCE
                    self.hasten()
                elif now > self._until:
                    raise
                elif isinstance(error, (KeyboardInterrupt, SystemExit)):
                    self.held = error  # an alarm's, say, is less urgent

    def hasten(self) -> None:
        """Make the work end soon: the exception waits for it."""
        for hurry in list(self.hurries):
            hurry()

    def _put_back(self) -> BaseException | None:
        """Put the handlers back; returns what they raise, of signals that come just now."""
        HeldBack.active = None
        late = None
        while True:
            try:
                _for_each(self._put_one_back, self.handlers)
                return late
            except BaseException as error:
                late = late or error

    def _stand_in(self, number: int) -> None:
        self.handlers[number] = _signal.getsignal(number)
        _signal.signal(number, self._run)

    def _put_one_back(self, number: int) -> None:
        if self._run == _signal.getsignal(number):  # else the work has set another
            _signal.signal(number, self.handlers[number])


def take_all(steps: Iterable[Callable[[], object]]) -> None:
    """Take every step, whatever the others raise; then raise the first exception."""
    first: BaseException | None = None
    for step in steps:
        try:
            step()
        except BaseException as error:
            first = first or error
    if first is not None:
        try:
            raise first
        finally:
            del first  # whose traceback holds this frame


def with_handlers() -> Iterator[int]:
    """Yield the signals that have a handler in Python; no code in Python runs."""
    # signal.getsignal makes an enumeration's member of each answer, which is 15 times slower.
    return itertools.compress(_SIGNALS, map(callable, map(_signal.getsignal, _SIGNALS)))


def _for_each(act: Callable[[int], object], numbers: Iterable[int]) -> None:
    """Act on each, without a loop in Python.

    Where one jumps back, a handler's exception can pass by the ``try`` around it (Python 3.11 and
    later: github.com/python/cpython/issues/108214).
    """
    collections.deque(map(act, numbers), maxlen=0)


def _trip(number: int) -> None:
    """Send a signal again: a real one, which interrupts what the main thread waits for."""
    main = threading.main_thread().ident
    time.sleep(_LEAVING)
    if main is not None:
        signal.pthread_kill(main, number)


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


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Handle a signal that is the parent's affair."""


def handled() -> set[int]:
    """Signals that have a handler in Python, which a fork copies."""
    return set(with_handlers())
