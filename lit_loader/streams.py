"""Random streams of one's own within a process whose global generators belong to somebody else."""

from __future__ import annotations

import random
from types import TracebackType
from typing import Any

import numpy as np
import torch

from lit_loader.seeding import seed_worker

__all__ = ["OwnStreams"]


class OwnStreams:
    """The global generators as a worker with a seed would have them, inside of ``with`` blocks.

    Each block goes on where the last one ended; outside, the generators are as if there had been
    none. So ``seeding="worker"`` gives with ``num_workers=0`` what one worker would give.

    Args:
        seed: The worker's seed.
    """

    def __init__(self, seed: int) -> None:
        outside = _states()
        seed_worker(seed)
        self._own = _states()
        _restore(outside)

    def __enter__(self) -> None:
        self._outside = _states()
        _restore(self._own)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._own = _states()
        _restore(self._outside)


def _states() -> tuple[Any, Any, torch.Tensor]:
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state()


def _restore(states: tuple[Any, Any, torch.Tensor]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.default_generator.set_state(states[2])
