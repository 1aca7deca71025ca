"""A Trainer's loaders, and hooks of callbacks; imports one of Lightning's two names only."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, Final

from lightning.pytorch.utilities import CombinedLoader

if TYPE_CHECKING:
    from lit_loader.loader import DataLoader

__all__ = ["QuietHooks", "combined", "our_loaders"]

_OF_BATCHES: Final = re.compile("on_(.*_batch_|before_|after_)")


class QuietHooks:
    """A callback without those hooks of a batch that do nothing.

    For each hook that it can call, Lightning names and enters a profile, even for an empty one.
    """

    def __init__(self) -> None:
        for name in filter(_OF_BATCHES.match, dir(self)):
            if getattr(type(self), name).__module__.endswith(".callbacks.callback"):
                setattr(self, name, None)


def combined(loaders: object) -> Any:
    """A loader, or a collection of them, as a CombinedLoader, which it may be already."""
    return loaders if hasattr(loaders, "flattened") else CombinedLoader(loaders)


def our_loaders(loaders: object) -> list[DataLoader[object]]:
    """Return those of a Trainer's loaders that are ours, in its order.

    It may have none, one, or a collection.
    """
    if loaders is None or "lit_loader.loader" not in sys.modules:
        return []
    from lit_loader.loader import DataLoader

    return [loader for loader in combined(loaders).flattened if isinstance(loader, DataLoader)]
