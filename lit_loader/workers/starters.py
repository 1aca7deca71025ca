"""What a pool asks of a worker process, and of what starts them; `DirectStarter`; ending them.

The pool has its starter chosen by `make_starter` in `workers/launcher.py`. `DirectStarter` is the
plain way: every worker is a child of this process, or of Python's fork server.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from lit_loader.batch.batch_spec import BatchSpec
from lit_loader.errors import LoaderError
from lit_loader.seeding.seeds import renew_numpy_generator
from lit_loader.system.carrier import importable_main
from lit_loader.system.child_processes import UNKNOWN, reap
from lit_loader.system.forked_locks import renew_locks
from lit_loader.system.interrupts import HeldBack
from lit_loader.system.linux import open_process
from lit_loader.workers.main import worker_main
from lit_loader.workers.parent import Links
from lit_loader.workers.payload import Payload
from lit_loader.workers.process_start import Permit, await_end_of_fork_server, quiet_start

__all__ = [
    "STOP_GRACE",
    "TERMINATE_GRACE",
    "DirectStarter",
    "Loss",
    "Notice",
    "Remote",
    "WorkerProcess",
    "all_or_none",
    "end_processes",
    "run_worker",
]

STOP_GRACE: Final = 2.0
"""Seconds that a worker has to finish the sample it is in, before it is terminated."""

TERMINATE_GRACE: Final = 1.0
"""Seconds that a terminated worker has before it is killed."""

_SERVER_GONE: Final = (ConnectionError, EOFError, FileNotFoundError)
"""What is raised on asking a fork server that has been killed."""


Notice: TypeAlias = str | Warning
"""A message for the consumer; a text is a `WorkerRestartWarning`'s."""


class Loss(NamedTuple):
    """How the process has come to its end that serves for workers elsewhere.

    Attributes:
        message: What is to be said of it.
        final: Whether there is nobody else to make batches.
        again: Whether another one is to be started in its place.
    """

    message: str
    final: bool = False
    again: bool = True


class Remote(Protocol):
    """Workers elsewhere: one process here, the relay, stands for all of them.

    It has a number behind those of the workers here, and is a worker that can be at several tasks.

    Attributes:
        count: At how many at most.
    """

    count: int

    def prepare(self, links: Links, spec: BatchSpec, notices: deque[Notice]) -> None:
        """Get ready to start it; messages for the consumer are put into ``notices``."""

    def start(self, links: Links) -> WorkerProcess:
        """Start the relay, or another one in its place."""

    def hear(self) -> None:
        """Take in what the relay has to say."""

    def close(self) -> None:
        """Let go of everything; the relay must have ended."""


class WorkerProcess:
    """A worker's process. Its end is seen by a pidfd, where there are such.

    Args:
        pid: Process id.
        pidfd: Its pidfd, which this closes; -1: there is none.
        sentinel: What can be read from when the process has ended, where there is no pidfd.

    Attributes:
        pid: Process id.
        sentinel: Can be read from when the process has ended; -1: closed.
        loss: Of a relay that has ended: how.
    """

    loss: Loss | None = None

    def __init__(self, pid: int, pidfd: int, sentinel: int = -1) -> None:
        self.pid = pid
        self.sentinel = sentinel if pidfd < 0 else pidfd
        self._pidfd = pidfd

    @property
    def exitcode(self) -> int | None:
        """Exit code, minus the signal's number, or None: alive, or not known."""
        return self._ended()[0]

    @property
    def peak_memory(self) -> int:
        """Bytes that were resident at most; 0: not known."""
        return self._ended()[1]

    def _ended(self) -> tuple[int | None, int]:
        return None, 0

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.sentinel >= 0 and not wait_for([self.sentinel], 0)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, number)
            elif self.sentinel >= 0:
                os.kill(self.pid, number)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end; for so many seconds at most."""
        wait_for([self.sentinel], timeout)

    def twin(self) -> WorkerProcess:
        """The same process for others, who may watch and end it, whatever becomes of this object.

        Raises:
            OSError: It is closed.
        """
        sentinel = os.dup(self.sentinel)
        twin = WorkerProcess(self.pid, sentinel if self._pidfd >= 0 else -1, sentinel)
        weakref.finalize(twin, os.close, sentinel)
        return twin

    def close(self) -> None:
        """Let go of the sentinel; the process must have ended."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
        self.sentinel = self._pidfd = -1


def run_worker(permit: Permit, links: Links, payload: Payload) -> None:
    """Be a worker, once the parent knows of it."""
    permit.wait()
    worker_main(links, payload)


