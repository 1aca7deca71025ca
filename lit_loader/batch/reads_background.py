"""Reads in the background: threads for plain functions, one event loop for coroutines.

::

    start ─▶ plain function   ─▶ one of the threads                     ─╮
       ╰───▶ async def        ─▶ the process's event loop, in one thread ─┴─▶ Future ─▶ outcome

Threads begin with the first read, end with their `Background`, and keep no process from ending. A
fork's copies of them do nothing: the child reads by itself what it has not got.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from lit_loader.context import in_read

__all__ = ["Background", "Call", "read_now"]

CROWD: Final = 4
"""Times the reads at a time that there may be threads: some may hang in what nobody waits for."""

Call = Callable[..., Any]

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


class Background:
    """Reads that go on beside the thread that asks for them.

    Args:
        reads: How many are to be under way at a time.
    """

    def __init__(self, reads: int) -> None:
        self._pid = os.getpid()
        self._threads = threads = _Threads(CROWD * reads)
        self.end = threads.end  # as far as they do not read
        weakref.finalize(self, threads.end)

    def start(self, read: Call, arguments: tuple[Any, ...]) -> Future[Any]:
        """Begin a read; a thread does not notice that it is cancelled."""
        if inspect.iscoroutinefunction(read):
            return asyncio.run_coroutine_threadsafe(_awaited(read, arguments), _loop())
        future: Future[Any] = Future()
        self._threads.submit(partial(_run, future, read, arguments))
        return future

    def outcome(self, future: Future[Any], read: Call, arguments: tuple[Any, ...]) -> Any:
        """Wait for a read, and give what it gives; what no thread has begun with is done here."""
        here = self._pid == os.getpid()
        if not future.done():
            in_loop = inspect.iscoroutinefunction(read)
            if not here or (not in_loop and future.cancel()):
                return read_now(read, arguments)
        return future.result()


class _Threads:
    """Daemon threads, as many as there is work for. An executor's are waited for at exit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._jobs: deque[Callable[[], None]] = deque()
        self._idle = self._count = 0
        self._ended = False

    def submit(self, job: Callable[[], None]) -> None:
        with self._changed:
            self._jobs.append(job)
            if self._idle >= len(self._jobs):
                self._changed.notify()
            elif self._count < self._most:
                try:
                    threading.Thread(target=self._run, name="lit_loader read", daemon=True).start()
                except RuntimeError:
                    return  # no more can be started: who waits for the read does it himself
                self._count += 1

    def end(self) -> None:
        self._ended = True
        with self._changed:  # whose lock may be had again, by the garbage collector in submit()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._jobs or self._ended)
                self._idle -= 1
                if self._ended:
                    return
                job = self._jobs.popleft()
            job()
            del job  # with what it has read


def _run(future: Future[Any], read: Call, arguments: tuple[Any, ...]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    in_read.set(True)
    try:
        value = read(*arguments)
    except BaseException as error:
        future.set_exception(error)
        del future  # its exception's traceback holds this frame
    else:
        future.set_result(value)


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
        coroutine = _awaited(read, arguments, options)
        return asyncio.run_coroutine_threadsafe(coroutine, _loop()).result()
    token = in_read.set(True)
    try:
        return read(*arguments, **options)
    finally:
        in_read.reset(token)


async def _awaited(
    read: Callable[..., Coroutine[Any, Any, Any]],
    arguments: tuple[Any, ...],
    options: Mapping[str, Any] = _NONE,
) -> Any:
    in_read.set(True)
    try:
        return await read(*arguments, **options)
    except (SystemExit, KeyboardInterrupt) as error:  # they would end the loop
        raise RuntimeError(f"{read.__qualname__} raised {error!r}") from error
