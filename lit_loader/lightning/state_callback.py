"""`LoaderStateCallback`, for Trainers of both of Lightning's names."""

from __future__ import annotations

from lit_loader.describe import public
from lit_loader.lightning.names import Callback
from lit_loader.lightning.state_hooks import StateHooks

__all__ = ["LoaderStateCallback"]


@public
class LoaderStateCallback(StateHooks, Callback):
    """Commits the training loaders' states step by step, and resumes them exactly.

    The Trainer has one by itself if lit_loader is installed and imported before the Trainer is
    made, and `LoaderDataModule` brings one along; else pass one in ``Trainer(callbacks=[...])``. It
    puts itself in front of the other callbacks, so that it has committed a step before a checkpoint
    of it is written. Loaders other than `DataLoader` are left alone.
    """
