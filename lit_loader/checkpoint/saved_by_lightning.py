"""Whether it is Lightning's own loop that saves and restores a loader's position.

Lightning does so by itself, but only knows which batches were given out, not which were trained on.
The loader then advises to add the callback that does know.
"""

from __future__ import annotations

import inspect
from typing import Final

__all__ = ["ADVICE_WITHOUT_CALLBACK", "called_by_lightning", "taken_ahead_by_lightning"]

ADVICE_WITHOUT_CALLBACK: Final = (
    "Lightning saves and restores the position of this loader, but no callback tells which batches "
    "were trained on: a checkpoint of a step that failed leaves its batch out, and one written "
    "between two epochs, or after fit ended within one, may go on elsewhere; add "
    "Trainer(callbacks=[lit_loader.LoaderStateCallback()])"
)

_NAMES: Final = ("lightning.pytorch", "pytorch_lightning")
_CALLERS: Final = {f"{name}.utilities.combined_loader" for name in _NAMES}
_FETCHERS: Final = {f"{name}.loops.fetchers" for name in _NAMES}


def called_by_lightning() -> bool:
    """Whether the method that asks this was called by a Trainer's loop."""
    frame = inspect.currentframe()
    for _ in range(2):
        frame = frame and frame.f_back
    return frame is not None and frame.f_globals.get("__name__") in _CALLERS


def taken_ahead_by_lightning() -> bool:
    """Whether a Trainer's loop is taking a batch while it only makes an iterator."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__") in _FETCHERS and frame.f_code.co_name == "__iter__":
            return True
        frame = frame.f_back
    return False
