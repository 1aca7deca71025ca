"""A signal at the n-th instruction of what is called, and its handler wherever Python runs it then.

While a call is traced, instruction by instruction, the function that tells the interpreter of a
SIGINT is put in the place of the trace function: a function of C, so that nothing of Python runs
between it and what is traced. The handler runs at the next moment at which the interpreter looks
for signals, as with a real one.
"""

import contextlib
import ctypes
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from lit_loader.core.system.interrupts import HeldBack


class Struck(Exception):
    """What the handler raises: an ``Exception``, which ``except Exception`` would catch."""


class StruckHard(BaseException):
    """The same, and none."""


_interrupt: Any = ctypes.PYFUNCTYPE(None, *[ctypes.py_object] * 3)(
    ("PyErr_SetInterrupt", ctypes.pythonapi)
)
"""Called as a trace function: with a frame, an event and an argument, which C ignores."""


class Strike:
    """One strike, and where it came: at instruction ``at`` (from 0) within what is traced."""

    def __init__(self, at: int, kind: type[BaseException] = Struck) -> None:
        self.at = at
        self.kind = kind
        self.instructions = 0  # how many there were
        self.exposed: list[int] = []  # those during which no exception was held back
        self.struck = False  # whether the handler has run
        self.lost = False  # whether Python has dropped what it raised, in a finalizer, say
        self._told = False

    @contextlib.contextmanager
    def handling(self) -> Iterator[None]:
        """Have the handler installed."""
        before = signal.signal(signal.SIGINT, self._handle)
        hook, sys.unraisablehook = sys.unraisablehook, self._note_lost
        try:
            yield
        finally:
            sys.settrace(None)
            sys.unraisablehook = hook
            signal.signal(signal.SIGINT, before)

    def _note_lost(self, unraisable: Any) -> None:
        self.lost = True

    def begin(self) -> None:
        """Trace what is called from now on."""
        sys.settrace(self._trace)

    @staticmethod
    def end() -> None:
        """Trace no longer."""
        sys.settrace(None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        sys.settrace(None)
        if not self.struck:  # once, however often it was told of
            self.struck = True
            raise self.kind("a signal handler's")

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if self._told:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            if self.at < 0 and HeldBack.active is None:
                self.exposed.append(self.instructions)
            self.instructions += 1
            if self.instructions > self.at >= 0:
                self._told = True
                caller = frame.f_back
                while caller is not None:  # else this function, where signals are looked for, too,
                    caller.f_trace = None  # would be called for them
                    caller = caller.f_back
                return _interrupt  # at the next instruction of this frame
        return self._trace
