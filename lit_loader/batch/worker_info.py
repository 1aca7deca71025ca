"""`WorkerInfo`: what ``torch.utils.data.get_worker_info()`` answers, which datasets call.

Datasets that were written for torch take their share by it. So it names a reader's number among all
readers, whichever process the reader is served by.

Private reach into torch, with no public way: the variable behind a public function. Watched by
``tests/project/test_private_reach.py``.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data._utils import worker as torch_worker

from lit_loader.context import reading

__all__ = ["WorkerInfo", "show", "shown"]


class WorkerInfo(torch_worker.WorkerInfo):
    """Torch's, which notes that a dataset (or worker_init_fn) asks whose share it is to give."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("id", "num_workers", "dataset"):
            reading.shard_asked = True
        return super().__getattribute__(name)


def shown() -> Any:
    """Give what is answered now; None: this is no worker."""
    return torch_worker._worker_info


def show(info: Any) -> None:
    """Let this be answered; None: this is no worker."""
    torch_worker._worker_info = info
