"""Lightning's entry point: gives Trainers the callback that keeps the state of our loaders.

Installed as ``lit_loader_trainer_plugin.py``, outside of the package: every Trainer of the
environment loads it, and one that has nothing to do with lit_loader is to be left as it is. That is
a *copy*, also in an editable installation, so this file stays tiny and everything that may change
lives in the package.
"""

from __future__ import annotations

import importlib
import sys


def callbacks() -> list[object]:
    """Lightning's hook, called by every Trainer when it is made."""
    if "lit_loader" not in sys.modules:
        return []
    from lit_loader.lightning.state_hooks import by_itself

    return [by_itself()]


def callbacks_for_pytorch_lightning() -> list[object]:
    """The same, called by the Trainers of Lightning's other name."""
    if "lit_loader" not in sys.modules:
        return []
    from lit_loader.lightning.names import is_refused

    if is_refused():
        return []
    importlib.import_module("lit_loader.lightning.state_callback")  # for Trainers of both names
    return callbacks()
