"""A process that is killed at the n-th instruction of a package's own code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from lit_loader.describe import PACKAGE

__all__ = ["Killer"]


class Killer:
    """Kills its process at one of the instructions that a package's code runs.

    Args:
        room: The package's folder.
        at: The instruction, from 1 on; 0: none, they are counted.
        but: Files of it that do not count.

    Attributes:
        count: Instructions so far.
    """

    def __init__(self, room: str, at: int, but: tuple[str, ...] = ()) -> None:
        self._folder, self._but = os.path.join(PACKAGE, room), but
        self.at, self.count = at, 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        """Be the trace function."""
        file = frame.f_code.co_filename
        if not file.startswith(self._folder) or file.endswith(self._but):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.count += 1
            if self.count == self.at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self

    def during(self, call: Callable[[], Any]) -> Any:
        """Strike while something is called; returns what that returns."""
        sys.settrace(self)
        try:
            return call()
        finally:
            sys.settrace(None)
