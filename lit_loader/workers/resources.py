"""`PoolResources`: what a pool has of the system (processes, pipes, files), given back at once."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Final

from lit_loader.system.interrupts import HeldBack
from lit_loader.system.stack_dumps import StackFile
from lit_loader.transport.arena import Arena
from lit_loader.transport.loader_page import LoaderPage
from lit_loader.transport.messages import SIZE, Stop, pack
from lit_loader.transport.status_board import StatusBoard
from lit_loader.workers.launcher import Launcher
from lit_loader.workers.starters import DirectStarter, Remote, WorkerProcess, end_processes

__all__ = ["READ_AT_ONCE", "PoolResources", "drain"]

READ_AT_ONCE: Final = 64 * SIZE
"""Bytes that are read from a pipe at once."""

_RECEIVER_TIME: Final = 1.0
"""Seconds that a thread has to leave the wait for messages of a pool that is being closed."""


def drain(end: int) -> None:
    """Take everything out of a pipe; from now on reading from it does not block."""
    os.set_blocking(end, False)
    with contextlib.suppress(BlockingIOError):
        while os.read(end, READ_AT_ONCE):
            pass


class PoolResources:
    """What must be given back when a pool ends; knows nothing of the pool, so that it can.

    Attributes:
        processes: The workers' by their numbers.
        controls: Write ends of their own pipes.
        closed: Whether that has begun. From then on nothing here is used any more.
        receiving: Held by the thread that waits for messages, which must not find other files under
            the descriptors of its pipes.
    """

    def __init__(self, arena: Arena, board: StatusBoard, page: LoaderPage) -> None:
        self.pid = os.getpid()
        self.processes: dict[int, WorkerProcess] = {}
        self.starter: Launcher | DirectStarter | None = None
        self.remote: Remote | None = None
        self.stacks = StackFile()
        self._arena = arena
        self._board = board
        self._page = page
        self._pipes: list[tuple[int, int]] = []
        self.results = -1
        self.controls: dict[int, int] = {}
        self.wake: int | None = None
        self.closed = False
        self.receiving = threading.RLock()
        self._waking = threading.RLock()

    def pipe(self) -> tuple[int, int]:
        """Open a pipe that blocks at neither end; returns (read end, write end)."""
        ends = os.pipe()
        self._pipes.append(ends)
        for end in ends:
            os.set_blocking(end, False)
        return ends

    def close_pipe(self, ends: tuple[int, int]) -> None:
        """Close a pipe that was for one worker alone, which is gone."""
        self._pipes.remove(ends)
        for end in ends:
            os.close(end)

    def close(self, unnoticed: bool = False) -> None:
        """End the processes, in steps of growing force; close the files. Every step is taken.

        Args:
            unnoticed: Called by a finalizer, which can raise nothing.
        """
        if os.getpid() != self.pid:
            return  # a forked copy: everything here belongs to the process that made it
        with HeldBack(hurry=self._kill, unnoticed=unnoticed):
            if self.closed:
                return
            self.closed = True
            with contextlib.ExitStack() as steps:
                # The last one first: each is taken whatever those before have raised.
                steps.callback(self._arena.close)
                steps.callback(self._board.release)
                steps.callback(self._page.close)
                for ends in self._pipes:
                    for end in ends:
                        steps.callback(os.close, end)
                steps.callback(self._await_receiver)
                steps.callback(self.stacks.close)
                steps.callback(self._close_starter)
                steps.callback(self._let_go)
                steps.callback(self._end)
                steps.callback(self._ask_to_stop)

    def _ask_to_stop(self) -> None:
        self._board.token += 1
        self._board.workers = 0
        # Empty the pipes: full ones have no room for a Stop. A worker that finds its pipe empty
        # ends, too.
        for end, _ in self._pipes:
            drain(end)
        for control in self.controls.values():
            with contextlib.suppress(OSError):
                os.write(control, pack(Stop()))

    def _end(self) -> None:
        try:
            end_processes([*self.processes.values()], self.results)
        except BaseException:
            self._kill()
            raise

    def _kill(self) -> None:
        """No more patience; for those that are there still."""
        for process in [*self.processes.values()]:
            with contextlib.suppress(ValueError, OSError):  # that one has been let go of
                process.kill()

    def _let_go(self) -> None:
        with contextlib.ExitStack() as steps:
            for process in self.processes.values():
                steps.callback(process.close)
                steps.callback(process.join)

    def _close_starter(self) -> None:
        self.processes.clear()
        if self.starter is not None:
            self.starter.close()
        if self.remote is not None:
            self.remote.close()

    def write_wake(self) -> None:
        """Have the thread look up that waits for messages; from any thread, also when closed."""
        with (
            self._waking,
            contextlib.suppress(BlockingIOError),
        ):  # it has been asked to by very many
            if self.wake is not None:
                os.write(self.wake, b"w")

    def _await_receiver(self) -> None:
        """Have the thread leave that waits for messages; there is one when the program exits."""
        self.write_wake()
        with self._waking:
            self.wake = None  # the file is about to be another one's
        if self.receiving.acquire(timeout=_RECEIVER_TIME):
            self.receiving.release()
