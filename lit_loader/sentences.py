"""What a worker is at, in words.

Said of workers that died or hang (`core/executors/healer.py`), and by the viewer. Imports neither
torch nor NumPy.
"""

from __future__ import annotations

from typing import Any, Final

from lit_loader.core.transport.status_board import Stage

__all__ = ["NOT_KNOWN", "doing"]

NOT_KNOWN: Final = object()


def doing(stage: int, batch: str | None, position: int = -1, index: Any = NOT_KNOWN) -> str:
    """Say what a worker is at: ``fetching index 17 (sample 2 of batch 3)``.

    ``position`` is that in the batch of the sample that is being fetched, -1: not known.
    """
    name = Stage.NAMES[stage]
    if batch is None:
        return name
    if stage not in Stage.SAMPLES:
        return f"{name} ({batch})"
    at = "fetching" if stage == Stage.FETCHING else "waiting for the read of"
    if position < 0:
        return f"{at} {batch}"
    sample = f"sample {position} of {batch}"
    return f"{at} {sample}" if index is NOT_KNOWN else f"{at} index {index!r} ({sample})"
