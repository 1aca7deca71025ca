"""A worker's Python stacks, as `diagnostics/looks.py` reads them: the user's part of them."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Final

from lit_loader.diagnostics.looks import NoStacks, ask
from lit_loader.top.snapshot import Frame

__all__ = ["NoStacks", "ask", "parse"]

_FRAME: Final = re.compile(r'  File "(.*)", line (\d+|\?+) in (.*)')
_INSTALLED: Final = re.compile(r"/(site|dist)-packages/|/lib/python3\.\d+/|^<")


def parse(text: str, pid: int) -> list[Frame]:
    """Find the user's part of what a worker has written, and the line to look at.

    That is the thread that makes batches, from its innermost line to where the loader calls the
    user's code; all of it, if it is at the loader's own. ``text`` is faulthandler's, of all
    threads; paths are those that this process sees.
    """
    parts = re.split(r"\n(?=(?:Current thread|Thread) )", text)
    threads = [[_frame(match, pid) for match in _FRAME.finditer(part)] for part in parts]
    threads = [thread for thread in threads if thread]
    if not threads:
        return []
    thread = next((thread for thread in threads if _loader_of(thread)), threads[0])
    own = _loader_of(thread)
    theirs = [n for n, frame in enumerate(thread) if own and frame.file.startswith(own)]
    shown = thread[: theirs[0]] if theirs and theirs[0] else thread
    at = next((n for n, frame in enumerate(shown) if not _INSTALLED.search(frame.file)), None)
    if theirs and theirs[0]:
        # What the loader has called, if all of it is a library's.
        shown[len(shown) - 1 if at is None else at].user = True
    elif not theirs and at is not None:
        shown[at].user = True
    return shown


def _loader_of(thread: list[Frame]) -> str:
    """The folder of the package that this worker runs, with a slash; "": it is another thread."""
    mains = (frame.file for frame in thread if frame.function == "worker_main")
    return next(mains, "").removesuffix("core/executors/main.py")


def _frame(match: re.Match[str], pid: int) -> Frame:
    """A line of a stack, with the text of its source as the worker sees it, if it can be read."""
    file, number, function = match.groups()
    frame = Frame(file, int(number) if number.isdigit() else 0, function)
    path = Path(f"/proc/{pid}/root{file}" if file.startswith("/") else f"/proc/{pid}/cwd/{file}")
    with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="replace") as source:
        frame.code = next((text.strip() for n, text in enumerate(source, 1) if n == frame.line), "")
    return frame
