"""Starting worker processes, and ending them for certain."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing import reduction
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Final

from lit_loader.errors import TransportError
from lit_loader.fork_guard import unguarded_fork
from lit_loader.handover import Links, Payload
from lit_loader.loading import Recipe
from lit_loader.places import find_failure, short_repr
from lit_loader.worker import worker_main

__all__ = ["STOP_GRACE", "TERMINATE_GRACE", "end_processes", "start_worker"]

STOP_GRACE: Final = 2.0
"""Seconds that a worker has to finish the sample it is in, before it is terminated."""

TERMINATE_GRACE: Final = 1.0
"""Seconds that a terminated worker has before it is killed."""

_USERS: Final = ("dataset", "collate_fn", "worker_init_fn", "reseed_fn")
"""The parts of a recipe that come from the user, and so may be such as cannot be pickled."""


def start_worker(context: BaseContext, links: Links, recipe: Recipe) -> BaseProcess:
    """Start one worker.

    Raises:
        TransportError: Something of the user's cannot be pickled, which every start method but
            "fork" needs; names the option and the place in it.
    """
    process: BaseProcess = context.Process(  # type: ignore[attr-defined]
        target=worker_main,
        args=(links, Payload(recipe)),
        name=f"lit_loader worker {links.worker}",
        daemon=True,
    )
    try:
        with unguarded_fork(), _quiet_start(context):
            process.start()
    except Exception as error:
        raise _explained(error, recipe, context) from error
    return process


def _explained(error: Exception, recipe: Recipe, context: BaseContext) -> Exception:
    """Name what cannot be pickled, if that is why a start has failed."""
    for name in _USERS:
        value = getattr(recipe, name)
        try:
            _try_to_pickle(value)
        except Exception as refusal:
            place = find_failure(value, refusal, _try_to_pickle, name)
            return TransportError(
                f"{place.path}: {short_repr(place.value)} cannot be pickled, as the start method "
                f"{context.get_start_method()!r} needs ({type(place.error).__name__}: "
                f"{place.error}); define it at the top level of a module, or use "
                "multiprocessing_context='fork'"
            )
    return error


def _try_to_pickle(value: object) -> None:
    try:
        reduction.ForkingPickler.dumps(value)
    except RuntimeError as error:
        # Locks, queues and the like can be pickled at a process's start, and only then.
        if "inheritance" not in str(error):
            raise


def end_processes(processes: Sequence[BaseProcess], results: int) -> None:
    """Wait for processes that have been told to stop; end by growing force those that do not.

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
    for process in processes:
        process.join()
        process.close()


def _join(processes: list[BaseProcess], timeout: float | None, results: int) -> None:
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


@contextlib.contextmanager
def _quiet_start(context: BaseContext) -> Iterator[None]:
    """Start a process with signals held back until it has reset its handlers.

    Without, a Ctrl-C in that moment would run the parent's handler in the worker. Helper processes
    of multiprocessing are started beforehand, or they would keep the signals blocked for good.
    """
    method = context.get_start_method()
    if method == "forkserver":
        from multiprocessing import forkserver

        forkserver.ensure_running()
    if method != "fork":
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of any fork while threads live, and torch always has some. What
            # could go wrong in the child is locks held by them; the worker takes none of those.
            warnings.filterwarnings(
                "ignore", message=".*multi-threaded.*fork", category=DeprecationWarning
            )
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
