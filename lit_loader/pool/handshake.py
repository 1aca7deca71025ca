"""`Handshake`: has every worker forget older tasks before a new epoch's are sent.

::

    cancel, begin ── Resume ──▶ every worker ── Ack ──▶ acknowledged
                                            when all have: finish ── Proceed ──▶ every worker

Used by `pool/worker_pool.py`. A *generation* is what lies between two of these, or between one and
a cancellation: a task of an older generation is void, and so is its result. Workers read the
generation that is wanted from the status board, within a batch too; the handshake makes sure that
none of them writes into an older task's slot any more.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from lit_loader.pool.pipes import Pipes
from lit_loader.transport.messages import Ack, Proceed, Resume
from lit_loader.transport.status_board import StatusBoard

__all__ = ["Handshake"]


class Handshake:
    """Counts the generations, and waits for acknowledgements of the newest.

    Args:
        board: Shows the generation to the workers.
        pipes: Carry the messages.

    Attributes:
        generation: Counts the epochs begun, and those cancelled.
        missing: The workers that have not acknowledged; None: no handshake is going on.
    """

    def __init__(self, board: StatusBoard, pipes: Pipes) -> None:
        self._board = board
        self._pipes = pipes
        self._cancelling = threading.RLock()  # the garbage collector may end up in there again
        self.generation = board.generation = 1
        self.missing: set[int] | None = None

    def cancel(self, generation: int | None = None) -> None:
        """Make all tasks void; from any thread.

        Args:
            generation: Do nothing if another one has begun since.
        """
        with self._cancelling:
            if generation not in (None, self.generation):
                return
            self.generation += 1
            self._board.generation = self.generation
            self._pipes.take_back()

    def begin(self, workers: Collection[int]) -> None:
        """Ask workers to acknowledge that older tasks are void, which :meth:`cancel` has said."""
        self.missing = set(workers)
        self._ask(workers)

    def join(self, worker: int) -> None:
        """Ask a new process, too, which is about to take the place of one that has ended.

        It knows of nothing older, but waits like all others: it would take from the task pipe what
        is meant for those who are still in a sample.
        """
        assert self.missing is not None
        self.missing.add(worker)
        self._ask([worker])

    def leave(self, worker: int) -> None:
        """Wait no longer for a worker that is gone, and no other in its place."""
        if self.missing is not None:
            self.missing.discard(worker)

    def _ask(self, workers: Collection[int]) -> None:
        for worker in workers:
            self._pipes.send(Resume(self.generation), worker)
        # Only now: a worker that takes one must find what it announces.
        self._pipes.announce(len(workers))

    def acknowledged(self, message: Ack) -> None:
        """Note a worker's answer."""
        assert self.missing is not None
        if message.generation == self.generation:
            self.missing.discard(message.worker)

    def finish(self, workers: Collection[int]) -> None:
        """Let the workers take tasks."""
        self.missing = None
        for worker in workers:
            self._pipes.send(Proceed(), worker)
