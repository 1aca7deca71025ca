"""What a pool asks of a worker process, and of what starts them; `DirectStarter`; ending them.

`make_starter` in `core/executors/launcher.py` chooses one. `DirectStarter` is the plain way: every
worker is a child of this process, or of Python's fork server.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess, _children  # type: ignore[attr-defined]
from typing import Any, Final, NamedTuple, TypeAlias

from lit_loader.core.executors.main import worker_main
from lit_loader.core.executors.payload import Links, Payload
from lit_loader.core.executors.process_start import (
    Permit,
    await_end_of_fork_server,
    begin_fork,
    importable_main,
    permit,
    quiet_start,
)
from lit_loader.core.system.interrupts import HeldBack
from lit_loader.core.system.linux import open_process
from lit_loader.errors import LoaderError

STOP_GRACE: Final = 2.0
"""Seconds that a worker has to finish the sample it is in, before it is killed."""

_UNKNOWN: Final = 255
"""The exit code where it is lost, as ``multiprocessing`` has it for its fork server."""

_SERVER_GONE: Final = (ConnectionError, EOFError, FileNotFoundError)
"""What is raised on asking a fork server that has been killed."""


Notice: TypeAlias = str | Warning
"""A message for the consumer; a text is a `WorkerRestartWarning`'s."""


class RelayExit(NamedTuple):
    """How the process has come to its end that serves for workers elsewhere."""

    message: str  # what is to be said of it
    final: bool = False  # whether there is nobody else to make batches
    again: bool = True  # whether another one is to be started in its place


class WorkerProcess:
    """A worker's process. Its end is seen by a pidfd, which this closes, where there are such."""

    relay_exit: RelayExit | None = None  # of a relay that has ended: how
    origin = 0  # `WorkerSet.origin` when it was started

    def __init__(self, pid: int, pidfd: int, sentinel: int = -1) -> None:
        self.pid = pid
        # Can be read from when the process has ended; -1: closed.
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
        """End it when its grace is over. Workers do not heed SIGTERM."""
        self.kill()

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


def run_worker(given: Permit, links: Links, payload: Payload) -> None:
    """Be a worker, once the parent knows of it."""
    given.wait()
    worker_main(links, payload)


def other_threads() -> list[str]:
    """The names of this process's threads, as Python knows them, but for the one that asks."""
    return [each.name for each in threading.enumerate() if each is not threading.current_thread()]


class _ForkedProcess(getattr(multiprocessing.context, "ForkProcess", BaseProcess)):  # type: ignore[misc]
    """A process that is forked from one with other threads."""

    collects: bool  # as `quiet_start` says

    def _bootstrap(self, *arguments: Any, **options: Any) -> Any:
        begin_fork(self.collects)
        # reach: python: before multiprocessing's own beginning, which needs the streams
        return super()._bootstrap(*arguments, **options)


def reap(process: BaseProcess) -> int:
    """Wait for a child that has ended, and let go of it, also where its exit status is lost.

    A program may ignore SIGCHLD, or wait for all of its children: then ``multiprocessing`` takes
    such a child to be running, for good. Returns its peak memory in bytes; 0: not known.
    """
    # reach: python: what `multiprocessing` waits by, which keeps the exit code and not the memory
    popen: Any = process._popen  # type: ignore[attr-defined]
    peak = 0
    if popen.returncode is None:
        with contextlib.suppress(ChildProcessError):  # a fork server's, or others have waited
            _, status, usage = os.wait4(popen.pid, 0)
            popen.returncode = os.waitstatus_to_exitcode(status)
            peak = usage.ru_maxrss * 1024
    process.join()
    if process.exitcode is None:
        # close() would refuse, and terminate(), which multiprocessing calls at the program's end,
        # would send a signal to another process that has its id by now.
        popen.returncode = _UNKNOWN
        process.join()
    return peak


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
        self._peak = 0

    def _ended(self) -> tuple[int | None, int]:
        code = self._process.exitcode
        # What multiprocessing makes of a fork server that is gone.
        return None if code == _UNKNOWN else code, self._peak

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end, and for as long as that takes."""
        super().join()
        self._peak = reap(self._process) or self._peak

    def close(self) -> None:
        """Let go of it, when a fork server has said, too, that it has ended."""
        try:
            reap(self._process)
            self._process.close()
        finally:
            super().close()


class Starter:
    """Starts workers, one after the other."""

    forks = True  # so that a worker is what this process is
    again = False  # whether it has taken the place of another one, whose workers hang
    late = False  # whether those to come are forked from this program as it is by then

    def __init__(self, payload: Payload) -> None:
        self.notices: deque[Notice] = deque()  # messages for the consumer
        self.beside: list[str] = []  # the threads that there were when a process was forked
        self.payload = payload

    def start_all(self, links: Sequence[Links]) -> list[WorkerProcess]:
        """Start workers, each connected as these say: all or none.

        A LoaderError if the system does not give another process, or none that gets on. A
        TransportError as of `Payload.prepare`, for every start method but "fork" needs that.
        """
        started: list[WorkerProcess] = []
        try:
            with HeldBack():
                for each in links:
                    self._start(each, started)
        except BaseException:
            with HeldBack():  # what is raised meanwhile must not leave one of them behind
                for process in started:
                    process.kill()
                    process.join()
                    process.close()
            raise
        return started

    def _start(self, links: Links, started: list[WorkerProcess]) -> None:
        """Start a worker, and add it to those started."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the dataset's copy."""
        self.payload.close()


class DirectStarter(Starter):
    """Starts workers as children of this process, or of Python's fork server."""

    def __init__(self, context: BaseContext, payload: Payload) -> None:
        super().__init__(payload)
        self.forks = context.get_start_method() == "fork"
        self._kind: Any = _ForkedProcess if self.forks else context.Process  # type: ignore[attr-defined]
        self._context = context

    def _start(self, links: Links, started: list[WorkerProcess]) -> None:
        if not self.forks:
            self.payload.prepare()
        try:
            try:
                self._start_process(links, started)
            except _SERVER_GONE:
                # Python's fork server has just been killed; the next start makes another.
                await_end_of_fork_server()
                self._start_process(links, started)
        except _SERVER_GONE as error:
            raise LoaderError(
                f"Worker {links.worker} cannot be started: Python's fork server, which "
                f"starts it, was killed or does not answer ({type(error).__name__}: {error}); if "
                "there is output of its own above, put what a script does under "
                '`if __name__ == "__main__":`; if not, iterate the loader again, or set '
                "multiprocessing_context='spawn' [LL018]"
            ) from error

    def _start_process(self, links: Links, started: list[WorkerProcess]) -> None:
        with permit(self.forks) as given:
            process: Any = self._kind(
                target=run_worker,
                args=(given, links, self.payload),
                name=f"lit_loader worker {links.worker}",
                daemon=True,
            )
            if self.forks:
                self.beside = other_threads()
            with importable_main(), quiet_start(self._context) as process.collects:
                process.start()
            # When the program exits, multiprocessing would send each SIGTERM and wait for its end.
            # This private set of its is the only way to be left alone.
            _children.discard(process)
            started.append(DirectWorker(process))


def end_processes(processes: Sequence[WorkerProcess], results: int) -> None:
    """Wait for processes that were sent Stop; kill those that do not end.

    They are still to be joined and closed. The pipe of results is kept empty meanwhile, for a
    worker may wait for room in there.
    """
    _join([*processes], STOP_GRACE, results)
    alive = [process for process in processes if process.is_alive()]
    for process in alive:
        process.terminate()
    _join(alive, None, results)


def _join(processes: list[WorkerProcess], timeout: float | None, results: int) -> None:
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
