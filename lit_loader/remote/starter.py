"""`RemoteWorkers`: starts the relay, which is one worker to the pool, and another if it dies.

Used by `core/epoch/loader_core.py`, which gives it to the pool. After a few relays that died in a
row there are no remote workers any more, and the workers of this machine go on; if there are none,
that is an error.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from multiprocessing.process import BaseProcess
from typing import Any, Final

from lit_loader.core.batch.batch_spec import BatchSpec
from lit_loader.core.batch.dataset_attributes import Changes
from lit_loader.core.executors.payload import Links, freeze_spec
from lit_loader.core.executors.process_start import importable_main, quiet_start
from lit_loader.core.executors.worker_process import Notice, RelayExit, WorkerProcess
from lit_loader.core.system.shared_file import Descriptor, nameless_file, write_all
from lit_loader.core.transport.dataset_pickle import LEFT_OUT, Policy
from lit_loader.core.transport.status_board import Stage, StatusBoard
from lit_loader.errors import LoaderError
from lit_loader.remote.engine import Role
from lit_loader.remote.relay import relay_main
from lit_loader.remote.rows import show_node

_MACHINES: Final = Policy(
    "cannot be pickled, as remote workers need",
    LEFT_OUT,
    by_value=True,
    main=False,  # none has this program's file
    apart=False,
)

_RELAYS: Final = 3
"""Relays that are started for a pool in a row."""

_ROW: Final = 600.0
"""Seconds that a relay has served after which the next one begins another row."""

_LEAVING: Final = 10.0
"""Seconds that a relay has to end its remote workers before it is ended itself."""


class RemoteWorkers:
    """Workers on other machines, as `WorkerPool` has them; ``count``: batches that they may be at.

    Args:
        config: Where they come from: a `RayWorkers`, or the like of it.
        nodes: Is told which machine each of them is on, by its place among them.
    """

    def __init__(self, config: Any, nodes: dict[int, str]) -> None:
        self._config = config
        self.num_workers: int = config.num_workers
        self._nodes = nodes
        self._relays = 0
        self._relay: _Relay | None = None
        self.count: int = config.num_workers * config.in_flight

    def prepare(self, links: Links, spec: BatchSpec, notices: deque[Notice]) -> None:
        """Get ready to start the relay; TransportError: something of ``spec`` cannot be pickled."""
        here, self._notices = links.num_workers, notices
        total = here + self.num_workers
        self._roles = [Role(each, total, links.seed + each) for each in range(here, total)]
        packed = freeze_spec(spec, _MACHINES).pickled
        self._payload, _ = nameless_file("lit_loader dataset")
        try:
            write_all(self._payload, packed)
        except BaseException:
            self.close()
            raise

    def start(self, links: Links, board: StatusBoard, changes: Changes) -> _Relay:
        """Start the relay, or another one; ``changes``: attributes of the dataset that changed."""
        if self._relay is not None and self._relay.served_long:
            self._relays = 0
        self._relays += 1
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        process = context.Process(
            target=relay_main,
            args=(links, Descriptor(self._payload), theirs, self._config, self._roles, changes),
            name="lit_loader relay",
            daemon=True,
        )
        try:
            # It has no use for __main__, which may be a script that does not expect to be imported.
            with theirs, importable_main(hide=True), quiet_start(context):
                process.start()
        except BaseException:
            ours.close()
            raise
        last, alone = self._relays == _RELAYS, links.num_workers == 0
        rows = range(links.worker - self.num_workers, links.worker)
        forget = partial(_forget, board, rows)
        self._relay = _Relay(process, ours, self._notices, self._nodes, forget, last, alone)
        return self._relay

    def hear(self) -> None:
        """Take in what the relay has to say."""
        if self._relay is not None:
            self._relay.hear()

    def close(self) -> None:
        """Release the dataset; the relay must have ended."""
        os.close(self._payload)


class _Relay(WorkerProcess):
    def __init__(
        self,
        process: BaseProcess,
        relay: Connection,
        notices: deque[Notice],
        nodes: dict[int, str],
        forget: Callable[[], None],
        last: bool,
        alone: bool,
    ) -> None:
        super().__init__(process)
        self._relay, self._notices, self._nodes = relay, notices, nodes
        self._forget, self._last, self._alone = forget, last, alone
        self._since = time.monotonic()
        self.served_long = False
        self._final: str | None = None
        self._exit: RelayExit | None = None

    def hear(self) -> None:
        """Take in what it has said."""
        with contextlib.suppress(EOFError, OSError):  # it is gone
            while self._relay.poll():
                said = self._relay.recv()
                if isinstance(said, LoaderError):
                    self._final = str(said)
                elif isinstance(said, tuple):
                    place, node = said
                    self._nodes[place] = node
                else:
                    self._notices.append(said)

    @property
    def relay_exit(self) -> RelayExit:  # type: ignore[override]
        """How it has come to its end."""
        if self._exit is None:
            self.reap()
            self.hear()
            self._relay.close()
            self._forget()
            self.served_long = time.monotonic() - self._since >= _ROW
            self._exit = self._explained(self.exitcode)
        return self._exit

    def _explained(self, code: int | None) -> RelayExit:
        if self._final is not None:
            return RelayExit(self._final, final=True)
        how = f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        message = f"The process for remote workers (pid {self.pid}) {how}"
        if not self._last or self.served_long:
            return RelayExit(f"{message}. Another one was started, and nothing is lost.")
        message = f"{message}, for the {_RELAYS}rd time"
        if self._alone:
            return RelayExit(
                f"{message}, and there are no workers on this machine (num_workers=0): see its "
                "output above",
                final=True,
            )
        return RelayExit(
            f"{message}. The workers of this machine go on without remote ones, and nothing is "
            "lost.",
            again=False,
        )

    def terminate(self) -> None:
        """Kill it, when it has had time enough to end its remote workers."""
        if not wait_for([self.sentinel], _LEAVING):
            super().terminate()


def _forget(board: StatusBoard, rows: Iterable[int]) -> None:
    """Write that nothing is known of remote workers, as their relay has ended."""
    for row in rows:
        show_node(board, row, "")
        board.enter(row, Stage.STARTING, -1)
