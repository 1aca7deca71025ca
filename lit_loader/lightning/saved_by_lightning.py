"""Whether it is Lightning's own loop that saves and restores a loader's position.

Lightning does so by itself, but only knows which batches were given out, not which were trained on.
The loader then advises to add the callback that does know.
"""

from __future__ import annotations

import weakref
from typing import Final

from lit_loader.describe import callers

__all__ = ["ADVICE_WITHOUT_CALLBACK", "CALLBACKS", "called_by_lightning"]

ADVICE_WITHOUT_CALLBACK: Final = (
    "Lightning saves and restores the position of this loader, but no callback tells which batches "
    "were trained on: a checkpoint of a step that failed leaves its batch out, and one written "
    "between two epochs, or after fit ended within one, may go on elsewhere; add "
    "Trainer(callbacks=[lit_loader.LoaderStateCallback()]) [LL326]"
)

CALLBACKS: Final[weakref.WeakSet[object]] = weakref.WeakSet()
"""Those of a fit that has begun: each restores what Lightning restores, in all situations."""

_CALLERS: Final = {
    f"{name}.utilities.combined_loader" for name in ("lightning.pytorch", "pytorch_lightning")
}


def called_by_lightning() -> bool:
    """Whether the method that asks this was called by a Trainer's loop."""
    return any(module in _CALLERS for module, _ in callers()[1:2])
