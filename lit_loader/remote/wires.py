"""What a relay is for, and what it says to its starter."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Final

from lit_loader.remote.engine import Engine, Role

__all__ = ["EXACTNESS", "FINAL", "GONE", "NODE", "RESTART", "Plan"]

RESTART, EXACTNESS, FINAL, NODE = "restart", "exactness", "final", "node"
"""What kind a message for the consumer is; the last one has a remote worker's place and machine."""

GONE: Final = os.EX_UNAVAILABLE
"""Exit code of a relay that can have no remote workers, and has said so."""


@dataclass(frozen=True)
class Plan:
    """What a relay is for.

    Attributes:
        config: A `RayWorkers`, or another object whose ``engine()`` makes an `Engine`.
        roles: The remote workers.
        relay: The relay's number; the remote workers have those before it.
    """

    config: Any
    roles: list[Role]
    relay: int

    def engine(self) -> Engine:
        """Make the engine."""
        make = getattr(self.config, "engine", None)
        if make is not None:
            return make()  # type: ignore[no-any-return]
        from lit_loader.remote.ray_engine import RayEngine

        return RayEngine(self.config)
