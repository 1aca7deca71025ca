"""What a relay is given at its start, and what it and its starter say to each other."""

from __future__ import annotations

import os
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any, Final

from lit_loader.remote.engine import Engine, Role

__all__ = ["EXACTNESS", "FINAL", "GONE", "NODE", "RESTART", "Plan", "Wires"]

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


class Wires:
    """What connects a relay with its parent, as descriptors; goes along when it is started.

    Attributes:
        parent: Process id of the parent.
        mapped: Bytes of the arena to map.
        board_bytes: Bytes of the status board at its start.
        fds: Arena, pipe of all workers, file for stacks, payload, the socket of the starter, the
            relay's own pipe.
    """

    def __init__(self, parent: int, mapped: int, board_bytes: int, fds: tuple[int, ...]) -> None:
        self.parent, self.mapped, self.board_bytes, self.fds = parent, mapped, board_bytes, fds

    def __reduce__(self) -> tuple[Any, ...]:
        fds = [reduction.DupFd(fd) for fd in self.fds]
        return _wires, (self.parent, self.mapped, self.board_bytes, fds)


def _wires(parent: int, mapped: int, board_bytes: int, fds: list[Any]) -> Wires:
    return Wires(parent, mapped, board_bytes, tuple(fd.detach() for fd in fds))
