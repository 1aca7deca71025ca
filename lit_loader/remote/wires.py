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
        config: A `RayWorkers`, or another object whose ``engine()`` makes an `Engine`; None: there
            are to be no remote workers any more, and the lanes only answer.
        roles: The remote workers.
        first: Number of the first lane; each remote worker has ``config.in_flight`` of them.
        alone: Whether there are no workers on this machine.
    """

    config: Any
    roles: list[Role]
    relay: int
    alone: bool

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
        token: That of the epoch it begins with.
        fds: Arena, pipe of all workers, file for stacks, payload, the socket of the starter, the
            relay's own pipe.
    """

    def __init__(
        self, parent: int, mapped: int, board_bytes: int, token: int, fds: tuple[int, ...]
    ) -> None:
        self.parent, self.mapped, self.board_bytes = parent, mapped, board_bytes
        self.token, self.fds = token, fds

    def __reduce__(self) -> tuple[Any, ...]:
        fds = [reduction.DupFd(fd) for fd in self.fds]
        return _wires, (self.parent, self.mapped, self.board_bytes, self.token, fds)


def _wires(parent: int, mapped: int, board_bytes: int, token: int, fds: list[Any]) -> Wires:
    return Wires(parent, mapped, board_bytes, token, tuple(fd.detach() for fd in fds))
