"""Lightning's entry point: Trainers of programs with lit_loader know of its loaders.

Installed as ``lit_loader_trainer_plugin.py``, outside of the package: every Trainer of the
environment loads it, and one that has nothing to do with lit_loader is to be left as it is. That is
a *copy*, also in an editable installation, so this file stays tiny and everything that may change
lives in the package.
"""

from __future__ import annotations

import sys
from typing import Any


def callbacks() -> list[Any]:
    """Lightning's hook, called by every Trainer when it is made."""
    if "lit_loader" not in sys.modules:
        return []
    from lit_loader.lightning.automatic_callback import LoaderStateOnDemand

    return [LoaderStateOnDemand()]
