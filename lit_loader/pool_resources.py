"""What a pool of workers holds of the system: processes, pipes, files; given back all together."""

from __future__ import annotations

import contextlib
import os
from typing import Final

from lit_loader.arena import Arena
from lit_loader.board import StatusBoard
from lit_loader.messages import SIZE, Attend, Stop, pack
from lit_loader.processes import Starter, WorkerProcess, end_processes
from lit_loader.stacks import StackFile

__all__ = ["READ_AT_ONCE", "PoolResources", "drain"]

READ_AT_ONCE: Final = 64 * SIZE
"""Bytes that are read from a pipe at once."""


def drain(end: int) -> None:
    """Take everything out of a pipe; from now on reading from it does not block."""
    os.set_blocking(end, False)
    with contextlib.suppress(BlockingIOError):
        while os.read(end, READ_AT_ONCE):
            pass


class PoolResources:
    """What must be given back when a pool ends; knows nothing of the pool, so that it can."""

    def __init__(self, arena: Arena, board: StatusBoard) -> None:
        self.pid = os.getpid()
        self.processes: list[WorkerProcess] = []
        self.starter: Starter | None = None
        self.stacks = StackFile()
        self._arena = arena
        self._board = board
        self._fds: list[int] = []
        self.tasks: int | None = None
        self.results = -1
        self.controls: list[int] = []

    def pipe(self) -> tuple[int, int]:
        """Open a pipe that blocks at neither end; returns (read end, write end)."""
        ends = os.pipe()
        self._fds += ends
        for end in ends:
            os.set_blocking(end, False)
        return ends

    def close(self) -> None:
        """End the processes, in steps of growing force; close the files."""
        if os.getpid() != self.pid:
            return  # a forked copy: everything here belongs to the process that made it
        try:
            self._ask_to_stop()
            end_processes(self.processes, self.results)
        except BaseException:
            # Ctrl-C while waiting: no more patience, but nothing is left behind.
            for process in self.processes:
                with contextlib.suppress(ValueError):  # that one has ended and is let go of
                    process.kill()
                    process.join()
            raise
        finally:
            self.processes.clear()
            if self.starter is not None:
                self.starter.close()
            self.stacks.close()
            while self._fds:
                os.close(self._fds.pop())
            self._board.release()
            self._arena.close()

    def _ask_to_stop(self) -> None:
        self._board.generation += 1
        # Empty the pipes: full ones have no room for a Stop. A worker that finds its pipe empty
        # ends, too.
        for end in self._fds[::2]:
            drain(end)
        for control in self.controls:
            with contextlib.suppress(OSError):
                os.write(control, pack(Stop()))
        if self.tasks is not None:
            for _ in self.controls:
                with contextlib.suppress(OSError):
                    os.write(self.tasks, pack(Attend()))
