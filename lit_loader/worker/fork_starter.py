"""`make_starter`: chooses where workers come from; `ForkStarter`: forks them, with ways out.

::

    fork ──▶ the launcher does not get on, or dies? ──▶ it is ended, and forked again
      ╰────▶ a worker does not come up? ──────────────▶ the same
                                                         │ so many times in a row
                                                         ▼
                                             Python's fork server, for good

A fork at another moment most likely finds other threads at something else. A fork server has none
of this process's threads; it needs a dataset that can be pickled. It does not import ``__main__``:
a program whose workers are forked need not expect to be imported.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Sequence
from multiprocessing.context import BaseContext
from typing import Final

from lit_loader.batch.batch_spec import BatchSpec
from lit_loader.errors import LoaderError, TransportError
from lit_loader.system.watchdog import PATIENCE
from lit_loader.worker.launcher import Launcher, LauncherLostError, can_launch
from lit_loader.worker.main import worker_main
from lit_loader.worker.payload import Links, Payload
from lit_loader.worker.starters import DirectStarter, Starter, WorkerProcess, all_or_none

__all__ = ["ForkStarter", "make_starter"]

ATTEMPTS: Final = 5
"""Forks in a row of which nothing comes, before forking is given up: they are given 0.2 s, and each
twice as long as the one before."""


def make_starter(context: BaseContext, links: Links, spec: BatchSpec) -> Starter:
    """Choose where the workers come from.

    Args:
        context: The start method.
        links: What connects worker 0 with the parent.
        spec: What the workers make.
    """
    if context.get_start_method() == "fork":
        return ForkStarter(context, links, spec)
    return DirectStarter(context, spec)


class ForkStarter:
    """Starts workers by forking, from a launcher where there can be one.

    Args:
        context: The start method "fork".
        links: What connects worker 0 with the parent.
        spec: What the workers make.

    Attributes:
        notices: Messages for the consumer.
    """

    def __init__(self, context: BaseContext, links: Links, spec: BatchSpec) -> None:
        self.notices: deque[str] = deque()
        self._spec = spec
        self._launcher: Launcher | None = None
        if can_launch(context):
            self._launcher = Launcher(context, links, Payload(spec), worker_main)
        self._direct: DirectStarter | None = None
        if self._launcher is None:
            self._direct = DirectStarter(context, spec)
        self._given_up = ""
        self._failures = 0
        self._round = 0  # counts what workers were forked from
        self._rounds: dict[int, int] = {}

    @property
    def forks(self) -> bool:
        """Whether workers are forked from what this process is."""
        return self._direct is None or self._direct.forks

    @property
    def shared_data(self) -> int:
        """Bytes of the dataset in a file that all workers map; forked ones need none."""
        return 0 if self._direct is None else self._direct.shared_data

    def start_all(self, links: Sequence[Links]) -> list[WorkerProcess]:
        """Start workers, each connected as these say.

        Raises:
            LoaderError: The system does not give another process; or none can be forked, and the
                dataset cannot be pickled.
        """
        started: list[WorkerProcess] = []
        with all_or_none(started):
            while len(started) < len(links):
                started += self._start(links[len(started) :])
        self._rounds.update({each.worker: self._round for each in links})
        return started

    def _start(self, links: Sequence[Links]) -> Sequence[WorkerProcess]:
        """Start workers: as many as come, but for an error."""
        if self._direct is None:
            assert self._launcher is not None
            self._launcher.patience = PATIENCE << self._failures
            try:
                return self._launcher.start_all(links)
            except LauncherLostError as lost:
                self._fail(lost.report)
                if self._direct is None:
                    self.notices.append(
                        f"{lost.report}\nAnother one was forked, and nothing is lost."
                    )
                return lost.started
        try:
            return self._direct.start_all(links)
        except TransportError as error:
            raise LoaderError(
                f"{self._given_up}; nor can workers come from Python's fork server: {error}"
            ) from error

    def came_up(self) -> None:
        """Hear that a worker has begun to work."""
        self._failures = 0

    def distrust(self, worker: int) -> None:
        """Hear that a worker is stuck where none was seen to get any further, and was ended."""
        if self._rounds.get(worker) == self._round and self.forks:
            if self._launcher is not None:
                self._launcher.discard()
            self._fail(f"DataLoader worker {worker} got stuck at its start")

    def _fail(self, report: str) -> None:
        """Fork anew at the next start; after so many attempts, never again."""
        self._failures += 1
        self._round += 1
        if self._failures < ATTEMPTS:
            return
        self._given_up = f"Forking workers was given up after {ATTEMPTS} attempts: {report}"
        self._direct = DirectStarter(
            multiprocessing.get_context("forkserver"), self._spec, without_main=True
        )
        self.notices.append(
            f"{self._given_up}\nThey come from Python's fork server now, and nothing is lost. "
            "Start the loader before such threads, or set multiprocessing_context='forkserver'."
        )

    def close(self) -> None:
        """Let go of everything; the workers must have ended."""
        try:
            if self._launcher is not None:
                self._launcher.close()
        finally:
            if self._direct is not None:
                self._direct.close()
