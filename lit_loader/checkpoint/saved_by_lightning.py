"""Whether Lightning looks after a loader's position on its own, and what to say then."""

from __future__ import annotations

import inspect
from typing import Final

__all__ = ["ADVICE_WITHOUT_CALLBACK", "called_by_lightning"]

ADVICE_WITHOUT_CALLBACK: Final = (
    "Lightning saves and restores the position of this loader, but no callback tells which batches "
    "were trained on: a checkpoint of a step that failed leaves its batch out, and one written "
    "between two epochs, or after fit ended within one, may go on elsewhere; add "
    "Trainer(callbacks=[lit_loader.LoaderStateCallback()])"
)

_CALLER: Final = "lightning.pytorch.utilities.combined_loader"


def called_by_lightning() -> bool:
    """Whether a Trainer's loop called the method of a loader that asks this."""
    frame = inspect.currentframe()
    for _ in range(2):
        frame = frame and frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == _CALLER
