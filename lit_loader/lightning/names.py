"""Lightning under both of its names: ``lightning.pytorch``, and ``pytorch_lightning``, its copy.

A Trainer asks whether data modules are of the class of its own package, and takes a hook for
overridden if its code differs from that class's. So our classes derive from both, where both are
installed in the same version and so differ in nothing; importing the second takes a tenth of a
second more. With different versions they are of ``lightning.pytorch`` alone, and Trainers of the
other get a warning when they are made (`lightning/trainer_plugin.py`).
"""

from __future__ import annotations

import logging
import re
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

import lightning.pytorch
from lightning.pytorch import Callback, LightningDataModule, Trainer
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning_utilities.core import rank_zero

if TYPE_CHECKING:
    from lit_loader.loader import DataLoader

__all__ = [
    "DATA_MODULES",
    "TRAINERS",
    "Callback",
    "LightningDataModule",
    "combined",
    "is_hook_of",
    "is_refused",
    "our_loaders",
    "train_loaders",
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

_BATCH_HOOKS: Final = [n for n in dir(Callback) if re.match("on_(.*_batch_|before_|after_)", n)]

DATA_MODULES: Final[tuple[type, ...]] = tuple(each.LightningDataModule for each in _PACKAGES)
TRAINERS: Final[tuple[type[Trainer], ...]] = tuple(each.Trainer for each in _PACKAGES)

if not TYPE_CHECKING:

    class LightningDataModule(*DATA_MODULES):
        """Lightning's, under each of its names."""

    class Callback(*(each.Callback for each in _PACKAGES)):
        """Lightning's, under each of its names; without those hooks of a batch that do nothing.

        For each hook that it can call, Lightning names and enters a profile, even for an empty one.
        """

        def __init__(self) -> None:
            for name in _BATCH_HOOKS:
                if getattr(type(self), name) is getattr(lightning.pytorch.Callback, name):
                    setattr(self, name, None)


def combined(loaders: object) -> Any:
    """A loader, or a collection of them, as a CombinedLoader, which it may be already."""
    return loaders if hasattr(loaders, "flattened") else CombinedLoader(loaders)


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


def our_loaders(loaders: object) -> list[DataLoader[object]]:
    """Return those of a Trainer's loaders that are ours; it may have none, one, or a collection."""
    if loaders is None or "lit_loader.loader" not in sys.modules:
        return []
    from lit_loader.loader import DataLoader

    return [loader for loader in combined(loaders).flattened if isinstance(loader, DataLoader)]


def train_loaders(trainer: Trainer) -> list[DataLoader[object]]:
    """Return the Trainer's training loaders that are ours, in the order in which it keeps them."""
    return our_loaders(trainer.train_dataloader)
