"""Reads in the background: threads for plain functions, one event loop for coroutines.

::

    start ─▶ plain function   ─▶ one of the threads                     ─╮
       ╰───▶ async def        ─▶ the process's event loop, in one thread ─┴─▶ Future ─▶ outcome

Threads begin with the first read, and keep no process from ending. A fork's copies of them do
nothing: the child reads by itself what it has not got.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any, Final

from lit_loader.context import in_read

__all__ = ["Background", "Call", "read_now"]

CROWD: Final = 4
"""Times the reads at a time that there may be threads: some may hang in what nobody waits for."""

Call = Callable[..., Any]
_Job = tuple[Future[Any], Call, tuple[Any, ...]]

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


class Background:
    """Daemon threads, as many as there is work for. An executor's are waited for at exit.

    ``reads`` are to be under way at a time.
    """

    def __init__(self, reads: int) -> None:
        self._pid = os.getpid()
        self._most = CROWD * reads
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._idle = self._count = 0
        self._ended = False

    def start(self, future: Future[Any], read: Call, arguments: tuple[Any, ...]) -> None:
        """Begin a read, for what its future is to give."""
        if inspect.iscoroutinefunction(read):
            task = asyncio.run_coroutine_threadsafe(_await(future, read, arguments), _loop())
            future.add_done_callback(lambda done: done.cancelled() and task.cancel())
            return
        with self._changed:
            self._jobs.append((future, read, arguments))
            if self._idle >= len(self._jobs):
                self._changed.notify()
            elif self._count < self._most:
                try:
                    threading.Thread(target=self._run, name="lit_loader read", daemon=True).start()
                except RuntimeError:
                    return  # no more can be started: who waits for the read does it himself
                self._count += 1

    def outcome(self, future: Future[Any], read: Call, arguments: tuple[Any, ...]) -> Any:
        """Wait for a read, and give what it gives; what no thread has begun with is done here."""
        if not future.done():
            in_loop = inspect.iscoroutinefunction(read)
            if self._pid != os.getpid() or (not in_loop and future.cancel()):
                return read_now(read, arguments)
        return future.result()

    def end(self) -> None:
        """End the threads, as far as they do not read."""
        self._ended = True
        with self._changed:  # whose lock may be had again, by the garbage collector in start()
            self._changed.notify_all()

    def _run(self) -> None:
        in_read.set(True)
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._jobs or self._ended)
                self._idle -= 1
                if self._ended:
                    return
                job = self._jobs.popleft()
            _read(*job)
            del job  # with what it has read


def _read(future: Future[Any], read: Call, arguments: tuple[Any, ...]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(read(*arguments))
        except BaseException as error:
            future.set_exception(error)
            del future  # its exception's traceback holds this frame


async def _await(
    future: Future[Any], read: Call, arguments: tuple[Any, ...], options: Mapping[str, Any] = _NONE
) -> None:
    in_read.set(True)
    failed: BaseException | None = None
    value = None
    try:
        value = await read(*arguments, **options)
    except (SystemExit, KeyboardInterrupt) as error:  # they would end the loop
        failed = RuntimeError(f"{read.__qualname__} raised {error!r}")
        failed.__cause__ = error
    except BaseException as error:
        failed = error
    if future.set_running_or_notify_cancel():  # not before, so that it can be cancelled
        future.set_result(value) if failed is None else future.set_exception(failed)
    del future, failed  # its traceback holds this frame


_loops: Final[dict[int, asyncio.AbstractEventLoop]] = {}
"""The event loop of a process, by its id."""

_making: Final = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    """The process's event loop, one for all: a client that was made in it is of use in it alone."""
    pid = os.getpid()
    if pid not in _loops:
        with _making:
            if pid not in _loops:
                loop = asyncio.new_event_loop()
                threading.Thread(
                    target=loop.run_forever, name="event loop of reads_ahead", daemon=True
                ).start()
                _loops[pid] = loop
    return _loops[pid]


def read_now(read: Call, arguments: tuple[Any, ...], options: Mapping[str, Any] = _NONE) -> Any:
    """Read, and wait for it."""
    if inspect.iscoroutinefunction(read):
        future: Future[Any] = Future()
        asyncio.run_coroutine_threadsafe(_await(future, read, arguments, options), _loop())
        return future.result()
    token = in_read.set(True)
    try:
        return read(*arguments, **options)
    finally:
        in_read.reset(token)
