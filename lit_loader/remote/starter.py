"""`RemoteWorkers`: starts the relay, which is one worker to the pool, and another if it dies.

Used by `core/epoch/loader_core.py`, which gives it to the pool. After a few relays that died
there are no remote workers any more, and the workers of this machine go on; if there are none,
that is an error.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
from collections import deque
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from multiprocessing.process import BaseProcess
from typing import Final

from lit_loader.core.batch.batch_spec import BatchSpec, Changes
from lit_loader.core.executors.process_start import Links, freeze_spec, importable_main, quiet_start
from lit_loader.core.executors.worker_process import Notice, RelayExit, WorkerProcess
from lit_loader.core.system.shared_file import Descriptor, nameless_file, write_all
from lit_loader.core.transport.dataset_pickle import LEFT_OUT, Policy
from lit_loader.core.transport.status_board import StatusBoard
from lit_loader.errors import LoaderError
from lit_loader.remote.engine import RemoteConfig, Role
from lit_loader.remote.relay import RelayLinks, relay_main

_MACHINES: Final = Policy(
    "cannot be pickled, as remote workers need",
    LEFT_OUT,
    by_value=True,
    main=False,  # none has this program's file
    apart=False,
)

_RELAYS: Final = 3
"""Relays that are started for a pool."""

_LEAVING: Final = 10.0
"""Seconds that a relay has to end its remote workers before it is ended itself."""


class RemoteWorkers:
    """Workers on other machines, as `WorkerPool` has them; ``count``: batches that they may be at.

    ``config`` is where they come from: a `RayWorkers`, or the like of it.
    """

    def __init__(self, config: RemoteConfig) -> None:
        self._config = config
        self.num_workers: int = config.num_workers
        self.count: int = config.num_workers * config.in_flight
        self._relays = 0
        self._relay: _Relay | None = None

    def prepare(self, num_workers: int, seed: int, spec: BatchSpec, notices: deque[Notice]) -> None:
        """Get ready to start the relay; TransportError: something of ``spec`` cannot be pickled."""
        self._notices, total = notices, num_workers + self.num_workers
        self._roles = [Role(each, total, seed + each) for each in range(num_workers, total)]
        packed = freeze_spec(spec, _MACHINES).pickled
        self._payload, _ = nameless_file("lit_loader dataset")
        try:
            write_all(self._payload, packed)
        except BaseException:
            self.close()
            raise

    def start(self, links: Links, board: StatusBoard, changes: Changes) -> _Relay:
        """Start the relay, or another one; ``changes``: attributes of the dataset that changed."""
        self._relays += 1
        ours, theirs = multiprocessing.Pipe()
        payload = Descriptor(self._payload)
        given = RelayLinks(links, payload, theirs, self._config, self._roles, changes)
        context = multiprocessing.get_context("spawn")
        process = context.Process(
            target=relay_main, args=(given,), name="lit_loader relay", daemon=True
        )
        try:
            # It has no use for __main__, which may be a script that does not expect to be imported.
            with theirs, importable_main(hide=True), quiet_start(context):
                process.start()
        except BaseException:
            ours.close()
            raise
        alone = links.num_workers == 0
        self._relay = _Relay(process, ours, self._notices, self._relays == _RELAYS, alone)
        return self._relay

    def hear(self) -> None:
        """Take in what the relay has to say."""
        if self._relay is not None:
            self._relay.hear()

    def close(self) -> None:
        """Release the dataset; the relay must have ended."""
        os.close(self._payload)


class _Relay(WorkerProcess):
    """A relay's process; ``last``: no other follows, ``alone``: there are no workers here."""

    def __init__(
        self,
        process: BaseProcess,
        relay: Connection,
        notices: deque[Notice],
        last: bool,
        alone: bool,
    ) -> None:
        super().__init__(process)
        self._relay, self._notices, self._last, self._alone = relay, notices, last, alone
        self._final = ""

    def hear(self) -> None:
        """Take in what it has said."""
        with contextlib.suppress(EOFError, OSError):  # it is gone
            while self._relay.poll():
                said = self._relay.recv()
                if isinstance(said, LoaderError):
                    self._final = str(said)
                else:
                    self._notices.append(said)

    @functools.cached_property
    def relay_exit(self) -> RelayExit:  # type: ignore[override]
        """How it has come to its end."""
        self.reap()
        self.hear()
        self._relay.close()
        if self._final:
            return RelayExit(self._final, final=True)
        code = self.exitcode
        how = f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        message = f"The process for remote workers (pid {self.pid}) {how}"
        if not self._last:
            return RelayExit(f"{message}. Another one was started, and nothing is lost.")
        message += f", for the {_RELAYS}rd time"
        if self._alone:
            message += ", and there are no workers on this machine (num_workers=0)"
            return RelayExit(f"{message}: see its output above", final=True)
        message += ". The workers of this machine go on without remote ones, and nothing is lost."
        return RelayExit(message, again=False)

    def terminate(self) -> None:
        """Kill it, when it has had time enough to end its remote workers."""
        if not wait_for([self.sentinel], _LEAVING):
            super().terminate()
