"""The launcher's own process: it holds the dataset, and forks a worker whenever it is asked to.

::

    forked ─▶ rehearse ─▶ READY ─▶ wait ─Start─▶ fork ─▶ pidfd to the parent ─▶ "go" to the worker
                                    ▲ ◀──────────────────────────────────────────┘

- It does one thing at a time: it waits for a request, or for its parent's death.
- Before it says that it is ready, it does once what every worker does first. If the fork has copied
  a lock that another thread held, it is stuck there, where its parent notices, and not its workers.
- A worker does nothing until its parent knows of it: one whose launcher is killed in between ends.
- It keeps an ended worker's exit status until asked, so that a pidfd never means another process.
- It ignores SIGTERM as well: where it is sent to all processes to end a job, the parent ends, and
  that ends the launcher.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import multiprocessing
import os
import select
import signal
import socket
import struct
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from lit_loader.batch.batch_spec import BatchSpec
from lit_loader.seeding.find_generators import find_generators
from lit_loader.seeding.seeds import seed_worker
from lit_loader.system.child_processes import reap
from lit_loader.system.parent_death import ends_with_starter
from lit_loader.system.stack_dumps import write_stacks_to
from lit_loader.worker.payload import Links, Payload
from lit_loader.worker.process_start import reset_signals

__all__ = [
    "QUIT",
    "READY",
    "REAP",
    "REAPED",
    "REQUEST",
    "START",
    "STARTED",
    "Origin",
    "WorkerMain",
    "launcher_main",
    "rehearse",
]

REQUEST: Final = struct.Struct("=cHIH")  # kind, worker, token, number of workers
STARTED: Final = struct.Struct("=qi")  # process id, errno
REAPED: Final = struct.Struct("=iq")  # exit code, peak resident bytes
READY: Final = b"!"
START: Final = b"s"
REAP: Final = b"r"
QUIT: Final = b"q"

WorkerMain = Callable[[Links, Payload], None]


class Origin(NamedTuple):
    """The parent's state when it forked the launcher.

    Attributes:
        pid: Its process id.
        requests: Its end of the socket.
        collecting: Whether its garbage collector was on.
        threads: Whether it had several threads.
    """

    pid: int
    requests: socket.socket
    collecting: bool
    threads: bool


def launcher_main(
    origin: Origin,
    theirs: socket.socket,
    links: Links,
    payload: Payload,
    worker_main: WorkerMain,
) -> None:
    """Serve requests until one says to quit, or until the parent is gone."""
    origin.requests.close()
    reset_signals()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    write_stacks_to(links.stacks.fd)
    # What is the parent's stays the parent's: the workers' garbage collectors neither touch (and so
    # copy) the pages of its objects nor finalise its garbage.
    gc.freeze()
    if origin.collecting:
        gc.enable()
    try:
        watch = os.pidfd_open(origin.pid)
    except ProcessLookupError:
        os._exit(1)
    # A daemon may have no children; this process is one only so that its parent need not join it.
    multiprocessing.current_process().daemon = False
    with ends_with_starter(origin.pid):  # who waits for this to be ready
        rehearse(payload.open(), origin.threads)
    with contextlib.suppress(ConnectionError):  # the parent has closed its end
        theirs.send(READY)
    processes: dict[int, BaseProcess] = {}
    poll = select.poll()
    poll.register(theirs, select.POLLIN)
    poll.register(watch, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if theirs.fileno() not in ready:
            break  # the parent has died
        try:
            request, fds, _, _ = socket.recv_fds(theirs, REQUEST.size, 1)
            if not request:
                break
            kind, worker, token, num_workers = REQUEST.unpack(request)
            if kind == START:
                if not fds:  # the kernel drops one that there is no room for here
                    theirs.send(STARTED.pack(0, errno.EMFILE))
                    continue
                own = links.of(worker, num_workers, token, fds[0])
                started = _fork_worker(theirs, watch, worker_main, own, payload)
                os.close(fds[0])
                if started is not None:
                    processes[worker] = started
            elif kind == REAP:
                # A worker of a launcher before this one is none of its children.
                process = processes.pop(worker, None)
                theirs.send(b"" if process is None else REAPED.pack(*_reap(process)))
            else:
                break
        except ConnectionError:
            break  # the parent has left answers unread: Ctrl-C while its workers were started
    for process in processes.values():
        process.kill()
    os._exit(0)


def rehearse(spec: BatchSpec, threads: bool) -> None:
    """Take every lock of the loader's own need that a thread of the parent may have held.

    Args:
        spec: What the workers make.
        threads: Whether the parent had several: one alone was at nothing but the fork.
    """
    # What cannot be seeded or drawn from here cannot be in a worker either, which will say so.
    with contextlib.suppress(Exception):
        seed_worker(0)
    if threads:
        for generator in find_generators(spec.dataset, spec.collate_fn).generators:
            with contextlib.suppress(Exception):
                _take_lock(generator)


def _take_lock(generator: Any) -> None:
    """Take a generator's lock, and draw nothing: with ``seeding="worker"`` its place counts."""
    if isinstance(generator, torch.Generator):
        generator.get_state()
    elif isinstance(generator, np.random.RandomState):
        generator.random_sample(0)
    elif isinstance(generator, np.random.BitGenerator):
        generator.random_raw(0)


def _fork_worker(
    theirs: socket.socket, watch: int, worker_main: WorkerMain, links: Links, payload: Payload
) -> BaseProcess | None:
    try:
        waiting, going = os.pipe()
    except OSError as error:
        theirs.send(STARTED.pack(0, error.errno or errno.EMFILE))
        return None
    process: Any = multiprocessing.get_context("fork").Process(
        target=_run_worker,
        args=(theirs, watch, (waiting, going), worker_main, links, payload),
        name=f"lit_loader worker {links.worker}",
        daemon=True,
    )
    try:
        try:
            process.start()
            pidfd = os.pidfd_open(process.pid)
        except OSError as error:
            theirs.send(STARTED.pack(0, error.errno or errno.EAGAIN))
            return None if process.pid is None else process
        try:
            socket.send_fds(theirs, [STARTED.pack(process.pid, 0)], [pidfd])
        finally:
            os.close(pidfd)
        with contextlib.suppress(BrokenPipeError):  # it has been killed already
            os.write(going, READY)
        return process  # type: ignore[no-any-return]
    finally:
        os.close(waiting)
        os.close(going)


def _reap(process: BaseProcess) -> tuple[int, int]:
    """Let go of a child that has ended; returns its exit code and peak memory."""
    peak = 0
    # Starting another process may have reaped it, and then has kept its exit code.
    with contextlib.suppress(ChildProcessError):
        _, status, usage = os.wait4(process.pid or 0, 0)
        peak = usage.ru_maxrss * 1024
        # Private reach: join() would wait for the same child once more, and knows no memory.
        process._popen.returncode = os.waitstatus_to_exitcode(status)  # type: ignore[attr-defined]
    reap(process)
    exitcode = process.exitcode or 0
    process.close()
    return exitcode, peak


def _run_worker(
    theirs: socket.socket,
    watch: int,
    permission: tuple[int, int],
    worker_main: WorkerMain,
    links: Links,
    payload: Payload,
) -> None:
    theirs.close()
    os.close(watch)
    waiting, going = permission
    os.close(going)
    # Else two processes might come to be the same worker: the parent has another one started.
    if not os.read(waiting, 1):
        os._exit(1)
    os.close(waiting)
    worker_main(links, payload)
