"""The keyboard of a terminal, key by key, as it was before afterwards."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import tty
from types import TracebackType
from typing import Any, Final

__all__ = ["Keyboard"]

_KEY: Final = re.compile(r"\x1b[\[O].|.", re.DOTALL)
_UP, _DOWN = ("\x1b[A", "\x1bOA", "k"), ("\x1b[B", "\x1bOB", "j")


class Keyboard:
    """Gives keys; without a terminal as standard input it gives none."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None
        self._pressed: list[str] = []  # and not given yet

    def __enter__(self) -> Keyboard:
        if sys.stdin is not None and sys.stdin.isatty():
            self._fd = sys.stdin.fileno()
            self._before = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """Wait for a key; returns "" if none comes, "q" if none ever will."""
        if self._before is None:
            select.select([], [], [], seconds)
            return ""
        if not self._pressed:
            if not select.select([self._fd], [], [], max(0.0, seconds))[0]:
                return ""
            data = os.read(self._fd, 64)
            if not data:
                return "q"  # the terminal is gone
            self._pressed = _KEY.findall(data.decode(errors="replace"))
        key: str = self._pressed.pop(0)
        return "up" if key in _UP else "down" if key in _DOWN else key
