"""`ThreadWorkers`: remote workers that are threads of the relay; what befalls them is written down.

In the place of `lit_loader.RayWorkers`: an engine without Ray, for tests of crew and relay.
"""

import dataclasses
import os
import queue
import signal
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from lit_loader.core.transport.messages import position_of, unpack
from lit_loader.remote.engine import Failure, Hello, Role, UnreachableError
from lit_loader.remote.ray_engine import RemoteWorker

_one_at_a_time = threading.Lock()
"""Held while a batch is made: the threads share the global generators of the relay."""


class DiedError(Exception):
    """A hand is gone."""


@dataclasses.dataclass
class ThreadWorkers:
    folder: str  # where what happens is noted, a file each: ``made``, ``joined``, ``left``
    dies_at: dict[int, int] = dataclasses.field(default_factory=dict)  # batch: how often
    silent_at: tuple[int, ...] = ()  # batches at which a hand falls silent, once for all hands
    kills_relay_at: tuple[int, ...] = ()  # batches at which the relay is killed, once
    relay_signal: signal.Signals = signal.SIGKILL  # by which
    unreachable: int = 0  # how often joining fails
    room: int = 1000  # how many hands come up
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    num_workers: int = 1
    in_flight: int = 2
    patience: float = 5.0

    def check_installed(self) -> None:
        """Nothing is needed."""

    def engine(self) -> "ThreadEngine":
        return ThreadEngine(self)

    def note(self, what: str) -> int:
        """Note that something has happened, in whatever process; returns how often before."""
        with open(Path(self.folder) / what, "ab") as file:
            file.write(b"x")
            return file.tell() - 1

    @property
    def killed(self) -> list[Path]:
        """A file for each batch at which a relay was killed."""
        return list(Path(self.folder).glob("killed *"))

    def count(self, what: str) -> int:
        path = Path(self.folder) / what
        return path.stat().st_size if path.exists() else 0


class ThreadHandle:
    def __init__(self, config: ThreadWorkers, payload: Any, role: Role) -> None:
        self._config = config
        self._payload = payload
        self._role = role
        self._orders: queue.Queue[tuple[Any, Future[Any]] | None] = queue.Queue()
        self._hello: Future[Hello] = Future()
        self._silent = False
        self._dead = threading.Event()
        self._watched: Future[Any] = Future()
        threading.Thread(target=self._run, daemon=True).start()

    def hello(self) -> Future[Hello]:
        return self._hello

    def make(self, order: bytes) -> Future[Any]:
        future: Future[Any] = Future()
        if self._dead.is_set():
            future.set_exception(DiedError("it had died"))
        else:
            self._orders.put((order, future))
        return future

    def set_attributes(self, changes: Any) -> None:
        self._orders.put((changes, Future()))

    def ping(self) -> Future[Any]:
        future: Future[Any] = Future()
        if not self._silent:
            future.set_result(None)
        return future

    def watch(self) -> Future[Any]:
        return self._watched

    def end(self) -> None:
        self._orders.put(None)

    def _run(self) -> None:
        config = self._config
        with _one_at_a_time:
            maker = RemoteWorker(self._payload, self._role)
        said = maker.hello()
        self._hello.set_result(said._replace(versions={**said.versions, **config.versions}))
        while (item := self._orders.get()) is not None:
            order, future = item
            if isinstance(order, dict):
                with _one_at_a_time:
                    maker.set_attributes(order)
                continue
            task: Any = unpack(order)
            number = position_of(task.number)
            if number in config.kills_relay_at and config.note(f"killed {number}") == 0:
                os.kill(os.getpid(), config.relay_signal)
            if config.note(f"died {number}") < config.dies_at.get(number, 0):
                self._dead.set()
                future.set_exception(DiedError("killed"))
                while not self._orders.empty():
                    rest = self._orders.get()
                    if rest is not None:
                        rest[1].set_exception(DiedError("killed"))
                self._watched.set_exception(DiedError("killed"))
                return
            if number in config.silent_at and config.note(f"silent {number}") == 0:
                self._silent = True
                continue  # for ever
            with _one_at_a_time:
                made = np.frombuffer(maker.make(order), np.uint8).copy()
            future.set_result(made.tobytes() if config.note("made") % 2 else made)


class ThreadEngine:
    def __init__(self, config: ThreadWorkers) -> None:
        self._config = config
        self._handles: list[ThreadHandle] = []

    def join(self, payload: memoryview) -> None:
        if self._config.note("joined") < self._config.unreachable:
            raise UnreachableError("no cluster of threads can be reached")
        self._payload = np.frombuffer(payload, np.uint8)

    def hire(self, role: Role) -> Any:
        if len(self._handles) >= self._config.room:
            return _Pending()
        self._handles.append(ThreadHandle(self._config, self._payload, role))
        return self._handles[-1]

    def explain(self, error: BaseException) -> Failure:
        return Failure(str(error), isinstance(error, DiedError), True)

    def leave(self) -> None:
        for hand in self._handles:
            hand.end()
        self._config.note("left")


class _Pending:
    def hello(self) -> Future[Hello]:
        return Future()

    def end(self) -> None:
        pass
