"""Lightning under both of its names: ``lightning.pytorch``, and ``pytorch_lightning``, its copy.

A Trainer asks whether data modules are of the class of its own package, and takes a hook for
overridden if its code differs from that class's. So our classes derive from both, where both are
installed in the same version and so differ in nothing; importing the second takes a tenth of a
second more. With different versions they are of ``lightning.pytorch`` alone, and Trainers of the
other get a warning when they are made (`lightning/trainer_plugin.py`).
"""

from __future__ import annotations

import logging
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

import lightning.pytorch
from lightning.pytorch import Callback, LightningDataModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning_utilities.core import rank_zero

from lit_loader.lightning.trainers import QuietHooks

__all__ = [
    "DATA_MODULES",
    "TRAINERS",
    "Callback",
    "LightningDataModule",
    "is_hook_of",
    "is_refused",
]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


_VERSIONS: Final = {name: _version(name) for name in ("pytorch-lightning", "lightning")}

_PACKAGES = [lightning.pytorch]
if len({*_VERSIONS.values()}) == 1:
    import pytorch_lightning

    _PACKAGES.append(pytorch_lightning)
    # What is imported last logs for both: not so here, for the program may have quietened its own.
    _first = min((each.__name__ for each in _PACKAGES), key=[*sys.modules].index)
    rank_zero.log = logging.getLogger(f"{_first}.utilities.rank_zero")

DATA_MODULES: Final[tuple[type, ...]] = tuple(each.LightningDataModule for each in _PACKAGES)
TRAINERS: Final[tuple[type[Trainer], ...]] = tuple(each.Trainer for each in _PACKAGES)

if not TYPE_CHECKING:

    class LightningDataModule(*DATA_MODULES):
        """Lightning's, under each of its names."""

    class Callback(QuietHooks, *(each.Callback for each in _PACKAGES)):
        """Lightning's, under each of its names."""


def is_hook_of(data_module: object, name: str) -> bool:
    """Whether a data module of either name overrides a hook of Lightning's."""
    parent = next(each for each in DATA_MODULES if isinstance(data_module, each))
    return is_overridden(name, data_module, parent)


def is_refused() -> bool:
    """Whether Trainers of ``pytorch_lightning`` cannot have our callbacks; then says so."""
    if len(_PACKAGES) == 2:
        return False
    own, other = _VERSIONS["pytorch-lightning"], _VERSIONS["lightning"]
    warnings.warn(
        f"lit_loader: pytorch_lightning {own} and lightning {other} are installed. Unless both "
        "have one version, pytorch_lightning's Trainer neither accepts lit_loader's data module "
        f"and callbacks nor resumes its loaders exactly. Run pip install lightning=={own}",
        RuntimeWarning,
        stacklevel=2,
    )
    return True
