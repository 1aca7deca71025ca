"""`WorkerProcess`: a worker's process as its pool sees it; `start_worker` starts one.

Workers are started by ``multiprocessing``'s own fork, forkserver or spawn: each is a child of this
process, or of Python's fork server.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Collection
from multiprocessing import process as multiprocessing_process
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Final, NamedTuple, TypeAlias

from lit_loader.core.executors.main import worker_main
from lit_loader.core.executors.process_start import Links, Payload, importable_main, quiet_start
from lit_loader.core.system.linux import open_process
from lit_loader.core.system.shared_file import HeldFile
from lit_loader.errors import LoaderError

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
    """A process that was started. It may be watched and killed as long as this object lives.

    The pool alone calls `reap`; others may have the object as well (``iterator._workers``).

    Attributes:
        pid: The process's id.
        sentinel: Can be read from when the process has ended: a pidfd, where there are such. The
            sentinels of ``multiprocessing`` are pipes, which end too when the fork server does.
        exitcode: As that of ``multiprocessing.Process``, once it is reaped; None: not known.
        peak_memory: Bytes that were resident at most, once it is reaped; 0: not known.
    """

    relay_exit: RelayExit | None = None  # of a relay that has ended: how
    exitcode: int | None = None
    peak_memory = 0

    def __init__(self, process: BaseProcess) -> None:
        self._process: Any = process
        self.pid = process.pid or 0
        self.sentinel: int = process.sentinel
        self._pidfd: HeldFile | None = None
        with contextlib.suppress(OSError):
            self._pidfd = HeldFile(open_process(self.pid))
            self.sentinel = self._pidfd.fd

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and not wait_for([self.sentinel], 0)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end, for ``timeout`` seconds at most."""
        if self._process is not None:
            wait_for([self.sentinel], timeout)

    def kill(self) -> None:
        """Send SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd.fd, signal.SIGKILL)
            elif self.is_alive():
                os.kill(self.pid, signal.SIGKILL)

    def terminate(self) -> None:
        """End it when its grace is over. Workers do not heed SIGTERM."""
        self.kill()

    def reap(self) -> None:
        """Wait for the end, learn the exit code and let go of the process.

        Its exit status may be lost: a program may ignore SIGCHLD, or wait for all of its children.
        Then ``multiprocessing`` takes such a child to be running, for good.
        """
        process, self._process = self._process, None
        if process is None:
            return
        wait_for([self.sentinel])
        # reach: python: what `multiprocessing` waits by, which keeps the exit code and not the rest
        popen = process._popen
        if popen.returncode is None:
            with contextlib.suppress(ChildProcessError):  # a fork server's, or others have waited
                _, status, usage = os.wait4(popen.pid, 0)
                popen.returncode = os.waitstatus_to_exitcode(status)
                self.peak_memory = usage.ru_maxrss * 1024
        process.join()
        if process.exitcode is None:
            popen.returncode = _UNKNOWN
        self.exitcode = None if process.exitcode == _UNKNOWN else process.exitcode
        process.close()


def start_worker(context: BaseContext, links: Links, payload: Payload) -> WorkerProcess:
    """Start a worker that is connected as ``links`` say.

    Raises:
        LoaderError: The system gives no process, or Python's fork server does not answer.
        TransportError: As of `Payload.prepare`, for every start method but "fork" needs that.
    """
    if context.get_start_method() != "fork":
        payload.prepare()
    process = context.Process(  # type: ignore[attr-defined]
        target=worker_main,
        args=(links, payload),
        name=f"lit_loader worker {links.worker}",
        daemon=True,
    )
    _check_room_for_files()
    try:
        with importable_main(), quiet_start(context):
            process.start()
    except _SERVER_GONE as error:  # the next start makes another one
        raise LoaderError(
            f"Worker {links.worker} cannot be started: Python's fork server, which starts it, was "
            f"killed or does not answer ({type(error).__name__}: {error}). If there is output of "
            'the server above, put what a script does under `if __name__ == "__main__":`. Else '
            "iterate the loader again, or set multiprocessing_context='spawn' [LL018]"
        ) from error
    except BaseException:  # out of a signal handler: nobody else knows of the process
        if process.pid is not None:
            process.kill()
            process.join()
        raise

    # When the program exits, multiprocessing would send each SIGTERM and wait for its end. This
    # private set of its is the only way to be left alone. Each process that multiprocessing starts
    # has a set of its own, so the module is read each time.
    multiprocessing_process._children.discard(process)  # type: ignore[attr-defined]
    return WorkerProcess(process)


def _check_room_for_files() -> None:
    """Raise an OSError if there are too few descriptors to start a process.

    ``multiprocessing`` leaves one of its pipes open where there is no room for the second one.
    """
    ends: list[int] = []
    try:
        for _ in range(3):
            ends += os.pipe()
    finally:
        for end in ends:
            os.close(end)


def other_threads() -> list[str]:
    """Return the names of this process's threads, as Python knows them, without the current one."""
    return [each.name for each in threading.enumerate() if each is not threading.current_thread()]


def await_ends(
    processes: Collection[WorkerProcess], timeout: float | None, results: int
) -> list[WorkerProcess]:
    """Wait for processes to end, for ``timeout`` seconds; return those that have not.

    The pipe of results is kept empty meanwhile, for a worker may wait for room in there.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    waiting = {process.sentinel for process in processes}
    while waiting:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait_for([*waiting, results], left)
        if not ready:
            break
        if results in ready:
            os.read(results, 1 << 16)
        waiting.difference_update(ready)
    return [process for process in processes if process.sentinel in waiting]
