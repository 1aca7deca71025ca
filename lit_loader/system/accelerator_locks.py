"""torch's locks around accelerators in a forked process: free, whatever other threads did.

``torch.manual_seed`` takes the lock of each kind of accelerator, also where there is none, and
holds it while it formats the stack of its caller. If a fork falls into that, the copy's lock is
held for good, by a thread that the copy has not got; the worker's own ``torch.manual_seed``, in its
``worker_init_fn`` above all, would never return.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

__all__ = ["renew_accelerator_locks"]


def renew_accelerator_locks() -> None:
    """Make the locks new, in a process just forked.

    They are private; a version of torch that has none, or others, keeps what it has, and a start
    that hangs for it is made again.
    """
    accelerator: Any
    for accelerator in (torch.cuda, torch.xpu, torch.mtia):
        if hasattr(accelerator, "_initialization_lock"):
            accelerator._initialization_lock = threading.Lock()
