"""Words in which loaders and workers are spoken of.

Shared by the verdict, by what is said of workers that died or hang, and by the viewer. Imports
neither torch nor NumPy.
"""

from __future__ import annotations

from typing import Final

from lit_loader.core.transport.status_board import Stage

NOT_KNOWN: Final = object()


def duration(seconds: float) -> str:
    """Write a duration shortly: ``4.2 ms``, ``4.2 s``, ``42 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{max(seconds, 0) * 1e3:.2g} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def mebibytes(nbytes: int | None) -> str:
    """Write an amount of memory: ``1,024 MiB``; None: it is not known."""
    return "unknown" if nbytes is None else f"{nbytes / 2**20:,.0f} MiB"


def percent(part: float) -> str:
    """Write a part of a whole: ``38 %``."""
    return f"{100 * part:.0f} %"


def counted(number: int, one: str, several: str = "") -> str:
    """Write a number of things: ``3 workers``."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def doing(stage: int, batch: str | None, position: int = -1, index: object = NOT_KNOWN) -> str:
    """Say what a worker is at: ``fetching index 17 (sample 2 of batch 3)``.

    ``position`` is that in the batch of the sample that is being fetched, -1: not known.
    """
    name = Stage.NAMES[stage]
    if batch is None:
        return name
    if stage not in Stage.SAMPLES:
        return f"{name} ({batch})"
    if position < 0:
        return f"{name} {batch}"
    sample = f"sample {position} of {batch}"
    return f"{name} {sample}" if index is NOT_KNOWN else f"{name} index {index!r} ({sample})"
