"""The launcher, from the parent's side: a clean process that forks workers on demand.

::

    parent ══ Start(worker), its pipe ════▶ launcher ── fork ──▶ worker
       ▲ ◀═══ pid, pidfd ════════════════════╯  ▲                  │
       ╰───── pidfd: "it has ended" ────────────┼──────────────────╯
              Reap(worker) ═════════════════════╯ exit status, peak memory

Forking a process copies the locks that its other threads hold, and nothing in the copy will ever
release them. A training process has many threads (autograd, OpenMP, loggers, the pin-memory thread)
when a dead worker must be replaced in the middle of an epoch. So it forks once, when the pool is
made, a process that has one thread only and never does anything else than fork. A worker made by it
later is the same as one made at first: the same dataset, the same module state, nothing in motion.

The one fork may go wrong itself, and the launcher may be killed. It is waited for as long as it
gets on (`system/watchdog.py`); what is done if it does not is said in
`worker/fork_starter.py`, and what runs in it in `worker/launcher_process.py`.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from multiprocessing import util
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Final

from lit_loader.errors import LoaderError
from lit_loader.system.child_processes import reap_and_close
from lit_loader.system.stack_dumps import DUMP_SIGNAL, StackFile
from lit_loader.system.watchdog import LOOK_SECONDS, PATIENCE, Watchdog
from lit_loader.worker.launcher_process import (
    QUIT,
    READY,
    REAP,
    REAPED,
    REQUEST,
    START,
    STARTED,
    Origin,
    WorkerMain,
    launcher_main,
)
from lit_loader.worker.payload import Links, Payload
from lit_loader.worker.process_start import quiet_start

__all__ = ["LaunchedWorker", "Launcher", "LauncherLostError", "can_launch"]

_ENDING: Final = 1.0
"""Seconds that a launcher has to end by itself, or to write its stacks."""

_AHEAD: Final = 64
"""Workers that are asked for before the first answer is read: a socket holds only so many."""


def can_launch(context: BaseContext) -> bool:
    """Whether workers of this start method can come from a launcher: forked ones, on Linux."""
    if context.get_start_method() != "fork" or not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:  # an old kernel, or a sandbox
        return False
    return True


class LauncherLostError(Exception):
    """The launcher is gone, or does not get on and was ended.

    Attributes:
        report: What was seen of it.
        started: The workers that it has started nevertheless, in the order asked for.
    """

    def __init__(self, report: str, started: Sequence[LaunchedWorker] = ()) -> None:
        super().__init__(report)
        self.report = report
        self.started = started


class LaunchedWorker:
    """A worker as the parent sees it; the same methods as a ``multiprocessing.Process``.

    Attributes:
        pid: Process id.
        sentinel: A pidfd: can be read from when the process has ended.
        forked_by: The launcher's process id; the worker waits until that lets it begin.
        exitcode: Exit code, minus the signal's number, or None: alive, or not known.
        peak_memory: Bytes that were resident at most; 0: not known.
    """

    def __init__(
        self, launcher: Launcher, worker: int, pid: int, sentinel: int, forked_by: int
    ) -> None:
        self._launcher = launcher
        self._worker = worker
        self._reaped = False
        self.pid = pid
        self.sentinel = sentinel
        self.forked_by = forked_by
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
    """Starts the launcher and asks it for workers; for one thread at a time.

    Args:
        context: Forks.
        links: What connects worker 0 with the parent.
        payload: The user's objects.
        worker_main: What a worker runs.

    Attributes:
        patience: How often the launcher may be found asleep, and at nothing, before it is stuck.
    """

    def __init__(
        self,
        context: BaseContext,
        links: Links,
        payload: Payload,
        worker_main: WorkerMain,
    ) -> None:
        self._context = context
        self._arguments = (links, payload, worker_main)
        self._stacks = StackFile(links.stacks.fd)
        self._process: BaseProcess | None = None
        self._pidfd = -1
        self._requests: socket.socket | None = None
        self._quit: util.Finalize | None = None
        self.patience = PATIENCE

    def start_all(self, links: Sequence[Links]) -> list[LaunchedWorker]:
        """Have workers forked, one after the other.

        Raises:
            LauncherLostError: The launcher is gone, or was stuck; another call forks another one.
            LoaderError: The system does not give another process.
        """
        if self._requests is None or wait_for([self._pidfd], 0):
            # At first; and again if the launcher was killed. Forking now is as it would be
            # without one.
            self.discard()
            self._fork()
        assert self._requests is not None
        started: list[LaunchedWorker] = []
        asked = 0
        try:
            for each in links:
                while asked < min(len(links), len(started) + _AHEAD):
                    self._ask(links[asked])
                    asked += 1
                started.append(self._started(each.worker))
        except LauncherLostError as lost:
            lost.started = started
            raise
        except OSError as error:
            raise self._lost(error, started) from None
        except BaseException:
            # End the launcher, and with it the workers that have started.
            self.close()
            for process in started:
                process.close()
            raise
        return started

    def _ask(self, links: Links) -> None:
        """Ask for a worker; its own pipe goes along, which the launcher cannot know of."""
        assert self._requests is not None
        request = REQUEST.pack(START, links.worker, links.token, links.num_workers)
        pipe = struct.pack("i", links.control.fd)
        self._requests.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, pipe)])

    def _started(self, worker: int) -> LaunchedWorker:
        """Wait until a worker has been forked."""
        assert self._requests is not None
        self._await_answer()
        data, fds, _, _ = socket.recv_fds(
            self._requests, STARTED.size, 1, flags=socket.MSG_DONTWAIT
        )
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "the connection was closed")
        pid, error = STARTED.unpack(data)
        if error or not fds:
            # No pidfd: the kernel drops one that there is no room for here.
            reason = os.strerror(error or errno.EMFILE)
            raise LoaderError(
                f"DataLoader worker {worker} cannot be started ({reason}): raise the limits "
                "(ulimit -n, ulimit -u), see that memory is left, or use fewer workers"
            )
        assert self._process is not None
        return LaunchedWorker(self, worker, pid, fds[0], self._process.pid or 0)

    def _await_answer(self) -> None:
        """Wait until the launcher says something, or has ended.

        Raises:
            LauncherLostError: It does not get on; it has been ended.
        """
        assert self._process is not None and self._requests is not None
        watchdog = Watchdog(self._process.pid or 0, patience=self.patience)
        while not wait_for([self._requests, self._pidfd], LOOK_SECONDS):
            if watchdog.stuck():
                pid = self._process.pid
                self._stacks.take()
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, DUMP_SIGNAL)
                wait_for([self._pidfd], _ENDING)
                self.discard()
                stack = self._stacks.take()
                raise LauncherLostError(
                    f"the process that starts workers (pid {pid}) got stuck, most likely at a lock "
                    "that another thread of this process held while it was forked"
                    + (f"; its stacks:\n{stack}" if stack else "")
                )

    def _lost(self, error: OSError, started: Sequence[LaunchedWorker] = ()) -> LauncherLostError:
        """Let go of a launcher that has died, and say of what."""
        process = self._process
        assert process is not None
        pid = process.pid
        wait_for([self._pidfd], _ENDING)
        process.join(0)
        code = process.exitcode
        self.discard()
        how = "is gone" if code is None else f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        return LauncherLostError(
            f"the process that starts workers (pid {pid}) {how} ({error})", started
        )

    def _fork(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        origin = Origin(os.getpid(), ours, gc.isenabled(), threading.active_count() > 1)
        self._process = self._context.Process(  # type: ignore[attr-defined]
            target=launcher_main,
            args=(origin, theirs, *self._arguments),
            name="lit_loader launcher",
            daemon=True,
        )
        try:
            with theirs, quiet_start(self._context), _no_collection():
                self._process.start()
            self._pidfd = os.pidfd_open(self._process.pid or 0)
        except ProcessLookupError:
            ours.close()
            self._process = None
            raise LauncherLostError("the process that starts workers ended at once") from None
        except BaseException:
            ours.close()
            raise
        self._requests = ours
        # A process made by multiprocessing ends without atexit: it sends SIGTERM to its children,
        # which the launcher ignores, and waits for them. Before that it runs finalizers of its own.
        self._quit = util.Finalize(self, _ask_to_quit, (ours,), exitpriority=0)
        try:
            self._await_answer()
            if ours.recv(len(READY), socket.MSG_DONTWAIT) != READY:
                raise ConnectionResetError(errno.ECONNRESET, "it ended before it was ready")
        except OSError as error:
            raise self._lost(error) from None
        except BaseException:
            self.discard()
            raise

    def reap(self, worker: int) -> tuple[int | None, int]:
        """Learn how the last process of a worker that has ended did so.

        Returns:
            Exit code as in ``multiprocessing.Process.exitcode``, and bytes resident at most; None
            and 0 if the launcher that could know has died.
        """
        if self._requests is None:
            return None, 0
        try:
            self._requests.send(REQUEST.pack(REAP, worker, 0, 0))
            self._await_answer()
            exitcode, peak = REAPED.unpack(self._requests.recv(REAPED.size, socket.MSG_DONTWAIT))
        except (OSError, struct.error, LauncherLostError):
            return None, 0
        return exitcode, peak

    def discard(self) -> None:
        """Kill the launcher; the workers that it has started live on."""
        if self._process is not None and self._process.pid is not None:
            self._process.kill()
        self.close()

    def close(self) -> None:
        """End the launcher, which kills what is left of its workers."""
        process, self._process = self._process, None
        requests, self._requests = self._requests, None
        pidfd, self._pidfd = self._pidfd, -1
        if requests is not None:
            assert self._quit is not None
            self._quit()
            requests.close()
        if process is not None and process.pid is not None:
            if not wait_for([process.sentinel if pidfd < 0 else pidfd], _ENDING):
                process.kill()
            reap_and_close(process)
        if pidfd >= 0:
            os.close(pidfd)


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
        requests.send(REQUEST.pack(QUIT, 0, 0, 0))
