"""A process that is killed at the n-th instruction of a package's own code."""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from lit_loader.describe import PACKAGE


class Killer:
    """Kills its process at an instruction of the package's files that begin so.

    Instructions count from 1; with ``at=0`` they are only counted.
    """

    def __init__(self, files: str, at: int) -> None:
        self._files = os.path.join(PACKAGE, files)
        self.at, self.count = at, 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        """Be the trace function."""
        if not frame.f_code.co_filename.startswith(self._files):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.count += 1
            if self.count == self.at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self

    def during(self, call: Callable[[], Any]) -> Any:
        """Strike while something is called; returns what that returns."""
        sys._getframe().f_trace_opcodes = True  # asked for later, Python 3.12 does not see it
        sys.settrace(self)
        try:
            return call()
        finally:
            sys.settrace(None)
