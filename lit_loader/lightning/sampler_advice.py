"""What to do where Lightning cannot divide a batch sampler of the program's among its ranks."""

from __future__ import annotations

import sys
import traceback

__all__ = ["advise_on_batch_sampler"]


def advise_on_batch_sampler(error: BaseException) -> None:
    """Add the advice to a TypeError that comes from there, if the loader is one of ours.

    Lightning makes the batch sampler anew, around a sampler of its own. One that has arguments of
    its own refuses that, and nothing in its message says who has called it.
    """
    if not isinstance(error, TypeError) or "lit_loader.loader" not in sys.modules:
        return
    from lit_loader.loader import DataLoader

    for frame, _ in traceback.walk_tb(error.__traceback__):
        # reach: lightning: where it rebuilds a loader, and what it names that there
        if frame.f_code.co_name == "_dataloader_init_kwargs_resolve_sampler":
            loader = frame.f_locals.get("dataloader")
            if isinstance(loader, DataLoader) and loader.num_replicas is None:
                name = type(loader.batch_sampler).__name__
                error.args = (
                    f"{' '.join(str(error).split())} (Lightning makes the batch sampler {name} "
                    "anew, around a sampler of its own, to divide the data among its ranks: pass "
                    "Trainer(use_distributed_sampler=False), and num_replicas= and rank= to "
                    "lit_loader.DataLoader, which then divides the batches)",
                )
                return
