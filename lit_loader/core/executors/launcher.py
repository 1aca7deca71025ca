"""The launcher: a clean process that forks workers on demand; and `make_starter`.

::

    parent ══ "start", a pipe and a permit ═▶ launcher ── fork ──▶ worker
       ▲ ◀═══ its process id ══════════════════╯  ▲                 ▲ │
       │ ──── the permit: "begin" ────────────────┼─────────────────╯ │
       ╰───── pidfd: "it has ended" ──────────────┼───────────────────╯
              "fate" ═════════════════════════════╯ exit code, peak memory

A fork copies the locks that other threads hold, and nothing in the copy will ever release them. A
training process has many threads when a dead worker must be replaced in mid-epoch. So it forks
once, when the pool is made, a process with one thread that does nothing else than fork. A worker
made by it later is the same as a first one: the same dataset and module state, nothing in motion.
Before its first request it does what every worker does first: if the fork has copied a held lock,
it is stuck there, and not its workers. What is done then: `README.md`.

It costs as much as a worker. So for an epoch of a few batches workers are forked from the parent
itself, if it has no other threads, and the launcher when one has to be replaced. The new one has
what the program has changed meanwhile, and the message says so.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, Final, NoReturn

import torch

from lit_loader.core.batch.batch_spec import BatchSpec
from lit_loader.core.executors.payload import Links, Payload
from lit_loader.core.executors.process_start import (
    Permit,
    begin_fork,
    main_is_importable,
    permit,
    quiet_start,
)
from lit_loader.core.executors.starters import (
    DirectStarter,
    Starter,
    WorkerProcess,
    other_threads,
    reap,
    run_worker,
)
from lit_loader.core.seeding.held_generators import find_generators
from lit_loader.core.seeding.seeds import await_draws, seed_worker
from lit_loader.core.system import linux
from lit_loader.core.system.shared_file import Descriptor
from lit_loader.core.system.signals import reset_signals
from lit_loader.core.system.stack_dumps import DUMP_SIGNAL, StackFile, write_stacks_to
from lit_loader.errors import LoaderError

FEW_BATCHES: Final = 32
"""Batches of an epoch up to which no launcher is forked ahead; with more it costs little."""

_HARMLESS: Final = frozenset(
    ("rich.live", "tensorboard.summary.writer.event_file_writer", "tqdm._monitor")
)
"""Modules whose threads show how a program gets on, and hold no lock that a worker needs."""

ATTEMPTS: Final = 3
"""Forks in a row of which nothing comes, before it is an error."""

DEADLINE: Final = 20.0
"""Seconds that a launcher has to answer; it takes milliseconds. One that waits for a lock never
does."""

_ENDING: Final = 1.0
"""Seconds that a launcher has to end by itself, or to write its stacks."""

_UNDISTURBED: Final = 0.05
"""Seconds that other threads leave to this one between the end of their draws and the fork."""

_TURNS: Final = 3
"""Threads that are at Python code, and are given their turn before."""

_STUCK: Final = 120
"""Seconds after which the kernel ends a launcher that is not ready: its parent may be gone."""

_LONGEST: Final = 1 << 16
"""Bytes of a message."""

_forking: Final = threading.RLock()
"""Held while a launcher is forked: filelock, which many programs import, refuses two at a time."""


def make_starter(context: BaseContext, links: Links, spec: BatchSpec, brief: bool) -> Starter:
    """Choose where workers come from: on Linux, if they are to be forked, from a launcher.

    ``brief``: they are all started at once, and make no more than :data:`FEW_BATCHES` batches.
    """
    direct = DirectStarter(context, Payload(spec))
    if not direct.forks or not _has_pidfds():
        return direct
    others = {*threading.enumerate()} - {threading.current_thread()}
    alone = all(type(thread).__module__ in _HARMLESS for thread in others)
    return Launcher(context, links, direct.payload, direct if brief and alone else None)


def other_starter(before: Starter, context: BaseContext, links: Links) -> Starter | None:
    """Choose where workers come from, if those of the starter ``before`` hang; None: nowhere else.

    First from a new launcher, a fork of this process as it is now; then from Python's fork server,
    if the program did not ask for forks, does not run again by itself, and the dataset can be
    pickled: what it has set in modules is not there.
    """
    payload = before.payload
    if not before.forks:
        return None
    if isinstance(before, Launcher) and not before.again:
        starter: Starter = Launcher(context, links, payload)
        starter.again = True
    elif payload.spec.start_method_chosen or not _can_be_imported_again():
        return None
    else:
        try:
            payload.prepare()
        except LoaderError:
            return None
        starter = DirectStarter(multiprocessing.get_context("forkserver"), payload)
    starter.notices = before.notices
    return starter


def _can_be_imported_again() -> bool:
    """Whether a fork server may import ``__main__``: a script says then what it is to do."""
    if not main_is_importable():
        return True  # it is not tried
    try:
        path = getattr(sys.modules["__main__"], "__file__", None)
        return path is None or "__name__" in Path(path).read_text(errors="replace")
    except OSError:
        return False


def _has_pidfds() -> bool:
    try:
        os.close(linux.open_process(os.getpid()))
    except OSError:
        return False
    return True


class _Lost(Exception):
    pass


class LaunchedWorker(WorkerProcess):
    """A worker that the launcher has forked, as the parent sees it."""

    def __init__(self, launcher: Launcher, pid: int) -> None:
        super().__init__(pid, linux.open_process(pid))
        self._launcher = launcher
        self._fate: tuple[int | None, int] | None = None

    def _ended(self) -> tuple[int | None, int]:
        # Asked for only where it is of use: no loader waits for it when it is closed.
        if self._fate is None:
            if self.is_alive():
                return None, 0
            self._fate = self._launcher.fate(self.pid)
        return self._fate


class Launcher(Starter):
    """Starts the launcher (its process id: ``pid``; 0: none) and asks it for workers.

    The first ones come from ``direct``, if there is such. For one thread at a time.
    """

    def __init__(
        self, context: BaseContext, links: Links, payload: Payload, direct: Any = None
    ) -> None:
        super().__init__(payload)
        self._direct: DirectStarter | None = direct
        self.late = direct is not None
        self._context = context
        self._links = links
        self._stacks = StackFile(links.stacks.fd)
        self._requests: socket.socket | None = None
        self._pidfd = -1
        self.pid = 0

    def _start(self, links: Links, started: list[WorkerProcess]) -> None:
        """Have a worker forked, by another launcher if need be."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                if self._direct is not None:
                    self._direct._start(links, started)
                    if len(started) == links.num_workers:
                        self._direct = None
                    return
                if self._requests is None or wait_for([self._pidfd], 0):
                    # At first; and if it was killed. That is as it would be without one.
                    self._discard()
                    self._fork()
                with permit() as given:  # of which the launcher has no copy
                    request = links.worker, links.num_workers, links.token
                    pid, error = self._ask(request, [links.control.fd, given.waiting.fd])
                    if error:
                        raise OSError(error, os.strerror(error))
                    started.append(LaunchedWorker(self, pid))
                return
            except _Lost as lost:
                if attempt == ATTEMPTS:
                    raise LoaderError(
                        f"workers cannot be forked, for the {ATTEMPTS}rd time in a row: start the "
                        "loader before threads that hold locks, or set "
                        f"multiprocessing_context='forkserver' [LL016]; {lost}"
                    ) from None
                self.notices.append(f"{lost}\nAnother one was forked, and nothing is lost.")
            except OSError as why:
                raise LoaderError(
                    f"Worker {links.worker} cannot be started ({why.strerror}): "
                    "raise the limits (ulimit -n, ulimit -u), see that memory is left, or use "
                    "fewer workers [LL017]"
                ) from why

    def _ask(self, request: object, fds: Sequence[int] = ()) -> Any:
        """Send a request, and wait for the answer; _Lost: there is none, and no launcher."""
        assert self._requests is not None
        try:
            socket.send_fds(self._requests, [pickle.dumps(request)], fds)
            if not wait_for([self._requests, self._pidfd], DEADLINE):
                raise _Lost(self._stuck())
            answer = self._requests.recv(_LONGEST, socket.MSG_DONTWAIT)
            if not answer:
                raise ConnectionResetError(errno.ECONNRESET, "the connection was closed")
        except OSError as error:
            raise _Lost(self._dead(error)) from None
        except BaseException:  # an answer that is not waited for would be the next one's
            self._discard()
            raise
        return pickle.loads(answer)

    def _stuck(self) -> str:
        """Have a launcher that does not get on write its stacks; returns what is to be told."""
        self._stacks.take()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, DUMP_SIGNAL)
        wait_for([self._pidfd], _ENDING)
        stack = self._stacks.take()
        return (
            f"the process that starts workers (pid {self.pid}) got stuck, most likely at a lock "
            "that another thread of this process held while it was forked"
            + (f"; its stacks:\n{stack}" if stack else "")
        )

    def _dead(self, error: OSError) -> str:
        """Let go of a launcher that has died; returns what it has died of."""
        wait_for([self._pidfd], _ENDING)
        pid, code = self.pid, self._discard()
        how = "is gone" if code is None else f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        return f"the process that starts workers (pid {pid}) {how} ({error})"

    def _fork(self) -> None:
        """Fork the launcher; its first answer says that it is ready."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent, threads = os.getpid(), threading.active_count() > 1
        interval = sys.getswitchinterval()
        try:
            sys.setswitchinterval(max(interval, _UNDISTURBED))
            with theirs, quiet_start(self._context) as self._collects, _forking:
                # A thread that waits for its turn by now asks soon for the lock of torch's
                # generator, which is waited for; one that comes later does not. Nothing comes
                # between this and the fork.
                for _ in range(_TURNS if threads else 0):
                    time.sleep(0)
                await_draws()
                self.beside = other_threads()
                pid = os.fork()
                if pid == 0:
                    _forking.release()
                    sys.setswitchinterval(interval)
                    ours.close()
                    self._serve(theirs, parent, threads)
            self._requests, self.pid, self._pidfd = ours, pid, linux.open_process(pid)
        except BaseException:
            ours.close()
            raise
        finally:
            sys.setswitchinterval(interval)

    def fate(self, pid: int) -> tuple[int | None, int]:
        """Learn the exit code and the peak memory of a worker that has ended; None, 0: unknown."""
        if self._requests is None:
            return None, 0
        try:
            return self._ask(pid)  # type: ignore[no-any-return]
        except _Lost:
            return None, 0

    def _discard(self) -> int | None:
        """Kill the launcher; the workers that it has started live on. Returns its exit code."""
        requests, self._requests = self._requests, None
        pidfd, self._pidfd = self._pidfd, -1
        code = None
        if requests is None:
            return None
        try:
            requests.close()
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            wait_for([pidfd], _ENDING)
            with contextlib.suppress(ChildProcessError):  # other code has waited for it
                found, status = os.waitpid(self.pid, os.WNOHANG)
                code = os.waitstatus_to_exitcode(status) if found else None
        finally:  # a signal's handler may raise while it is waited for
            os.close(pidfd)
            self.pid = 0
        return code

    def close(self) -> None:
        """End the launcher, which kills what is left of its workers."""
        if self._requests is not None:
            with contextlib.suppress(OSError):  # processes forked meanwhile have this end, too
                self._requests.shutdown(socket.SHUT_RDWR)
            wait_for([self._pidfd], _ENDING)
        self._discard()

    def _serve(self, requests: socket.socket, parent: int, threads: bool) -> NoReturn:
        try:
            begin_fork(self._collects)
            reset_signals()
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_STUCK)
            write_stacks_to(self._links.stacks.fd)
            # This process may have children, whatever the parent was.
            multiprocessing.current_process().daemon = False
            rehearse(self.payload.open(), threads)
            signal.alarm(0)
            reset_signals()  # SIGALRM's, too
            _Server(requests, linux.open_process(parent), self._links, self.payload).run()
        except (ConnectionError, ProcessLookupError):
            pass  # the parent has closed its end, or is gone
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)


def rehearse(spec: BatchSpec, threads: bool) -> None:
    """Take every lock of the loader's own need that a thread of the parent may have held.

    A parent that had no other ``threads`` was at nothing but the fork.
    """
    torch.set_num_threads(1)
    # What cannot be seeded or drawn from here cannot be in a worker either, which will say so.
    with contextlib.suppress(Exception):
        seed_worker(0)
    if threads:
        generator: Any
        for _, generator in find_generators(spec.dataset, spec.collate_fn).generators:
            # Nothing is drawn: with ``seeding="worker"`` its place counts.
            with contextlib.suppress(Exception):
                if isinstance(generator, torch.Generator):
                    generator.get_state()
                else:  # NumPy's; others have no lock
                    (getattr(generator, "random_raw", None) or generator.random_sample)(0)


class _Server:
    def __init__(self, requests: socket.socket, watch: int, links: Links, payload: Payload) -> None:
        self._requests = requests
        self._watch = watch
        self._links = links
        self._payload = payload
        self._workers: dict[int, Any] = {}

    def run(self) -> None:
        """Serve until there are no more requests, or until the parent is gone."""
        poll = select.poll()
        for fd in (self._requests.fileno(), self._watch):
            poll.register(fd, select.POLLIN)
        try:
            while self._watch not in {fd for fd, _ in poll.poll()}:
                request, fds, _, _ = socket.recv_fds(self._requests, _LONGEST, 2)
                if not request:
                    break
                what = pickle.loads(request)
                answer = self._fate(what) if isinstance(what, int) else self._start(fds, *what)
                for fd in fds:
                    os.close(fd)
                self._requests.send(pickle.dumps(answer))
        finally:
            for worker in self._workers.values():
                worker.kill()
            for worker in self._workers.values():
                reap(worker)

    def _start(
        self, fds: Sequence[int], worker: int, num_workers: int, token: int
    ) -> tuple[int, int]:
        """Fork a worker; returns its process id, or 0 and why there is none."""
        if len(fds) < 2:
            return 0, errno.EMFILE  # the kernel drops those that there is no room for here
        links = self._links.of(worker, num_workers, token, fds[0])
        process: Any = multiprocessing.get_context("fork").Process(
            target=self._work,
            args=(Permit(Descriptor(fds[1])), links),
            name=f"lit_loader worker {worker}",
            daemon=True,
        )
        try:
            process.start()
        except OSError as error:
            return 0, error.errno or errno.EAGAIN
        self._workers[process.pid] = process
        return process.pid, 0

    def _work(self, given: Permit, links: Links) -> None:
        self._requests.close()
        os.close(self._watch)
        run_worker(given, links, self._payload)

    def _fate(self, pid: int) -> tuple[int | None, int]:
        """Let go of a child that has ended; returns its exit code and peak memory."""
        process = self._workers.pop(pid, None)
        if process is None:
            return None, 0  # a worker of a launcher before this one
        peak = reap(process)
        return process.exitcode, peak