class _ForkedProcess(getattr(multiprocessing.context, "ForkProcess", BaseProcess)):  # type: ignore[misc]
    """A process that is forked from one with other threads."""

    def _bootstrap(self, *arguments: Any, **options: Any) -> Any:
        renew_locks()
        renew_numpy_generator()
        # reach: python: before multiprocessing's own beginning, which needs the streams
        return super()._bootstrap(*arguments, **options)


class DirectWorker(WorkerProcess):
    """A child of this process, or of Python's fork server; the end it reports is the process's own.

    The sentinels of ``multiprocessing`` are pipes, which end too when the fork server does.
    """

    def __init__(self, process: BaseProcess) -> None:
        self._process = process
        pid, pidfd = process.pid or 0, -1
        with contextlib.suppress(OSError):
            pidfd = open_process(pid)
        super().__init__(pid, pidfd, process.sentinel)

    def _ended(self) -> tuple[int | None, int]:
        code = self._process.exitcode
        # What multiprocessing makes of a fork server that is gone.
        return None if code == UNKNOWN else code, 0

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end, and for as long as that takes."""
        super().join()
        reap(self._process)

    def close(self) -> None:
        """Let go of it."""
        try:
            self._process.close()
        finally:
            super().close()


class DirectStarter:
    """Starts workers as children of this process.

    That is as clean as a launcher under "spawn" and "forkserver", which begin with a new
    interpreter.

    Args:
        context: The start method.
        spec: What the workers make.

    Raises:
        TransportError: On starting: something of the user's cannot be pickled, which every start
            method but "fork" needs; names the option and the place in it.
    """

    def __init__(self, context: BaseContext, spec: BatchSpec) -> None:
        self.forks = context.get_start_method() == "fork"
        self._kind: Any = _ForkedProcess if self.forks else context.Process  # type: ignore[attr-defined]
        self._context = context
        self._payload = Payload(spec)
        self.notices: deque[Notice] = deque()

    @property
    def shared_data(self) -> int:
        """Bytes of the dataset in a file that all workers map."""
        return self._payload.shared_bytes

    def start_all(self, links: Sequence[Links]) -> list[DirectWorker]:
        """Start workers, each connected as these say."""
        started: list[DirectWorker] = []
        with all_or_none(started), HeldBack():
            for each in links:
                with Permit() as permit:
                    started.append(DirectWorker(self._start(permit, each)))
                    permit.give()
        return started

    def _start(self, permit: Permit, links: Links) -> BaseProcess:
        try:
            return self._start_process(permit, links)
        except _SERVER_GONE:
            # Python's fork server has just been killed; the next start makes another.
            await_end_of_fork_server()
        try:
            return self._start_process(permit, links)
        except _SERVER_GONE as error:
            raise LoaderError(
                f"DataLoader worker {links.worker} cannot be started: Python's fork server, which "
                f"starts it, was killed or does not answer ({type(error).__name__}: {error}); if "
                "there is output of its own above, put what a script does under "
                '`if __name__ == "__main__":`; if not, iterate the loader anew, or set '
                "multiprocessing_context='spawn'"
            ) from error

    def _start_process(self, permit: Permit, links: Links) -> BaseProcess:
        process: BaseProcess = self._kind(
            target=run_worker,
            args=(permit, links, self._payload),
            name=f"lit_loader worker {links.worker}",
            daemon=True,
        )
        if not self.forks:
            self._payload.prepare()
        with importable_main(), quiet_start(self._context):
            process.start()
        return process

    def close(self) -> None:
        """Let go of the dataset's copy."""
        self._payload.close()


@contextlib.contextmanager
def all_or_none(started: Sequence[WorkerProcess]) -> Iterator[None]:
    """Start workers: if one cannot be, those that have ``started`` by then are ended."""
    try:
        yield
    except BaseException:
        with HeldBack():  # what is raised meanwhile must not leave one of them behind
            for process in started:
                process.kill()
                process.join()
                process.close()
        raise


def end_processes(processes: Sequence[WorkerProcess], results: int) -> None:
    """Wait for processes that were sent Stop; end by growing force those that do not end.

    They are still to be joined and closed.

    Args:
        processes: The workers.
        results: Read end of the result pipe; kept empty, for a worker may wait for room in there.
    """
    for step, grace in ((None, STOP_GRACE), ("terminate", TERMINATE_GRACE), ("kill", None)):
        alive = [process for process in processes if process.is_alive()]
        if not alive:
            break
        if step is not None:
            for process in alive:
                getattr(process, step)()
        _join(alive, grace, results)


def _join(processes: list[WorkerProcess], timeout: float | None, results: int) -> None:
    """Wait until all have ended, or the time is up."""
    deadline = None if timeout is None else time.monotonic() + timeout
    waiting = {process.sentinel for process in processes}
    while waiting:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait_for([*waiting, results], left)
        if not ready:
            return
        if results in ready:
            os.read(results, 1 << 16)
        waiting.difference_update(ready)
