"""`Growth`: workers whose memory grows and grows are told of before there is none left.

Looked at in the consumer's thread, every ten seconds at most, from ``/proc``; loaded when it is
looked at first. Told once: when the workers have grown by more than what is left, and still grow.
Caches that fill up and stop are told of only if they do not seem to fit. What grows is named by the
code: what samples add to, of the containers that the dataset holds.
"""

from __future__ import annotations

import dis  # reach: python: which attributes code adds items to
import sys
import warnings
from collections import deque
from types import CodeType
from typing import Any, Final

from lit_loader.core.system import linux
from lit_loader.core.transport.viewer_page import GIVEN
from lit_loader.data.memory import PAGE, memory_left, memory_limits
from lit_loader.describe import program_stacklevel
from lit_loader.diagnostics.fork_dangers import held_by
from lit_loader.diagnostics.sentences import duration, mebibytes

EVERY: Final = 10.0
"""Seconds from one look to the next."""

_LOOKS: Final = 6
"""Looks over which it is seen whether memory still grows."""

_STILL: Final = 0.5
"""Part of its mean pace that it must still grow at."""

_WARMING: Final = 3
"""Looks after which growth is counted: workers import, open files, fill buffers."""

_LITTLE: Final = 64 << 20
"""Bytes that all workers together may grow by."""


_ADDS: Final = frozenset(
    ("add", "append", "appendleft", "extend", "insert", "setdefault", "update", "subtract")
)
"""Methods by which containers grow."""


class Growth:
    """What the workers' memory was at the last looks.

    Attributes:
        slope: Bytes a batch by which all of them together have grown, and still grow; 0: they do
            not, or by little.
        oom_kills: Processes of the control group that the kernel has ended before; None: not known.
    """

    slope = 0.0
    oom_kills: int | None = None

    def __init__(self) -> None:
        self._told, self._due = False, 0.0
        self._begin([])

    def _begin(self, pids: list[int]) -> None:
        self._pids, self._looks = pids, 0
        self._base = 0, 0.0, 0  # bytes, time, batches given out
        self._last: deque[int] = deque(maxlen=_LOOKS + 1)

    def look(self, pool: Any, dataset: Any, now: float) -> float:
        """Look at the workers' memory, if it is time to; ``now`` is ``time.monotonic()``.

        Returns the slope. The first time, note how many processes the kernel has ended so far.
        """
        if now >= self._due:
            if self.oom_kills is None:
                self.oom_kills = memory_limits().oom_kills
            self._due = now + EVERY
            self._look(pool, dataset, now)
        return self.slope

    def _look(self, pool: Any, dataset: Any, now: float) -> None:
        pids = pool.workers.pids
        if pids != self._pids:
            self._begin(pids)
        sizes = [own_bytes(pid) for pid in pids]
        total, given = sum(sizes), pool.page.row[GIVEN]
        self._last.append(total)
        self._looks += 1
        if self._looks == _WARMING:
            self._base = total, now, given
        before, since, batches = self._base
        grown, self.slope = total - before, 0.0
        if self._looks < _WARMING + _LOOKS or grown < _LITTLE:
            return
        recent = (total - self._last[0]) / _LOOKS
        if recent < _STILL * grown / (self._looks - _WARMING):
            return  # it has grown, and stops
        self.slope = grown / max(1, given - batches)
        left = None if self._told else memory_left()
        if left is None or left >= grown:
            return
        self._told = True
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        seconds, found = now - since, growing(dataset)
        what = (
            f"Most likely {' or '.join(found[:3])} grows: bound it"
            if found
            else "Look for a list, dict or functools.cache in the dataset or its transforms that "
            "every sample adds to, and bound it"
        )
        warnings.warn(
            f"lit_loader: the workers' memory grows without end: by {mebibytes(grown)} in "
            f"{duration(seconds)} ({self.slope / 1024:,.0f} KiB a batch), to "
            f"{mebibytes(total)}, and {mebibytes(left)} are left, for about "
            f"{duration(left / grown * seconds)} more. The largest is worker {largest} (pid "
            f"{pids[largest]}) with {mebibytes(sizes[largest])}. {what}; fewer workers, or "
            "persistent_workers=False, only put the end off. [LL101]",
            RuntimeWarning,
            stacklevel=program_stacklevel(),
        )


def own_bytes(pid: int) -> int:
    """Bytes of a process that are resident and of no file, nor shared memory; 0: it is gone."""
    try:
        with open(f"{linux.PROC}/{pid}/statm") as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except (OSError, ValueError):
        return 0
    return (resident - shared) * PAGE


def growing(dataset: Any) -> list[str]:
    """Name the containers that samples add to, by the code of the dataset's classes.

    This process's own have not grown: workers have copies.
    """
    held, kinds = held_by(dataset)
    functions = [
        code
        for kind in kinds
        for name, member in [*vars(kind).items()]
        if name != "__init__" and isinstance(code := getattr(member, "__code__", None), CodeType)
    ]
    called, stored = set[str](), set[str]()
    for code in functions:
        _note_growing(code, called, stored)
    found = [
        f"{each.path} ({type(each.value).__name__})"
        for each in held
        if isinstance(each.value, (list, dict, set, bytearray, deque))
        and getattr(each.value, "maxlen", None) is None
        # What is stored in a list is in another's place.
        and each.name in (called | stored if isinstance(each.value, dict) else called)
    ]
    modules = {sys.modules.get(kind.__module__) for kind in kinds}
    used = {name for code in functions for name in code.co_names}
    for module in filter(None, modules):
        for name in sorted(used & vars(module).keys()):
            parameters = getattr(vars(module)[name], "cache_parameters", None)
            if callable(parameters) and parameters()["maxsize"] is None:
                found.append(f"{name} (a functools.cache without a bound)")
    return found


def _note_growing(code: CodeType, called: set[str], stored: set[str]) -> None:
    """Note attributes of which code calls methods that add items, or stores some, as far as seen.

    For the second, all that stand in the same line are.
    """
    line: set[str] = set()
    last = ""
    for step in dis.get_instructions(code):
        if step.starts_line:
            line = set()
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if step.argval in _ADDS:
                called.add(last)
            last = step.argval
            line.add(last)
        elif step.opname == "STORE_SUBSCR":
            stored |= line
