"""The launcher: a clean process that holds the dataset and forks workers on demand.

::

    parent ══ Start(worker, generation) ══▶ launcher ── fork ──▶ worker
       ▲ ◀═══ pid, pidfd ════════════════════╯  ▲                  │
       ╰───── pidfd: "it has ended" ────────────┼──────────────────╯
              Reap(worker) ═════════════════════╯ exit status, peak memory

Forking a process copies the locks that its other threads hold, and nobody in the copy will ever
release them. A training process has many threads (autograd, OpenMP, loggers, the pin-memory thread)
when a dead worker must be replaced in the middle of an epoch. So it forks once, when the pool is
made, a process that has one thread only and never does anything else than fork. A worker made by it
later is the same as one made at first: the same dataset, the same module state, nothing in motion.

- The launcher does one thing at a time: it waits for a request, or for its parent's death.
- It keeps an ended worker's exit status until asked, so that a pidfd never means another process.
- It ignores SIGTERM as well: whoever wants a job to end, and sends it to all processes, gets the
  parent to end, and that ends the launcher.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gc
import multiprocessing
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import util
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Final

from lit_loader.children import let_go, settle
from lit_loader.errors import LoaderError
from lit_loader.handover import Links, Payload
from lit_loader.quiet_start import quiet_start, reset_signals
from lit_loader.stream_locks import renew_stream_locks

__all__ = ["LaunchedWorker", "Launcher", "can_launch"]

_REQUEST: Final = struct.Struct("=cHI")  # kind, worker, generation
_STARTED: Final = struct.Struct("=qi")  # process id, errno
_REAPED: Final = struct.Struct("=iq")  # exit code, peak resident bytes
_START: Final = b"s"
_REAP: Final = b"r"
_QUIT: Final = b"q"

_ANSWER_TIME: Final = 60.0
"""Seconds after which a launcher that does not answer is given up; a fork takes milliseconds."""

WorkerMain = Callable[[Links, Payload], None]


def can_launch(context: BaseContext) -> bool:
    """Whether workers of this start method can come from a launcher: forked ones, on Linux."""
    if context.get_start_method() != "fork" or not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:  # an old kernel, or a sandbox
        return False
    return True


class LaunchedWorker:
    """A worker as the parent sees it; the same methods as a ``multiprocessing.Process``.

    Attributes:
        pid: Process id.
        sentinel: A pidfd: can be read from when the process has ended.
        exitcode: Exit code, minus the signal's number, or None: alive, or not known.
        peak_memory: Bytes that were resident at most; 0: not known.
    """

    def __init__(self, launcher: Launcher, worker: int, pid: int, sentinel: int) -> None:
        self._launcher = launcher
        self._worker = worker
        self._reaped = False
        self.pid = pid
        self.sentinel = sentinel
        self.exitcode: int | None = None
        self.peak_memory = 0

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return not self._reaped and not wait_for([self.sentinel], 0)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.sentinel, number)

    def join(self) -> None:
        """Wait until the process has ended, and learn how."""
        if self._reaped:
            return
        wait_for([self.sentinel])
        self._reaped = True
        self.exitcode, self.peak_memory = self._launcher.reap(self._worker)

    def close(self) -> None:
        """Let go of the pidfd; the process must have ended."""
        if self.sentinel >= 0:
            os.close(self.sentinel)
            self.sentinel = -1


class Launcher:
    """The parent's side. One thread at a time.

    Args:
        context: Forks.
        links: What connects each worker with the parent, by number.
        payload: The user's objects.
        worker_main: What a worker runs.
    """

    def __init__(
        self,
        context: BaseContext,
        links: Sequence[Links],
        payload: Payload,
        worker_main: WorkerMain,
    ) -> None:
        self._context = context
        self._arguments = (links, payload, worker_main)
        self._process: BaseProcess | None = None
        self._requests: socket.socket | None = None
        self._quit: util.Finalize | None = None

    def start_all(self, workers: Sequence[int], generation: int) -> list[LaunchedWorker]:
        """Have workers forked, one after the other.

        Raises:
            LoaderError: The system does not give another process.
        """
        if self._requests is None or not self._process or not self._process.is_alive():
            # At first; and again if somebody has killed the launcher. Forking now is as it would be
            # without one.
            self.close()
            self._fork()
        assert self._requests is not None
        started: list[LaunchedWorker] = []
        try:
            for worker in workers:
                self._requests.send(_REQUEST.pack(_START, worker, generation))
            for worker in workers:
                data, fds, _, _ = socket.recv_fds(self._requests, _STARTED.size, 1)
                pid, error = _STARTED.unpack(data)
                if error or not fds:
                    # No pidfd: the kernel drops one that there is no room for here.
                    reason = os.strerror(error or errno.EMFILE)
                    raise LoaderError(
                        f"DataLoader worker {worker} cannot be started ({reason}): raise the "
                        "limits (ulimit -n, ulimit -u), see that memory is left, or use fewer "
                        "workers"
                    )
                started.append(LaunchedWorker(self, worker, pid, fds[0]))
        except (OSError, struct.error) as error:
            self._give_up(started)
            raise LoaderError(
                f"the process that starts workers is gone ({error}): iterate the loader anew"
            ) from error
        except BaseException:
            self._give_up(started)
            raise
        return started

    def _give_up(self, started: list[LaunchedWorker]) -> None:
        """End the launcher, and with it the workers that have started."""
        self.close()
        for worker in started:
            worker.close()

    def _fork(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = self._context.Process(  # type: ignore[attr-defined]
            target=_launcher_main,
            args=(os.getpid(), ours, theirs, gc.isenabled(), *self._arguments),
            name="lit_loader launcher",
            daemon=True,
        )
        try:
            with theirs, quiet_start(self._context), _no_collection():
                self._process.start()
        except BaseException:
            ours.close()
            raise
        ours.settimeout(_ANSWER_TIME)
        self._requests = ours
        # A process made by multiprocessing ends without atexit: it sends SIGTERM to its children,
        # which the launcher ignores, and waits for them. Before that it runs finalizers of its own.
        self._quit = util.Finalize(self, _ask_to_quit, (ours,), exitpriority=0)

    def reap(self, worker: int) -> tuple[int | None, int]:
        """Learn how the last process of a worker that has ended did so.

        Returns:
            Exit code as in ``multiprocessing.Process.exitcode``, and bytes resident at most; None
            and 0 if the launcher that could know has died.
        """
        if self._requests is None:
            return None, 0
        try:
            self._requests.send(_REQUEST.pack(_REAP, worker, 0))
            exitcode, peak = _REAPED.unpack(self._requests.recv(_REAPED.size))
        except (OSError, struct.error):
            return None, 0
        return exitcode, peak

    def close(self) -> None:
        """End the launcher, which kills what is left of its workers."""
        process, self._process = self._process, None
        requests, self._requests = self._requests, None
        if requests is not None:
            assert self._quit is not None
            self._quit()
            requests.close()
        if process is not None and process.pid is not None:
            if not wait_for([process.sentinel], _ANSWER_TIME / 60):
                process.kill()
            let_go(process)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Fork without the garbage collector running in the copy, before that has frozen what it got.

    It would finalise the parent's garbage there: objects that wait for threads, or for locks that
    threads hold, of which the copy has none.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _ask_to_quit(requests: socket.socket) -> None:
    with contextlib.suppress(OSError):
        requests.send(_REQUEST.pack(_QUIT, 0, 0))


def _launcher_main(
    parent: int,
    ours: socket.socket,
    theirs: socket.socket,
    collecting: bool,
    links: Sequence[Links],
    payload: Payload,
    worker_main: WorkerMain,
) -> None:
    """Serve requests until told to quit, or until the parent is gone."""
    ours.close()
    reset_signals()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    renew_stream_locks()
    # What is the parent's stays the parent's: the workers' garbage collectors neither touch (and so
    # copy) the pages of its objects nor finalise its garbage.
    gc.freeze()
    if collecting:
        gc.enable()
    try:
        watch = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(1)
    # A daemon may have no children; this process is one only so that its parent need not join it.
    multiprocessing.current_process().daemon = False
    processes: dict[int, BaseProcess] = {}
    poll = select.poll()
    poll.register(theirs, select.POLLIN)
    poll.register(watch, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if theirs.fileno() not in ready:
            break  # the parent has died
        request = theirs.recv(_REQUEST.size)
        if not request:
            break
        kind, worker, generation = _REQUEST.unpack(request)
        if kind == _START:
            own = dataclasses.replace(links[worker], generation=generation)
            try:
                started = _fork_worker(theirs, watch, worker_main, own, payload)
            except ConnectionError:
                break  # the parent has closed its end: Ctrl-C while its workers were started
            if started is not None:
                processes[worker] = started
        elif kind == _REAP:
            # A worker of a launcher before this one, which was killed, is none of its children.
            process = processes.pop(worker, None)
            theirs.send(b"" if process is None else _REAPED.pack(*_reap(process)))
        else:
            break
    for process in processes.values():
        process.kill()
    os._exit(0)


def _fork_worker(
    theirs: socket.socket, watch: int, worker_main: WorkerMain, links: Links, payload: Payload
) -> BaseProcess | None:
    process: Any = multiprocessing.get_context("fork").Process(
        target=_run_worker,
        args=(theirs, watch, worker_main, links, payload),
        name=f"lit_loader worker {links.worker}",
        daemon=True,
    )
    try:
        process.start()
        pidfd = os.pidfd_open(process.pid)
    except OSError as error:
        theirs.send(_STARTED.pack(0, error.errno or errno.EAGAIN))
        return None if process.pid is None else process
    socket.send_fds(theirs, [_STARTED.pack(process.pid, 0)], [pidfd])
    os.close(pidfd)
    return process  # type: ignore[no-any-return]


def _reap(process: BaseProcess) -> tuple[int, int]:
    """Let go of a child that has ended; returns its exit code and peak memory."""
    peak = 0
    # Starting another process may have reaped it, and then has kept its exit code.
    with contextlib.suppress(ChildProcessError):
        _, status, usage = os.wait4(process.pid or 0, 0)
        peak = usage.ru_maxrss * 1024
        # Private reach: join() would wait for the same child once more, and knows no memory.
        process._popen.returncode = os.waitstatus_to_exitcode(status)  # type: ignore[attr-defined]
    settle(process)
    exitcode = process.exitcode or 0
    process.close()
    return exitcode, peak


def _run_worker(
    theirs: socket.socket, watch: int, worker_main: WorkerMain, links: Links, payload: Payload
) -> None:
    theirs.close()
    os.close(watch)
    worker_main(links, payload)
