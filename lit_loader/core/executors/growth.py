"""`Growth`: workers whose memory grows and grows are told of before there is none left.

Looked at in the consumer's thread, every ten seconds at most, from ``/proc``; loaded when it is
looked at first. Told once: when the workers have grown by more than what is left, and still grow.
Caches that fill up and stop are told of only if they do not seem to fit.
"""

from __future__ import annotations

import warnings
from collections import deque
from typing import Any, Final

from lit_loader.core.system import linux
from lit_loader.core.system.cgroups import PAGE, memory_left
from lit_loader.core.transport.loader_page import GIVEN
from lit_loader.describe import program_stacklevel
from lit_loader.sentences import duration, mebibytes

__all__ = ["EVERY", "Growth"]

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


class Growth:
    """What the workers' memory was at the last looks."""

    def __init__(self) -> None:
        self._told = False
        self._begin([])

    def _begin(self, pids: list[int]) -> None:
        self._pids, self._looks = pids, 0
        self._base = 0, 0.0, 0  # bytes, time, batches given out
        self._last: deque[int] = deque(maxlen=_LOOKS + 1)

    def look(self, pool: Any, now: float) -> None:
        """Look at the workers' memory; ``now`` is ``time.monotonic()``."""
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
        grown = total - before
        if self._told or self._looks < _WARMING + _LOOKS or grown < _LITTLE:
            return
        recent = (total - self._last[0]) / _LOOKS
        if recent < _STILL * grown / (self._looks - _WARMING):
            return  # it has grown, and stops
        left = memory_left()
        if left is None or left >= grown:
            return
        self._told = True
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        seconds = now - since
        warnings.warn(
            f"lit_loader: the workers' memory grows without end: by {mebibytes(grown)} in "
            f"{duration(seconds)} ({grown / max(1, given - batches) / 1024:,.0f} KiB a batch), to "
            f"{mebibytes(total)}, and {mebibytes(left)} are left, for about "
            f"{duration(left / grown * seconds)} more. The largest is worker {largest} (pid "
            f"{pids[largest]}) with {mebibytes(sizes[largest])}. Look for a list, dict or "
            "functools.cache in the dataset or its transforms that every sample adds to, and bound "
            "it; fewer workers, or persistent_workers=False, only put the end off. [LL101]",
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
